//! The space of a log: what is in it, from where to where, and what may come in.
//!
//! ```text
//! tail ────────── durable ────────── head ──► admit, place
//!  │ records that a sync has covered │ records that none has │ room │
//!  └─► oldest_durable, give_up       └◄─ seal, synced
//! ```
//!
//! A new log's area is only reserved but for its begin, and a sync that covers blocks which were never written costs more: the file
//! system has to note that they are now. So zeroes are written ahead of the head, a piece at a time, until it comes round: `claim`,
//! `claim_is_written`.
//!
//! Invariants: tail ≤ durable ≤ head; whole pages from the tail's to the head's, and one reserved page, fit into the area; no
//! position that a sync has covered lies on the page that the next record begins on; the tail never lies within a set; nothing is
//! admitted into a claim.
//!
//! Plain bookkeeping: no lock, no clock, no file.

use std::collections::VecDeque;
use std::ops::Range;

use afterimage_format::log::PAGE_BYTES;

use super::mutation::{Mistake, Mutation};
use super::prefix::{Placed, Scan};
use crate::sequence::LogPosition;

/// Always left free: the page of the incarnation record that the next process writes.
pub(super) const RESERVE_BYTES: u64 = PAGE_BYTES;

/// Records of a log with that record area, at most: a discard of one sector takes 64 bytes of the log and some hundred bytes
/// of memory, so the log would be no bound for the memory of its index. Writes are never so small that they meet it.
pub fn records_max(area_bytes: u64) -> usize {
    (area_bytes / 512).max(64) as usize
}

/// How far ahead of the head a new log is written out, in bytes.
pub(super) fn ahead_bytes(area_bytes: u64) -> u64 {
    (area_bytes / 8).clamp(PAGE_BYTES, 8 << 20) / PAGE_BYTES * PAGE_BYTES
}

/// Who asks for room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Who {
    /// A lane's batch: never before a set that waits.
    Lane,
    /// A set; where there is no room, it waits.
    Set,
    /// A set that does not wait.
    SetAtOnce,
}

/// See the module.
#[derive(Debug)]
pub(super) struct Space {
    area_bytes: u64,
    /// Where the next record goes.
    head: LogPosition,
    /// The end of what is durable.
    durable: LogPosition,
    /// The first record that may be needed.
    tail: LogPosition,
    /// From the tail on, oldest first.
    records: VecDeque<Placed>,
    /// A set waits for room: no lane's batch is let in before it.
    set_waits: bool,
    /// Nothing from here to the end of the area was ever written.
    blank: LogPosition,
    /// Where the head was when that was looked at last.
    looked_at: LogPosition,
    /// Where zeroes are being written.
    claim: Option<Range<LogPosition>>,
    mistake: Mistake,
}

impl Space {
    /// Of a log that was just read: nothing is taken to be durable.
    pub(super) fn new(scan: &Scan, mistake: Mistake) -> Self {
        let tail = LogPosition(scan.header.tail_position.get());
        Self {
            area_bytes: scan.header.area_bytes.get(),
            head: scan.end.page_up(),
            durable: tail,
            tail,
            records: VecDeque::from(scan.records.clone()),
            set_waits: false,
            blank: LogPosition(scan.header.area_bytes.get()),
            looked_at: scan.end.page_up(),
            claim: None,
            mistake,
        }
    }

    /// The log is new, and only so many bytes of its area were written out.
    pub(super) fn written_out(&mut self, bytes: u64) {
        self.blank = LogPosition(bytes);
    }

    /// Where zeroes are to be written now; `None` where enough is written out, or so much was appended since this was asked last that
    /// a sync more or less costs nothing beside it. While nothing that was admitted is being written.
    pub(super) fn claim(&mut self) -> Option<Range<LogPosition>> {
        let (ahead, head) = (ahead_bytes(self.area_bytes), self.head.page_up());
        let piece = (ahead / 4).max(PAGE_BYTES) / PAGE_BYTES * PAGE_BYTES;
        if head - std::mem::replace(&mut self.looked_at, head) > (piece / 4).max(PAGE_BYTES) {
            return None;
        }
        // Not just before the head: an append that met it would wait.
        let start = self.blank.max(head + piece);
        let end = (start + piece).min(LogPosition(self.area_bytes));
        if self.claim.is_some() || start >= end || start >= head + ahead {
            return None;
        }
        self.claim = Some(start..end);
        self.claim.clone()
    }

