//! The log reader's entry point for fuzzing, and a sound log to start from.

use std::sync::Arc;
use std::time::Duration;

use afterimage_block::{Blocking, Disk as _, Medium, MediumDisk, Sector};
use afterimage_block_conformance::sim::SimWorld;
use afterimage_format::log::{ImageEntry, PAGE_BYTES, RECORDS_OFFSET};

use afterimage_order::redo::{create_medium, read_header, scan, Config, Redo, RedoDisk};
use afterimage_order::{LoggedDisk, VirtualClock};

/// The largest images that are made up for a fuzzed log.
const IMAGES_BYTES_MAX: u64 = 16 << 20;

/// Treats bytes as a log file: reads it, and where it is good, takes it over and brings it home into images of the sizes
/// it names. Must never panic, whatever the bytes are.
pub fn fuzz_log(bytes: &[u8]) {
    fuzz(bytes.to_vec());
    // A fuzzer cannot guess checksums: the same with the two header slots sealed.
    let mut sealed = bytes.to_vec();
    for slot in sealed.chunks_exact_mut(PAGE_BYTES as usize).take(2) {
        let mut raw = [0; PAGE_BYTES as usize];
        raw.copy_from_slice(slot);
        let header: afterimage_format::log::LogHeader = zerocopy::transmute!(raw);
        slot.copy_from_slice(&header.seal());
    }
    fuzz(sealed);
}

/// A sound log of eight pages with records of every kind and sets in it, over one image of 32 KiB, stopped in mid-life: what
/// fuzzing and the tests of damage start from.
///
/// # Panics
/// Never, or the redo layer is broken.
pub fn sample_log() -> Vec<u8> {
    let (area_bytes, disk_bytes) = (8 * PAGE_BYTES as usize, 32 << 10);
    let world = SimWorld::new(vec![vec![0; RECORDS_OFFSET as usize + area_bytes], vec![0; disk_bytes]]);
    let (log, home): (Arc<dyn Medium>, Arc<dyn Medium>) = (world.medium(0), world.medium(1));
    let image = ImageEntry { size_bytes: (disk_bytes as u64).into(), ..ImageEntry::default() };
    create_medium(&log, &[Arc::clone(&home)], &[image], &[], [1; 16], 2).expect("a log");
    let redo = Redo::open(config(log, vec![Arc::clone(&home)], 3)).expect("sound");
    let disk0 = LoggedDisk(0);
    let disk = RedoDisk::new(Arc::clone(&redo), disk0, Arc::new(MediumDisk::new(home)));
    let mut lane = Blocking::new(disk.open_lane().expect("a lane"));
    for i in 0..6u64 {
        lane.write(Sector(i * 4), &[i as u8; 1024]).expect("a write");
        lane.discard(Sector(i), 2).expect("a discard");
        let set = [(Sector(40 + i), &[i as u8; 512][..]), (Sector(50), &[!i as u8; 512][..])];
        redo.try_write_set(disk0, &set).expect("a set").expect("room for it");
        redo.syncer.sync().expect("a sync");
        if i == 2 {
            redo.going_home.round(5000).expect("a round home");
        }
    }
    world.cached(0)
}

fn config(log: Arc<dyn Medium>, homes: Vec<Arc<dyn Medium>>, incarnation: u64) -> Config {
    Config::new(Duration::from_millis(50), Arc::new(VirtualClock::default()), log, homes, incarnation)
}

fn fuzz(bytes: Vec<u8>) {
    let world = SimWorld::new(vec![bytes]);
    let log: Arc<dyn Medium> = world.medium(0);
    let Ok(header) = read_header(log.as_ref()) else { return };
    let sizes: Vec<u64> = header.images().iter().map(|image| image.size_bytes.get()).collect();
    if sizes.iter().any(|size| *size > IMAGES_BYTES_MAX) {
        // Its records are still judged; images of that size are not made up.
        let _ = scan(&log);
        return;
    }
    let mut contents = vec![world.cached(0)];
    contents.extend(sizes.iter().map(|size| vec![0; *size as usize]));
    let world = SimWorld::new(contents);
    let homes = (1..=sizes.len()).map(|i| world.medium(i) as Arc<dyn Medium>).collect();
    if let Ok(redo) = Redo::open(config(world.medium(0), homes, 1)) {
        let _ = redo.close();
    }
}
