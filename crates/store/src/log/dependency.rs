//! When an image depends on a log, and how everybody can tell.
//!
//! ```text
//! beginning   log, synced, gets its name ─► images marked ─► the first write is taken
//! end         everything home, synced ─► log says clean ─► marks removed ─► log removed
//! ```
//!
//! Each step is durable before the next one begins. So, wherever a cut falls:
//!
//! | log | mark of an image | that image |
//! |---|---|---|
//! | of the mark's group, live | there | depends on the log |
//! | of the mark's group, clean | there | is complete: the end was cut short |
//! | gone, or of another group | there | never left by a cut: somebody took the log away. Refused |
//! | any | gone | is complete. A live log beside it is empty: a start was cut before the marks. One with records is refused |

/// A step of a log's life, durable when it is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// An empty, live log gets its name.
    LogAppears,
    /// An image is marked.
    Mark(usize),
    /// Writes are taken from here on.
    Serve,
    /// The log, whose writes are all home, says so.
    LogClean,
    /// An image is not marked any more.
    Unmark(usize),
    /// The log's name goes.
    LogGoes,
}

/// What is done before the first write is taken.
pub(super) fn beginning(images: usize) -> impl Iterator<Item = Step> {
    [Step::LogAppears].into_iter().chain((0..images).map(Step::Mark)).chain([Step::Serve])
}

/// What is done when everything is home and synced.
pub(super) fn end(images: usize) -> impl Iterator<Item = Step> {
    [Step::LogClean].into_iter().chain((0..images).map(Step::Unmark)).chain([Step::LogGoes])
}

/// A log of the group that a mark names, as far as one was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Found {
    Live,
    Clean,
    Missing,
}

/// What a marked image is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// Complete by itself.
    Complete,
    /// Complete with the log.
    Depends,
    /// What the guest was told is safe is not all there.
    Lost,
}

/// Judges a marked image.
pub(super) fn judge(found: Found) -> Verdict {
    match found {
        Found::Live => Verdict::Depends,
        Found::Clean => Verdict::Complete,
        Found::Missing => Verdict::Lost,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const IMAGES: usize = 3;

    /// What storage holds, and whether the images may lack something that only the log has.
    #[derive(Clone)]
    struct Stored {
        log: Found,
        marks: [bool; IMAGES],
        incomplete: bool,
    }

    impl Stored {
        fn apply(&mut self, step: Step) {
            match step {
                Step::LogAppears => self.log = Found::Live,
                Step::Mark(i) => self.marks[i] = true,
                Step::Serve => self.incomplete = true,
                // Everything is home before this is called.
                Step::LogClean => (self.log, self.incomplete) = (Found::Clean, false),
                Step::Unmark(i) => self.marks[i] = false,
                Step::LogGoes => self.log = Found::Missing,
            }
        }

        /// Each image is judged as what it is.
        fn is_sound(&self) -> bool {
            self.marks.iter().all(|marked| {
                let verdict = if *marked { judge(self.log) } else { Verdict::Complete };
                match verdict {
                    Verdict::Complete => !self.incomplete,
                    Verdict::Depends => true,
                    Verdict::Lost => false,
                }
            })
        }
    }

    /// Cuts before, after and between all steps; a step that is cut may be done or not.
    fn all_cuts_are_sound(steps: &[Step]) -> bool {
        let mut stored = Stored { log: Found::Missing, marks: [false; IMAGES], incomplete: false };
        let sound = steps.iter().all(|step| {
            stored.apply(*step);
            stored.is_sound()
        });
        sound && stored.log == Found::Missing
    }

    fn life() -> Vec<Step> {
        beginning(IMAGES).chain(end(IMAGES)).collect()
    }

    #[test]
    fn no_cut_loses_the_dependency_or_invents_one() {
        assert!(all_cuts_are_sound(&life()));
    }

    #[test]
    fn a_step_in_another_place_is_noticed() {
        let life = life();
        for (at, step) in life.iter().enumerate() {
            for to in 0..life.len() {
                let mut other = life.clone();
                other.remove(at);
                other.insert(to, *step);
                // Marks of different images may come and go in any order.
                let kind = |s: &Step| std::mem::discriminant(s);
                let same = other.iter().map(kind).eq(life.iter().map(kind));
                assert_eq!(all_cuts_are_sound(&other), same, "{other:?}");
            }
        }
    }
}
