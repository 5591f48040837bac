//! Commits that are handed over to a control disk: they are recorded as writes of the journal at their place in the guest's stream, so a crash
//! of such a guest is judged as that of one which writes its journal itself. And what happens where nobody hears them.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use afterimage_block::{Blocking, Buffers, Disk, FlushKind, Lane, Operation, Request, Sector, Token};
use afterimage_compose::{Plan, Prepared, Stack};
use afterimage_control_disk::{ControlDisk, Promise};
use afterimage_explore::derive;
use afterimage_explore::enumerate::Enumeration;
use afterimage_explore::model::{cuts, Model};
use afterimage_explore::retained::{deaths, DeathOptions, Deaths, RetainedOracle};
use afterimage_explore::setup::Setup;
use afterimage_explore::stream::Stream;
use afterimage_explore::ExploreError;
use afterimage_format::control_disk::{Answer, Command, OPERATION_INIT, OPERATION_MPROTECT, STATUS_DONE};
use afterimage_journal::group::{Ending, JournalOptions};
use afterimage_journal::layout::{self, Found, Layout, Source};
use afterimage_journal::{AreaBlock, FsBlock};
use afterimage_order::{Contract, SystemClock};
use afterimage_store::{create_image, DirectMode, OpenOptions};
use afterimage_trace::{
    Event, EventKind, Layer, Op, Recorder, Recording, Role, Sparse, Taps, Target, TargetId,
};
use zerocopy::IntoBytes as _;

/// Sectors of a slot of the control disk; a guest's file system has one of the last eight.
const SLOT_SECTORS: u64 = 2048;
const SLOT: u64 = 60;

struct Bytes<'a>(&'a Sparse);

impl Source for Bytes<'_> {
    fn read(&mut self, sector: Sector, buf: &mut [u8]) -> Result<(), afterimage_block::BlockError> {
        self.0.read_at(buf, sector.0 * 512);
        Ok(())
    }
}

/// The file system of a disk whose journal can be retained.
fn file_system(content: &Sparse) -> Option<Layout> {
    let found = layout::find(&mut Bytes(content), content.len() / 512).unwrap_or_default();
    found.into_iter().find_map(|found| match found {
        Found::FileSystem(layout) => Some(layout),
        Found::Passthrough { .. } => None,
    })
}

/// Where a guest writes into its journal, past the superblock: what it would hand over instead.
fn in_journal(layout: &Layout, offset: u64, data: &[u8]) -> Option<FsBlock> {
    let from = offset.checked_sub(layout.start.0 * 512)?;
    if from % 4096 != 0 || data.len() % 4096 != 0 {
        return None;
    }
    let block = FsBlock(from / 4096);
    layout.area_run(block, data.len() as u32 / 4096).filter(|first| *first > AreaBlock(0)).map(|_| block)
}

/// A guest that hands its journal over.
struct Guest {
    disk: Blocking,
    control: Box<dyn Lane>,
    /// What INIT was answered: the file system, and by which right.
    right: Option<([u8; 16], u64, u64)>,
}

impl Guest {
    fn ask(&mut self, command: Command, content: &[u8]) -> Answer {
        let mut request = |operation, buffers: Buffers| {
            let (token, sector) = (Token(1), Sector(SLOT * SLOT_SECTORS));
            let sectors = buffers.len() as u64 / 512;
            self.control.submit(Request { token, operation, sector, sectors, buffers });
            let mut done = Vec::new();
            while done.is_empty() {
                self.control.wait(&[], None).expect("a wait");
                self.control.reap(&mut done);
            }
        };
        let bytes = [command.seal().as_bytes(), content].concat();
        request(Operation::Write { flushed: true }, Buffers::from_bytes(&bytes));
        let answer = Buffers::allocate(512);
        request(Operation::Read, answer.share());
        let mut sector = [0; 512];
        answer.copy_to(0, &mut sector);
        Answer::parse(&sector).expect("an answer")
    }

    /// Registers as soon as the daemon takes its commits.
    fn register(&mut self, layout: &Layout) {
        let answer = self.ask(Command { file_system: layout.uuid, ..Command::new(OPERATION_INIT, 1) }, &[]);
        if answer.status.get() == STATUS_DONE {
            self.right = Some((layout.uuid, answer.instance.get(), answer.sequence.get()));
        }
    }

    fn hand_over(&mut self, block: FsBlock, content: &[u8]) {
        let (uuid, instance, sequence) = self.right.expect("it is registered");
        let mut command = Command { file_system: uuid, ..Command::new(OPERATION_MPROTECT, 2) };
        (command.instance, command.sequence) = (instance.into(), sequence.into());
        (command.block, command.blocks) = (block.0.into(), (content.len() as u32 / 4096).into());
        let answer = self.ask(command, content);
        assert_eq!(answer.status.get(), STATUS_DONE, "{}", answer.text());
    }

