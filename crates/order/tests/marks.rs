//! An image that depends on a redo log says so itself, whatever it is called.

use std::fs;
use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use afterimage_block::{Blocking, FlushKind, Sector};
use afterimage_format::log::{LogHeader, STATE_CLEAN};
use afterimage_format::mark::{Mark, MARK_NAME};
use afterimage_format::reference::Reference;
use afterimage_order::offline::{self, RecoverOptions};
use afterimage_order::{Contract, Group, GroupOptions, OpenError};
use afterimage_store::{
    create_image, find_log, mark_of, read_attribute, DirectMode, Image as _, ImageStore, OpenOptions,
};

const WINDOW: Contract = Contract::PowerWindow { window: Duration::from_millis(50) };
const CONTRACTS: [Contract; 3] = [WINDOW, Contract::Power, Contract::GuestCrash];

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

const SECTOR: Sector = Sector(512);

/// A single disk whose daemon died with a durable write that is only in the log.
fn died() -> Died {
    let folder = tempfile::tempdir().expect("a folder");
    let image = folder.path().join("disk.raw");
    create_image(&image, 1 << 20).expect("an image");
    let group = open(&image, WINDOW).expect("a group");
    write(&group, SECTOR, 7);
    drop(group);
    let log = folder.path().join("disk.raw.aflog");
    Died { folder, image, log }
}

fn write(group: &Group, sector: Sector, byte: u8) {
    let mut lane = Blocking::new(group.disks()[0].open_lane().expect("a lane"));
    lane.write(sector, &[byte; 4096]).expect("a write");
    lane.flush(FlushKind::Durable).expect("a flush");
}

fn holds(path: &Path, byte: u8) -> bool {
    fs::read(path).expect("an image")[SECTOR.0 as usize * 512..][..4096] == [byte; 4096]
}

#[test]
fn a_renamed_image_finds_its_log() {
    for contract in CONTRACTS {
        let s = died();
        let renamed = s.folder.path().join("renamed.raw");
        fs::rename(&s.image, &renamed).expect("renamed");
        let check = offline::check(&renamed).expect("an answer");
        assert!(check.sound && !check.clean, "{check}");
        let inspect = offline::inspect(&renamed).expect("an answer");
        assert!(!inspect.copy_is_complete, "{inspect}");
        let group = Group::open(vec![image(&renamed, true)], GroupOptions::new(contract));
        let error = group.err().expect("stale content is not served").to_string();
        assert!(error.contains("read-only"), "{error}");
        let group = open(&renamed, contract).expect("a group");
        assert_eq!(group.status().replayed.expect("brought home").records, 1);
        group.close().expect("an end");
        assert!(holds(&renamed, 7), "{contract}");
        assert!(!s.log.exists());
    }
}

#[test]
fn a_renamed_image_is_recovered_offline() {
    let s = died();
    let renamed = s.folder.path().join("renamed.raw");
    fs::rename(&s.image, &renamed).expect("renamed");
    let done = offline::recover(&renamed, &PLAIN).expect("a recovery");
    assert_eq!(done.replayed.expect("a record").records, 1, "{done}");
    assert!(holds(&renamed, 7) && !s.log.exists());
    assert!(offline::check(&renamed).expect("an answer").clean);
}

#[test]
fn a_folder_may_be_renamed_with_all_that_is_in_it() {
    let s = died();
    let inner = s.folder.path().join("inner");
    fs::create_dir(&inner).expect("a folder");
    for name in ["disk.raw", "disk.raw.aflog"] {
        fs::rename(s.folder.path().join(name), inner.join(name)).expect("renamed");
    }
    let group = open(&inner.join("disk.raw"), WINDOW).expect("a group");
    assert_eq!(group.status().replayed.expect("taken over").records, 1);
}

