//! One round home: which versions go, in which pieces, what is done in which order, and what the header says then.
//!
//! Plain bookkeeping: no lock, no clock, no file.

use std::time::Duration;

use afterimage_block::SequenceNumber;
use afterimage_format::log::{LogHeader, RecordKind, WitnessEntry};

use super::extents::{Extent, ExtentMap, Source};
use super::mutation::{Mistake, Mutation};
use super::prefix::Placed;
use super::witness;
use crate::sequence::LogPosition;

/// The largest single write to an image, in sectors.
const PIECE_SECTORS_MAX: u64 = (1 << 20) / 512;

/// What is done, one after another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// The pieces are written to the images.
    Write,
    /// Readers find the versions up to this number at home.
    Forget(SequenceNumber),
    /// The images are synced.
    SyncImages,
    /// The header says that they are home, and is synced.
    Header,
}

/// See the module.
pub(super) struct Round {
    /// Whole sets, the oldest that the log holds.
    pub(super) records: Vec<Placed>,
    /// Where the log begins without them.
    pub(super) tail: LogPosition,
    /// The newest of their numbers.
    pub(super) sequence: SequenceNumber,
    /// The newest of their versions, by disk.
    pub(super) newest: Vec<ExtentMap>,
    mistake: Mistake,
}

impl Round {
    /// Of durable records, the oldest first; `None` where there are none.
    pub(super) fn new(
        records: Vec<Placed>,
        tail: LogPosition,
        disks: usize,
        mistake: Mistake,
    ) -> Option<Self> {
        let sequence = records.last()?.sequence;
        let mut newest: Vec<ExtentMap> = (0..disks).map(|_| ExtentMap::default()).collect();
        let mut insert = |record: &Placed| {
            if let Some(source) = record.source() {
                let extent = Extent { sectors: record.sectors, source, sequence: record.sequence };
                newest[record.disk.index()].insert(record.sector, extent);
            }
        };
        if mistake.is(Mutation::OldestVersion) {
            records.iter().rev().for_each(&mut insert);
        } else {
            records.iter().for_each(&mut insert);
        }
        Some(Self { records, tail, sequence, newest, mistake })
    }

    /// What is done before the log gives the records up. A power cut after any of the steps leaves them in the log or, once the
    /// header is durable, at home; and where a step fails, reads find them in the log still: what an image shows after a failed sync, storage
    /// need not hold.
    pub(super) fn steps(&self) -> Vec<Step> {
        let newer = self.mistake.is(Mutation::DropNewerIndex);
        let up_to = if newer { SequenceNumber(u64::MAX) } else { self.sequence };
        let mut steps = vec![Step::Write, Step::SyncImages, Step::Forget(up_to), Step::Header];
        if self.mistake.is(Mutation::DropIndexEarly) {
            steps[..3].rotate_right(1);
        }
        if self.mistake.is(Mutation::HeaderBeforeHomeSync) {
            steps[1..].rotate_left(1);
        }
        if self.mistake.is(Mutation::DropHomeSync) {
            steps.remove(1);
        }
        steps
    }

    /// The header that follows, with witnesses of what went home.
    pub(super) fn header(
        &self,
        before: &LogHeader,
        durable: SequenceNumber,
        chosen: Vec<WitnessEntry>,
    ) -> LogHeader {
        let mut next = *before;
        next.tail_position = self.tail.0.into();
        next.tail_sequence = self.sequence.0.into();
        let begun = self.records.iter().rev().find(|record| record.kind == RecordKind::Incarnation);
        if let Some(begun) = begun {
            next.tail_incarnation = begun.sector.into();
        }
        next.durable_sequence = durable.max(self.sequence).0.into();
        witness::replace(&mut next, chosen, &self.newest);
        next
    }
}

/// Neighbouring sectors of an image that are written at once.
#[derive(Debug)]
pub(super) struct Piece {
    pub(super) sector: u64,
    pub(super) sectors: u64,
    pub(super) content: Content,
}

/// What becomes of a piece.
#[derive(Debug)]
pub(super) enum Content {
    /// It is what the log holds at these positions, so many sectors each.
    Logged(Vec<(LogPosition, u64)>),
    /// It is zeroes; with `unmap` its space may be given back.
    Zero { unmap: bool },
}

