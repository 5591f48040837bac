//! Memory that is short: by `--retain-max`, among several disks, or because the arena's tmpfs is full.

use std::os::unix::process::CommandExt;
use std::process::Command;

use afterimage::serve::memory::Shape;
use afterimage_block::Sector;
use afterimage_journal::layout::{Found, Layout, Source};
use afterimage_journal::{AreaBlock, FsBlock};

use super::*;

#[test]
fn memory_is_bounded_whatever_the_guest_logs() {
    let (dir, mut journal) = place();
    let args = [&CRASH[..], &["--retain-max", "1M"]].concat();
    let (daemon, mut guest) = committed(dir.path(), &mut journal, &args);
    // One transaction that never ends: journal blocks without a commit.
    let scattered: Vec<u64> = (journal.first + 4..journal.first + 10).chain(journal.tail_blocks()).collect();
    for (n, block) in scattered.iter().enumerate() {
        guest.write(block * BLOCK, &vec![n as u8 | 1; BLOCK as usize]);
    }
    for (n, block) in scattered.iter().enumerate() {
        assert_filled(&guest.read(block * BLOCK, BLOCK as usize), n as u8 | 1);
    }
    let status = json(dir.path(), &["ctl", "c", "status", "--json"]);
    let arena = &status["disks"][0]["arena"];
    assert!(arena["used_bytes"].as_u64().unwrap() <= 1 << 20, "{status}");
    assert!(arena["resident_bytes"].as_u64().unwrap() <= 4 << 20, "{status}");
    assert!(file_system(dir.path())["evicted_blocks"].as_u64().unwrap() > 0, "{status}");
    leave(dir.path(), guest);
    daemon.terminate();
    assert_filled(&block(dir.path(), journal.free), 7);
}

/// Bytes of memory of each disk's arena, as the system counts them.
fn resident_bytes(dir: &Path) -> Vec<u64> {
    let status = json(dir, &["ctl", "c", "status", "--json"]);
    let disks = status["disks"].as_array().unwrap();
    disks.iter().map(|disk| disk["arena"]["resident_bytes"].as_u64().unwrap()).collect()
}

#[test]
fn two_disks_together_hold_no_more_than_the_bound() {
    const BOUND: u64 = 2 << 20;
    let (dir, first) = place();
    let second = Journal::make(&dir.path().join("b.img"));
    let args = [&CRASH[..], &["--disk", "b.img", "--retain-max", "2M"]].concat();
    let daemon = serve(dir.path(), &args);
    let mut guests = [connect(dir.path()), Guest::connect(&dir.path().join("b.img.sock"))];
    let mut journals = [first, second];
    // Of each arena: its head, a page of tags for 128 slots, and the page that lets a block be replaced.
    let constant = 2 * (5 * BLOCK + BOUND / 128 + 2 * BLOCK);
    for turn in 0..4 {
        let (guest, journal) = (&mut guests[turn % 2], &mut journals[turn % 2]);
        journal.mount(guest);
        // Nearly all of the bound; then the guest is done with its journal, and the slots are free.
        for block in journal.tail_blocks().take(480) {
            guest.write(journal.place(block), &[turn as u8 + 1; BLOCK as usize]);
        }
        let resident = resident_bytes(dir.path());
        assert!(resident.iter().sum::<u64>() <= BOUND + constant, "turn {turn}: {resident:?}");
        assert!(resident[turn % 2] >= BOUND * 3 / 4, "turn {turn}: {resident:?}");
        journal.unmount(guest);
    }
    drop(guests);
    daemon.terminate();
}

/// A daemon for whom `arena` is a tmpfs of that size, of which others have taken some bytes. `None` where a test cannot mount.
#[track_caller]
fn command_on_small_tmpfs(dir: &Path, size: &str, taken_kib: u32, args: &[&str]) -> Option<Command> {
    let script = format!(
        "mount -t tmpfs -o size={size} none arena && head -c {taken_kib}K /dev/zero > arena/taken && exec \"$@\""
    );
    let mut command = with_own_mounts(&script)?;
    command.args([env!("CARGO_BIN_EXE_afterimage"), "serve", "--json", "--control", "c"]);
    // With its process group, nothing of it outlives a test that fails.
    command.args(args).current_dir(dir).process_group(0);
    Some(command)
}

