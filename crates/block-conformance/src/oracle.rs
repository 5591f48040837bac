//! The naive disk: for every sector the contents it may have, and nothing else.
//!
//! Requests that overlap while they are in flight together have no order, so a sector may have several legal contents.
//! The rule, for a write W of a sector: what had been completed before W was submitted is gone once W completes; what
//! completed during W's flight may have come before or after it. The first read of a quiet sector settles which.
//!
//! Within a sector contents mix only where nobody promises that they do not: of changes that were in flight together, and
//! of one that was given up in the middle, whose memory may come in pieces that are no sectors (a guest's always do; the suite's
//! do not), so that what had been copied may end anywhere.

use std::ops::Range;
use std::rc::Rc;

use afterimage_block::SECTOR_BYTES;

const SECTOR: usize = SECTOR_BYTES as usize;

/// The content of one sector.
pub type Content = Rc<[u8; SECTOR]>;

/// A moment in the oracle's time: every submission and completion has its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Moment(u64);

/// A change of the disk that is in flight.
#[derive(Debug)]
pub struct Change {
    first: u64,
    contents: Vec<Content>,
    submitted: Moment,
}

struct Sector {
    /// Each with the moment it was completed.
    candidates: Vec<(Content, Moment)>,
    in_flight: u32,
    last_event: Moment,
    /// Since it was last settled several changes of it were in flight together, or one was given up.
    may_be_mixed: bool,
}

/// See the module.
pub struct Oracle {
    first: u64,
    sectors: Vec<Sector>,
    now: u64,
    zero: Content,
}

impl Oracle {
    /// A disk, or a part of it that begins at sector `first`, which holds `content`.
    ///
    /// # Panics
    /// Where the content is no whole number of sectors.
    pub fn new(first: u64, content: &[u8]) -> Self {
        assert_eq!(content.len() % SECTOR, 0, "a disk is made of sectors");
        let zero: Content = Rc::new([0; SECTOR]);
        let sectors = split(content, &zero)
            .into_iter()
            .map(|c| Sector {
                candidates: vec![(c, Moment(0))],
                in_flight: 0,
                last_event: Moment(0),
                may_be_mixed: false,
            })
            .collect();
        Self { first, sectors, now: 0, zero }
    }

    /// The sectors it knows.
    pub fn range(&self) -> Range<u64> {
        self.first..self.first + self.sectors.len() as u64
    }

    /// The present; later events are after it.
    pub fn now(&self) -> Moment {
        Moment(self.now)
    }

    fn tick(&mut self) -> Moment {
        self.now += 1;
        Moment(self.now)
    }

    fn at(&mut self, sector: u64) -> &mut Sector {
        &mut self.sectors[(sector - self.first) as usize]
    }

    /// A write is submitted.
    pub fn submit_write(&mut self, first: u64, bytes: &[u8]) -> Change {
        let contents = split(bytes, &self.zero);
        self.submit(first, contents)
    }

    /// A discard or write-zeroes is submitted.
    pub fn submit_zeroes(&mut self, first: u64, sectors: u64) -> Change {
        let contents = vec![Rc::clone(&self.zero); sectors as usize];
        self.submit(first, contents)
    }

    fn submit(&mut self, first: u64, contents: Vec<Content>) -> Change {
        let submitted = self.tick();
        for sector in first..first + contents.len() as u64 {
            let sector = self.at(sector);
            sector.may_be_mixed |= sector.in_flight > 0;
            sector.in_flight += 1;
            sector.last_event = submitted;
        }
        Change { first, contents, submitted }
    }

    /// A change completed well.
    pub fn complete(&mut self, change: Change) {
        let now = self.tick();
        for (sector, content) in (change.first..).zip(change.contents) {
            let sector = self.at(sector);
            sector.candidates.retain(|(_, completed)| *completed > change.submitted);
            sector.candidates.push((content, now));
            sector.in_flight -= 1;
            sector.last_event = now;
        }
    }

    /// A change was given up: it may have happened, or not, sector by sector.
    pub fn abandon(&mut self, change: Change) {
        let now = self.tick();
        for (sector, content) in (change.first..).zip(change.contents) {
            let sector = self.at(sector);
            sector.candidates.push((content, now));
            sector.may_be_mixed = true;
            sector.in_flight -= 1;
            sector.last_event = now;
        }
    }

