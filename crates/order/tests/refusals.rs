//! What must be refused is refused with one sentence, and nothing is touched.

use std::fs;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use afterimage_block::{Blocking, FlushKind, Sector};
use afterimage_order::offline::{self, RecoverOptions};
use afterimage_order::{Contract, Group, GroupOptions, OpenError};
use afterimage_store::{create_image, mark_of, DirectMode, Image as _, ImageStore, LogError, OpenOptions};

const WINDOW: Contract = Contract::PowerWindow { window: Duration::from_millis(50) };

fn image(path: &Path, read_only: bool) -> Arc<ImageStore> {
    let options =
        OpenOptions { read_only, direct: DirectMode::Off, any_content: true, ..OpenOptions::new(path) };
    ImageStore::open(&options).expect("an image")
}

fn open(images: &[&Path], contract: Contract) -> Result<Arc<Group>, OpenError> {
    let options = GroupOptions { log_max_bytes: GroupOptions::LOG_MIN_BYTES, ..GroupOptions::new(contract) };
    Group::open(images.iter().map(|path| image(path, false)).collect(), options)
}

struct Setup {
    folder: tempfile::TempDir,
    a: PathBuf,
    b: PathBuf,
    log: PathBuf,
}

/// Two images with a live log, nobody serving; some records are home (so there are witnesses), some are not.
fn died() -> Setup {
    let folder = tempfile::tempdir().expect("a folder");
    let (a, b) = (folder.path().join("a.raw"), folder.path().join("b.raw"));
    create_image(&a, 1 << 20).expect("an image");
    create_image(&b, 1 << 20).expect("an image");
    let group = open(&[&a, &b], WINDOW).expect("a group");
    for (disk, byte) in group.disks().iter().zip(1u8..) {
        let mut lane = Blocking::new(disk.open_lane().expect("a lane"));
        lane.write(Sector(0), &[byte; 65536]).expect("a write");
    }
    group.pause(None).expect("a pause");
    group.resume();
    let mut lane = Blocking::new(group.disks()[1].open_lane().expect("a lane"));
    lane.write(Sector(512), &[3; 4096]).expect("a write");
    lane.flush(FlushKind::Durable).expect("a flush");
    drop(lane);
    drop(group);
    let log = folder.path().join("a.raw.aflog");
    Setup { folder, a, b, log }
}

fn bytes(setup: &Setup) -> Vec<(PathBuf, Vec<u8>)> {
    let mut all: Vec<_> = fs::read_dir(setup.folder.path())
        .expect("list")
        .flatten()
        .map(|e| (e.path(), fs::read(e.path()).expect("read")))
        .collect();
    all.sort();
    all
}

/// Opening fails with a sentence that holds `words`, and changes nothing.
fn refused(setup: &Setup, images: &[&Path], words: &str) {
    let before = bytes(setup);
    for contract in [WINDOW, Contract::Power] {
        let error =
            open(images, contract).err().unwrap_or_else(|| panic!("not refused: {words}")).to_string();
        assert!(error.contains(words), "{error}");
        assert!(!error.contains('\n') && error.len() < 500, "one sentence: {error}");
    }
    assert!(before == bytes(setup), "something was touched: {words}");
}

/// What only says who appended is nothing to replay.
#[test]
fn a_fresh_log_has_nothing_to_replay() {
    let folder = tempfile::tempdir().expect("a folder");
    let a = folder.path().join("a.raw");
    create_image(&a, 1 << 20).expect("an image");
    drop(open(&[&a], WINDOW).expect("a group"));
    let log = offline::inspect(&a).expect("an inspection").log.expect("a log");
    assert_eq!((log.records, log.record_bytes), (0, 0));
}

