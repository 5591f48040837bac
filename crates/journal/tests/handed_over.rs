//! Real guests' streams whose commits come through the control disk instead of their disk's queue: whoever dies, what is left is what the
//! guest's own recovery makes of the same stream on any disk. And what may not be handed over.

mod common;

use std::sync::Arc;

use afterimage_block::{Blocking, Buffers, Disk as _, Lane, Operation, Quiesced, Request, Sector, Token};
use afterimage_control_disk::ControlDisk;
use afterimage_format::control_disk::*;
use afterimage_journal::{FsBlock, RetainDisk};
use afterimage_trace::Op;
use common::control::{control_disk, in_journal};
use common::stream::{load, recordings, send, Plain, Stream};
use common::{at_commit, ext4, layouts, recovered, wait_for_home, Served};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use zerocopy::IntoBytes as _;

/// A guest's side of a control disk.
struct Control {
    disk: ControlDisk,
    lane: Box<dyn Lane>,
    /// What INIT was answered.
    right: (u64, u64),
}

impl Control {
    fn new(group: Vec<Arc<RetainDisk>>) -> Self {
        let (disk, lane) = control_disk(group);
        Self { disk, lane, right: (1, 0) }
    }

    fn of(served: &Served) -> Self {
        Self::new(vec![Arc::clone(served.disk.as_ref().unwrap())])
    }

    fn begin(&mut self, bytes: &[u8]) {
        let request = Request {
            token: Token(1),
            operation: Operation::Write { flushed: true },
            sector: Sector(7 * 2048),
            sectors: bytes.len() as u64 / 512,
            buffers: Buffers::from_bytes(bytes),
        };
        self.lane.submit(request);
    }

    fn end(&mut self) -> bool {
        let mut done = Vec::new();
        while done.is_empty() {
            self.lane.wait(&[], None).unwrap();
            self.lane.reap(&mut done);
        }
        done[0].result.is_ok()
    }

    fn ask(&mut self, command: Command, content: &[u8]) -> Answer {
        self.begin(&[command.seal().as_bytes(), content].concat());
        let well = self.end();
        let mut sector = [0; 512];
        Blocking::new(self.disk.open_lane().unwrap()).read(Sector(7 * 2048), &mut sector).unwrap();
        let answer = Answer::parse(&sector).unwrap();
        assert_eq!(well, matches!(answer.status.get(), STATUS_DONE | STATUS_NOT_YET), "{}", answer.text());
        answer
    }

    fn about(&mut self, operation: u16, uuid: [u8; 16]) -> Answer {
        self.ask(Command { file_system: uuid, ..Command::new(operation, 1) }, &[])
    }

    fn init(&mut self, uuid: [u8; 16]) {
        let answer = self.about(OPERATION_INIT, uuid);
        assert_eq!(answer.status.get(), STATUS_DONE, "{}", answer.text());
        self.right = (answer.instance.get(), answer.sequence.get());
    }

    fn command(&self, uuid: [u8; 16], block: FsBlock, blocks: usize) -> Command {
        let mut command = Command { file_system: uuid, ..Command::new(OPERATION_MPROTECT, 2) };
        (command.instance, command.sequence) = (self.right.0.into(), self.right.1.into());
        (command.block, command.blocks) = (block.0.into(), (blocks as u32).into());
        command
    }

    fn hand_over(&mut self, uuid: [u8; 16], block: FsBlock, content: &[u8]) -> Answer {
        let command = self.command(uuid, block, content.len() / 4096);
        self.ask(command, content)
    }
}

/// The journal block at which a write begins that is nothing but blocks of the journal, its superblock not among them.
fn judge(served: &Served, plain: &Plain, step: usize) {
    let mut copy = served.copy();
    copy.disk().settle().unwrap();
    plain.assert_same(&recovered(copy.read_all()).disk, "the guest's own recovery after the daemon's", step);
    plain.assert_same(&recovered(copy.finish(false)).disk, "recovery", step);
    plain.assert_same(&recovered(served.copy().finish(true)).disk, "recovery after an orderly end", step);
}