    fn send(&mut self, op: &Op) {
        let done = match op {
            Op::Write { offset, data, .. } => self.disk.write(Sector(offset / 512), data),
            Op::Zero { offset, len, unmap: true, .. } => self.disk.discard(Sector(offset / 512), len / 512),
            Op::Zero { offset, len, .. } => self.disk.write_zeroes(Sector(offset / 512), len / 512, false),
            Op::Flush => self.disk.flush(FlushKind::Order),
        };
        done.expect("a healthy disk");
    }
}

fn stack(contract: Contract, folder: &std::path::Path, content: &Sparse, recorder: &Arc<Recorder>) -> Stack {
    let image = folder.join("disk.img");
    create_image(&image, content.len()).expect("an image");
    let mut bytes = vec![0; content.len() as usize];
    content.read_at(&mut bytes, 0);
    std::fs::write(&image, bytes).expect("content");
    let plan = Plan {
        images: vec![OpenOptions { direct: DirectMode::Off, any_content: true, ..OpenOptions::new(&image) }],
        contract,
        log_bytes_max: 16 << 20,
        log: None,
        journal: JournalOptions {
            retain: true,
            arena_folder: folder.to_owned(),
            ..JournalOptions::passthrough()
        },
    };
    let taps = Taps::new(Arc::clone(recorder));
    Prepared::new(plan).and_then(|prepared| prepared.open(Some(taps))).expect("the layers")
}

/// A recorded guest's stream, made again under that contract; what it wrote to its journal is handed over. `heard`: as `explore record` makes
/// the control disk. Says how much was handed over, too.
fn handed_over(contract: Contract, heard: bool) -> (Recording, u64) {
    let source = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../journal/tests/recordings/journal.afrec");
    let source = Recording::load(&source).expect("a recording");
    let (id, target) = source.of_layer(Layer::Guest).next().expect("a guest's disk");
    let folder = tempfile::tempdir_in("/dev/shm").expect("a folder");
    let out = folder.path().join("r.afrec");
    let about =
        serde_json::json!({ "contract": contract.to_string(), "journal": "retain", "control_disk": true });
    let recorder = Recorder::create(&out, about.as_object().expect("an object")).expect("a recorder");
    let stack = stack(contract, folder.path(), &target.base, &recorder);
    let promise = Promise { contract, text: contract.promise(), lends: false };
    let (group, disk) = (Arc::clone(&stack.group), Arc::clone(&stack.disks[0].disk));
    let control = match heard {
        true => ControlDisk::heard(group, promise, vec![Arc::clone(&disk)], Arc::new(SystemClock)),
        false => ControlDisk::new(group, promise),
    };
    let control = control.expect("a control disk");
    let mut guest = Guest {
        disk: Blocking::new(disk.open_lane().expect("a lane")),
        control: control.open_lane().expect("a lane"),
        right: None,
    };
    let (mut content, mut blocks) = ((*target.base).clone(), 0);
    for event in &source.events {
        let EventKind::Submit { target, op, .. } = &event.kind else { continue };
        if *target != id {
            continue;
        }
        let layout = file_system(&content);
        if let (Some(layout), None) = (&layout, guest.right) {
            guest.register(layout);
        }
        let of_journal =
            |offset, data| guest.right.and(layout.as_ref()).and_then(|l| in_journal(l, offset, data));
        match op {
            Op::Write { offset, data, .. } => match of_journal(*offset, data) {
                // In several commands, where it is long.
                Some(first) => {
                    for (n, part) in data.chunks(7 * 4096).enumerate() {
                        guest.hand_over(FsBlock(first.0 + 7 * n as u64), part);
                        blocks += part.len() as u64 / 4096;
                    }
                }
                None => guest.send(op),
            },
            Op::Zero { .. } | Op::Flush => guest.send(op),
        }
        op.apply(&mut content);
    }
    drop(guest);
    drop(control);
    if matches!(contract, Contract::PowerWindow { .. }) {
        let acknowledged = stack.group.status().acknowledged;
        stack.group.wait_durable(acknowledged, Some(Duration::from_secs(10))).expect("durable");
    }
    recorder.finish().expect("a recording");
    stack.group.close_within(Duration::from_secs(30), Ending::Close { attached: false }).expect("an end");
    let recording = Recording::load(&out).expect("readable");
    if heard {
        let (id, _) = recording.of_layer(Layer::Guest).next().expect("a guest's disk");
        let end = recording.content_before(id, recording.events.len());
        assert!(end.same_content(&content), "the guest's stream is the one that wrote its journal");
    }
    (recording, blocks)
}

fn window() -> Contract {
    Contract::PowerWindow { window: Duration::from_millis(5) }
}

