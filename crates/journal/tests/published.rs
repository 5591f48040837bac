//! Commits that a guest publishes in memory which it has lent, beside streams of recorded guests: whoever dies, what is left is what the guest's own
//! recovery makes of the same stream on any disk, with everything in it of which the guest was told that it is committed. And what a guest may do there.

mod common;

use std::io;
use std::os::fd::BorrowedFd;
use std::sync::mpsc::{channel, Sender};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use afterimage_block::{
    Admitted, BlockError, Blocking, Buffers, Completion, Disk, FlushKind, Front, Geometry, Lane, Operation,
    Quiesced, Request, Sector, Token,
};
use afterimage_control_disk::ControlDisk;
use afterimage_format::control_disk::*;
use afterimage_journal::layout::Layout;
use afterimage_journal::log::{commit_tid, HEADER_BYTES};
use afterimage_journal::{FsBlock, RetainDisk};
use afterimage_order::{Clock, VirtualClock};
use afterimage_trace::Op;
use common::control::{control_disk, heard, in_journal};
use common::stream::{load, recordings, send, Plain, Stream};
use common::{at_commit, ext4, layouts, recovered, wait_for_home, Served};
use rand::{Rng, RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use zerocopy::IntoBytes as _;

const BLOCK: usize = BLOCK_BYTES as usize;
const SECTOR: usize = 512;
const SLOT: Sector = Sector(60 * 2048);
/// Content that is lent: as much as a stock guest's request holds.
const CONTENT_BLOCKS: usize = 125;

/// A daemon's control disk, and the lane of the queue over which its guest comes.
struct Control {
    disk: ControlDisk,
    lane: Box<dyn Lane>,
    done: Vec<Completion>,
}

const READ: u64 = 1;
const COMMAND: u64 = 2;

impl Control {
    fn of(disk: &Arc<RetainDisk>) -> Self {
        let (disk, lane) = control_disk(vec![Arc::clone(disk)]);
        Self { disk, lane, done: Vec::new() }
    }

    fn submit(&mut self, token: u64, operation: Operation, buffers: Buffers) {
        let sectors = buffers.len() as u64 / 512;
        self.lane.submit(Request { token: Token(token), operation, sector: SLOT, sectors, buffers });
        self.lane.reap(&mut self.done);
    }

    fn turn(&mut self) {
        self.lane.wait(&[], Some(Duration::from_millis(1))).unwrap();
        self.lane.reap(&mut self.done);
    }

    /// Whether that request has ended; then whether it went well.
    fn ended(&mut self, token: u64) -> Option<bool> {
        let at = self.done.iter().position(|done| done.token == Token(token))?;
        Some(self.done.remove(at).result.is_ok())
    }

    fn end(&mut self, token: u64) -> bool {
        loop {
            if let Some(well) = self.ended(token) {
                return well;
            }
            self.turn();
        }
    }

    fn ask(&mut self, operation: u16, uuid: [u8; 16]) -> Answer {
        let command = Command { file_system: uuid, ..Command::new(operation, 1) };
        self.submit(
            COMMAND,
            Operation::Write { flushed: true },
            Buffers::from_bytes(command.seal().as_bytes()),
        );
        self.end(COMMAND);
        let mut sector = [0; 512];
        Blocking::new(self.disk.open_lane().unwrap()).read(SLOT, &mut sector).unwrap();
        Answer::parse(&sector).unwrap()
    }
}

/// A guest's memory, as its kernel uses it.
struct Guest {
    memory: Buffers,
    published: u32,
    /// Its read is under way.
    lent: bool,
}

impl Guest {
    fn new(uuid: [u8; 16], (instance, sequence): (u64, u64), number: u32) -> Self {
        let memory = Buffers::allocate((1 + CONTENT_BLOCKS) * BLOCK);
        let mut lent = Lent::new(uuid, instance, sequence);
        (lent.published, lent.taken) = (number.into(), number.into());
        memory.copy_from(0, lent.as_bytes());
        Self { memory, published: number, lent: false }
    }

    fn word(&self, at: usize) -> u32 {
        self.memory.load_u32(at).unwrap()
    }

    fn offer(&mut self, control: &mut Control) {
        self.memory.store_u32(Lent::STATE_AT, LENT_OFFERED);
        control.submit(READ, Operation::Read, self.memory.share());
        self.lent = true;
    }

    /// One store; whether it counts as committed then.
    fn publish(&mut self, blocks: &[(FsBlock, &[u8])]) -> bool {
        for (n, (block, content)) in blocks.iter().enumerate() {
            self.memory.copy_from((1 + n) * BLOCK, content);
            self.memory.copy_from(192 + 8 * n, &block.0.to_le_bytes());
        }
        self.memory.store_u32(68, blocks.len() as u32);
        self.published = self.published.wrapping_add(1);
        self.memory.store_u32(Lent::PUBLISHED_AT, self.published);
        std::sync::atomic::fence(std::sync::atomic::Ordering::SeqCst);
        self.word(Lent::STATE_AT) == LENT_OPEN
    }

    fn is_taken(&self) -> bool {
        self.word(Lent::TAKEN_AT) == self.published
    }

    /// Until it is taken, or the read has ended without.
    fn wait(&mut self, control: &mut Control) -> bool {
        while !self.is_taken() && self.lent {
            self.lent = control.ended(READ).inspect(|well| assert!(*well)).is_none();
            if self.lent {
                control.turn();
            }
        }
        self.is_taken()
    }
}

fn judge(served: &Served, plain: &Plain, step: usize) {
    plain.assert_same(&recovered(served.copy().finish(false)).disk, "recovery", step);
    plain.assert_same(&recovered(served.copy().finish(true)).disk, "recovery after an orderly end", step);
}

/// What happens between a publication and its end.
fn disturb(
    rng: &mut ChaCha8Rng,
    served: &mut Served,
    mut control: Control,
    guest: &mut Guest,
    committed: bool,
) -> Control {
    match rng.random_range(0..40) {
        0 => {
            // The daemon dies. The next one is given the read again: it was in flight.
            drop(control);
            served.restart();
            control = Control::of(served.disk.as_ref().unwrap());
            if guest.lent {
                control.submit(READ, Operation::Read, guest.memory.share());
            }
        }
        1 => {
            let disk = served.disk.as_ref().unwrap();
            std::thread::scope(|scope| {
                let stops = scope.spawn(|| disk.quiesced(Quiesced::Stopped));
                while !stops.is_finished() {
                    control.turn();
                }
            });
            assert!(guest.is_taken() || !committed, "told before queues stopped");
        }
        2 => {
            assert_eq!(control.ask(OPERATION_VFLUSH, [0; 16]).status.get(), STATUS_DONE);
            assert!(guest.is_taken() || !committed, "told before a flush");
        }
        3 => drop(guest.memory.store_u32(Lent::BACK_AT, 1)),
        _ => {}
    }
    control
}

fn walk(stream: &Stream, applies: bool, seed: u64, bytes_max: u64) -> (u64, u64) {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let mut layout: Option<Arc<Layout>> = None;
    let options = if applies { at_commit() } else { wait_for_home() };
    let mut served = Served::new(stream.base.clone(), bytes_max, options);
    let mut control = Control::of(served.disk.as_ref().unwrap());
    let mut plain = Plain::new(stream);
    let mut guest: Option<Guest> = None;
    let (mut at_once, mut again) = (0, 0);
    for (i, step) in stream.steps.iter().enumerate() {
        if layout.is_none() {
            let there = layouts(&plain.disk).into_iter();
            layout =
                there.map(Arc::new).find(|l| control.ask(OPERATION_INIT, l.uuid).status.get() == STATUS_DONE);
            guest = layout.as_ref().map(|layout| {
                let answer = control.ask(OPERATION_INIT, layout.uuid);
                // Numbers wrap around.
                Guest::new(layout.uuid, (answer.instance.get(), answer.sequence.get()), u32::MAX - 5)
            });
        }
        plain.apply(&step.op);
        let block = layout.as_ref().and_then(|layout| in_journal(layout, &step.op));
        let (Some(block), Some(guest), Op::Write { data, .. }) = (block, &mut guest, &step.op) else {
            send(&mut served, &step.op);
            continue;
        };
        for (n, content) in data.chunks(CONTENT_BLOCKS * BLOCK).enumerate() {
            let first = block.0 + (n * CONTENT_BLOCKS) as u64;
            let blocks: Vec<(FsBlock, &[u8])> =
                content.chunks(BLOCK).enumerate().map(|(n, c)| (FsBlock(first + n as u64), c)).collect();
            loop {
                if !guest.lent {
                    guest.memory.store_u32(Lent::BACK_AT, 0);
                    guest.offer(&mut control);
                }
                let committed = guest.publish(&blocks);
                at_once += u64::from(committed);
                control = disturb(&mut rng, &mut served, control, guest, committed);
                if guest.wait(&mut control) {
                    break;
                }
                // The guest saw that when it published; a kernel sends it now, and here it is published again.
                assert!(!committed, "step {i}: told that it is committed, and not taken");
                again += 1;
                guest.memory.store_u32(Lent::TAKEN_AT, guest.published);
            }
        }
        if rng.random_range(0..60) == 0 {
            judge(&served, &plain, i);
        }
    }
    if let Some(guest) = guest.as_mut().filter(|guest| guest.lent) {
        guest.memory.store_u32(Lent::BACK_AT, 1);
        assert!(control.end(READ));
    }
    let taken = control.disk.commands().published.load(std::sync::atomic::Ordering::Relaxed);
    assert!(taken > 0);
    drop(control);
    plain.assert_same(&recovered(served.finish(false)).disk, "the end", stream.steps.len());
    (at_once, again)
}

#[test]
fn what_is_published_is_committed_whoever_dies() {
    let (mut at_once, mut again) = (0, 0);
    for path in recordings() {
        let stream = load(&path);
        for (seed, applies, bytes_max) in [(1, false, 64 << 20), (2, true, 64 << 20), (3, false, 256 << 10)] {
            let told = walk(&stream, applies, seed, bytes_max);
            (at_once, again) = (at_once + told.0, again + told.1);
        }
    }
    assert!(at_once > 500, "{at_once} commits were told at once, {again} published again");
}

/// A disk, its control disk, memory that is lent and open, and the first blocks of its journal.
fn lent() -> (Served, Control, Guest, Arc<Layout>, FsBlock) {
    let base = ext4();
    let layout = Arc::new(layouts(&base).remove(0));
    let first = FsBlock(layout.journal[0].home.0 + 1);
    let served = Served::new(base, 1 << 20, wait_for_home());
    let mut control = Control::of(served.disk.as_ref().unwrap());
    let right = control.ask(OPERATION_INIT, layout.uuid);
    let mut guest = Guest::new(layout.uuid, (right.instance.get(), right.sequence.get()), 0);
    guest.offer(&mut control);
    assert_eq!(guest.word(Lent::STATE_AT), LENT_OPEN);
    (served, control, guest, layout, first)
}

fn content(served: &Served, layout: &Layout, block: FsBlock) -> u8 {
    let mut found = [0; BLOCK];
    let lane = served.disk().open_lane().unwrap();
    Blocking::new(lane).read(block.sector(layout.start), &mut found).unwrap();
    assert!(found.iter().all(|byte| *byte == found[0]));
    found[0]
}

#[test]
fn a_guest_that_leaves_has_everything_taken_and_the_next_one_nothing() {
    let (served, mut control, mut guest, layout, first) = lent();
    assert!(guest.publish(&[(first, &[5; BLOCK]), (FsBlock(first.0 + 1), &[6; BLOCK])]));
    let disk = Arc::clone(served.disk.as_ref().unwrap());
    std::thread::scope(|scope| {
        let leaves = scope.spawn(|| disk.quiesced(Quiesced::Disconnected));
        assert!(control.end(READ));
        leaves.join().unwrap();
    });
    assert!(guest.is_taken() && guest.word(Lent::STATE_AT) == LENT_CLOSED);
    assert_eq!((content(&served, &layout, first), content(&served, &layout, FsBlock(first.0 + 1))), (5, 6));
    // What it publishes now is nobody's, whatever it lends.
    guest.publish(&[(first, &[7; BLOCK])]);
    guest.offer(&mut control);
    assert!(control.end(READ));
    assert_eq!((guest.word(Lent::STATE_AT), guest.is_taken()), (LENT_REFUSED, false));
    assert_eq!(content(&served, &layout, first), 5);
    let answer = {
        let mut sector = [0; 512];
        Blocking::new(control.disk.open_lane().unwrap()).read(SLOT, &mut sector).unwrap();
        Answer::parse(&sector).unwrap()
    };
    assert_eq!((answer.operation.get(), answer.status.get()), (OPERATION_LEND, STATUS_UNSUPPORTED));
    assert_eq!(answer.text(), "the guest whose commits these are has left the disk");
}

/// The host may ask for what is published by now, as the guest's own flush does.
#[test]
fn whoever_flushes_on_the_host_has_what_is_published() {
    for round in 1..4 {
        let (served, mut control, mut guest, layout, first) = lent();
        assert!(guest.publish(&[(first, &[round; BLOCK])]));
        let disk = Arc::clone(served.disk.as_ref().unwrap());
        std::thread::scope(|scope| {
            let flushes = scope.spawn(|| disk.take_published());
            std::thread::sleep(Duration::from_millis(2));
            assert!(!flushes.is_finished(), "nobody has looked yet");
            while !flushes.is_finished() {
                control.turn();
            }
        });
        assert!(guest.is_taken());
        assert_eq!(content(&served, &layout, first), round);
        // Nobody waits for a read that has ended.
        if control.ended(READ).is_none() {
            guest.memory.store_u32(Lent::BACK_AT, 1);
            assert!(control.end(READ));
        }
        disk.take_published();
    }
    // Nor for the end of a pause.
    let (served, _control, mut guest, ..) = lent();
    served.disk().pause().unwrap();
    assert!(guest.publish(&[(FsBlock(0), &[0; BLOCK])]));
    served.disk().take_published();
}

/// However many wait, and whatever their memory holds by the time they are carried out: the daemon's stack is not theirs.
#[test]
fn a_command_that_waits_is_what_it_was_when_it_came() {
    let (served, mut control, mut guest, layout, first) = lent();
    served.disk().pause().unwrap();
    assert!(guest.publish(&[(first, &[5; BLOCK])]));
    let memory = Buffers::allocate(SECTOR + BLOCK);
    memory.copy_from(0, &[0xaa; SECTOR + BLOCK]);
    let commands = 100..1600;
    for token in commands.clone() {
        control.submit(token, Operation::Write { flushed: true }, memory.share());
    }
    assert!(commands.clone().all(|token| control.ended(token).is_none()), "they wait for what is published");
    let lent = Lent::parse(&guest.memory.to_vec()[..BLOCK]).unwrap();
    let mut command = Command { file_system: layout.uuid, ..Command::new(OPERATION_MPROTECT, 2) };
    (command.instance, command.sequence) = (lent.instance, lent.sequence);
    (command.block, command.blocks) = ((first.0 + 1).into(), 1.into());
    memory.copy_from(0, command.seal().as_bytes());
    served.disk().resume();
    assert!(commands.clone().all(|token| !control.end(token)), "each is refused");
    let next = content(&served, &layout, FsBlock(first.0 + 1));
    assert_eq!((content(&served, &layout, first), next), (5, 0), "nothing was handed over");
    let refused = control.disk.commands().refused.load(std::sync::atomic::Ordering::Relaxed);
    assert_eq!(refused, commands.end - commands.start);
}

/// A read's name is given again when it has ended: what is lent next under that name is not waited for.
#[test]
fn a_command_waits_for_the_reads_that_there_were() {
    const OTHER: u64 = 3;
    let bases = [ext4(), ext4()];
    let layouts = [0, 1].map(|n: usize| layouts(&bases[n]).remove(0));
    let firsts = [0, 1].map(|n: usize| FsBlock(layouts[n].journal[0].home.0 + 1));
    let served = bases.map(|base| Served::new(base, 1 << 20, wait_for_home()));
    let (disk, lane) = control_disk(served.iter().map(|served| served.disk.clone().unwrap()).collect());
    let mut control = Control { disk, lane, done: Vec::new() };
    let guest = |control: &mut Control, n: usize, number| {
        let right = control.ask(OPERATION_INIT, layouts[n].uuid);
        Guest::new(layouts[n].uuid, (right.instance.get(), right.sequence.get()), number)
    };
    let (mut one, mut other) = (guest(&mut control, 0, 1000), guest(&mut control, 1, 0));
    let mut next = guest(&mut control, 0, 3);
    one.offer(&mut control);
    control.submit(OTHER, Operation::Read, other.memory.share());
    assert!(one.publish(&[(firsts[0], &[5; BLOCK])]) && one.wait(&mut control));
    served[1].disk().pause().unwrap();
    assert!(other.publish(&[(firsts[1], &[6; BLOCK])]));
    let query = Command { file_system: layouts[0].uuid, ..Command::new(OPERATION_QUERY, 1) };
    control.submit(COMMAND, Operation::Write { flushed: true }, Buffers::from_bytes(query.seal().as_bytes()));
    one.memory.store_u32(Lent::BACK_AT, 1);
    assert!(control.end(READ));
    next.offer(&mut control);
    assert!(control.ended(COMMAND).is_none(), "the other publication is not taken");
    served[1].disk().resume();
    while !other.is_taken() {
        control.turn();
    }
    assert_eq!(control.ended(COMMAND), Some(true), "what was lent later is waited for");
    next.memory.store_u32(Lent::BACK_AT, 1);
    assert!(control.end(READ));
}

#[test]
fn a_read_is_held_for_as_long_as_it_may_be() {
    let (served, mut control, mut guest, layout, first) = lent();
    let begun = Instant::now();
    assert!(guest.publish(&[(first, &[5; BLOCK])]) && guest.wait(&mut control));
    assert!(control.end(READ));
    let held = begun.elapsed();
    assert!(
        held >= Duration::from_millis(LENT_MS_MAX as u64 - 20) && held < Duration::from_secs(20),
        "{held:?}"
    );
    // The read has ended, and what is published counts as nothing.
    assert!(!guest.publish(&[(first, &[6; BLOCK])]));
    assert_eq!((control.lane.in_flight(), content(&served, &layout, first)), (0, 5));
}

/// Just before somebody looks at it for the first time, the guest publishes.
#[derive(Debug)]
struct Late {
    clock: VirtualClock,
    memory: Mutex<Buffers>,
}

impl Clock for Late {
    fn now(&self) -> Duration {
        self.memory.lock().unwrap().store_u32(Lent::PUBLISHED_AT, 1);
        self.clock.advance(Duration::from_secs(1));
        self.clock.now()
    }
}

/// Notes since when what is published counts.
struct Since {
    disk: Arc<RetainDisk>,
    told: Sender<Duration>,
}

struct SinceLane {
    lane: Box<dyn Lane>,
    told: Sender<Duration>,
}

impl Front for Since {
    fn lower(&self) -> &dyn Disk {
        &*self.disk
    }

    fn open_front(&self, lane: Box<dyn Lane>) -> Result<Box<dyn Lane>, BlockError> {
        Ok(Box::new(SinceLane { lane, told: self.told.clone() }))
    }
}

impl Lane for SinceLane {
    fn geometry(&self) -> Geometry {
        self.lane.geometry()
    }

    fn refuse(&mut self, refusal: Completion) {
        self.lane.refuse(refusal);
    }

    fn take(&mut self, request: Admitted) {
        if let Operation::Flush(FlushKind::Told { since }) = request.operation {
            self.told.send(since).unwrap();
        }
        self.lane.take(request);
    }

    fn dispatch(&mut self) {
        self.lane.dispatch();
    }

    fn reap(&mut self, completions: &mut Vec<Completion>) {
        self.lane.reap(completions);
    }

    fn in_flight(&self) -> usize {
        self.lane.in_flight()
    }

    fn wait(&mut self, also: &[BorrowedFd<'_>], timeout: Option<Duration>) -> io::Result<()> {
        self.lane.wait(also, timeout)
    }
}

/// An earlier daemon has left it open: what is published there is committed, also while this one begins to look.
#[test]
fn what_is_published_while_memory_is_taken_over_counts_from_before() {
    let (served, control, guest, layout, first) = lent();
    drop(control);
    guest.memory.copy_from(BLOCK, &[5; BLOCK]);
    guest.memory.copy_from(192, &first.0.to_le_bytes());
    guest.memory.store_u32(68, 1);
    let (told, since) = channel();
    let way_in = Arc::new(Since { disk: served.disk.clone().unwrap(), told });
    let clock = Arc::new(Late { clock: VirtualClock::default(), memory: Mutex::new(guest.memory.share()) });
    let disk = heard(way_in.disk.clone(), way_in, clock);
    let lane = disk.open_lane().unwrap();
    let mut control = Control { disk, lane, done: Vec::new() };
    control.submit(READ, Operation::Read, guest.memory.share());
    assert!(control.end(READ) && guest.word(Lent::TAKEN_AT) == 1);
    assert_eq!(since.recv().unwrap(), Duration::ZERO, "the first time that was asked for is one second");
    assert_eq!(content(&served, &layout, first), 5);
}

/// An earlier daemon has left it open, and this one must not take what is published: nothing is promised that covers it, until its guest has
/// sent it, or is gone.
#[test]
fn nothing_is_promised_while_a_commit_that_was_told_is_not_there() {
    let (served, control, mut guest, layout, first) = lent();
    drop(control);
    assert!(guest.publish(&[(first, &[5; BLOCK]), (FsBlock(first.0 + 1), &[6; BLOCK])]));
    served.disk().quiesced(Quiesced::Disconnected);
    let mut control = Control::of(served.disk.as_ref().unwrap());
    control.submit(READ, Operation::Read, guest.memory.share());
    assert!(control.end(READ) && !guest.is_taken());
    let vflush = Command::new(OPERATION_VFLUSH, 1).seal();
    let submit = |control: &mut Control, token| {
        let buffers = Buffers::from_bytes(vflush.as_bytes());
        control.submit(token, Operation::Write { flushed: true }, buffers);
    };
    // It waits a while for what the guest does now.
    submit(&mut control, 10);
    (0..20).for_each(|_| control.turn());
    assert_eq!(control.ended(10), None, "its commit may not be durable");
    let send = |control: &mut Control, block: FsBlock| {
        let hello = {
            let mut sector = [0; 512];
            Blocking::new(control.disk.open_lane().unwrap()).read(Sector(2048), &mut sector).unwrap();
            Answer::parse(&sector).unwrap()
        };
        let mut command = Command { file_system: layout.uuid, ..Command::new(OPERATION_MPROTECT, 2) };
        (command.instance, command.sequence) = (hello.instance, served.disk().hands().guest().into());
        (command.block, command.blocks) = (block.0.into(), 1.into());
        let bytes = [command.seal().as_bytes(), &[7; BLOCK]].concat();
        control.submit(COMMAND, Operation::Write { flushed: true }, Buffers::from_bytes(&bytes));
        assert!(control.end(COMMAND));
    };
    send(&mut control, first);
    assert_eq!(control.ended(10), None, "its commit block is not there");
    assert!(!control.end(10), "nor is it after a second");
    submit(&mut control, 11);
    assert_eq!(control.ended(11), Some(false), "which nobody waits for again");
    send(&mut control, FsBlock(first.0 + 1));
    assert_eq!(control.ask(OPERATION_VFLUSH, [0; 16]).status.get(), STATUS_DONE);
    // A file system that is mounted anew was told nothing; nor was the next guest.
    let over: [&dyn Fn(&mut Control); 2] = [
        &|control| assert_eq!(control.ask(OPERATION_INIT, layout.uuid).status.get(), STATUS_DONE),
        &|control| control.disk.quiesced(Quiesced::Disconnected),
    ];
    for over in over {
        guest.memory.store_u32(Lent::STATE_AT, LENT_OPEN);
        control.submit(READ, Operation::Read, guest.memory.share());
        assert!(control.end(READ));
        submit(&mut control, 12);
        assert_eq!(control.ended(12), None);
        over(&mut control);
        assert!(control.end(12));
    }
}

/// Who was told of a commit that this daemon does not take, and does not hand it over, writes it to its journal: it is there then.
#[test]
fn a_commit_that_was_told_is_there_when_its_guest_has_written_it_to_its_journal() {
    let stream = load(&recordings()[0]);
    let mut served = Served::new(stream.base.clone(), 64 << 20, wait_for_home());
    let mut control = Control::of(served.disk.as_ref().unwrap());
    let (mut layout, mut commits) = (None, 0);
    for step in &stream.steps {
        layout = layout.or_else(|| {
            let mut there = layouts(&served.read_all()).into_iter();
            there.find(|l| control.ask(OPERATION_INIT, l.uuid).status.get() == STATUS_DONE)
        });
        let block = layout.as_ref().and_then(|layout| in_journal(layout, &step.op));
        let (Some(layout), Some(block), Op::Write { data, .. }) = (&layout, block, &step.op) else {
            send(&mut served, &step.op);
            continue;
        };
        let commits_now = commit_tid(&data[data.len() - BLOCK..][..HEADER_BYTES]).is_some();
        commits += u32::from(commits_now);
        if commits_now && commits > 3 {
            let right = control.ask(OPERATION_INIT, layout.uuid);
            let gone = (right.instance.get(), right.sequence.get() + 1);
            let mut guest = Guest::new(layout.uuid, gone, 0);
            guest.memory.store_u32(Lent::STATE_AT, LENT_OPEN);
            let blocks = data.chunks(BLOCK).enumerate().map(|(n, c)| (FsBlock(block.0 + n as u64), c));
            assert!(guest.publish(&blocks.collect::<Vec<_>>()));
            control.submit(READ, Operation::Read, guest.memory.share());
            assert!(control.end(READ) && !guest.is_taken());
            let vflush = Command::new(OPERATION_VFLUSH, 1).seal();
            let vflush = Buffers::from_bytes(vflush.as_bytes());
            control.submit(COMMAND, Operation::Write { flushed: true }, vflush);
            (0..20).for_each(|_| control.turn());
            assert_eq!(control.ended(COMMAND), None, "its commit is nowhere");
            send(&mut served, &step.op);
            assert!(control.end(COMMAND), "it is in its journal");
            assert_eq!(control.disk.owes(), None);
            if commits > 6 {
                return;
            }
            continue;
        }
        send(&mut served, &step.op);
    }
    panic!("{commits} commits");
}

/// A disk whose storage is stuck is no other one's business.
#[test]
fn what_is_handed_over_waits_for_its_own_disk_alone() {
    const STUCK: u64 = 3;
    let bases = [ext4(), ext4()];
    let layouts = [0, 1].map(|n: usize| layouts(&bases[n]).remove(0));
    let served = bases.map(|base| Served::new(base, 1 << 20, wait_for_home()));
    let (disk, lane) = control_disk(served.iter().map(|served| served.disk.clone().unwrap()).collect());
    let mut control = Control { disk, lane, done: Vec::new() };
    served[0].disk().pause().unwrap();
    for (n, token) in [(0, STUCK), (1, COMMAND), (1, COMMAND)] {
        let right = control.ask(OPERATION_INIT, layouts[n].uuid);
        let mut command = Command { file_system: layouts[n].uuid, ..Command::new(OPERATION_MPROTECT, 2) };
        (command.instance, command.sequence) = (right.instance, right.sequence);
        (command.block, command.blocks) = ((layouts[n].journal[0].home.0 + 1).into(), 1.into());
        let bytes = [command.seal().as_bytes(), &[7; BLOCK]].concat();
        control.submit(token, Operation::Write { flushed: true }, Buffers::from_bytes(&bytes));
        let until = Instant::now() + Duration::from_secs(20);
        while token == COMMAND && control.ended(COMMAND) != Some(true) {
            assert!(Instant::now() < until, "it waits for the other disk");
            control.turn();
        }
    }
    assert_eq!(control.ended(STUCK), None, "its disk is paused");
    served[0].disk().resume();
    assert!(control.end(STUCK));
}

#[test]
fn whoever_listens_hears_of_each_publication_once_and_before_it_is_taken() {
    let (served, mut control, mut guest, layout, first) = lent();
    guest.memory.store_u32(Lent::BACK_AT, 1);
    assert!(control.end(READ));
    let (tell, heard) = std::sync::mpsc::channel();
    let mut lane = control.disk.lane().unwrap();
    lane.heard_by(Box::new(move |published| {
        let runs = published.runs.iter().map(|(sector, content)| (*sector, content.to_vec()));
        tell.send((published.slot, runs.collect::<Vec<_>>())).unwrap();
    }));
    let mut done = Vec::new();
    guest.memory.store_u32(Lent::BACK_AT, 0);
    guest.memory.store_u32(Lent::STATE_AT, LENT_OFFERED);
    let (sectors, buffers) = (guest.memory.len() as u64 / 512, guest.memory.share());
    let request = Request { token: Token(READ), operation: Operation::Read, sector: SLOT, sectors, buffers };
    lane.submit(request);
    lane.reap(&mut done);
    let mut take = |lane: &mut afterimage_control_disk::ControlLane, guest: &Guest| {
        while !guest.is_taken() && done.is_empty() {
            lane.wait(&[], Some(Duration::from_millis(1))).unwrap();
            lane.reap(&mut done);
        }
        !done.is_empty()
    };
    // Two runs: they do not follow each other.
    let second = FsBlock(first.0 + 2);
    assert!(guest.publish(&[(first, &[5; BLOCK]), (second, &[6; BLOCK])]));
    lane.listen();
    let runs =
        vec![(first.sector(layout.start), vec![5; BLOCK]), (second.sector(layout.start), vec![6; BLOCK])];
    assert_eq!(heard.try_recv().unwrap(), (60, runs));
    assert_eq!((guest.is_taken(), content(&served, &layout, first)), (false, 0), "nobody has taken it");
    lane.listen();
    assert!(!take(&mut lane, &guest));
    assert_eq!(content(&served, &layout, first), 5);
    assert!(heard.try_recv().is_err(), "once");
    // Nobody listened before it was taken, and it is heard of.
    assert!(guest.publish(&[(first, &[7; BLOCK])]) && !take(&mut lane, &guest));
    assert_eq!(heard.try_recv().unwrap().1[0].1, [7; BLOCK]);
    // What breaks the rules is not committed.
    guest.publish(&[(FsBlock(first.0 - 1), &[8; BLOCK])]);
    lane.listen();
    assert!(take(&mut lane, &guest) && !guest.is_taken());
    assert!(heard.try_recv().is_err());
}

/// A journal that is not retained any more is written to its place, for its guest was told that it is committed.
#[test]
fn what_was_promised_is_written_when_the_journal_is_not_retained_any_more() {
    let (served, mut control, mut guest, layout, first) = lent();
    // mkfs, say: the ext4 superblock is gone.
    let mut blocking = Blocking::new(served.disk().open_lane().unwrap());
    let mut superblock = [0; BLOCK];
    blocking.read(layout.start, &mut superblock).unwrap();
    superblock[1024..2048].fill(0);
    blocking.write(layout.start, &superblock).unwrap();
    served.disk().settle().unwrap();
    assert!(guest.publish(&[(first, &[6; BLOCK])]) && guest.wait(&mut control));
    assert_eq!(control.ask(OPERATION_INIT, layout.uuid).status.get(), STATUS_UNSUPPORTED);
    assert_eq!(content(&served, &layout, first), 6);
}

#[test]
fn whoever_breaks_the_rules_is_refused_and_nothing_is_written() {
    type Break = fn(&Guest, FsBlock);
    let breaks: [Break; 8] = [
        |guest, _| assert!(guest.memory.store_u32(68, 0)),
        |guest, _| assert!(guest.memory.store_u32(68, CONTENT_BLOCKS as u32 + 1)),
        |guest, _| assert!(guest.memory.store_u32(68, u32::MAX)),
        |guest, first| guest.memory.copy_from(192, &(first.0 - 1).to_le_bytes()),
        |guest, first| guest.memory.copy_from(200, &(first.0 - 1).to_le_bytes()),
        |guest, _| guest.memory.copy_from(192, &u64::MAX.to_le_bytes()),
        |guest, _| guest.memory.copy_from(200, &0u64.to_le_bytes()),
        |guest, _| assert!(guest.memory.store_u32(Lent::PUBLISHED_AT, 7)),
    ];
    for (n, breaks) in breaks.into_iter().enumerate() {
        let (served, mut control, guest, layout, first) = lent();
        guest.memory.copy_from(BLOCK, &[9; 2 * BLOCK]);
        guest.memory.copy_from(192, &[first.0.to_le_bytes(), (first.0 + 1).to_le_bytes()].concat());
        guest.memory.store_u32(68, 2);
        breaks(&guest, first);
        if guest.word(Lent::PUBLISHED_AT) == 0 {
            guest.memory.store_u32(Lent::PUBLISHED_AT, 1);
        }
        assert!(control.end(READ), "break {n}");
        assert_eq!((guest.word(Lent::STATE_AT), guest.word(Lent::TAKEN_AT)), (LENT_REFUSED, 0), "break {n}");
        assert_eq!(content(&served, &layout, first), 0, "break {n}");
        assert_eq!(control.disk.commands().refused.load(std::sync::atomic::Ordering::Relaxed), 1);
        // The next guest is served.
        assert_eq!(control.ask(OPERATION_INIT, layout.uuid).status.get(), STATUS_DONE);
    }
}

#[test]
fn a_guest_may_do_anything_with_what_it_lends() {
    for seed in 0..40 {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let (served, mut control, guest, layout, first) = lent();
        let before = served.below.bytes();
        let memory = guest.memory.share();
        let mut reads = 1;
        for _ in 0..200 {
            match rng.random_range(0..8) {
                0 => drop(memory.store_u32(4 * rng.random_range(0..48), rng.random())),
                1 => drop(memory.store_u32(Lent::PUBLISHED_AT, guest.word(Lent::TAKEN_AT).wrapping_add(1))),
                2 => drop(memory.store_u32(68, rng.random_range(0..130))),
                3 => {
                    let mut some = [0; 64];
                    rng.fill_bytes(&mut some);
                    memory.copy_from(rng.random_range(0..2 * BLOCK - 64), &some);
                }
                4 => (0..130).for_each(|n| {
                    memory
                        .copy_from(192 + 8 * n, &(first.0 + n as u64 + rng.random_range(0..2)).to_le_bytes());
                }),
                5 if reads < 30 => {
                    reads += 1;
                    control.submit(100 + reads, Operation::Read, memory.share());
                }
                _ => control.turn(),
            }
        }
        memory.store_u32(Lent::BACK_AT, 1);
        let until = Instant::now() + Duration::from_secs(20);
        while control.lane.in_flight() > 0 {
            assert!(Instant::now() < until, "seed {seed}: a read is not answered");
            control.turn();
        }
        // Outside of the journal nothing has changed.
        let after = served.below.bytes();
        let journal = |at: usize| layout.area_of(FsBlock(at as u64 - layout.start.0 / 8)).is_some();
        for (at, (old, new)) in before.chunks(BLOCK).zip(after.chunks(BLOCK)).enumerate() {
            assert!(old == new || journal(at), "seed {seed}: block {at}");
        }
        // It may have said that something is committed there which is not: the next guest has not.
        control.disk.quiesced(Quiesced::Disconnected);
        assert_eq!(control.ask(OPERATION_VFLUSH, [0; 16]).status.get(), STATUS_DONE, "seed {seed}");
    }
}
