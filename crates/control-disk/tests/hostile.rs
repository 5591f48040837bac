//! Whatever a guest sends: each request is answered once, nothing but flushes reaches the group, and the next guest is served.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::Arc;
use std::time::{Duration, Instant};

use afterimage_block::{Buffers, Disk, FlushKind, Operation, Request, Sector, SequenceNumber, Token};
use afterimage_control_disk::desk::Reached;
use afterimage_control_disk::{ControlDisk, Durability, Promise};
use afterimage_format::control_disk::*;
use afterimage_journal::RetainDisk;
use afterimage_order::{Contract, Subscription};
use parking_lot::Mutex;
use rand::{Rng, RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use zerocopy::IntoBytes as _;

type Wake = Box<dyn Fn() + Send + Sync>;

/// A group in which something completes whenever it is looked at.
#[derive(Default)]
struct Group {
    acknowledged: AtomicU64,
    durable: AtomicU64,
    flushes: AtomicU64,
    slow: bool,
    wake: Mutex<Option<Wake>>,
}

impl Durability for Group {
    fn reached(&self) -> Reached {
        let acknowledged = SequenceNumber(self.acknowledged.fetch_add(1, Ordering::SeqCst));
        let durable = SequenceNumber(self.durable.load(Ordering::SeqCst));
        Reached { acknowledged, durable, failure: None }
    }

    fn flush(&self) -> Result<SequenceNumber, String> {
        let covers = self.acknowledged.load(Ordering::SeqCst);
        if self.slow {
            std::thread::sleep(Duration::from_millis(50));
        }
        self.flushes.fetch_add(1, Ordering::SeqCst);
        self.become_durable(covers);
        Ok(SequenceNumber(covers))
    }

    fn subscribe(&self, wake: Wake) -> Option<Subscription> {
        *self.wake.lock() = Some(wake);
        None
    }

    fn retained_disks(&self) -> Vec<Arc<RetainDisk>> {
        Vec::new()
    }
}

impl Group {
    fn become_durable(&self, up_to: u64) {
        self.durable.fetch_max(up_to, Ordering::SeqCst);
        if let Some(wake) = &*self.wake.lock() {
            wake();
        }
    }
}

fn disk(group: &Arc<Group>, contract: &str) -> ControlDisk {
    let contract: Contract = contract.parse().unwrap();
    let promise = Promise { text: contract.promise(), contract, lends: true };
    ControlDisk::new(Arc::clone(group) as Arc<dyn Durability>, promise).unwrap()
}

fn request(token: u64, operation: Operation, sector: u64, buffers: Buffers) -> Request {
    let sectors = buffers.len() as u64 / 512;
    Request { token: Token(token), operation, sector: Sector(sector), sectors, buffers }
}

const WRITE: Operation = Operation::Write { flushed: true };

/// Writes a command into a slot and waits for its completion: the answer, and whether the write went well.
fn ask(disk: &ControlDisk, slot: u64, command: &[u8]) -> (Option<Answer>, bool) {
    let mut lane = disk.open_lane().unwrap();
    lane.submit(request(1, WRITE, slot * 2048, Buffers::from_bytes(command)));
    let mut done = Vec::new();
    while done.is_empty() {
        lane.wait(&[], None).unwrap();
        lane.reap(&mut done);
    }
    let well = done[0].result.is_ok();
    let answer = Buffers::allocate(512);
    lane.submit(request(2, Operation::Read, slot * 2048, answer.share()));
    lane.reap(&mut done);
    assert!(done.len() == 2 && done[1].result.is_ok());
    (Answer::parse(&answer.to_vec()).ok(), well)
}

#[test]
fn a_disk_introduces_itself() {
    let group = Arc::new(Group { acknowledged: 41.into(), ..Group::default() });
    let disk = disk(&group, "power-window=50ms");
    assert_eq!((disk.serial(), disk.geometry().bytes()), ("afterimage-control", 64 << 20));
    // A read of several slots, beginning in the middle of one.
    let mut lane = disk.open_lane().unwrap();
    let buffers = Buffers::allocate(2 << 20);
    lane.submit(request(1, Operation::Read, 1024, buffers.share()));
    let mut done = Vec::new();
    lane.reap(&mut done);
    let bytes = buffers.to_vec();
    for at in [1024 * 512, 3072 * 512] {
        let answer = Answer::parse(&bytes[at..at + 512]).unwrap();
        assert_eq!((answer.operation.get(), answer.contract.get(), answer.window_us.get()), (0, 2, 50_000));
        assert_eq!((answer.slots.get(), answer.operations.get()), (64, 0b1111111 << 16 | 0b1110));
        assert!(answer.text().starts_with("power-window=50ms: "), "{}", answer.text());
    }
    assert!(bytes[..1024 * 512].iter().chain(&bytes[1025 * 512..3072 * 512]).all(|byte| *byte == 0));
}

#[test]
fn commands_are_answered_where_they_were_asked() {
    let group = Arc::new(Group::default());
    for contract in ["power", "guest-crash", "power-window=10s"] {
        let disk = disk(&group, contract);
        let in_order = contract.starts_with("power-window");
        let before = group.flushes.load(Ordering::SeqCst);
        let (answer, well) = ask(&disk, 3, Command::new(OPERATION_VORDER, 77).seal().as_bytes());
        let answer = answer.unwrap();
        assert!(well && answer.status.get() == STATUS_DONE && answer.tag.get() == 77);
        let flushes = group.flushes.load(Ordering::SeqCst) - before;
        assert_eq!(flushes, u64::from(!in_order), "{contract}: what orders by itself needs no flush");

        let mut wait = Command::new(OPERATION_WAIT, 78);
        (wait.instance, wait.sequence, wait.timeout_ms) = (answer.instance, answer.sequence, 20.into());
        let asked = Instant::now();
        let (waited, well) = ask(&disk, 3, wait.seal().as_bytes());
        let status = waited.unwrap().status.get();
        assert!(well);
        assert_eq!(status, if in_order { STATUS_NOT_YET } else { STATUS_DONE }, "{contract}");
        assert!(!in_order || asked.elapsed() >= Duration::from_millis(20));

        let (answer, well) = ask(&disk, 3, Command::new(OPERATION_VFLUSH, 79).seal().as_bytes());
        assert!(well && answer.is_some_and(|a| a.tag.get() == 79 && a.durable >= a.sequence));
        let (waited, _) = ask(&disk, 63, wait.seal().as_bytes());
        assert_eq!(waited.unwrap().status.get(), STATUS_DONE);
        // Another slot's answer is still there.
        let counted = disk.commands();
        assert_eq!(counted.vorders.load(Ordering::SeqCst), 1);
        assert_eq!(counted.vflushes.load(Ordering::SeqCst), 1);
        assert_eq!(counted.waits.load(Ordering::SeqCst), 1 + u64::from(!in_order));
    }
}

/// Whoever waits is woken by the event, not by the end of its time.
#[test]
fn durability_is_told_when_it_comes() {
    let group = Arc::new(Group::default());
    let disk = disk(&group, "power-window=10s");
    let mut wait = Command::new(OPERATION_WAIT, 1);
    wait.timeout_ms = WAIT_MS_MAX.into();
    let other = Arc::clone(&group);
    let becomes = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(50));
        other.become_durable(1 << 40);
    });
    let asked = Instant::now();
    let (answer, _) = ask(&disk, 1, wait.seal().as_bytes());
    becomes.join().unwrap();
    assert_eq!(answer.unwrap().status.get(), STATUS_DONE);
    assert!(asked.elapsed() < Duration::from_millis(900), "{:?}", asked.elapsed());
    assert_eq!(group.flushes.load(Ordering::SeqCst), 0, "nothing was forced");
}

