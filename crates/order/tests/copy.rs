//! A copy that is made while guests write is the images at the point of its last hold, byte for byte, on all disks.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;
use std::time::Duration;

use afterimage_block::{Blocking, Disk, Sector};
use afterimage_order::{Contract, Group, GroupOptions, Ranges};
use afterimage_store::{create_image, DirectMode, ImageStore, OpenOptions};

const IMAGE_BYTES: u64 = 4 << 20;
/// What the suite leaves alone of the first disk and the last: these sectors carry a counter.
const COUNTER: Sector = Sector(IMAGE_BYTES / 512 - 1);

const NAMES: [&str; 3] = ["a.raw", "b.raw", "c.raw"];

fn image(path: &Path, direct: DirectMode) -> Arc<ImageStore> {
    ImageStore::open(&OpenOptions { direct, any_content: true, ..OpenOptions::new(path) }).expect("an image")
}

fn open(folder: &Path, contract: Contract) -> Arc<Group> {
    let direct = if contract == Contract::Power { DirectMode::Auto } else { DirectMode::Off };
    let images = NAMES.map(|name| {
        create_image(&folder.join(name), IMAGE_BYTES).expect("a new image");
        image(&folder.join(name), direct)
    });
    let options = GroupOptions { log_max_bytes: GroupOptions::LOG_MIN_BYTES, ..GroupOptions::new(contract) };
    Group::open(images.to_vec(), options).expect("a group")
}

/// As `ctl copy` does it, but that what is compared is read while writes are held. Returns the copies.
fn copy(folder: &Path, group: &Group) -> Vec<Vec<u8>> {
    let files = NAMES.map(|name| File::open(folder.join(name)).expect("an image"));
    group.note_changes();
    let read = |file: &File, range: std::ops::Range<u64>, copy: &mut Vec<u8>| {
        let range = range.start..range.end.min(IMAGE_BYTES);
        file.read_exact_at(&mut copy[range.start as usize..range.end as usize], range.start).expect("a read");
    };
    let mut copies = vec![vec![0xee; IMAGE_BYTES as usize]; 3];
    for (file, copy) in files.iter().zip(&mut copies) {
        (0..IMAGE_BYTES).step_by(1 << 16).for_each(|at| read(file, at..at + (1 << 16), copy));
    }
    let again = |copies: &mut Vec<Vec<u8>>| {
        for (disk, (file, copy)) in files.iter().zip(copies).enumerate() {
            // Pieces in another grain than they are noted.
            let mut ranges = Ranges::default();
            loop {
                let (changed, more) = group.changed(disk, 7);
                changed.into_iter().for_each(|range| ranges.insert(range));
                if !more {
                    break;
                }
            }
            while let Some(range) = ranges.take(5 * 4096) {
                read(file, range, copy);
            }
        }
    };
    // Where a write in flight is not reaped in time, writes go on, and so does the copy.
    loop {
        group.approach().expect("the images are near");
        again(&mut copies);
        if group.hold(Duration::from_millis(50)).is_ok() {
            break;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    again(&mut copies);
    for (file, (copy, name)) in files.iter().zip(copies.iter().zip(NAMES)) {
        let mut found = vec![0; IMAGE_BYTES as usize];
        file.read_exact_at(&mut found, 0).expect("the image");
        let differs = found.chunks(512).zip(copy.chunks(512)).position(|(a, b)| a != b);
        assert_eq!(differs, None, "a sector of the copy of {name}");
    }
    group.forget_changes();
    group.resume();
    copies
}

/// Set when the scope ends, also by a panic.
struct AtEnd<'a>(&'a AtomicBool);

impl Drop for AtEnd<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

/// Writes the same counter to the first disk and then to the last until it is told to end.
fn count(group: &Group, end: &AtomicBool) {
    let mut lanes = [0, 2].map(|n: usize| Blocking::new(group.disks()[n].open_lane().expect("a lane")));
    let mut n = 0u64;
    while !end.load(Ordering::SeqCst) {
        n += 1;
        for lane in &mut lanes {
            let mut sector = [0; 512];
            sector[..8].copy_from_slice(&n.to_le_bytes());
            lane.write(COUNTER, &sector).expect("a write");
        }
    }
}

#[test]
fn a_copy_is_the_images_at_one_point_while_guests_write() {
    let window = |millis| Contract::PowerWindow { window: Duration::from_millis(millis) };
    for (seed, contract) in
        [Contract::Power, Contract::GuestCrash, window(5), window(1000)].into_iter().enumerate()
    {
        let folder = tempfile::tempdir().expect("a folder");
        let (group, seed) = (open(folder.path(), contract), seed as u64);
        let end = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let disk = Arc::clone(&group.disks()[1]);
            let suite = scope.spawn(|| afterimage_block_conformance::run_threads(seed, 600, 3, || disk));
            let counter = scope.spawn(|| count(&group, &end));
            let _end = AtEnd(&end);
            let (mut copies, mut newest) = (0, 0);
            while copies < 4 {
                let made = copy(folder.path(), &group);
                let counted = [0, 2].map(|n: usize| {
                    let at = COUNTER.0 as usize * 512;
                    u64::from_le_bytes(made[n][at..at + 8].try_into().expect("eight bytes"))
                });
                let behind = counted[0] - counted[1];
                assert!(
                    behind <= 1 && counted[0] >= newest,
                    "{contract}: disks at other points: {counted:?}, {newest}"
                );
                (copies, newest) = (copies + 1, counted[0]);
                std::thread::sleep(Duration::from_millis(20));
            }
            end.store(true, Ordering::SeqCst);
            counter.join().expect("it counts");
            suite.join().expect("it ends").unwrap_or_else(|e| panic!("{contract}: {e}"));
            assert!(newest > 0, "{contract}: nothing was written meanwhile");
        });
        group.close().expect("an orderly end");
    }
}

/// The naive oracle says what the copy of a quiet disk holds, whatever was written, discarded and zeroed before and while it was made.
#[test]
fn a_copy_holds_what_the_naive_disk_holds() {
    for contract in
        [Contract::Power, Contract::GuestCrash, Contract::PowerWindow { window: Duration::from_millis(5) }]
    {
        for seed in 0..3 {
            let folder = tempfile::tempdir().expect("a folder");
            let group = open(folder.path(), contract);
            let done = AtomicBool::new(false);
            let mut oracle = std::thread::scope(|scope| {
                scope.spawn(|| {
                    for _ in (0..3).take_while(|_| !done.load(Ordering::SeqCst)) {
                        copy(folder.path(), &group);
                        std::thread::sleep(Duration::from_millis(20));
                    }
                });
                let _done = AtEnd(&done);
                let oracle = afterimage_block_conformance::run(seed, 800, || Arc::clone(&group.disks()[0]));
                oracle.unwrap_or_else(|e| panic!("{contract} seed {seed}: {e}"))
            });
            let copies = copy(folder.path(), &group);
            let path = folder.path().join("copy.raw");
            std::fs::write(&path, &copies[0]).expect("the copy");
            let plain: Arc<dyn Disk> = image(&path, DirectMode::Off);
            afterimage_block_conformance::compare(seed, &plain, &mut oracle)
                .unwrap_or_else(|e| panic!("{contract} {seed}: {e}"));
        }
    }
}