#[test]
fn a_lost_log_is_refused_under_every_contract() {
    let s = died();
    fs::remove_file(&s.log).expect("removed");
    let before = fs::read(&s.image).expect("an image");
    let sentence = |error: OpenError| {
        let error = error.to_string();
        assert!(error.contains("missing") && error.contains("--accept-loss"), "{error}");
        assert!(!error.contains('\n') && error.len() < 500, "one sentence: {error}");
    };
    for contract in CONTRACTS {
        sentence(open(&s.image, contract).err().expect("refused"));
        let read_only = Group::open(vec![image(&s.image, true)], GroupOptions::new(contract));
        sentence(read_only.err().expect("refused"));
    }
    let check = offline::check(&s.image).expect("an answer");
    assert!(!check.sound && check.problems[0].contains("missing"), "{check}");
    sentence(offline::inspect(&s.image).expect_err("no plain image"));
    sentence(offline::recover(&s.image, &PLAIN).expect_err("refused"));
    assert!(before == fs::read(&s.image).expect("an image"), "something was touched");
}

#[test]
fn a_loss_may_be_accepted() {
    let s = died();
    let away = s.folder.path().join("away");
    fs::rename(&s.log, &away).expect("moved");
    let dry = RecoverOptions { dry_run: true, ..ACCEPT_LOSS };
    let would = offline::recover(&s.image, &dry).expect("a dry run");
    assert!(would.given_up.is_some() && offline::recover(&s.image, &PLAIN).is_err(), "{would}");
    let gave = offline::recover(&s.image, &ACCEPT_LOSS).expect("given up");
    assert!(gave.given_up.is_some(), "{gave}");
    assert!(offline::check(&s.image).expect("an answer").clean);
    open(&s.image, WINDOW).expect("a group").close().expect("an end");
    // What is there is never given up.
    let s = died();
    let done = offline::recover(&s.image, &ACCEPT_LOSS).expect("a recovery");
    assert!(done.given_up.is_none() && holds(&s.image, 7), "{done}");
}

const PLAIN: RecoverOptions =
    RecoverOptions { dry_run: false, accept_loss: false, trust_image: false, apply_anyway: false };
const ACCEPT_LOSS: RecoverOptions = RecoverOptions { accept_loss: true, ..PLAIN };
const TRUST: RecoverOptions = RecoverOptions { trust_image: true, ..PLAIN };

#[test]
fn another_groups_log_in_its_place_is_no_leftover() {
    let s = died();
    let renamed = s.folder.path().join("renamed.raw");
    fs::rename(&s.image, &renamed).expect("renamed");
    fs::remove_file(&s.log).expect("removed");
    create_image(&s.image, 1 << 20).expect("another image");
    let group = open(&s.image, WINDOW).expect("a group of its own, with a log of the same name");
    let error = open(&renamed, WINDOW).err().expect("refused").to_string();
    assert!(error.contains("missing") && error.contains("another group's log"), "{error}");
    group.close().expect("an end");
}

#[test]
fn an_image_over_another_ones_name_leaves_neither_log_behind() {
    let (first, second) = (died(), died());
    // The second image takes the first one's name; both logs are live and named by their images.
    fs::rename(&second.image, &first.image).expect("renamed");
    for contract in CONTRACTS {
        let error = open(&first.image, contract).err().expect("refused").to_string();
        assert!(error.contains("another image") && error.contains("1 request"), "{error}");
    }
    assert!(first.log.exists() && second.log.exists(), "nothing is touched");
    fs::rename(&first.log, first.folder.path().join("kept")).expect("moved away, and kept");
    let group = open(&first.image, WINDOW).expect("a group");
    assert_eq!(group.status().replayed.expect("from its own log").records, 1);
}

/// It needs nothing of a log that holds nothing, whatever its size and content.
#[test]
fn an_image_that_was_made_anew_beside_an_empty_log_is_served() {
    for contract in CONTRACTS {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("disk.raw");
        fs::write(&path, [1; 1 << 20]).expect("an image");
        drop(open(&path, WINDOW).expect("a group"));
        fs::remove_file(&path).expect("removed");
        create_image(&path, 2 << 20).expect("another image");
        let check = offline::check(&path).expect("an answer");
        assert!(check.sound && check.clean, "{check}");
        let group = open(&path, contract).expect("a group");
        write(&group, SECTOR, 7);
        group.close().expect("an end");
        drop(group);
        open(&path, WINDOW).expect("a group").close().expect("an end");
        assert!(holds(&path, 7) && mark(&path).is_none());
    }
}