fn walk(stream: &Stream, applies: bool, seed: u64, bytes_max: u64) -> u64 {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    // Some guests make their file system themselves.
    let mut layout = None;
    let options = if applies { at_commit() } else { wait_for_home() };
    let mut served = Served::new(stream.base.clone(), bytes_max, options);
    let mut control = Control::of(&served);
    let mut plain = Plain::new(stream);
    let mut handed_over = 0;
    for (i, step) in stream.steps.iter().enumerate() {
        if layout.is_none() {
            layout = layouts(&plain.disk)
                .into_iter()
                .find(|l| control.about(OPERATION_INIT, l.uuid).status.get() == STATUS_DONE);
            layout.iter().for_each(|layout| control.init(layout.uuid));
        }
        plain.apply(&step.op);
        let block = layout.as_ref().and_then(|layout| Some((layout.uuid, in_journal(layout, &step.op)?)));
        match (block, &step.op) {
            (Some((uuid, block)), Op::Write { data, .. }) => {
                // As many to a command as the guest likes; some come twice, as after a daemon's death.
                let most = rng.random_range(1..=BLOCKS_MAX as usize);
                for (n, content) in data.chunks(most * 4096).enumerate() {
                    for _ in 0..rng.random_range(1..=2) {
                        let answer = control.hand_over(uuid, FsBlock(block.0 + (n * most) as u64), content);
                        assert_eq!(answer.status.get(), STATUS_DONE, "{}", answer.text());
                    }
                }
                handed_over += 1;
            }
            _ => send(&mut served, &step.op),
        }
        match rng.random_range(0..1000) {
            0..10 => served.disk().settle().unwrap(),
            10..20 => {
                drop(control);
                served.restart();
                // The guest does not know, and goes on by the right that it had.
                control = Control { right: (1, 7), ..Control::of(&served) };
            }
            20..25 => served.disk().make_room().unwrap(),
            25..30 => {
                let home =
                    layout.as_ref().map(|layout| control.about(OPERATION_RECOVER, layout.uuid).status.get());
                assert!(home.is_none_or(|status| status == STATUS_DONE));
            }
            30..36 => judge(&served, &plain, i),
            _ => {}
        }
    }
    let uuid = layout.unwrap().uuid;
    let held = control.about(OPERATION_QUERY, uuid).held;
    let cleaned = control.about(OPERATION_CLEANUP, uuid).status.get();
    assert_eq!(cleaned, if held.versions.get() == 0 { STATUS_DONE } else { STATUS_NOT_YET });
    drop(control);
    let commits = served.disk().status().file_systems[0].classes.journal_commits;
    plain.assert_same(&recovered(served.finish(false)).disk, "the end", stream.steps.len());
    assert!(handed_over > 20, "the guest has a journal");
    commits
}

#[test]
fn what_is_handed_over_is_committed_whoever_dies() {
    for path in recordings() {
        let stream = load(&path);
        for (seed, applies, bytes_max) in [(1, false, 64 << 20), (2, true, 64 << 20), (3, false, 256 << 10)] {
            let commits = walk(&stream, applies, seed, bytes_max);
            assert!(commits > 0 || bytes_max < 1 << 20, "{}", path.display());
        }
    }
}

#[test]
fn only_a_journals_blocks_are_handed_over_and_only_by_its_guest() {
    let base = ext4();
    let layout = layouts(&base).remove(0);
    let journal = layout.journal[0].home;
    let other = Served::new(base.clone(), 1 << 20, wait_for_home());
    let served = Served::new(base.clone(), 1 << 20, wait_for_home());
    let mut control = Control::of(&served);
    let none = control.about(OPERATION_INIT, [9; 16]);
    assert_eq!(
        (none.status.get(), none.text().as_str()),
        (STATUS_UNSUPPORTED, "no disk has a file system 09090909-0909-0909-0909-090909090909")
    );
    control.init(layout.uuid);
    let blocks = layout.journal_blocks();
    let behind = FsBlock(journal.0 + u64::from(layout.journal[0].blocks));
    for (uuid, block, count) in [
        ([9; 16], FsBlock(journal.0 + 1), 1),
        (layout.uuid, journal, 1),
        (layout.uuid, FsBlock(journal.0 - 1), 1),
        (layout.uuid, FsBlock(0), 1),
        (layout.uuid, behind, 1),
        (layout.uuid, FsBlock(behind.0 - 1), 2),
        (layout.uuid, FsBlock(u64::MAX), 2),
        (layout.uuid, FsBlock(u64::MAX - 1), BLOCKS_MAX as usize),
    ] {
        let answer = control.hand_over(uuid, block, &vec![1; count * 4096]);
        assert_eq!(answer.status.get(), STATUS_UNSUPPORTED, "{block} of {blocks}: {}", answer.text());
    }
    assert_eq!(served.below.bytes(), base, "nothing was written");
    // Two of one name: it is not known which is meant.
    let disks = [&served, &other].map(|served| Arc::clone(served.disk.as_ref().unwrap()));
    let mut both = Control { right: control.right, ..Control::new(disks.to_vec()) };
    let answer = both.hand_over(layout.uuid, FsBlock(journal.0 + 1), &[1; 4096]);
    assert_eq!(answer.status.get(), STATUS_UNSUPPORTED);

    let answer = control.hand_over(layout.uuid, FsBlock(journal.0 + 1), &[1; 4096]);
    assert_eq!(answer.status.get(), STATUS_DONE, "{}", answer.text());
    // The guest has left: what it may still have sent is nobody's, and the next one says that it is another.
    served.disk().quiesced(Quiesced::Stopped);
    assert_eq!(control.hand_over(layout.uuid, FsBlock(journal.0 + 1), &[2; 4096]).status.get(), STATUS_DONE);
    served.disk().quiesced(Quiesced::Disconnected);
    let answer = control.hand_over(layout.uuid, FsBlock(journal.0 + 1), &[3; 4096]);
    assert_eq!(answer.status.get(), STATUS_UNSUPPORTED, "{}", answer.text());
    control.right.0 += 2;
    let answer = control.hand_over(layout.uuid, FsBlock(journal.0 + 1), &[3; 4096]);
    assert_eq!(answer.status.get(), STATUS_UNSUPPORTED, "an earlier daemon's guest has left, too");
    let mut found = [0; 4096];
    Blocking::new(served.disk().open_lane().unwrap())
        .read(FsBlock(journal.0 + 1).sector(layout.start), &mut found)
        .unwrap();
    assert!(found == [2; 4096]);
    control.init(layout.uuid);
    assert_eq!(control.hand_over(layout.uuid, FsBlock(journal.0 + 1), &[4; 4096]).status.get(), STATUS_DONE);
}

