//! Which prefix a log holds, and whether what is missing after it may be missing.
//!
//! ```text
//! next_at ─► the header there ─► candidate ─► is its payload there? ─► take ─► next_at … None
//!                                   what follows ─► behind ─► end: the prefix, or why there is none ◄┘
//! ```
//!
//! Plain bookkeeping, told what was read: no file. The bytes are hostile: nothing panics.

use afterimage_block::SequenceNumber;
use afterimage_format::log::{LogHeader, RecordHeader, RecordKind, PAGE_BYTES, RECORD_ALIGN, RECORD_MAGIC};
use afterimage_store::LogReadError;

use super::extents::Source;
use super::mutation::{Mistake, Mutation};
use crate::sequence::{LogPosition, LoggedDisk};

/// A complete record's place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Placed {
    /// Logical position of its header.
    pub position: LogPosition,
    /// Its sequence number.
    pub sequence: SequenceNumber,
    /// What it does.
    pub kind: RecordKind,
    /// It belongs to a set that goes on with the next record.
    pub more: bool,
    /// Disk index.
    pub disk: LoggedDisk,
    /// First sector; in an incarnation record the incarnation that begins.
    pub sector: u64,
    /// Number of sectors.
    pub sectors: u64,
}

impl Placed {
    /// Logical position of its payload.
    pub fn payload(&self) -> LogPosition {
        self.position + RECORD_ALIGN
    }

    /// Logical position of what follows it.
    pub fn end(&self) -> LogPosition {
        match self.kind {
            RecordKind::Write => self.payload() + self.sectors * 512,
            RecordKind::Discard | RecordKind::Zero => self.payload(),
            // Has its page to itself.
            RecordKind::Incarnation => self.payload().page_up(),
        }
    }

    /// Where the content is that it gives its sectors; `None` where it is about no disk.
    pub(super) fn source(&self) -> Option<Source> {
        match self.kind {
            RecordKind::Write => Some(Source::Log(self.payload())),
            RecordKind::Discard => Some(Source::Zero { unmap: true }),
            RecordKind::Zero => Some(Source::Zero { unmap: false }),
            RecordKind::Incarnation => None,
        }
    }
}

/// What a log holds.
#[derive(Clone, Debug)]
pub struct Scan {
    /// The header in force.
    pub header: LogHeader,
    /// The records from the tail on, complete and consecutive, sets whole.
    pub records: Vec<Placed>,
    /// Logical position after the last of them.
    pub end: LogPosition,
    /// The last one's sequence number: the prefix.
    pub sequence: SequenceNumber,
    /// The incarnation in force at the end.
    pub incarnation: u64,
    /// The newest number that some record or the header proves to have been durable.
    pub durable_sequence: SequenceNumber,
    /// Something incomplete follows and is left out.
    pub torn_tail: bool,
}

impl Scan {
    /// A log of which only the header is known.
    pub(super) fn begun(header: LogHeader) -> Self {
        Self {
            records: Vec::new(),
            end: LogPosition(header.tail_position.get()),
            sequence: SequenceNumber(header.tail_sequence.get()),
            incarnation: header.tail_incarnation.get(),
            durable_sequence: SequenceNumber(header.durable_sequence.get()),
            torn_tail: false,
            header,
        }
    }
}

/// A record that is the next one, as far as its header tells.
pub(super) struct Candidate {
    record: Placed,
    /// How long its payload is, and its hash; `None` where that does not matter.
    pub(super) payload: Option<(u64, u32)>,
    durable: SequenceNumber,
}

/// A set of which the end has not been found yet, and what was known before it.
struct OpenSet {
    records: usize,
    end: LogPosition,
    sequence: SequenceNumber,
}

/// Where the next record may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Look {
    /// Behind the last one.
    Here,
    /// On the next page: a sync seals a page, and so does an incarnation after a torn tail. It has to be the very next record, so
    /// nothing is skipped that way.
    NextPage,
    /// Where a process has begun that found the set here incomplete: behind what was before the set, while the set's first records
    /// may still be there, sound.
    BehindSet,
}

/// See the module.
pub(super) struct Prefix {
    found: Scan,
    /// No record ends after this position.
    limit: LogPosition,
    set: Option<OpenSet>,
    /// `None`: the prefix has ended.
    look: Option<Look>,
    mistake: Mistake,
}

