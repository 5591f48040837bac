//! The process rule, for real: a child process with real threads is killed in the middle of its writes, again and
//! again, and everything that it had reported complete is there.

use std::io::{BufRead as _, BufReader, Write as _};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use afterimage_block::{Blocking, Disk, DiskIndex, FlushKind, Sector};
use afterimage_order::{Contract, Group, GroupOptions};
use afterimage_store::{create_image, DirectMode, ImageStore, OpenOptions};

const FOLDER: &str = "AFTERIMAGE_KILL_FOLDER";
const CONTRACT: &str = "AFTERIMAGE_KILL_CONTRACT";
const BLOCKS: u64 = 128;
const DISKS: u64 = 2;
/// Lanes of each disk; each writes blocks of its own.
const LANES: u64 = 2;
/// Blocks of each disk behind those of its lanes, of which every other one is written, always all in one set.
const SET_BLOCKS: u64 = 600;
/// What the writer of sets is called in the child's lines.
const SETS: u64 = LANES;

fn open(folder: &Path, contract: Contract) -> Arc<Group> {
    let images = (0..DISKS).map(|i| {
        let path = folder.join(format!("{i}.raw"));
        if !path.exists() {
            create_image(&path, (LANES * BLOCKS + SET_BLOCKS) * 4096).expect("an image");
        }
        let options = OpenOptions { direct: DirectMode::Off, any_content: true, ..OpenOptions::new(&path) };
        ImageStore::open(&options).expect("an image")
    });
    let options = GroupOptions { log_max_bytes: GroupOptions::LOG_MIN_BYTES, ..GroupOptions::new(contract) };
    Group::open(images.collect(), options).expect("a group")
}

fn block(disk: &Arc<dyn Disk>, sector: u64) -> Vec<u8> {
    let mut found = vec![0; 4096];
    let mut lane = Blocking::new(disk.open_lane().expect("a lane"));
    lane.read(Sector(sector), &mut found).expect("a read");
    found
}

fn set_sectors() -> impl Iterator<Item = u64> {
    (LANES * BLOCKS..LANES * BLOCKS + SET_BLOCKS).step_by(2).map(|block| block * 8)
}

/// What a block holds; all of it says the same.
fn number(block: &[u8]) -> u64 {
    let number = u64::from_le_bytes(block[..8].try_into().expect("8 bytes"));
    assert!(block.chunks(8).all(|c| c == number.to_le_bytes()), "a torn block");
    number
}

/// By lane the newest write that was reported complete; behind them the newest set.
type Done = [u64; LANES as usize + 1];

/// Not a test of its own: what the parent starts and kills.
#[test]
#[ignore = "the process that nothing_completed_is_lost_when_the_process_is_killed kills"]
fn child() {
    let folder = std::env::var(FOLDER).expect("started by the test that kills it");
    let contract = std::env::var(CONTRACT).expect("a contract").parse().expect("a contract");
    let group = open(Path::new(&folder), contract);
    let output = Mutex::new(std::io::stdout());
    let disks = group.disks();
    std::thread::scope(|scope| {
        for (disk, d) in disks.iter().zip(0u64..) {
            let (output, home) = (&output, group.home_writer(DiskIndex(d as u16)).expect("a writer"));
            scope.spawn(move || {
                let newest = set_sectors().map(|sector| number(&block(disk, sector))).max().unwrap_or(0);
                for i in newest + 1.. {
                    let content: Vec<u8> = i.to_le_bytes().into_iter().cycle().take(4096).collect();
                    let blocks: Vec<_> = set_sectors().map(|sector| (Sector(sector), &content[..])).collect();
                    home.write_home(&blocks).expect("a set");
                    writeln!(output.lock().expect("output"), "done {d} {SETS} {i}").expect("a parent");
                }
            });
            for l in 0..LANES {
                scope.spawn(move || {
                    let mut lane = Blocking::new(disk.open_lane().expect("a lane"));
                    // Goes on where the last child was killed.
                    let newest = |b: u64| block(disk, (l * BLOCKS + b) * 8)[..8].try_into().expect("8 bytes");
                    let first = (0..BLOCKS).map(|b| u64::from_le_bytes(newest(b))).max().unwrap_or(0) + 1;
                    for i in first.. {
                        let content: Vec<u8> = i.to_le_bytes().into_iter().cycle().take(4096).collect();
                        lane.write(Sector((l * BLOCKS + i % BLOCKS) * 8), &content).expect("a write");
                        if i % 8 == 0 {
                            lane.flush(FlushKind::Order).expect("a flush");
                        }
                        writeln!(output.lock().expect("output"), "done {d} {l} {i}").expect("a parent");
                    }
                });
            }
        }
    });
}

#[test]
fn nothing_completed_is_lost_when_the_process_is_killed() {
    for contract in [Contract::PowerWindow { window: Duration::from_millis(20) }, Contract::GuestCrash] {
        let folder = tempfile::tempdir().expect("a folder");
        let mut done = [Done::default(); DISKS as usize];
        // A lap of the log is some 4,000 writes: kills fall into appends, syncs, rounds home and recoveries.
        for lines in [1, 100, 1000, 3000, 5000, 1, 1, 7000] {
            let mut child = Command::new(std::env::current_exe().expect("this test"))
                .args(["--exact", "child", "--ignored", "--nocapture"])
                .env(FOLDER, folder.path())
                .env(CONTRACT, contract.to_string())
                .stdout(Stdio::piped())
                .spawn()
                .expect("a child");
            let mut output = BufReader::new(child.stdout.take().expect("its output")).lines();
            let mut note = |line: &str| {
                let mut words = line.split("done ").nth(1)?.split(' ').map(|w| w.parse::<u64>().ok());
                let (d, l, i) = (words.next()??, words.next()??, words.next()??);
                let newest = &mut done[d as usize][l as usize];
                *newest = (*newest).max(i);
                Some(())
            };
            let mut seen = 0;
            while seen < lines {
                let line = output.next().expect("the child lives").expect("readable");
                seen += usize::from(note(&line).is_some());
            }
            child.kill().expect("killed");
            // What it had said before it died counts, too; the last line may be cut short.
            let rest: Vec<String> = output.map_while(Result::ok).collect();
            for line in rest.iter().take(rest.len().saturating_sub(1)) {
                note(line);
            }
            child.wait().expect("dead");
            check(folder.path(), contract, &done);
        }
    }
}

fn check(folder: &Path, contract: Contract, done: &[Done; DISKS as usize]) {
    let group = open(folder, contract);
    for (disk, done) in group.disks().iter().zip(done) {
        let sets: Vec<u64> = set_sectors().map(|sector| number(&block(disk, sector))).collect();
        let (oldest, newest) = (sets.iter().min().expect("some"), sets.iter().max().expect("some"));
        assert!(*oldest >= done[SETS as usize], "{contract}: a set is lost");
        assert!(oldest == newest || contract == Contract::GuestCrash, "{contract}: a part of set {newest}");
        for (l, newest) in (0u64..LANES).zip(done) {
            for b in 0..BLOCKS {
                let content = block(disk, (l * BLOCKS + b) * 8);
                let found = number(&content);
                // The newest completed write to this block.
                let expected = newest.saturating_sub((newest + BLOCKS - b) % BLOCKS);
                assert!(
                    found >= expected,
                    "{contract}: block {b} holds {found}, and {expected} had completed"
                );
                assert!(found == 0 || found % BLOCKS == b, "{contract}: another block's content");
            }
        }
    }
}
