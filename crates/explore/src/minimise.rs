//! The smallest loss that still breaks the promise: delta debugging (Zeller, Hildebrandt 2002), first over the lost
//! requests, then over the sectors of those that are left.

use std::collections::BTreeMap;

use crate::campaign::{again, kind, Failure, Subject};
use crate::evaluate::Evaluator;
use crate::model::{Choice, LostWrite};
use crate::{ExploreError, Result};

/// States that are tried at most: with a guest's mount each, half a minute.
const TRIES_MAX: usize = 400;
/// With more lost sectors than this whole requests are the finest that is looked at.
const SECTORS_MAX: usize = 512;

/// What came of it.
#[derive(Clone, Debug)]
pub struct Minimised {
    /// With the fewest lost requests and sectors that were found.
    pub failure: Failure,
    /// Giving back any single request makes the failure go away; otherwise tries or time ran out, or it did not come again at all.
    pub is_minimal: bool,
    /// States tried.
    pub tries: usize,
}

struct Search<'a> {
    subject: &'a Subject,
    evaluator: &'a mut Evaluator,
    best: Failure,
    tries: usize,
    out_of_time: bool,
}

/// Gives back what is lost as long as the same check still finds the same promise broken.
///
/// # Errors
/// A checker could not do its work.
pub fn minimise(subject: &Subject, evaluator: &mut Evaluator, failure: &Failure) -> Result<Minimised> {
    let mut search = Search { subject, evaluator, best: failure.clone(), tries: 0, out_of_time: false };
    if !search.still_fails(failure.choice.lost.clone())? {
        match search.out_of_time {
            true => tracing::warn!("there was no time to minimise the first failure"),
            false => {
                tracing::warn!(
                    "the first failure did not come again: does the check depend on more than the disk?"
                );
            }
        }
        return Ok(Minimised { failure: search.best, is_minimal: false, tries: search.tries });
    }
    search.reduce(failure.choice.lost.clone(), |lost| lost)?;
    let is_minimal = !search.is_over();
    let units = units(subject, &search.best.choice);
    if units.len() <= SECTORS_MAX {
        search.reduce(units, |lost| together(subject, lost.concat()))?;
    }
    Ok(Minimised { failure: search.best, is_minimal, tries: search.tries })
}

/// A lost sector: the write, and its place in it.
type LostSector = (usize, u32);

/// Every lost sector; those that the model keeps together as one.
fn units(subject: &Subject, choice: &Choice) -> Vec<Vec<LostSector>> {
    let mut units: Vec<Vec<LostSector>> = Vec::new();
    for lost in &choice.lost {
        let Some(write) = subject.stream.writes.get(lost.write) else { continue };
        let unit_of = write.unit_of(subject.stream.atomic_sectors);
        for sector in write.places().filter(|sector| lost.contains(*sector)) {
            match units.last_mut() {
                Some(unit) if unit[0].0 == lost.write && unit_of(unit[0].1) == unit_of(sector) => {
                    unit.push((lost.write, sector));
                }
                _ => units.push(vec![(lost.write, sector)]),
            }
        }
    }
    units
}

/// The same as requests that are lost in part or wholly.
fn together(subject: &Subject, sectors: Vec<LostSector>) -> Vec<LostWrite> {
    let mut writes: BTreeMap<usize, Vec<(u32, u32)>> = BTreeMap::new();
    for (write, sector) in sectors {
        let ranges = writes.entry(write).or_default();
        match ranges.last_mut() {
            Some((_, to)) if *to == sector => *to += 1,
            _ => ranges.push((sector, sector + 1)),
        }
    }
    let is_whole = |write: usize, ranges: &[(u32, u32)]| {
        let lost: u32 = ranges.iter().map(|(from, to)| to - from).sum();
        lost as usize == subject.stream.writes[write].sectors.len()
    };
    writes
        .into_iter()
        .map(|(write, ranges)| LostWrite { write, sectors: (!is_whole(write, &ranges)).then_some(ranges) })
        .collect()
}

impl Search<'_> {
    fn is_over(&self) -> bool {
        self.tries >= TRIES_MAX || self.out_of_time
    }

    /// Leaves parts out, large ones first, until no single one can be left out.
    fn reduce<T: Clone>(
        &mut self,
        mut lost: Vec<T>,
        choice: impl Fn(Vec<T>) -> Vec<LostWrite>,
    ) -> Result<()> {
        let mut parts = 2;
        while !lost.is_empty() && !self.is_over() {
            let size = lost.len().div_ceil(parts);
            let mut smaller = None;
            for start in (0..lost.len()).step_by(size) {
                let mut rest = lost.clone();
                rest.drain(start..(start + size).min(lost.len()));
                if self.still_fails(choice(rest.clone()))? {
                    smaller = Some(rest);
                    break;
                }
                if self.is_over() {
                    break;
                }
            }
            match smaller {
                Some(rest) => {
                    lost = rest;
                    parts = parts.saturating_sub(1).max(2);
                }
                None if size == 1 => break,
                None => parts = (parts * 2).min(lost.len()),
            }
        }
        Ok(())
    }

    fn still_fails(&mut self, lost: Vec<LostWrite>) -> Result<bool> {
        self.tries += 1;
        let choice = Choice { lost };
        let best = &self.best;
        let verdict = match again(self.subject, self.evaluator, best.cut_event, best.crash_event, &choice) {
            Err(ExploreError::OutOfTime) => {
                self.out_of_time = true;
                return Ok(false);
            }
            verdict => verdict?,
        };
        // Another complaint would be another failure, also where it is the same check's.
        let fails = verdict.class.is_violation()
            && verdict.class == best.verdict.class
            && kind(&verdict) == kind(&best.verdict);
        if fails {
            self.best = Failure { choice, verdict, ..self.best.clone() };
        }
        Ok(fails)
    }
}