impl Prefix {
    pub(super) fn new(header: LogHeader, mistake: Mistake) -> Self {
        let found = Scan::begun(header);
        let limit = found.end.page_down() + header.area_bytes.get();
        Self { found, limit, set: None, look: Some(Look::Here), mistake }
    }

    /// Where the next record may be; `None` where the prefix has ended.
    pub(super) fn next_at(&mut self) -> Option<LogPosition> {
        while let Some(look) = self.look {
            let at = if look == Look::Here { self.found.end } else { self.found.end.page_up() };
            if at + RECORD_ALIGN <= self.limit {
                return Some(at);
            }
            self.take(None);
        }
        None
    }

    /// The record at a position, where it is the next one in the history but for its payload.
    pub(super) fn candidate(&self, position: LogPosition, header: &[u8]) -> Option<Candidate> {
        let (found, log) = (RecordHeader::parse(header)?, &self.found.header);
        let (kind, payload) = (found.kind()?, found.payload_bytes()?);
        let fits = payload <= self.limit - (position + RECORD_ALIGN);
        if !fits || found.group_tag.get() != log.group_tag() || found.more() && !log.has_sets() {
            return None;
        }
        let mut record = Placed {
            position,
            sequence: SequenceNumber(found.sequence.get()),
            kind,
            more: found.more(),
            disk: LoggedDisk(found.disk.get()),
            sector: found.sector.get(),
            sectors: found.sectors.get(),
        };
        let durable = SequenceNumber(found.durable_sequence.get());
        if kind == RecordKind::Incarnation {
            let follows = record.sector == self.found.incarnation && record.sequence == self.found.sequence;
            record.sector = found.incarnation.get();
            record.sectors = 0;
            let alone = position.0 % PAGE_BYTES == 0 && !record.more;
            return (follows && alone).then_some(Candidate { record, payload: None, durable });
        }
        let image = log.images().get(record.disk.index())?;
        let inside = record.sector.checked_add(record.sectors)? <= image.size_bytes.get() / 512;
        let follows = found.incarnation.get() == self.found.incarnation
            && record.sequence == self.found.sequence.next();
        let hashed = !self.mistake.is(Mutation::SkipPayloadChecksum);
        let payload = hashed.then_some((payload, found.payload_hash.get()));
        (follows && inside).then_some(Candidate { record, payload, durable })
    }

    /// What is at [`Prefix::next_at`]: `None` for no record, or one without its payload.
    pub(super) fn take(&mut self, next: Option<Candidate>) {
        let next = next.filter(|next| {
            let begins = next.record.kind == RecordKind::Incarnation;
            if self.look == Some(Look::BehindSet) {
                begins
            } else {
                self.set.is_none() || !begins
            }
        });
        let Some(Candidate { record, durable, .. }) = next else {
            self.look = self.after_nothing();
            return;
        };
        let found = &mut self.found;
        if record.kind == RecordKind::Incarnation {
            found.incarnation = record.sector;
        } else {
            let before = OpenSet { records: found.records.len(), end: found.end, sequence: found.sequence };
            self.set = if record.more { self.set.take().or(Some(before)) } else { None };
            found.sequence = record.sequence;
        }
        found.durable_sequence = found.durable_sequence.max(durable);
        found.end = record.end();
        found.records.push(record);
        self.look = Some(Look::Here);
    }

    fn after_nothing(&mut self) -> Option<Look> {
        let found = &mut self.found;
        if self.look == Some(Look::Here) && found.end != found.end.page_up() {
            return Some(Look::NextPage);
        }
        let set = self.set.take().filter(|_| !self.mistake.is(Mutation::KeepBrokenSet))?;
        // It is not all there: nothing of it counts.
        found.records.truncate(set.records);
        (found.end, found.sequence) = (set.end, set.sequence);
        (!self.mistake.is(Mutation::ForgetBehindSet)).then_some(Look::BehindSet)
    }

    /// From where to where there may be records that the prefix does not have.
    pub(super) fn rest(&self) -> (LogPosition, LogPosition) {
        (self.found.end, self.limit)
    }

