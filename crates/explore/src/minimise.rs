//! The smallest loss that still breaks the promise: delta debugging (Zeller, Hildebrandt 2002) over the lost writes.

use crate::campaign::{again, Failure, Subject};
use crate::evaluate::Evaluator;
use crate::model::{Choice, LostWrite};
use crate::Result;

/// States that are tried at most: with a guest's mount each, half a minute.
const TRIES_MAX: usize = 400;

/// What came of it.
#[derive(Clone, Debug)]
pub struct Minimised {
    /// With the fewest lost writes that were found.
    pub failure: Failure,
    /// Giving back any single write makes the failure go away; otherwise the tries ran out.
    pub is_minimal: bool,
    /// States tried.
    pub tries: usize,
}

/// Gives lost writes back as long as the state still breaks a promise.
///
/// # Errors
/// A checker could not do its work.
pub fn minimise(subject: &Subject, evaluator: &mut Evaluator, failure: &Failure) -> Result<Minimised> {
    let mut best = failure.clone();
    let mut tries = 0;
    let mut parts = 2;
    while best.choice.lost.len() > 1 && tries < TRIES_MAX {
        let size = best.choice.lost.len().div_ceil(parts);
        let mut smaller = None;
        for start in (0..best.choice.lost.len()).step_by(size) {
            let mut lost = best.choice.lost.clone();
            lost.drain(start..(start + size).min(lost.len()));
            tries += 1;
            if let Some(found) = still_fails(subject, evaluator, &best, lost)? {
                smaller = Some(found);
                break;
            }
            if tries >= TRIES_MAX {
                break;
            }
        }
        match smaller {
            Some(found) => {
                best = found;
                parts = parts.saturating_sub(1).max(2);
            }
            None if size == 1 => break,
            None => parts = (parts * 2).min(best.choice.lost.len()),
        }
    }
    if best.choice.lost.len() == 1 && tries < TRIES_MAX {
        tries += 1;
        if let Some(found) = still_fails(subject, evaluator, &best, Vec::new())? {
            best = found;
        }
    }
    Ok(Minimised { failure: best, is_minimal: tries < TRIES_MAX, tries })
}

fn still_fails(
    subject: &Subject,
    evaluator: &mut Evaluator,
    failure: &Failure,
    lost: Vec<LostWrite>,
) -> Result<Option<Failure>> {
    let choice = Choice { lost };
    let verdict = again(subject, evaluator, failure.cut_event, failure.crash_event, &choice)?;
    let fails = verdict.class.is_violation();
    Ok(fails.then(|| Failure { choice, verdict, ..failure.clone() }))
}