#[test]
fn a_full_tmpfs_loses_nothing() {
    for args in [&CRASH[..], &WINDOW] {
        let (dir, mut journal) = place();
        // Of 3 MiB a third is somebody else's: much less than the journal, and than the 256 MiB of the bound.
        let Some(mut command) = command_on_small_tmpfs(dir.path(), "3m", 1024, args) else { return };
        let daemon = Daemon::start(&mut command);
        let mut guest = connect(dir.path());
        journal.mount(&mut guest);
        journal.commit(&mut guest, journal.free, 7);
        for block in journal.tail_blocks() {
            guest.write(journal.place(block), &vec![block as u8 | 1; BLOCK as usize]);
        }
        for block in journal.tail_blocks() {
            assert_filled(&guest.read(journal.place(block), BLOCK as usize), block as u8 | 1);
        }
        journal.commit(&mut guest, journal.free - 1, 9);
        let found = file_system(dir.path());
        assert!(found["evicted_blocks"].as_u64().unwrap() > 0, "{found}");
        leave(dir.path(), guest);
        let errors = daemon.terminate();
        assert!(errors.contains("the arena's tmpfs is full") && errors.contains("--retain-max"), "{errors}");
        for (home, byte) in [(journal.free, 7), (journal.free - 1, 9)] {
            assert_filled(&block(dir.path(), home), byte);
        }
        assert_eq!(names(dir.path()), ["a.img", "arena"]);
        e2fs("e2fsck", &["-fn"], &dir.path().join("a.img"));
    }
}

#[test]
fn a_tmpfs_without_room_for_an_arena_is_refused_in_words() {
    let (dir, _) = place();
    let Some(mut command) = command_on_small_tmpfs(dir.path(), "64k", 60, &CRASH) else { return };
    let output = command.output().unwrap();
    let message = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "{message}");
    assert!(message.contains("getting memory for the arena") && message.contains("No space"), "{message}");
    assert_eq!(names(dir.path()), ["a.img", "arena"]);
}

struct Image(fs::File);

impl Source for Image {
    fn read(&mut self, sector: Sector, buf: &mut [u8]) -> Result<(), afterimage_block::BlockError> {
        self.0.read_exact_at(buf, sector.0 * 512).unwrap();
        Ok(())
    }
}

fn layout(image: &Path) -> Layout {
    let file = fs::File::open(image).unwrap();
    let sectors = file.metadata().unwrap().len() / 512;
    match afterimage_journal::layout::find(&mut Image(file), sectors).unwrap().remove(0) {
        Found::FileSystem(layout) => layout,
        other => panic!("{other:?}"),
    }
}

/// Half a gigabyte is announced by a megabyte of descriptors: what counts is the process's memory, not the arena's.
#[test]
fn announced_blocks_cost_no_memory() {
    const BLOCKS: u64 = 512 << 8;
    for (args, log_bytes_max) in [(&CRASH[..], None), (&WINDOW, Some(16 << 20))] {
        let dir = folder(&[]);
        fs::create_dir(dir.path().join("arena")).unwrap();
        let image = dir.path().join("a.img");
        fs::File::create(&image).unwrap().set_len(1536 << 20).unwrap();
        let options =
            ["-q", "-F", "-t", "ext4", "-b", "4096", "-J", "size=512", "-O", "^metadata_csum,^64bit"];
        let lazy = ["-E", "lazy_itable_init=1,lazy_journal_init=1,nodiscard", "-N", "1024"];
        e2fs("mke2fs", &[&options[..], &lazy].concat(), &image);
        let layout = layout(&image);
        let place = |at: u64| layout.home_of(AreaBlock(at as u32)).unwrap().0 * BLOCK;
        let mut homes = (20_000..).filter(|home| layout.area_of(FsBlock(*home)).is_none());
        let daemon = serve(dir.path(), &[args, &["--retain-max", "1M"]].concat());
        let mut guest = connect(dir.path());
        let first = place(0);
        let mut superblock = guest.read(first, BLOCK as usize);
        superblock[28..32].copy_from_slice(&1u32.to_be_bytes());
        guest.write(first, &superblock);
        assert_eq!(file_system(dir.path())["mode"], "retain");
        let header = |kind: u32| -> Vec<u8> {
            let mut block: Vec<u8> = [0xc03b_3998, kind, 1].into_iter().flat_map(u32::to_be_bytes).collect();
            block.resize(BLOCK as usize, 0);
            block
        };
        // Tags of eight bytes, without a UUID.
        let mut at = 1;
        while at + 600 < BLOCKS {
            let mut block = header(1);
            for tag in block[12..].chunks_exact_mut(8) {
                tag[..4].copy_from_slice(&(homes.next().unwrap() as u32).to_be_bytes());
                tag[4..].copy_from_slice(&2u32.to_be_bytes());
            }
            guest.write(place(at), &block);
            at += 511;
        }
        guest.write(place(at), &header(2));
        guest.flush();
        let bound = Shape {
            disks: 1,
            queues: 1,
            log_bytes_max,
            retain_bytes_max: Some(1 << 20),
            trace: false,
            control_disk: false,
            recover_ijournal: false,
        };
        let status = fs::read_to_string(format!("/proc/{}/status", daemon.pid())).unwrap();
        let line = status.lines().find(|line| line.starts_with("VmHWM:")).unwrap();
        let peak = line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() << 10;
        // The guest's own memory is shared with it.
        let bound = bound.bytes_max() + (1 << 20);
        assert!(peak <= bound, "{} MiB of {}", peak >> 20, bound >> 20);
        drop(guest);
        daemon.kill();
    }
}