    /// What stands in the rest, at each multiple of the record alignment: it may prove more to have been durable than was found. A
    /// number that was once durable is never given again, so it does not matter which incarnation says so; and records of an earlier
    /// lap or a lost incarnation cannot say so.
    pub(super) fn behind(&mut self, header: &[u8]) {
        if header[..4] != RECORD_MAGIC.to_le_bytes() {
            return;
        }
        let Some(record) = RecordHeader::parse(header) else { return };
        let found = &mut self.found;
        if record.group_tag.get() != found.header.group_tag() {
            return;
        }
        found.torn_tail |=
            record.incarnation.get() == found.incarnation && record.sequence.get() > found.sequence.0;
        found.durable_sequence = found.durable_sequence.max(SequenceNumber(record.durable_sequence.get()));
    }

    /// What the log holds.
    ///
    /// # Errors
    /// More had been durable than is there.
    pub(super) fn end(self) -> Result<Scan, LogReadError> {
        let (sequence, durable) = (self.found.sequence, self.found.durable_sequence);
        match durable > sequence {
            false => Ok(self.found),
            true => Err(LogReadError::Corrupt(format!(
                "record {} is damaged or missing, and everything up to {} had been durable",
                sequence.next().0,
                durable.0
            ))),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use afterimage_format::log::{ImageEntry, FEATURE_SETS, KIND_MORE};
    use proptest::prelude::*;
    use zerocopy::{FromZeros as _, IntoBytes as _};

    use super::*;

    /// What storage holds: record headers, and whether their payloads are there, too.
    #[derive(Default)]
    struct Storage(BTreeMap<LogPosition, (RecordHeader, bool)>);

    impl Storage {
        fn read(&self, header: LogHeader) -> Result<Scan, LogReadError> {
            let mut prefix = Prefix::new(header, Mistake::default());
            while let Some(at) = prefix.next_at() {
                let there = self.0.get(&at);
                let next = there.and_then(|(record, _)| prefix.candidate(at, record.as_bytes()));
                let whole = there.is_some_and(|(_, whole)| *whole);
                prefix.take(next.filter(|next| whole || next.payload.is_none()));
            }
            let (from, to) = prefix.rest();
            self.0.range(from..to).for_each(|(_, (record, _))| prefix.behind(record.as_bytes()));
            prefix.end()
        }

        fn write(&mut self, record: RecordHeader, placed: &Placed) {
            self.0.retain(|at, _| *at < placed.position || placed.end() <= *at);
            self.0.insert(placed.position, (record, true));
        }
    }

    #[derive(Clone, Debug)]
    enum Step {
        /// One record, or a set.
        Append {
            records: u64,
            sectors: u64,
        },
        Sync,
        /// A power cut takes some of what no sync has covered, or the payloads only; another process goes on.
        Cut {
            lost: u32,
            payloads: bool,
        },
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            6 => (1u64..5, 0u64..14).prop_map(|(records, sectors)| Step::Append { records, sectors }),
            2 => Just(Step::Sync),
            2 => (any::<u32>(), any::<u32>(), any::<bool>())
                .prop_map(|(a, b, payloads)| Step::Cut { lost: a & b, payloads }),
        ]
    }

    fn log() -> LogHeader {
        let mut header = LogHeader::new([7; 16], 1 << 30, 1);
        header.features_incompat = FEATURE_SETS.into();
        header.image_count = 1.into();
        header.images[0] = ImageEntry { size_bytes: (1 << 20).into(), ..ImageEntry::default() };
        header
    }

    /// A process that appends.
    struct Process {
        at: LogPosition,
        sequence: SequenceNumber,
        incarnation: u64,
        durable: SequenceNumber,
    }

    impl Process {
        fn append(&mut self, storage: &mut Storage, sectors: u64, more: bool) -> LogPosition {
            self.sequence = self.sequence.next();
            let kind = if sectors > 0 { RecordKind::Write } else { RecordKind::Discard };
            let mut record = RecordHeader::new_zeroed();
            record.magic = RECORD_MAGIC.into();
            record.kind = (kind.code() | if more { KIND_MORE } else { 0 }).into();
            record.incarnation = self.incarnation.into();
            record.sequence = self.sequence.0.into();
            record.sectors = sectors.into();
            record.durable_sequence = self.durable.0.into();
            record.group_tag = log().group_tag().into();
            record.seal();
            let (disk, sequence) = (LoggedDisk(0), self.sequence);
            let placed = Placed { position: self.at, sequence, kind, more, disk, sector: 0, sectors };
            storage.write(record, &placed);
            self.at = placed.end();
            placed.position
        }
    }

    /// One that takes a log over.
    fn take_over(storage: &mut Storage, incarnation: u64, durable: SequenceNumber) -> Process {
        let found = storage.read(log()).expect("nothing durable is lost");
        let (record, placed) = found.begin(incarnation, durable, found.end.page_up());
        storage.write(record, &placed);
        Process { at: placed.end(), sequence: found.sequence, incarnation, durable: found.sequence }
    }

    fn first() -> Process {
        let (at, sequence) = (LogPosition(0), SequenceNumber(0));
        Process { at, sequence, incarnation: 1, durable: sequence }
    }

    /// What is at that position, sealed again after a change.
    fn change(storage: &mut Storage, at: LogPosition, change: impl FnOnce(&mut RecordHeader)) {
        let (record, _) = storage.0.get_mut(&at).expect("a record");
        change(record);
        record.seal();
    }

    /// A record, another process, a record of that one: what each has in its header is what makes it the next.
    #[test]
    fn ends_before_what_does_not_follow() {
        type Change = fn(&mut RecordHeader);
        let lives = || {
            let mut storage = Storage::default();
            first().append(&mut storage, 8, false);
            let mut process = take_over(&mut storage, 2, SequenceNumber(0));
            let begin = LogPosition(process.at.0 - PAGE_BYTES);
            let last = process.append(&mut storage, 8, false);
            (storage, begin, last)
        };
        let (storage, begin, last) = lives();
        let whole = storage.read(log()).expect("whole");
        assert_eq!((whole.sequence, whole.incarnation), (SequenceNumber(2), 2));
        let (of_incarnation, of_record) = ((begin, 1, 1), (last, 1, 2));
        let changes: [(_, &str, Change); 12] = [
            (of_incarnation, "group_tag", |r| r.group_tag = 9.into()),
            (of_incarnation, "more", |r| r.kind = (r.kind.get() | KIND_MORE).into()),
            (of_incarnation, "sequence", |r| r.sequence = 0.into()),
            (of_incarnation, "the incarnation before", |r| r.sector = 9.into()),
            (of_record, "group_tag", |r| r.group_tag = 9.into()),
            (of_record, "kind", |r| r.kind = 9.into()),
            (of_record, "sequence, a gap", |r| r.sequence = 3.into()),
            (of_record, "sequence, again", |r| r.sequence = 1.into()),
            (of_record, "incarnation", |r| r.incarnation = 1.into()),
            (of_record, "disk", |r| r.disk = 1.into()),
            (of_record, "sector, over the end", |r| r.sector = ((1 << 20) / 512 - 7).into()),
            (of_record, "sector, absurd", |r| r.sector = u64::MAX.into()),
        ];
        for ((at, sequence, incarnation), what, to) in changes {
            let (mut storage, ..) = lives();
            change(&mut storage, at, to);
            let found = storage.read(log()).expect("nothing says that it was durable");
            assert_eq!((found.sequence.0, found.incarnation), (sequence, incarnation), "{what}");
        }
        // Within the page that the first record ends on.
        let (mut storage, ..) = lives();
        let moved = storage.0.remove(&begin).expect("the incarnation");
        storage.0.insert(whole.records[0].end(), moved);
        let found = storage.read(log()).expect("nothing says that it was durable");
        assert_eq!((found.sequence, found.incarnation), (SequenceNumber(1), 1));
    }

    #[test]
    fn without_sets_no_record_belongs_to_one() {
        let (mut storage, mut process) = (Storage::default(), first());
        process.append(&mut storage, 1, true);
        process.append(&mut storage, 1, false);
        let without = LogHeader { features_incompat: 0.into(), ..log() };
        assert_eq!(storage.read(without).expect("nothing durable").sequence, SequenceNumber(0));
        assert_eq!(storage.read(log()).expect("a set").sequence, SequenceNumber(2));
    }

    #[test]
    fn nobody_begins_within_a_set() {
        let (mut storage, mut process) = (Storage::default(), first());
        process.append(&mut storage, 8, false);
        let mut process = take_over(&mut storage, 2, SequenceNumber(0));
        process.durable = SequenceNumber(0);
        process.append(&mut storage, 8, false);
        change(&mut storage, LogPosition(0), |r| r.kind = (r.kind.get() | KIND_MORE).into());
        let found = storage.read(log()).expect("nothing durable");
        assert_eq!((found.sequence, found.incarnation), (SequenceNumber(0), 1));
    }

    /// The tail's page holds live records: the lap ends before it.
    #[test]
    fn no_record_reaches_over_the_tails_page() {
        let mut log = log();
        (log.area_bytes, log.tail_position) = ((4 * PAGE_BYTES).into(), 512.into());
        for (sectors, taken) in [(30, 1), (31, 0)] {
            let mut storage = Storage::default();
            Process { at: LogPosition(512), ..first() }.append(&mut storage, sectors, false);
            assert_eq!(storage.read(log).expect("nothing durable").sequence.0, taken, "{sectors}");
        }
    }

    /// A guest that runs Afterimage itself has such a log, and its records are payload in ours.
    #[test]
    fn another_groups_records_say_nothing() {
        let (mut storage, mut process) = (Storage::default(), first());
        process.append(&mut storage, 1, false);
        let end = process.at;
        process.at = end + PAGE_BYTES;
        process.durable = SequenceNumber(99);
        process.sequence = SequenceNumber(99);
        let at = process.append(&mut storage, 1, false);
        assert!(matches!(storage.read(log()), Err(LogReadError::Corrupt(_))), "ours would");
        change(&mut storage, at, |r| r.group_tag = 9.into());
        let found = storage.read(log()).expect("it is not ours");
        assert_eq!((found.sequence, found.end, found.torn_tail), (SequenceNumber(1), end, false));
    }

    proptest! {
        /// Whatever a cut takes, over many lives: the prefix ends before the first set that is not whole, and what is durable is in it.
        #[test]
        fn ends_before_the_first_that_is_not_whole(steps in proptest::collection::vec(step(), 1..60)) {
            let mut storage = Storage::default();
            let mut process = first();
            // What no sync has covered: records, and the number that each set ends with.
            let mut open: Vec<(Vec<LogPosition>, SequenceNumber)> = Vec::new();
            let mut durable_at = Vec::new();
            for step in steps.into_iter().chain([Step::Sync, Step::Append { records: 1, sectors: 1 }]) {
                match step {
                    Step::Append { records, sectors } => {
                        let set = (1..=records).map(|n| process.append(&mut storage, sectors, n < records));
                        let set = set.collect();
                        open.push((set, process.sequence));
                    }
                    Step::Sync => {
                        process.at = process.at.page_up();
                        process.durable = process.sequence;
                        durable_at.extend(open.drain(..).flat_map(|(set, _)| set));
                    }
                    Step::Cut { lost, payloads } => {
                        let mut expected = process.durable;
                        let mut ended = false;
                        let mut bit = 0;
                        for (set, end) in open.drain(..) {
                            for at in &set {
                                bit += 1;
                                if lost >> (bit % 32) & 1 == 0 {
                                    continue;
                                }
                                let has_payload = storage.0[at].0.payload_bytes() > Some(0);
                                if payloads && has_payload {
                                    storage.0.get_mut(at).expect("written").1 = false;
                                } else {
                                    storage.0.remove(at);
                                }
                                ended = true;
                            }
                            if !ended {
                                expected = end;
                                durable_at.extend(set);
                            }
                        }
                        let found = storage.read(log()).expect("nothing durable is lost");
                        prop_assert_eq!(found.sequence, expected);
                        prop_assert_eq!(found.incarnation, process.incarnation);
                        prop_assert_eq!(found.replayed().records, expected.0);
                        process = take_over(&mut storage, process.incarnation + 1, process.durable);
                    }
                }
            }
            let found = storage.read(log()).expect("whole");
            prop_assert_eq!((found.sequence, found.durable_sequence), (process.sequence, process.durable));
            // Of what was durable nothing may be missing, and the last record proves it.
            if let Some(at) = durable_at.get(durable_at.len() / 2) {
                storage.0.remove(at);
                prop_assert!(matches!(storage.read(log()), Err(LogReadError::Corrupt(_))));
            }
        }
    }
}
