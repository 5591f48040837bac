//! What a stranger puts beside an image is not acted on: whoever may write to a folder may not thereby write to its images.

use std::fs;
use std::os::unix::fs::{chown, symlink, FileExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use afterimage_block::{Blocking, FlushKind, Sector};
use afterimage_format::log::{LogHeader, STATE_CLEAN};
use afterimage_format::reference::Reference;
use afterimage_order::offline::{self, RecoverOptions};
use afterimage_order::{Contract, Group, GroupOptions, OpenError};
use afterimage_store::{create_image, mark_of, DirectMode, Image as _, ImageStore, LogError, OpenOptions};
use afterimage_testing::{is_root, skip};

const WINDOW: Contract = Contract::PowerWindow { window: Duration::from_millis(50) };
const CONTRACTS: [Contract; 3] = [WINDOW, Contract::Power, Contract::GuestCrash];
/// Debian's `nobody`, and another one who is neither that nor us.
const NOBODY: u32 = 65534;
const OTHER: u32 = 1234;

fn image(path: &Path, read_only: bool) -> Arc<ImageStore> {
    let options =
        OpenOptions { read_only, direct: DirectMode::Off, any_content: true, ..OpenOptions::new(path) };
    ImageStore::open(&options).expect("an image")
}

fn open(path: &Path, contract: Contract) -> Result<Arc<Group>, OpenError> {
    let options = GroupOptions { log_max_bytes: GroupOptions::LOG_MIN_BYTES, ..GroupOptions::new(contract) };
    Group::open(vec![image(path, false)], options)
}

struct Died {
    folder: tempfile::TempDir,
    image: PathBuf,
    log: PathBuf,
}

/// A daemon died with a write that is only in the log.
fn died() -> Died {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("disk.raw");
    create_image(&path, 1 << 20).expect("an image");
    let group = open(&path, WINDOW).expect("a group");
    let mut lane = Blocking::new(group.disks()[0].open_lane().expect("a lane"));
    lane.write(Sector(512), &[7; 4096]).expect("a write");
    lane.flush(FlushKind::Durable).expect("a flush");
    drop((lane, group));
    let log = folder.path().join("disk.raw.aflog");
    Died { folder, image: path, log }
}

/// As [`died`], but nothing on the image says that there is a log: what a forged one finds.
fn unnamed() -> Died {
    let s = died();
    image(&s.image, false).remove_mark().expect("removed");
    s
}

fn is_untouched(path: &Path) -> bool {
    fs::read(path).expect("an image").iter().all(|byte| *byte == 0)
}

fn holds_the_write(path: &Path) -> bool {
    fs::read(path).expect("an image")[512 * 512..][..4096] == [7; 4096]
}

fn change_header(log: &Path, change: impl Fn(&mut LogHeader)) {
    let bytes = fs::read(log).expect("a log");
    let slots = [&bytes[..4096], &bytes[4096..8192]];
    let mut header = slots
        .into_iter()
        .filter_map(|slot| LogHeader::parse(slot).ok())
        .max_by_key(|header| header.generation.get())
        .expect("a header");
    change(&mut header);
    header.generation = (header.generation.get() + 1).into();
    let file = fs::OpenOptions::new().write(true).open(log).expect("a log");
    file.write_all_at(&header.seal(), header.slot_offset()).expect("written");
}

const PLAIN: RecoverOptions =
    RecoverOptions { dry_run: false, accept_loss: false, trust_image: false, apply_anyway: false };

fn sentence(error: &OpenError, words: &[&str]) {
    let error = error.to_string();
    assert!(words.iter().all(|words| error.contains(words)), "{error}");
    assert!(!error.contains('\n') && error.len() < 500, "one sentence: {error}");
}

#[test]
fn a_log_that_the_image_does_not_name_is_not_replayed() {
    for contract in CONTRACTS {
        let s = unnamed();
        sentence(&open(&s.image, contract).err().expect("refused"), &["does not name", "1 request"]);
        sentence(&offline::recover(&s.image, &PLAIN).expect_err("refused"), &["does not name"]);
        let read_only = Group::open(vec![image(&s.image, true)], GroupOptions::new(contract));
        assert!(read_only.is_err(), "what may be its newest content is not left behind unseen");
        assert!(is_untouched(&s.image) && s.log.exists());
    }
}

#[test]
fn who_names_the_log_itself_means_it() {
    let s = unnamed();
    assert!(offline::check(&s.log).expect("an answer").sound);
    offline::recover(&s.log, &PLAIN).expect("a recovery");
    assert!(holds_the_write(&s.image) && !s.log.exists());
    // But something has to agree.
    let s = unnamed();
    change_header(&s.log, |header| header.witness_count = 0.into());
    sentence(&offline::recover(&s.log, &PLAIN).expect_err("refused"), &["no content", "--trust-image"]);
    assert!(is_untouched(&s.image));
    offline::recover(&s.log, &RecoverOptions { trust_image: true, ..PLAIN }).expect("confirmed");
    assert!(holds_the_write(&s.image));
}

/// A start that was cut before it had marked its image leaves an empty log.
#[test]
fn an_empty_log_that_no_image_names_is_gone_on_with() {
    for contract in CONTRACTS {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("disk.raw");
        create_image(&path, 1 << 20).expect("an image");
        drop(open(&path, WINDOW).expect("a group"));
        image(&path, false).remove_mark().expect("removed");
        open(&path, contract).expect("a group").close().expect("an end");
    }
}

#[test]
fn a_strangers_log_is_nobodys() {
    if !is_root() {
        return skip("only root can give files to others");
    }
    // Complete by itself, and served as such.
    for contract in [Contract::Power, Contract::GuestCrash] {
        let s = unnamed();
        change_header(&s.log, |header| header.witness_count = 0.into());
        chown(&s.log, Some(NOBODY), None).expect("given");
        open(&s.image, contract).expect("a group").close().expect("an end");
        assert!(is_untouched(&s.image) && s.log.exists());
    }
    // Its place is taken, and said to be.
    let s = unnamed();
    chown(&s.log, Some(NOBODY), None).expect("given");
    let refused = [&["belongs to user 65534", "remove it"][..]];
    sentence(&open(&s.image, WINDOW).err().expect("refused"), refused[0]);
    sentence(&offline::recover(&s.log, &PLAIN).expect_err("refused"), refused[0]);
    let named = GroupOptions { log_path: Some(s.log.clone()), ..GroupOptions::new(Contract::Power) };
    sentence(&Group::open(vec![image(&s.image, false)], named).err().expect("refused"), refused[0]);
    assert!(is_untouched(&s.image) && s.log.exists());
}

#[test]
fn a_log_that_the_image_names_has_to_be_ours_as_well() {
    if !is_root() {
        return skip("only root can give files to others");
    }
    for contract in CONTRACTS {
        let s = died();
        // Live, or as if the end of the real one had been cut short.
        chown(&s.log, Some(NOBODY), None).expect("given");
        sentence(&open(&s.image, contract).err().expect("refused"), &["belongs to user 65534"]);
        change_header(&s.log, |header| header.state = STATE_CLEAN.into());
        sentence(&open(&s.image, contract).err().expect("refused"), &["belongs to user 65534"]);
        let marked = mark_of(&s.image).expect("readable").is_some_and(|mark| mark.log.is_some());
        assert!(is_untouched(&s.image) && marked && s.log.exists(), "{contract}");
    }
    // The image's owner may write the image anyway.
    for uid in [NOBODY, OTHER] {
        let s = died();
        [&s.image, &s.log].into_iter().for_each(|path| chown(path, Some(uid), None).expect("given"));
        offline::recover(&s.image, &PLAIN).expect("a recovery");
        assert!(holds_the_write(&s.image));
    }
    let s = died();
    chown(&s.image, Some(OTHER), None).expect("given");
    offline::recover(&s.image, &PLAIN).expect("root's log");
    assert!(holds_the_write(&s.image));
}

/// A stranger can make a name for a file that is not his.
#[test]
fn a_link_in_a_logs_place_is_not_followed() {
    for contract in CONTRACTS {
        let s = died();
        let real = s.folder.path().join("real");
        fs::rename(&s.log, &real).expect("renamed");
        symlink(&real, &s.log).expect("a link");
        sentence(&open(&s.image, contract).err().expect("refused"), &["is a symbolic link"]);
        fs::remove_file(&s.log).expect("removed");
        fs::hard_link(&real, &s.log).expect("a link");
        sentence(&open(&s.image, contract).err().expect("refused"), &["has 2 names"]);
        fs::remove_file(&s.log).expect("removed");
        assert!(std::process::Command::new("mkfifo").arg(&s.log).status().expect("mkfifo").success());
        sentence(&open(&s.image, contract).err().expect("refused"), &["is a pipe"]);
        assert!(is_untouched(&s.image));
        fs::rename(&real, &s.log).expect("renamed");
        open(&s.image, contract).expect("a group").close().expect("an end");
        assert!(holds_the_write(&s.image));
    }
}

#[test]
fn a_strangers_sidecar_says_nothing() {
    let s = unnamed();
    let sidecar = s.folder.path().join("disk.raw.afref");
    let uuid = LogHeader::parse(&fs::read(&s.log).expect("a log")).expect("a header").group_uuid;
    let reference = Reference::new(uuid, 0, s.log.as_os_str().as_encoded_bytes()).expect("a sidecar");
    fs::write(&sidecar, zerocopy::IntoBytes::as_bytes(&reference)).expect("written");
    if is_root() {
        chown(&sidecar, Some(NOBODY), None).expect("given");
        for contract in CONTRACTS {
            sentence(&open(&s.image, contract).err().expect("refused"), &["afref belongs to user 65534"]);
        }
        fs::remove_file(&sidecar).expect("removed");
    }
    // Nor is it waited for.
    let _ = fs::remove_file(&sidecar);
    assert!(std::process::Command::new("mkfifo").arg(&sidecar).status().expect("mkfifo").success());
    sentence(&open(&s.image, WINDOW).err().expect("refused"), &["afref is a pipe"]);
    assert!(is_untouched(&s.image));
}

#[test]
fn a_strangers_draft_stays_and_is_named() {
    let folder = tempfile::tempdir().expect("a folder");
    let (path, draft) = (folder.path().join("disk.raw"), folder.path().join("disk.raw.aflog.new"));
    create_image(&path, 1 << 20).expect("an image");
    let other = folder.path().join("other");
    fs::write(&other, "somebody's").expect("a file");
    let refused = |words| {
        let error = open(&path, WINDOW).err().expect("refused");
        assert!(matches!(error, OpenError::Log(LogError::NotOurs { .. })), "{error}");
        sentence(&error, &["aflog.new", words]);
        assert_eq!(fs::read(&other).expect("a file"), b"somebody's");
        fs::remove_file(&draft).expect("it is there");
    };
    symlink(&other, &draft).expect("a link");
    refused("is a symbolic link");
    fs::hard_link(&other, &draft).expect("a link");
    refused("has 2 names");
    if is_root() {
        fs::write(&draft, "a stranger's").expect("a file");
        chown(&draft, Some(NOBODY), None).expect("given");
        refused("belongs to user 65534");
    }
    open(&path, WINDOW).expect("a group").close().expect("an end");
}