/// Those who ask together share flushes, and none shares one that had begun before.
#[test]
fn many_share_a_flush() {
    let group = Arc::new(Group { slow: true, ..Group::default() });
    let disk = disk(&group, "power");
    let mut lane = disk.open_lane().unwrap();
    for token in 0..100 {
        let command = Command::new(OPERATION_VFLUSH, token).seal();
        lane.submit(request(token, WRITE, (1 + token % 63) * 2048, Buffers::from_bytes(command.as_bytes())));
    }
    let mut done = Vec::new();
    while lane.in_flight() > 0 {
        lane.wait(&[], None).unwrap();
        lane.reap(&mut done);
    }
    assert_eq!(done.len(), 100);
    assert!((1..=2).contains(&group.flushes.load(Ordering::SeqCst)));
}

#[test]
fn what_is_refused_says_why() {
    let disk = disk(&Arc::default(), "power");
    let answered = |slot, bytes: &[u8]| {
        let (answer, well) = ask(&disk, slot, bytes);
        assert!(!well);
        answer.map(|a| (a.status.get(), a.text()))
    };
    let (status, text) = answered(9, &[7; 512]).unwrap();
    assert_eq!((status, text.as_str()), (STATUS_MALFORMED, "not a command"));
    let (status, text) = answered(9, Command::new(99, 5).seal().as_bytes()).unwrap();
    assert_eq!((status, text.as_str()), (STATUS_UNSUPPORTED, "there is no operation 99"));
    let mut newer = Command::new(OPERATION_VFLUSH, 5);
    newer.version = 2.into();
    assert_eq!(answered(9, newer.seal().as_bytes()).unwrap().0, STATUS_UNSUPPORTED);
    let mut doubled = Command::new(OPERATION_VFLUSH, 5).seal().as_bytes().to_vec();
    doubled.resize(1024, 0);
    assert_eq!(answered(9, &doubled).unwrap().0, STATUS_MALFORMED);
    // The first slot's answer stays what the disk says of itself.
    let (status, text) = answered(0, Command::new(OPERATION_VFLUSH, 5).seal().as_bytes()).unwrap();
    assert!(status == STATUS_DONE && text.starts_with("power: "), "{text}");
    assert_eq!(disk.commands().refused.load(Ordering::SeqCst), 5);
}