    /// The zeroes are there.
    pub(super) fn claim_is_written(&mut self) {
        self.blank = self.claim.take().map_or(self.blank, |claim| claim.end);
    }

    /// Where so many records of so many bytes in all may be written now; `None` where there is no room, or a set comes first.
    pub(super) fn admit(&mut self, bytes: u64, records: usize, who: Who) -> Option<LogPosition> {
        let fits = self.has_room(bytes, records);
        match who {
            Who::Lane if self.set_waits => return None,
            Who::Lane | Who::SetAtOnce => {}
            Who::Set => self.set_waits |= !fits,
        }
        fits.then_some(self.head)
    }

    /// Whole pages are written, and the tail's page still holds live records.
    pub(super) fn has_room(&self, bytes: u64, records: usize) -> bool {
        let overrun = if self.mistake.is(Mutation::OverrunTail) { self.area_bytes / 2 } else { 0 };
        let end = (self.head + bytes).page_up() + RESERVE_BYTES;
        self.claim.as_ref().is_none_or(|claim| end <= claim.start)
            && end <= (self.tail + overrun).page_down() + self.area_bytes
            && self.records.len() + records <= records_max(self.area_bytes)
    }

    /// Counts as appended what was written where [`Space::admit`] said. Whether that took the log over half of what it holds,
    /// in bytes or in records (or any append does beyond).
    pub(super) fn place(&mut self, placed: impl Iterator<Item = Placed>, end: LogPosition) -> bool {
        let (records, bytes) = (self.records.len() as u64, self.bytes());
        self.records.extend(placed);
        self.head = end;
        crossed_half(bytes, self.bytes(), self.area_bytes)
            || crossed_half(records, self.records.len() as u64, records_max(self.area_bytes) as u64)
    }

    pub(super) fn set_waits(&self) -> bool {
        self.set_waits
    }

    /// No set waits any more. Whether one did.
    pub(super) fn set_is_over(&mut self) -> bool {
        std::mem::take(&mut self.set_waits)
    }

    /// Before a sync: the next record starts on a page of its own, so that no later write can tear what the sync makes
    /// durable. Returns up to where that is.
    pub(super) fn seal(&mut self) -> LogPosition {
        if !self.mistake.is(Mutation::OpenPageAfterSync) {
            self.head = self.head.page_up();
        }
        self.head
    }

    /// A sync has covered everything up to there.
    pub(super) fn synced(&mut self, up_to: LogPosition) {
        self.durable = self.durable.max(up_to);
    }

    /// The oldest durable records, whole sets only, of up to `bytes_max` bytes of the log (at least one), and where the log
    /// begins without them. No more at once than half of what the log takes: their newest versions are another index.
    pub(super) fn oldest_durable(&self, bytes_max: u64) -> (Vec<Placed>, LogPosition) {
        let bound = if self.mistake.is(Mutation::HomeBeforeDurable) { self.head } else { self.durable };
        let fits = |r: &&Placed| r.end() <= bound && r.end() - self.tail <= bytes_max;
        let most = records_max(self.area_bytes) / 2;
        let mut count = self.records.iter().take(most).take_while(fits).count();
        // Where a set ends is where records may be cut: what is home is always a prefix that a crash may leave.
        while count > 0 && self.records[count - 1].more {
            count -= 1;
        }
        if count == 0 && self.records.front().is_some_and(|r| r.end() <= bound) {
            count = (self.records.iter().take_while(|r| r.more).count() + 1).min(self.records.len());
        }
        // Where nothing durable is left behind, the sealed rest of the page goes, too.
        let tail = self.records.get(count).map_or(bound, |next| next.position);
        (self.records.iter().take(count).copied().collect(), tail)
    }

    /// So many of the oldest records are home, and the header that says so is synced: their space is room.
    pub(super) fn give_up(&mut self, records: usize, tail: LogPosition) {
        self.records.drain(..records);
        if self.records.capacity() / 4 > self.records.len() {
            let kept = self.records.len() * 2;
            self.records.shrink_to(kept);
        }
        self.tail = tail;
    }