/// The other image of the group names it still.
#[test]
fn a_log_that_another_image_needs_is_no_leftover() {
    let folder = tempfile::tempdir().expect("a folder");
    let images = ["a.raw", "b.raw"].map(|name| folder.path().join(name));
    images.iter().for_each(|path| create_image(path, 1 << 20).expect("an image"));
    let both = || {
        let options =
            GroupOptions { log_max_bytes: GroupOptions::LOG_MIN_BYTES, ..GroupOptions::new(WINDOW) };
        Group::open(images.iter().map(|path| image(path, false)).collect(), options)
    };
    drop(both().expect("a group"));
    // While it is open its number is nobody else's.
    let _removed = fs::File::open(&images[0]).expect("an image");
    fs::remove_file(&images[0]).expect("removed");
    create_image(&images[0], 1 << 20).expect("another image");
    assert!(both().is_err());
    for contract in CONTRACTS {
        assert!(open(&images[0], contract).is_err(), "{contract}");
    }
    assert!(folder.path().join("a.raw.aflog").exists());
}

fn mark(path: &Path) -> Option<Mark> {
    mark_of(path).expect("readable")
}

#[test]
fn an_orderly_end_leaves_no_mark_and_a_death_does() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("disk.raw");
    create_image(&path, 1 << 20).expect("an image");
    for (contract, code) in CONTRACTS.into_iter().zip([2, 1, 3]) {
        let group = open(&path, contract).expect("a group");
        let while_open = mark(&path).expect("in use");
        assert_eq!((while_open.contract, while_open.log.is_some()), (code, code == 2));
        group.close().expect("an end");
        assert_eq!(mark(&path), None, "{contract}");
        drop(group);
        drop(open(&path, contract).expect("a group"));
        assert!(mark(&path).is_some(), "{contract}");
    }
    for before in [mark(&path), None] {
        if before.is_none() {
            image(&path, false).remove_mark().expect("removed");
        }
        let read_only = Group::open(vec![image(&path, true)], GroupOptions::new(Contract::Power));
        let read_only = read_only.expect("a group");
        assert_eq!(mark(&path), before, "who only reads sets none");
        read_only.close().expect("an end");
        assert_eq!(mark(&path), before, "and leaves it");
    }
}

#[test]
fn a_damaged_mark_is_refused_and_may_be_given_up() {
    let s = died();
    let value = read_attribute(&s.image, MARK_NAME).expect("readable").expect("a mark");
    let put = |value: &[u8]| {
        image(&s.image, false).set_mark(value).expect("set");
    };
    let mut damaged = value.clone();
    damaged[20] ^= 1;
    put(&damaged);
    for contract in CONTRACTS {
        let error = open(&s.image, contract).err().expect("refused").to_string();
        assert!(error.contains("not a valid log reference") && error.contains("checksum"), "{error}");
    }
    assert!(!offline::check(&s.image).expect("an answer").sound);
    let mut newer = value.clone();
    newer[8] = 9;
    put(&newer);
    let error = open(&s.image, WINDOW).err().expect("refused").to_string();
    assert!(error.contains("newer afterimage"), "{error}");
    put(&damaged);
    offline::recover(&s.image, &ACCEPT_LOSS).expect("the mark goes");
    // Nothing says any more that the log beside it is the image's, until somebody does.
    let error = offline::recover(&s.image, &PLAIN).expect_err("refused").to_string();
    assert!(error.contains("does not name") && error.contains("1 request"), "{error}");
    offline::recover(&s.log, &PLAIN).expect("a recovery");
    assert!(holds(&s.image, 7));
}

/// Two images with a live log that is elsewhere, nobody serving.
fn two_died() -> (tempfile::TempDir, Vec<PathBuf>, PathBuf) {
    let folder = tempfile::tempdir().expect("a folder");
    let images: Vec<_> = ["a.raw", "b.raw"].iter().map(|name| folder.path().join(name)).collect();
    images.iter().for_each(|path| create_image(path, 1 << 20).expect("an image"));
    let log = folder.path().join("group.log");
    let options = GroupOptions {
        log_max_bytes: GroupOptions::LOG_MIN_BYTES,
        log_path: Some(log.clone()),
        ..GroupOptions::new(WINDOW)
    };
    let group = Group::open(images.iter().map(|path| image(path, false)).collect(), options);
    write(&group.expect("a group"), SECTOR, 7);
    (folder, images, log)
}