#[test]
fn a_log_survives_and_recovers() {
    let s = died();
    let check = offline::check(&s.b).expect("a check");
    assert!(check.sound && !check.clean, "{check}");
    let inspect = offline::inspect(&s.b).expect("an inspection");
    assert!(!inspect.copy_is_complete && inspect.advice.contains("recover"), "{inspect}");
    assert_eq!(inspect.log.as_ref().expect("a log").records, 1);
    let before = bytes(&s);
    let dry = offline::recover(&s.b, &RecoverOptions { dry_run: true, ..RecoverOptions::default() })
        .expect("a dry run");
    assert_eq!(dry.replayed.expect("a record").records, 1);
    assert!(before == bytes(&s), "a dry run touches nothing");
    let done = offline::recover(&s.b, &RecoverOptions::default()).expect("a recovery");
    assert_eq!(done.replayed.expect("a record").records, 1, "{done}");
    assert!(fs::read(&s.b).expect("b")[512 * 512..][..4096] == [3; 4096]);
    assert_eq!(bytes(&s).len(), 2, "the log is gone");
    assert!([&s.a, &s.b].iter().all(|image| mark_of(image).expect("readable").is_none()));
    assert!(offline::check(&s.a).expect("a check").clean);
    assert!(offline::inspect(&s.a).expect("an inspection").copy_is_complete);
    offline::recover(&s.a, &RecoverOptions::default()).expect("nothing left to do");
}

#[test]
fn one_image_of_a_group_alone_is_refused() {
    let s = died();
    refused(&s, &[&s.b], "serve them together");
    refused(&s, &[&s.a], "serve them together");
    let options = GroupOptions::new(Contract::Power);
    let error = Group::open(vec![image(&s.b, true)], options).err().expect("refused").to_string();
    assert!(error.contains("read-only"), "{error}");
    // In another order they are the same group.
    let group = open(&[&s.b, &s.a], WINDOW).expect("brought home first");
    assert!(group.status().replayed.is_some_and(|r| r.records == 1));
    drop(group);
    assert!(s.folder.path().join("b.raw.aflog").exists());
    assert_eq!(mark_of(&s.a).expect("readable").expect("a mark").log.expect("a log").disk, 1);
    assert!(!s.log.exists());
}

#[test]
fn another_image_under_the_same_name_is_refused() {
    let s = died();
    let other = s.folder.path().join("other");
    fs::copy(&s.a, &other).expect("a copy");
    fs::rename(&other, &s.a).expect("renamed");
    refused(&s, &[&s.a, &s.b], "another image");
}

#[test]
fn a_size_change_is_refused() {
    let s = died();
    fs::OpenOptions::new().write(true).open(&s.a).and_then(|f| f.set_len(2 << 20)).expect("resized");
    refused(&s, &[&s.a, &s.b], "size");
}

#[test]
fn a_log_of_another_size_is_refused() {
    for (more, less) in [(4096, 0), (0, 4096)] {
        let s = died();
        let log = fs::OpenOptions::new().write(true).open(&s.log).expect("the log");
        let bytes = log.metadata().expect("a size").len();
        log.set_len(bytes + more - less).expect("resized");
        refused(&s, &[&s.a, &s.b], "its header asks for");
    }
}

#[test]
fn a_restored_older_copy_is_refused() {
    let s = died();
    // In place, as `cp backup image` does it: same inode, same size, newer time.
    fs::write(&s.a, vec![0; 1 << 20]).expect("restored");
    refused(&s, &[&s.a, &s.b], "older copy");
    let check = offline::check(&s.a).expect("an answer");
    assert!(!check.sound && check.problems[0].contains("older copy"), "{check}");
    let s = died();
    // With its old time, as `rsync -a --inplace` does it.
    let old = std::time::SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000);
    fs::OpenOptions::new().write(true).open(&s.b).and_then(|f| f.set_modified(old)).expect("an old time");
    refused(&s, &[&s.a, &s.b], "older copy");
}