    /// Bytes in use.
    pub(super) fn bytes(&self) -> u64 {
        self.head - self.tail
    }

    /// Of those the durable ones.
    pub(super) fn durable_bytes(&self) -> u64 {
        self.durable - self.tail
    }

    pub(super) fn head(&self) -> LogPosition {
        self.head
    }

    pub(super) fn durable(&self) -> LogPosition {
        self.durable
    }

    /// Whether the log is more than half full, in bytes or in records.
    pub(super) fn is_half_full(&self) -> bool {
        self.bytes() > self.area_bytes / 2 || self.records.len() > records_max(self.area_bytes) / 2
    }
}

/// Whether something that grew from `before` to `after` crossed half of what it may be, or, beyond that, a sixteenth: in case
/// that the first call found nothing durable.
fn crossed_half(before: u64, after: u64, max: u64) -> bool {
    let step = max / 16;
    after > max / 2 && (before <= max / 2 || before / step != after / step)
}

#[cfg(test)]
mod tests {
    use afterimage_block::SequenceNumber;
    use afterimage_format::log::{LogHeader, RecordKind, RECORD_ALIGN};
    use proptest::prelude::*;

    use super::*;
    use crate::sequence::LoggedDisk;

    const AREA_BYTES: u64 = 16 * PAGE_BYTES;

    fn empty() -> Space {
        Space::new(&Scan::begun(LogHeader::new([1; 16], AREA_BYTES, 1)), Mistake::default())
    }