#[test]
fn a_log_of_the_version_before_is_recovered() {
    let (folder, images, log) = two_died();
    let uuid = LogHeader::parse(&fs::read(&log).expect("a log")).expect("a header").group_uuid;
    for (path, disk) in images.iter().zip(0..) {
        image(path, false).remove_mark().expect("removed");
        let sidecar = Reference::new(uuid, disk, log.as_os_str().as_encoded_bytes()).expect("a sidecar");
        let sidecar = zerocopy::IntoBytes::as_bytes(&sidecar).to_vec();
        fs::write(format!("{}.afref", path.display()), sidecar).expect("written");
    }
    let check = offline::check(&images[1]).expect("an answer");
    assert!(check.sound && !check.clean, "{check}");
    let group = Group::open(
        images.iter().map(|path| image(path, false)).collect(),
        GroupOptions { log_max_bytes: GroupOptions::LOG_MIN_BYTES, ..GroupOptions::new(WINDOW) },
    )
    .expect("a group");
    assert_eq!(group.status().replayed.expect("brought home").records, 1);
    assert!(images.iter().all(|path| mark(path).is_some_and(|mark| mark.log.is_some())), "marked now");
    group.close().expect("an end");
    drop(group);
    assert!(holds(&images[0], 7));
    assert_eq!(fs::read_dir(folder.path()).expect("list").count(), 2, "logs and sidecars are gone");
}

#[test]
fn an_end_that_was_cut_short_is_finished_before_another_log_takes_its_place() {
    let (_folder, images, log) = two_died();
    offline::recover(&log, &PLAIN).expect("everything home");
    // As a cut between the clean header and the marks leaves it: both marks, and a clean log.
    let options = || GroupOptions {
        log_max_bytes: GroupOptions::LOG_MIN_BYTES,
        log_path: Some(log.clone()),
        ..GroupOptions::new(WINDOW)
    };
    drop(Group::open(images.iter().map(|path| image(path, false)).collect(), options()).expect("a group"));
    cut_end(&log, |_| {});

    for path in &images {
        let check = offline::check(path).expect("an answer");
        assert!(check.sound && check.clean, "complete by itself: {check}");
    }
    // Alone, the first would put its own log there, and the second would miss its own.
    let error = Group::open(vec![image(&images[0], false)], options()).err().expect("refused").to_string();
    assert!(error.contains("afterimage recover") && error.contains("b.raw"), "{error}");
    drop(Group::open(vec![image(&images[1], false)], GroupOptions::new(Contract::Power)).expect("a group"));
    let group = Group::open(vec![image(&images[0], false)], options()).expect("nobody names it any more");
    assert!(offline::check(&images[1]).expect("an answer").sound);
    group.close().expect("an end");
}

#[test]
fn a_copy_with_the_mark_can_do_without_the_log() {
    let folder = tempfile::tempdir().expect("a folder");
    let (path, copy) = (folder.path().join("disk.raw"), folder.path().join("copy.raw"));
    create_image(&path, 1 << 20).expect("an image");
    let group = open(&path, WINDOW).expect("a group");
    write(&group, SECTOR, 7);
    group.pause(None).expect("everything home");
    copy_with_mark(&path, &copy);
    group.resume();
    for contract in CONTRACTS {
        let error = open(&copy, contract).err().expect("refused").to_string();
        assert!(error.contains("--accept-loss"), "{error}");
    }
    offline::recover(&copy, &ACCEPT_LOSS).expect("in use or not");
    assert!(holds(&copy, 7) && offline::check(&copy).expect("an answer").clean);
    write(&group, Sector(0), 1);
    drop(group);
    open(&path, WINDOW).expect("its own log").close().expect("an end");
}

/// `cp -a`: the content, the times and the mark, on another inode.
fn copy_with_mark(from: &Path, to: &Path) {
    let value = read_attribute(from, MARK_NAME).expect("readable").expect("a mark");
    fs::copy(from, to).expect("copied");
    image(to, false).set_mark(&value).expect("set");
    let modified = fs::metadata(from).and_then(|m| m.modified()).expect("a time");
    fs::OpenOptions::new().write(true).open(to).and_then(|f| f.set_modified(modified)).expect("set");
}