#[test]
fn damaged_newer_and_foreign_logs_are_refused() {
    let s = died();
    let log = fs::OpenOptions::new().write(true).read(true).open(&s.log).expect("the log");
    let original = fs::read(&s.log).expect("the log");
    let put = |at: u64, bytes: &[u8]| log.write_all_at(bytes, at).expect("written");
    // A newer version in either slot.
    for slot in [0, 4096] {
        put(slot + 8, &9u32.to_le_bytes());
        refused(&s, &[&s.a, &s.b], "newer afterimage");
        put(0, &original);
    }
    // Features nobody knows, properly sealed.
    let mut header = afterimage_format::log::LogHeader::parse(&original).expect("a header");
    header.generation = (header.generation.get() + 2).into();
    header.features_incompat = 8.into();
    put(0, &header.seal());
    refused(&s, &[&s.a, &s.b], "features");
    put(0, &original);
    // Both headers gone.
    put(0, &[0; 8192]);
    refused(&s, &[&s.a, &s.b], "not an Afterimage redo log");
    put(0, &original);
    put(100, &[0xff; 8]);
    put(4196, &[0xff; 8]);
    refused(&s, &[&s.a, &s.b], "corrupt");
    put(0, &original);
    // A record whose loss no crash explains: the header says that it had been durable.
    let header = afterimage_order::redo::read_header(&*store(&s.log)).expect("a header");
    let tail = afterimage_format::log::RECORDS_OFFSET + header.tail_position.get();
    let mut behind = original[tail as usize..].chunks(64).position(|c| c[..4] == *b"AFIR").expect("a record");
    behind = tail as usize + behind * 64;
    put(behind as u64 + 70, b"damage");
    let opened = open(&[&s.a, &s.b], WINDOW);
    // The newest record of all has no witness of its durability: then it counts as a torn tail.
    assert!(opened.is_ok_and(|g| g.status().replayed.is_none_or(|r| r.torn_tail)));
}

fn store(path: &Path) -> Arc<afterimage_store::FileMedium> {
    Arc::new(afterimage_store::FileMedium::open(path, true).expect("a file"))
}

#[test]
fn damage_in_the_middle_of_a_log_is_refused() {
    let s = died();
    // More records behind the first, durable as well, so that the later ones prove the earlier.
    let group = open(&[&s.a, &s.b], WINDOW).expect("a group");
    let mut lane = Blocking::new(group.disks()[0].open_lane().expect("a lane"));
    for i in 0..4 {
        lane.write(Sector(1024 + i * 8), &[5; 4096]).expect("a write");
        lane.flush(FlushKind::Durable).expect("a flush");
    }
    drop(lane);
    drop(group);
    let original = fs::read(&s.log).expect("the log");
    let at = original
        .windows(4096)
        .enumerate()
        .skip(afterimage_format::log::RECORDS_OFFSET as usize)
        .step_by(64)
        .find(|(_, w)| w[..4096] == [5; 4096])
        .expect("the first record's payload")
        .0;
    let log = fs::OpenOptions::new().write(true).open(&s.log).expect("the log");
    log.write_all_at(b"damage", at as u64 + 100).expect("written");
    refused(&s, &[&s.a, &s.b], "corrupt");
}

/// Also what it says of where its images are, which tells them from their copies.
#[test]
fn a_start_that_is_refused_leaves_a_log_whose_images_have_moved_as_it_was() {
    let s = died();
    let a = s.folder.path().join("moved.raw");
    fs::rename(&s.a, &a).expect("moved");
    let image = fs::OpenOptions::new().write(true).open(&a).expect("the image");
    image.write_all_at(&[9; 65536], 0).expect("written by somebody else");
    let log = fs::read(&s.log).expect("the log");
    assert!(open(&[&a, &s.b], WINDOW).is_err());
    assert!(fs::read(&s.log).expect("the log") == log);
}

#[test]
fn a_lost_log_and_a_second_opener_are_refused() {
    let s = died();
    let away = s.folder.path().join("away");
    fs::rename(&s.log, &away).expect("moved");
    refused(&s, &[&s.b], "missing");
    fs::rename(&away, &s.log).expect("moved back");
    // Programs before marks had sidecars.
    let mark = image(&s.b, false).mark().expect("readable").expect("a mark");
    image(&s.b, false).remove_mark().expect("removed");
    fs::write(s.folder.path().join("b.raw.afref"), b"nonsense").expect("written");
    refused(&s, &[&s.b], "not a valid log reference");
    fs::remove_file(s.folder.path().join("b.raw.afref")).expect("removed");
    image(&s.b, false).set_mark(&mark).expect("set");
    let group = open(&[&s.a, &s.b], WINDOW).expect("a group");
    assert!(matches!(
        offline::recover(&s.log, &RecoverOptions::default()),
        Err(OpenError::Image(_) | OpenError::Log(LogError::LogInUse(_)))
    ));
    drop(group);
}

#[test]
fn bad_options_are_refused() {
    let s = died();
    let options = GroupOptions { log_max_bytes: 4096, ..GroupOptions::new(WINDOW) };
    assert!(matches!(Group::open(vec![image(&s.a, false)], options), Err(OpenError::LogTooSmall { .. })));
}