/// A file system of which there is a copy elsewhere may be mounted from there: then this disk's journal is another one.
#[test]
fn a_challenge_is_looked_for_on_the_disk() {
    let base = ext4();
    let layout = layouts(&base).remove(0);
    let superblock = layout.journal[0].home.sector(layout.start);
    let served = Served::new(base, 1 << 20, wait_for_home());
    let mut control = Control::of(&served);
    let mut init = |challenge: u64| {
        let command = Command { file_system: layout.uuid, ..Command::new(OPERATION_INIT, 1) };
        control.ask(Command { block: challenge.into(), ..command }, &[])
    };
    let operations = init(0).operations.get();
    assert!(operations & 1 << OPERATION_CHALLENGE != 0);
    for challenge in [7, 0x0102_0304_0506_0708] {
        let elsewhere = init(challenge);
        assert_eq!(elsewhere.status.get(), STATUS_UNSUPPORTED);
        assert!(elsewhere.text().contains("a copy with the same UUID"), "{}", elsewhere.text());
        let mut lane = Blocking::new(served.disk().open_lane().unwrap());
        let mut block = [0; 4096];
        lane.read(superblock, &mut block).unwrap();
        block[CHALLENGE_AT..CHALLENGE_AT + 8].copy_from_slice(&challenge.to_le_bytes());
        lane.write(superblock, &block).unwrap();
        let here = init(challenge);
        assert_eq!((here.status.get(), here.sequence.get()), (STATUS_DONE, served.disk().hands().guest()));
    }
    assert_eq!(init(7).status.get(), STATUS_UNSUPPORTED, "an earlier mount's");
}

/// What waits for the end of a pause holds back that its guest has left, and the next one's connection with it.
#[test]
fn a_guest_leaves_when_its_last_commit_is_over() {
    let base = ext4();
    let layout = layouts(&base).remove(0);
    let first = FsBlock(layout.journal[0].home.0 + 1);
    let served = Served::new(base, 1 << 20, wait_for_home());
    let mut control = Control::of(&served);
    control.init(layout.uuid);
    let before = served.disk().hands().guest();
    served.disk().pause().unwrap();
    let command = control.command(layout.uuid, first, 1);
    control.begin(&[command.seal().as_bytes(), &[5; 4096]].concat());
    let disk = Arc::clone(served.disk.as_ref().unwrap());
    std::thread::scope(|scope| {
        let leaves = scope.spawn(|| disk.quiesced(Quiesced::Disconnected));
        while disk.hands().guest() == before {
            std::thread::yield_now();
        }
        std::thread::sleep(std::time::Duration::from_millis(20));
        assert!(!leaves.is_finished());
        disk.resume();
        assert!(control.end());
        leaves.join().unwrap();
    });
    let mut found = [0; 4096];
    Blocking::new(served.disk().open_lane().unwrap()).read(first.sector(layout.start), &mut found).unwrap();
    assert!(found == [5; 4096]);
}