#[test]
fn an_image_that_was_moved_to_another_file_system_can_be_confirmed() {
    let s = died();
    let moved = s.folder.path().join("moved.raw");
    copy_with_mark(&s.image, &moved);
    fs::remove_file(&s.image).expect("removed");
    for contract in CONTRACTS {
        let error = open(&moved, contract).err().expect("refused").to_string();
        assert!(error.contains("1 request") && error.contains("--trust-image"), "{error}");
    }
    assert!(offline::recover(&moved, &PLAIN).is_err());
    offline::recover(&moved, &TRUST).expect("confirmed");
    assert!(holds(&moved, 7) && !s.log.exists() && mark(&moved).is_none());
}

/// Both carry the mark, which names the original's log by its path.
#[test]
fn a_copy_with_its_log_leaves_the_original_alone() {
    let s = died();
    let there = s.folder.path().join("there");
    fs::create_dir(&there).expect("a folder");
    let copy = there.join("disk.raw");
    copy_with_mark(&s.image, &copy);
    // Without its log: the original would be lost with the one that there is.
    let error = offline::recover(&copy, &TRUST).expect_err("refused").to_string();
    assert!(error.contains("is a copy") && error.contains("--accept-loss"), "{error}");
    assert!(!error.contains('\n') && error.len() < 600, "one sentence: {error}");
    assert!(s.log.exists() && !holds(&copy, 7));
    fs::copy(&s.log, there.join("disk.raw.aflog")).expect("copied");
    offline::recover(&copy, &TRUST).expect("confirmed");
    assert!(holds(&copy, 7) && mark(&copy).is_none() && !there.join("disk.raw.aflog").exists());
    open(&s.image, WINDOW).expect("its own log").close().expect("an end");
    assert!(holds(&s.image, 7));
}

#[test]
fn what_has_taken_a_logs_name_stays() {
    let folder = tempfile::tempdir().expect("a folder");
    let (path, old) = (folder.path().join("disk.raw"), folder.path().join("old.raw"));
    create_image(&path, 1 << 20).expect("an image");
    let group = open(&path, WINDOW).expect("a group");
    write(&group, SECTOR, 7);
    for ending in ["", ".aflog"] {
        let name = |path: &Path| PathBuf::from(format!("{}{ending}", path.display()));
        fs::rename(name(&path), name(&old)).expect("renamed");
    }
    create_image(&path, 1 << 20).expect("another image");
    let other = open(&path, WINDOW).expect("a group");
    write(&other, SECTOR, 9);
    group.close().expect("an end");
    assert!(holds(&old, 7) && mark(&old).is_none());
    drop(other);
    open(&path, WINDOW).expect("its log").close().expect("an end");
    assert!(holds(&path, 9));
}

#[test]
fn a_clean_logs_recovery_leaves_another_logs_mark_alone() {
    for is_another in [false, true] {
        let s = died();
        let leftover = s.folder.path().join("leftover");
        fs::copy(&s.log, &leftover).expect("copied");
        cut_end(&leftover, |header| header.group_uuid[0] ^= u8::from(is_another));
        offline::recover(&leftover, &PLAIN).expect("nothing to bring home");
        assert!(!leftover.exists());
        assert_eq!(mark(&s.image).is_some(), is_another);
        if is_another {
            open(&s.image, WINDOW).expect("its log").close().expect("an end");
            assert!(holds(&s.image, 7));
        }
    }
}

#[test]
fn a_live_log_beside_an_image_is_not_taken_where_the_named_one_is_clean() {
    let s = died();
    let clean = s.folder.path().join("clean.log");
    fs::copy(&s.log, &clean).expect("copied");
    cut_end(&clean, |header| header.group_uuid[0] ^= 1);
    let mut named = mark(&s.image).expect("a mark");
    let log = named.log.as_mut().expect("a log");
    log.group_uuid[0] ^= 1;
    log.path = clean.as_os_str().as_encoded_bytes().to_vec();
    image(&s.image, false).set_mark(&named.to_bytes().expect("a mark")).expect("set");
    assert_eq!(find_log(&s.image).expect("readable"), None);
    for contract in CONTRACTS {
        let error = open(&s.image, contract).err().expect("nor is it left behind unseen").to_string();
        assert!(error.contains("does not name"), "{error}");
    }
}