impl Piece {
    fn new((sector, extent): (u64, Extent)) -> Self {
        let content = match extent.source {
            Source::Log(at) => Content::Logged(vec![(at, extent.sectors)]),
            Source::Zero { unmap } => Content::Zero { unmap },
        };
        Self { sector, sectors: extent.sectors, content }
    }

    /// Whether what follows joins it.
    fn join(&mut self, sector: u64, extent: &Extent) -> bool {
        let joins = self.sector + self.sectors == sector
            && match (&mut self.content, extent.source) {
                (Content::Logged(parts), Source::Log(at))
                    if self.sectors + extent.sectors <= PIECE_SECTORS_MAX =>
                {
                    parts.push((at, extent.sectors));
                    true
                }
                (Content::Zero { unmap }, Source::Zero { unmap: other }) => *unmap == other,
                _ => false,
            };
        self.sectors += if joins { extent.sectors } else { 0 };
        joins
    }
}

/// What is written to an image, in the order of the disk.
pub(super) fn pieces(newest: &ExtentMap) -> impl Iterator<Item = Piece> + '_ {
    let cut = |(sector, extent): (u64, Extent)| {
        let step = if let Source::Log(_) = extent.source { PIECE_SECTORS_MAX } else { extent.sectors };
        (0..extent.sectors.div_ceil(step)).map(move |n| (sector + n * step, extent.part(n * step, step)))
    };
    let mut extents = newest.iter().flat_map(cut).peekable();
    std::iter::from_fn(move || {
        let mut piece = Piece::new(extents.next()?);
        while extents.next_if(|(sector, extent)| piece.join(*sector, extent)).is_some() {}
        Some(piece)
    })
}

/// How much is written home between two syncs of an image. One sync for all would be cheapest, but it would hand the
/// device seconds of work at once, and the log's sync, for which flushes wait, would queue behind it. So pieces that
/// take about one window; the order of the disk is kept across them.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pace {
    bytes_max: u64,
    /// Since the last sync: bytes, and when that was.
    written: u64,
    since: Duration,
}

impl Pace {
    const BYTES_LEAST: u64 = 128 << 10;
    const BYTES_MOST: u64 = 256 << 20;

    pub(super) fn new() -> Self {
        Self { bytes_max: 4 << 20, written: 0, since: Duration::ZERO }
    }

    /// An image is begun.
    pub(super) fn begin(&mut self, now: Duration) {
        (self.written, self.since) = (0, now);
    }

    pub(super) fn wrote(&mut self, bytes: u64) {
        self.written += bytes;
    }

    /// Whether the image is to be synced before anything more is written.
    pub(super) fn wants_sync(&self) -> bool {
        self.written >= self.bytes_max
    }

