//! Guest memory that blocks whoever touches it stops nobody but its own request: not the disk's other queues, nor its status.
#![allow(unsafe_code)]

mod common;

use std::sync::mpsc::channel;
use std::sync::Arc;
use std::time::Duration;

use afterimage_block::{
    BlockError, Blocking, Buffers, Completion, Disk, Lane, Operation, Request, Sector, Token,
};
use afterimage_journal::{AreaBlock, RetainDisk};
use afterimage_testing::{skip, StuckMemory};
use common::{journal_superblock, layouts, wait_for_home, Served};

const PATIENCE: Duration = Duration::from_secs(20);

/// Makes a request whose memory is stuck, and does `others` meanwhile.
fn while_stuck(disk: &RetainDisk, operation: Operation, sector: u64, others: impl FnOnce() + Send) {
    let memory = match StuckMemory::new(4096) {
        Ok(memory) => memory,
        Err(why) => return skip(why),
    };
    // SAFETY: the memory lives until the request has completed, and nobody makes references to it.
    let buffers = unsafe { Buffers::from_raw([memory.segment()], None) };
    std::thread::scope(|scope| {
        let stuck = scope.spawn(move || {
            let mut lane = Blocking::new(disk.open_lane().unwrap());
            lane.request(operation, Sector(sector), 8, buffers)
        });
        let touched = memory.wait_until_touched(PATIENCE);
        let (done, told) = channel();
        scope.spawn(move || {
            others();
            done.send(()).unwrap();
        });
        let went_on = told.recv_timeout(PATIENCE).is_ok();
        memory.release();
        stuck.join().unwrap().unwrap();
        assert!(touched, "nobody touched the memory");
        assert!(went_on, "everybody waited for one guest's memory");
    });
}

/// Whatever else is done with a disk at a time.
fn others(disk: &RetainDisk, sector: u64) {
    let mut lane = Blocking::new(disk.open_lane().unwrap());
    lane.write(Sector(sector), &[7; 4096]).unwrap();
    let mut found = [0; 4096];
    lane.read(Sector(sector), &mut found).unwrap();
    assert_eq!(found, [7; 4096]);
    lane.flush(afterimage_block::FlushKind::Order).unwrap();
    disk.status();
    disk.make_room().unwrap();
}

#[test]
fn a_write_from_stuck_memory_stops_nobody_else() {
    let served = Served::new(vec![0; 8 << 20], 4 << 20, wait_for_home());
    // The partition table, which is looked at.
    let disk = served.disk();
    while_stuck(disk, Operation::Write { flushed: false }, 0, || others(disk, 8));
}

#[test]
fn a_read_from_a_retained_journal_into_stuck_memory_stops_nobody_else() {
    let base = ext4();
    let layout = layouts(&base).remove(0);
    let superblock = journal_superblock(&base, &layout).unwrap();
    let at = layout.home_of(AreaBlock(0)).unwrap().sector(layout.start);
    let mut served = Served::new(base, 4 << 20, wait_for_home());
    // A mount: from now on the superblock is the arena's.
    let mounted = superblock.with_tail(superblock.sequence(), Some(AreaBlock(1)));
    served.lane().write(at, mounted.bytes()).unwrap();
    let absorbed = served.disk().status();
    assert!(absorbed.file_systems[0].mode == "retain", "{absorbed:?}");
    let disk = served.disk();
    while_stuck(disk, Operation::Read, at.0, || others(disk, at.0 + 64 * 8));
}

fn ext4() -> Vec<u8> {
    let image = tempfile::NamedTempFile::new().unwrap();
    image.as_file().set_len(16 << 20).unwrap();
    let made = std::process::Command::new("mkfs.ext4")
        .args(["-q", "-F", "-b", "4096", "-J", "size=4"])
        .arg(image.path())
        .status()
        .unwrap();
    assert!(made.success());
    std::fs::read(image.path()).unwrap()
}

/// Writes that need to be copied wait for the memory of others, in order, and all of them come through.
#[test]
fn more_changes_than_a_lane_copies_at_once_all_complete() {
    let served = Served::new(vec![0; 16 << 20], 4 << 20, wait_for_home());
    let mut lane: Box<dyn Lane> = served.disk().open_lane().unwrap();
    // Each covers the partition table, in pieces; one is larger than all there is to lend.
    let lengths = [6 << 20, 1 << 20, 512, 5 << 20, 4096, 12 << 20];
    for (n, bytes) in (0..).zip(lengths) {
        let buffers = Buffers::from_bytes(&vec![n as u8 + 1; bytes]);
        let (operation, sectors) = (Operation::Write { flushed: n % 2 == 0 }, bytes as u64 / 512);
        lane.submit(Request { token: Token(n), operation, sector: Sector(0), sectors, buffers });
    }
    let mut completions: Vec<Completion> = Vec::new();
    while lane.in_flight() > 0 {
        lane.dispatch();
        lane.reap(&mut completions);
        if lane.in_flight() > 0 && completions.is_empty() {
            lane.wait(&[], Some(PATIENCE)).unwrap();
        }
    }
    let failed: Vec<&BlockError> = completions.iter().filter_map(|c| c.result.as_ref().err()).collect();
    assert!(failed.is_empty(), "{failed:?}");
    assert_eq!(completions.len(), lengths.len());
    let found = Arc::clone(&served.below).bytes();
    assert!(found[..12 << 20].iter().all(|b| *b == 6) && found[12 << 20..].iter().all(|b| *b == 0));
}