#[test]
fn a_power_cut_leaves_a_recovered_prefix_of_which_commits_are_part() {
    let (recording, blocks) = handed_over(window(), true);
    let oracle = RetainedOracle::of(&recording).expect("an oracle");
    let census = oracle.census();
    eprintln!("{blocks} blocks were handed over: {census:?}");
    assert_eq!(oracle.first_wrong(), None, "{census:?}");
    assert!(blocks > 100 && census.sets > 20 && census.applied > 20, "{blocks}, {census:?}");
}

#[test]
fn a_death_leaves_what_the_guests_own_recovery_makes_of_its_commits() {
    let (recording, _) = handed_over(Contract::GuestCrash, true);
    let (how, mut replays) = (DeathOptions { points: 40, ..DeathOptions::default() }, 0);
    deaths(&recording, &how, Duration::MAX, &mut |death| {
        assert_eq!(death.wrong, None);
        replays += usize::from(death.replays);
        Ok(true)
    })
    .expect("deaths");
    assert!(replays > 20, "{replays}");
}

/// The canary: what goes home is then in no prefix of what was heard.
#[test]
fn commits_that_nobody_hears_are_missed() {
    let (recording, blocks) = handed_over(window(), false);
    assert!(blocks > 100);
    let oracle = RetainedOracle::of(&recording).expect("an oracle");
    let wrong = oracle.first_wrong().expect("it has to be seen");
    eprintln!("{wrong}");
}

/// Where a guest dies, a part of a commit is there or not; what is in flight on the disk beside it is torn between any two blocks.
#[test]
fn what_was_handed_over_is_whole_and_no_disk_with_a_cache_takes_it() {
    let mut recording = Recording {
        targets: vec![Target {
            layer: Layer::Guest,
            role: Role::Disk(0),
            bytes: 1 << 20,
            base: Arc::new(Sparse::new(1 << 20)),
        }],
        ..Recording::default()
    };
    let about = serde_json::json!({ "contract": "guest-crash", "journal": "retain", "control_disk": true });
    recording.about = about.as_object().expect("an object").clone();
    let target = TargetId(0);
    for (id, offset, flushed) in [(1, 0, true), (2, 1 << 16, false)] {
        let op = Op::Write { offset, data: vec![id as u8; 3 * 4096].into(), flushed };
        let kind = EventKind::Submit { target, id, op };
        recording.events.push(Event { at_ns: id, kind });
    }
    let found = |recording: &Recording| {
        let mut stream = Stream::new(recording, Layer::Guest).expect("a stream");
        stream.atomic_sectors = 8;
        let cut = cuts(&stream, Model::Guest).pop().expect("a cut at the end");
        let states = Enumeration::new(&stream, &cut, 1);
        let choices = (0..400).filter_map(|n| states.choice(n));
        let parts = |write: usize| {
            choices.clone().flat_map(|c| c.lost).any(|l| l.write == write && l.sectors.is_some())
        };
        (parts(0), parts(1))
    };
    assert_eq!(found(&recording), (false, true));
    let setup = Setup { layer: Layer::Guest, model: Model::Disk, ..Setup::of(&recording).expect("a setup") };
    let refused = setup.subject(&recording).err().expect("no disk takes commits");
    assert!(
        matches!(&refused, ExploreError::Usage(why) if why.contains("handed its commits over")),
        "{refused}"
    );
    recording.about.remove("control_disk");
    assert_eq!(found(&recording), (true, true), "a write of the guest's own is torn");
}

#[test]
fn it_is_judged_under_contracts_that_take_commits_and_by_deaths_where_they_promise_no_more() {
    let own = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/recordings/vma.afrec");
    let mut guest = Recording::load(&own).expect("a recording");
    let under = |guest: &Recording, contract, retain| derive::under(guest, contract, retain, 1 << 20, 1);
    for (contract, retain, why) in [
        ("guest-crash", false, "--journal retain"),
        ("power-window=5ms", false, "--journal retain"),
        ("power", true, "does not go with power"),
    ] {
        let refused = under(&guest, contract, retain).expect_err("it is refused").to_string();
        assert!(refused.contains(why), "{contract}: {refused}");
    }
    let died = under(&guest, "guest-crash", true).expect("deaths");
    assert!(Deaths::suit(&died, None) && Deaths::suit(&died, Some(Model::Guest)));
    let cut = under(&guest, "power-window=5ms", true).expect("a replay");
    assert!(!Deaths::suit(&cut, None) && Deaths::suit(&cut, Some(Model::Guest)));
    // A guest that writes its journal itself: what was retained when it was recorded is not in a replay that retains nothing.
    guest.about.remove("control_disk");
    let passed = under(&guest, "power-window=5ms", false).expect("a replay");
    assert!(!Deaths::suit(&passed, Some(Model::Guest)));
}