/// How often something is logged.
#[derive(Clone, Default)]
struct Logged(Arc<AtomicU64>);

impl tracing::Subscriber for Logged {
    fn enabled(&self, _: &tracing::Metadata<'_>) -> bool {
        true
    }

    fn new_span(&self, _: &tracing::span::Attributes<'_>) -> tracing::span::Id {
        tracing::span::Id::from_u64(1)
    }

    fn record(&self, _: &tracing::span::Id, _: &tracing::span::Record<'_>) {}

    fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}

    fn event(&self, _: &tracing::Event<'_>) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }

    fn enter(&self, _: &tracing::span::Id) {}

    fn exit(&self, _: &tracing::span::Id) {}
}

/// A guest lends memory as fast as it likes: the host's log is not its.
#[test]
fn refused_memory_is_logged_a_few_times_and_counted_always() {
    let (disk, logged) = (disk(&Arc::default(), "guest-crash"), Logged::default());
    tracing::subscriber::with_default(logged.clone(), || {
        let mut lane = disk.open_lane().unwrap();
        let mut done = Vec::new();
        for token in 0..1000 {
            let memory = Buffers::allocate(2 * BLOCK_BYTES as usize);
            memory.copy_from(0, Lent::new([1; 16], 1, 0).as_bytes());
            lane.submit(request(token, Operation::Read, 60 * 2048, memory.share()));
            lane.reap(&mut done);
            assert_eq!(memory.load_u32(Lent::STATE_AT), Some(LENT_REFUSED));
        }
        assert_eq!(done.len(), 1000);
    });
    assert_eq!(disk.commands().refused.load(Ordering::SeqCst), 1000);
    assert_eq!(logged.0.load(Ordering::SeqCst), 8);
}

#[test]
fn a_guest_may_send_anything() {
    let group = Arc::new(Group::default());
    for (seed, contract) in (0..60).zip(["power", "power-window=10s", "guest-crash"].into_iter().cycle()) {
        let disk = disk(&group, contract);
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let mut lane = disk.open_lane().unwrap();
        let (mut answered, mut done) = (vec![0; 300], Vec::new());
        for token in 0..300 {
            let sector = match rng.random_range(0..3) {
                0 => rng.random_range(0..64) * 2048,
                1 => rng.random_range(0..64 * 2048 + 10),
                _ => rng.random(),
            };
            let mut bytes = vec![0; 512 * rng.random_range(1..20)];
            let mut command = Command::new(rng.random_range(0..22), token);
            if is_of_a_file_system(command.operation.get()) {
                command.file_system = [rng.random_range(0..2); 16];
            }
            if command.operation.get() == OPERATION_MPROTECT && rng.random() {
                command.blocks = rng.random_range(0..3).into();
                command.block = rng.random_range(0..2000).into();
                command.instance = rng.random_range(0..2).into();
                bytes.resize(512 + command.blocks.get() as usize * 4096, 7);
            }
            if rng.random_bool(0.5) {
                command.timeout_ms = rng.random_range(0..30).into();
                command.instance = rng.random_range(0..2).into();
                command.sequence = rng.random_range(0..100).into();
            }
            bytes[..512].copy_from_slice(command.seal().as_bytes());
            match rng.random_range(0..4) {
                0 => rng.fill_bytes(&mut bytes),
                1 => bytes[rng.random_range(0..512)] ^= 1,
                2 => bytes.truncate(512),
                _ => {}
            }
            let operation = match rng.random_range(0..8) {
                0 => Operation::Read,
                1 => Operation::Flush(FlushKind::Order),
                2 => Operation::Discard { flushed: false },
                3 => Operation::WriteZeroes { unmap: true, flushed: false },
                _ => Operation::Write { flushed: rng.random() },
            };
            lane.submit(request(token, operation, sector, Buffers::from_bytes(&bytes)));
            lane.reap(&mut done);
        }
        while lane.in_flight() > 0 {
            lane.wait(&[], None).unwrap();
            lane.reap(&mut done);
        }
        done.iter().for_each(|completion| answered[completion.token.0 as usize] += 1);
        assert!(answered.iter().all(|times| *times == 1), "seed {seed}: {answered:?}");
        drop(lane);
        let (answer, well) = ask(&disk, 5, Command::new(OPERATION_VFLUSH, 1).seal().as_bytes());
        assert!(well && answer.is_some(), "seed {seed}: the next guest is served");
    }
}