    /// Compares what a read that was submitted at `submitted` returned. Sectors that were being written meanwhile may
    /// hold anything.
    ///
    /// # Errors
    /// In words: which sector is wrong.
    pub fn check_read(&mut self, first: u64, bytes: &[u8], submitted: Moment) -> Result<(), String> {
        for (number, seen) in (first..).zip(bytes.chunks_exact(SECTOR)) {
            let sector = self.at(number);
            if sector.in_flight > 0 || sector.last_event > submitted {
                continue;
            }
            let found = sector.candidates.iter().position(|(c, _)| c.as_slice() == seen);
            if found.is_none() && sector.may_be_mixed && is_mixture(seen, &sector.candidates) {
                let mut content = [0; SECTOR];
                content.copy_from_slice(seen);
                sector.candidates = vec![(Rc::new(content), submitted)];
                sector.may_be_mixed = false;
                continue;
            }
            let Some(found) = found else {
                return Err(format!(
                    "sector {number} holds {}, legal are {}",
                    describe(seen),
                    sector.candidates.iter().map(|(c, _)| describe(&c[..])).collect::<Vec<_>>().join(" or ")
                ));
            };
            // Settled now.
            sector.candidates.swap(0, found);
            sector.candidates.truncate(1);
            sector.may_be_mixed = false;
        }
        Ok(())
    }
}

/// Whether every byte is that of some candidate.
fn is_mixture(seen: &[u8], candidates: &[(Content, Moment)]) -> bool {
    seen.iter().enumerate().all(|(at, byte)| candidates.iter().any(|(content, _)| content[at] == *byte))
}

fn split(bytes: &[u8], zero: &Content) -> Vec<Content> {
    let zeroes = [0; SECTOR];
    bytes
        .chunks_exact(SECTOR)
        .map(|chunk| {
            if chunk == zeroes {
                Rc::clone(zero)
            } else {
                let mut content = zeroes;
                content.copy_from_slice(chunk);
                Rc::new(content)
            }
        })
        .collect()
}

/// Enough of a sector to recognise it.
fn describe(content: &[u8]) -> String {
    if content.iter().all(|b| *b == content[0]) {
        return format!("[{:02x} throughout]", content[0]);
    }
    format!("[{:02x?}…]", &content[..12])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sector(byte: u8) -> [u8; SECTOR] {
        [byte; SECTOR]
    }

    #[test]
    fn a_later_write_wins_and_concurrent_ones_may_both() {
        let mut oracle = Oracle::new(0, &sector(0));
        let a = oracle.submit_write(0, &sector(1));
        oracle.complete(a);
        let b = oracle.submit_write(0, &sector(2));
        oracle.complete(b);
        let now = oracle.now();
        assert!(oracle.check_read(0, &sector(1), now).is_err(), "overwritten");
        assert!(oracle.check_read(0, &sector(2), now).is_ok());

        let c = oracle.submit_write(0, &sector(3));
        let d = oracle.submit_zeroes(0, 1);
        let during = oracle.now();
        oracle.complete(c);
        oracle.complete(d);
        assert!(oracle.check_read(0, &sector(9), during).is_ok(), "a read beside a write says nothing");
        let after = oracle.now();
        assert!(oracle.check_read(0, &sector(2), after).is_err());
        assert!(oracle.check_read(0, &sector(3), after).is_ok());
        assert!(oracle.check_read(0, &sector(0), after).is_err(), "the read before settled it");
    }

    #[test]
    fn only_what_was_in_flight_together_or_given_up_may_be_mixed() {
        let mut mixed = sector(3);
        mixed[..12].fill(0);
        let mut oracle = Oracle::new(0, &sector(9));
        let c = oracle.submit_write(0, &sector(3));
        let d = oracle.submit_zeroes(0, 1);
        oracle.complete(c);
        oracle.complete(d);
        let after = oracle.now();
        assert!(oracle.check_read(0, &mixed, after).is_ok());
        assert!(oracle.check_read(0, &sector(3), after).is_err(), "settled");
        let mut torn = sector(4);
        torn[..12].copy_from_slice(&mixed[..12]);
        let e = oracle.submit_write(0, &sector(4));
        oracle.complete(e);
        let after = oracle.now();
        assert!(oracle.check_read(0, &torn, after).is_err(), "one at a time is whole");
        let f = oracle.submit_zeroes(0, 1);
        oracle.abandon(f);
        let after = oracle.now();
        assert!(oracle.check_read(0, &torn, after).is_ok(), "given up in the middle");
    }

    #[test]
    fn what_was_given_up_may_have_happened() {
        for seen in [0, 1] {
            let mut oracle = Oracle::new(7, &sector(0));
            let change = oracle.submit_write(7, &sector(1));
            oracle.abandon(change);
            let now = oracle.now();
            assert!(oracle.check_read(7, &sector(seen), now).is_ok());
        }
    }
}