/// As if the end of a log had been cut behind the header that says so.
fn cut_end(log: &Path, change: impl Fn(&mut LogHeader)) {
    let headers = fs::read(log).expect("a log");
    let newest =
        [&headers[..4096], &headers[4096..8192]].into_iter().filter_map(|h| LogHeader::parse(h).ok());
    let mut header = newest.max_by_key(|h| h.generation.get()).expect("a header");
    header.generation = (header.generation.get() + 1).into();
    header.state = STATE_CLEAN.into();
    change(&mut header);
    let file = fs::OpenOptions::new().write(true).open(log).expect("a log");
    file.write_all_at(&header.seal(), header.slot_offset()).expect("written");
}

fn set_modified(path: &Path, time: SystemTime) {
    fs::OpenOptions::new().write(true).open(path).and_then(|f| f.set_modified(time)).expect("a time");
}

const DAY: Duration = Duration::from_secs(86400);

/// As [`died`], with a block at home and the clock set back by a day between the log's beginning and that.
fn clock_set_back() -> Died {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("disk.raw");
    create_image(&path, 1 << 20).expect("an image");
    set_modified(&path, SystemTime::now() + DAY);
    let group = open(&path, WINDOW).expect("a group");
    write(&group, Sector(0), 1);
    group.pause(None).expect("brought home");
    group.resume();
    write(&group, SECTOR, 7);
    drop(group);
    let log = folder.path().join("disk.raw.aflog");
    let header = LogHeader::parse(&fs::read(&log).expect("a log")).expect("a header");
    let now = fs::metadata(&path).expect("an image");
    let now_ns = now.mtime() * 1_000_000_000 + now.mtime_nsec();
    assert!(now_ns < header.images()[0].mtime_ns.get(), "the clock was set back");
    Died { folder, image: path, log }
}

#[test]
fn a_clock_that_was_set_back_costs_nothing() {
    for contract in CONTRACTS {
        let s = clock_set_back();
        assert!(offline::check(&s.image).expect("an answer").sound);
        // The folder's times and names have nothing to do with it.
        let renamed = s.folder.path().join("renamed.raw");
        fs::rename(&s.image, &renamed).expect("renamed");
        open(&renamed, contract).expect("a group").close().expect("an end");
        assert!(holds(&renamed, 7), "{contract}");
    }
}

#[test]
fn an_older_copy_is_refused_with_or_without_a_right_clock() {
    // Restored in place with its time, as `rsync -a --inplace` does it.
    let s = died();
    set_modified(&s.image, SystemTime::now() - DAY);
    for contract in CONTRACTS {
        let error = open(&s.image, contract).err().expect("refused").to_string();
        assert!(error.contains("older copy") && error.contains("1 request"), "{error}");
        assert!(error.contains("--trust-image") && !error.contains("remove the log"), "{error}");
        assert!(!error.contains('\n') && error.len() < 600, "one sentence: {error}");
    }
    // It was the right one all the same: nothing is lost.
    offline::recover(&s.image, &TRUST).expect("confirmed");
    assert!(holds(&s.image, 7));

    // Other content, where the times say nothing: the witnesses do, also against somebody who trusts the image.
    let s = clock_set_back();
    fs::write(&s.image, vec![0; 1 << 20]).expect("restored");
    for contract in CONTRACTS {
        let error = open(&s.image, contract).err().expect("refused").to_string();
        assert!(error.contains("older copy") && error.contains("1 request"), "{error}");
        assert!(!error.contains("--trust-image") && !error.contains("remove the log"), "{error}");
    }
    assert!(offline::recover(&s.image, &TRUST).is_err());
    assert!(s.log.exists());
}

#[test]
fn without_a_mark_an_old_time_is_refused() {
    let s = clock_set_back();
    image(&s.image, false).remove_mark().expect("removed");
    let error = open(&s.image, WINDOW).err().expect("refused").to_string();
    assert!(error.contains("older copy") && error.contains("--trust-image"), "{error}");
}