    #[derive(Clone, Debug)]
    enum Step {
        /// So many records of so many sectors; a set, or a lane's batch.
        Append {
            records: u64,
            sectors: u64,
            who: u8,
        },
        SetGivesUp,
        Seal,
        /// Of the syncs that run, that one ends.
        Synced {
            which: usize,
        },
        Claim,
        Claimed,
        Home {
            bytes_max: u64,
        },
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            6 => (1u64..6, 0u64..12, 0u8..3).prop_map(|(records, sectors, who)| Step::Append { records, sectors, who }),
            1 => Just(Step::SetGivesUp),
            2 => Just(Step::Seal),
            2 => (0usize..4).prop_map(|which| Step::Synced { which }),
            2 => Just(Step::Claim),
            2 => Just(Step::Claimed),
            3 => (0u64..AREA_BYTES).prop_map(|bytes_max| Step::Home { bytes_max }),
        ]
    }

    /// What is known of a page of the area.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    enum Page {
        Free,
        /// Holds what no sync has covered, of the lap that begins there.
        Live(u64),
        /// As that, and a sync has covered all of it.
        Synced(u64),
        /// Zeroes are being written there.
        Zeroed,
    }

    /// The area as pages: nothing that is still needed is ever written over, and nothing that a sync has covered is written
    /// again.
    struct Pages(Vec<Page>);

    impl Pages {
        fn range(from: LogPosition, to: LogPosition) -> impl Iterator<Item = (usize, u64)> {
            let (first, end) = (from.page_down().0 / PAGE_BYTES, to.page_up().0 / PAGE_BYTES);
            (first..end).map(|page| ((page % (AREA_BYTES / PAGE_BYTES)) as usize, page))
        }

        fn write(&mut self, from: LogPosition, to: LogPosition) {
            for (at, page) in Self::range(from, to) {
                let was = std::mem::replace(&mut self.0[at], Page::Live(page));
                assert!(was == Page::Free || was == Page::Live(page), "page {page} goes over {was:?}");
            }
        }

        fn synced(&mut self, from: LogPosition, to: LogPosition) {
            for (at, page) in Self::range(from, to) {
                self.0[at] = Page::Synced(page);
            }
        }

        fn zero(&mut self, from: LogPosition, to: LogPosition) {
            for (at, page) in Self::range(from, to) {
                let was = std::mem::replace(&mut self.0[at], Page::Zeroed);
                assert_eq!(was, Page::Free, "page {page} is zeroed");
            }
        }

        fn free(&mut self, from: LogPosition, to: LogPosition) {
            for (at, _) in Self::range(from.page_down(), to.page_down()) {
                self.0[at] = Page::Free;
            }
        }
    }

    proptest! {
        #[test]
        fn nothing_needed_is_written_over(
            steps in proptest::collection::vec(step(), 1..300),
            written_out in 0..=AREA_BYTES,
        ) {
            let mut space = empty();
            space.written_out(written_out / PAGE_BYTES * PAGE_BYTES);
            let mut claimed = None;
            let mut pages = Pages(vec![Page::Free; (AREA_BYTES / PAGE_BYTES) as usize]);
            let mut live: Vec<Placed> = Vec::new();
            let (mut sequence, mut sealed) = (0, Vec::new());
            let (mut durable, mut tail) = (LogPosition(0), LogPosition(0));
            let mut set_waits = false;
            for step in steps {
                match step {
                    Step::Append { records, sectors, who } => {
                        let who = [Who::Lane, Who::Set, Who::SetAtOnce][usize::from(who)];
                        let each = RECORD_ALIGN + sectors * 512;
                        let admitted = space.admit(records * each, records as usize, who);
                        if who == Who::Lane && set_waits {
                            prop_assert_eq!(admitted, None, "a set comes first");
                        }
                        let Some(head) = admitted else {
                            set_waits |= who == Who::Set;
                            continue;
                        };
                        let placed: Vec<Placed> = (0..records).map(|n| Placed {
                            position: head + n * each,
                            sequence: SequenceNumber(sequence + n + 1),
                            kind: if sectors > 0 { RecordKind::Write } else { RecordKind::Discard },
                            more: who != Who::Lane && n + 1 < records,
                            disk: LoggedDisk(0),
                            sector: 0,
                            sectors,
                        }).collect();
                        let end = head + records * each;
                        pages.write(head, end);
                        let before = space.bytes();
                        let crowded = space.place(placed.iter().copied(), end);
                        prop_assert!(!(before <= AREA_BYTES / 2 && space.bytes() > AREA_BYTES / 2) || crowded);
                        live.extend(placed);
                        sequence += records;
                        if who != Who::Lane {
                            prop_assert_eq!(space.set_is_over(), set_waits);
                            set_waits = false;
                        }
                    }
                    Step::SetGivesUp => {
                        prop_assert_eq!(space.set_is_over(), set_waits);
                        set_waits = false;
                    }
                    Step::Claim => {
                        if let Some(claim) = space.claim() {
                            prop_assert!(claim.end.0 <= AREA_BYTES && claim.start < claim.end);
                            pages.zero(claim.start, claim.end);
                            prop_assert_eq!(claimed.replace(claim), None);
                        }
                    }
                    Step::Claimed => {
                        if let Some(claim) = claimed.take() {
                            space.claim_is_written();
                            pages.free(claim.start, claim.end);
                        }
                    }
                    Step::Seal => sealed.push(space.seal()),
                    Step::Synced { which } => {
                        if which < sealed.len() {
                            let position = sealed.remove(which);
                            space.synced(position);
                            pages.synced(durable.max(tail), position);
                            durable = durable.max(position);
                        }
                    }
                    Step::Home { bytes_max } => {
                        let (records, to) = space.oldest_durable(bytes_max);
                        let safe = live.iter().take_while(|r| r.end() <= durable).count();
                        prop_assert!(records.len() <= safe, "what no sync has covered stays");
                        prop_assert_eq!(&records[..], &live[..records.len()]);
                        prop_assert!(records.last().is_none_or(|last| !last.more), "sets go whole");
                        prop_assert_eq!(records.is_empty(), safe == 0, "it always goes on");
                        if !records.is_empty() {
                            space.give_up(records.len(), to);
                            live.drain(..records.len());
                            pages.free(tail, to);
                            tail = to;
                        }
                    }
                }
                prop_assert!(tail <= durable && durable <= space.head());
                prop_assert_eq!(space.bytes(), space.head() - tail);
                let end = space.head().page_up() + RESERVE_BYTES;
                prop_assert!(end - tail.page_down() <= AREA_BYTES, "the reserved page is left");
            }
        }
    }
}