    pub(super) fn synced(&mut self, now: Duration, window: Duration) {
        let took = now.saturating_sub(self.since);
        if took > window {
            self.bytes_max = (self.bytes_max / 2).max(Self::BYTES_LEAST);
        } else if took < window / 4 {
            self.bytes_max = (self.bytes_max * 2).min(Self::BYTES_MOST);
        }
        self.begin(now);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::sequence::LoggedDisk;

    const DISK_SECTORS: u64 = 4 * PIECE_SECTORS_MAX;

    fn round(records: &[(u8, u64, u64)]) -> Option<Round> {
        let kinds = [RecordKind::Write, RecordKind::Write, RecordKind::Discard, RecordKind::Zero];
        let placed = records.iter().zip(1u64..).map(|((kind, sector, sectors), n)| Placed {
            position: LogPosition(n << 30),
            sequence: SequenceNumber(n),
            kind: kinds[usize::from(*kind)],
            more: false,
            disk: LoggedDisk(0),
            sector: *sector,
            sectors: (*sectors).min(DISK_SECTORS - sector),
        });
        Round::new(placed.collect(), LogPosition(9 << 40), 1, Mistake::default())
    }

    proptest! {
        /// What the pieces write is what the records write one after another.
        #[test]
        fn pieces_are_the_newest_versions(
            records in proptest::collection::vec((0u8..4, 0..DISK_SECTORS, 1..PIECE_SECTORS_MAX * 2), 1..24)
        ) {
            let round = round(&records).expect("there are records");
            let mut expected = vec![None; DISK_SECTORS as usize];
            for record in &round.records {
                for n in 0..record.sectors {
                    expected[(record.sector + n) as usize] = Some(match record.kind {
                        RecordKind::Write => Source::Log(record.payload() + n * 512),
                        kind => Source::Zero { unmap: kind == RecordKind::Discard },
                    });
                }
            }
            let mut written = vec![None; DISK_SECTORS as usize];
            let mut last = 0;
            for piece in pieces(&round.newest[0]) {
                prop_assert!(piece.sector >= last, "in the order of the disk");
                last = piece.sector + piece.sectors;
                let target = &mut written[piece.sector as usize..last as usize];
                match piece.content {
                    Content::Zero { unmap } => target.fill(Some(Source::Zero { unmap })),
                    Content::Logged(parts) => {
                        prop_assert!(piece.sectors <= PIECE_SECTORS_MAX);
                        let sources = parts.iter().flat_map(|(at, sectors)| (0..*sectors).map(|n| *at + n * 512));
                        let sources: Vec<_> = sources.map(|at| Some(Source::Log(at))).collect();
                        target.copy_from_slice(&sources);
                    }
                }
            }
            prop_assert!(written == expected);
        }
    }

    #[test]
    fn neighbours_are_written_at_once() {
        let round = round(&[(0, 8, 8), (2, 100, 8), (0, 0, 8), (2, 108, 8), (0, 16, 1)]).expect("records");
        let ranges: Vec<_> = pieces(&round.newest[0]).map(|piece| (piece.sector, piece.sectors)).collect();
        assert_eq!(ranges, [(0, 17), (100, 16)]);
    }

    /// The log's part is room only behind a header that is durable, and that comes behind durable images.
    #[test]
    fn a_cut_between_steps_loses_nothing() {
        let round = round(&[(0, 0, 8)]).expect("a record");
        let (mut written, mut synced, mut read_at_home, mut given_up) = (false, false, false, false);
        for step in round.steps() {
            match step {
                Step::Write => written = true,
                Step::Forget(up_to) => {
                    assert_eq!(up_to, round.sequence, "newer versions stay in the index");
                    read_at_home = true;
                }
                Step::SyncImages => synced = written,
                Step::Header => given_up = true,
            }
            assert!(!read_at_home || synced, "what is not durable at home is read from the log");
            assert!(!given_up || synced, "what is not durable at home stays in the log");
        }
        assert!(given_up && read_at_home);
    }

    #[test]
    fn the_header_says_where_the_log_begins() {
        let round = round(&[(0, 0, 8), (0, 64, 8)]).expect("records");
        let mut before = LogHeader::new([1; 16], 1 << 20, 5);
        let old =
            |sector: u64| WitnessEntry { sector: sector.into(), sectors: 8.into(), ..Default::default() };
        witness::replace(&mut before, vec![old(4), old(200)], &[]);
        let new = witness::of_round(&round.newest);
        assert_eq!(
            new.iter().map(|(spot, at)| (spot.sector, *at)).collect::<Vec<_>>(),
            [(0, round.records[0].payload()), (64, round.records[1].payload()),]
        );
        let chosen = new.iter().map(|(spot, _)| spot.entry(&[1; 4096])).collect();
        let next = round.header(&before, SequenceNumber(1), chosen);
        assert_eq!((next.tail_position.get(), next.tail_sequence.get()), (round.tail.0, 2));
        assert_eq!((next.durable_sequence.get(), next.tail_incarnation.get()), (2, 5));
        let sectors: Vec<_> = next.witnesses().iter().map(|witness| witness.sector.get()).collect();
        assert_eq!(sectors, [0, 64, 200], "what the round has touched says nothing any more");
    }

    #[test]
    fn a_slow_device_gets_less_at_once() {
        let (window, second) = (Duration::from_millis(50), Duration::from_secs(1));
        let mut pace = Pace::new();
        let most = |pace: &mut Pace| {
            let mut bytes = 0;
            while !pace.wants_sync() {
                pace.wrote(64 << 10);
                bytes += 64 << 10;
            }
            bytes
        };
        pace.begin(second);
        let at_first = most(&mut pace);
        pace.synced(second * 2, window);
        assert_eq!(most(&mut pace), at_first / 2);
        pace.synced(second * 2, window);
        assert_eq!(most(&mut pace), at_first);
    }
}
