//! Copies images while their guest writes.
//!
//! ```text
//! track ─► everything ─► approach ─► what changed meanwhile ─┬─ much: copy it, and again
//!                                                            └─ little: hold ─► the rest ─► resume: one point
//! ```
//!
//! - A byte is in the copy as it was when it was last read, and what changes after it was read is told again. So the copy is whole when
//!   everything that was told is copied while writes are held.
//! - A hold lasts 100 ms at most, which the daemon sees to. What it was too short for is copied later, or in the next one.
//! - Where a guest writes faster than can be copied, its turns between the holds get shorter. After 30 of them one hold is as long as
//!   what has changed needs.

use std::fs::File;
use std::io::{self, Write};
use std::time::{Duration, Instant};

use super::transfer::copy_range;
use crate::control::client::Client;
use crate::control::protocol::{Answer, Request, HOLD_MS};
use crate::failure::Failure;
use crate::units::show_bytes;
use afterimage_order::Ranges;

/// Copied at once, also where a rate bounds it to less a second.
const PIECE_BYTES: u64 = 4 << 20;
const PIECE_BYTES_MIN: u64 = 64 << 10;
/// The same while writes are held.
const HELD_PIECE_BYTES: u64 = 256 << 10;
/// How much of a hold is used: the rest is for letting writes go on.
const HOLD_USED: Duration = Duration::from_millis(HOLD_MS - 20);
/// How much of a hold the rest is to take, by the speed until then: reaching it takes some, too.
const HOLD_PART: Duration = Duration::from_millis(25);
/// The guest's turn after the first hold that was too short; later ones are shorter.
const TURN: Duration = Duration::from_millis(100);
/// So many short holds are tried.
const HOLDS_MAX: u32 = 30;
/// How long the last one may be, after those, and the part of it in which writes go on in any case.
const LAST: Duration = Duration::from_secs(60);
const LAST_SPARE: Duration = Duration::from_secs(1);
/// How often something is said.
const SAY: Duration = Duration::from_secs(1);
/// How long nothing is done at most without a look at the daemon.
const LOOK: Duration = Duration::from_millis(100);

/// One image and its copy.
pub struct Pair {
    /// Its name, for messages.
    pub name: String,
    /// What is served.
    pub from: File,
    /// What is made of it.
    pub to: File,
    /// The image's size.
    pub bytes: u64,
    /// What is not known to be the same.
    pub differs: Ranges,
}

/// How a copy came about.
#[derive(Clone, Copy, Debug)]
pub struct Point {
    /// The number of the newest request in it.
    pub sequence: u64,
    /// How long writes were held at a time, as seen from here.
    pub longest_hold: Duration,
}

/// A copy that is being made. The daemon notes changes.
pub struct Rounds<'a> {
    client: &'a mut Client,
    pairs: Vec<Pair>,
    rate: Option<u64>,
    says: bool,
    begun: Instant,
    copied_bytes: u64,
    /// Of this time, without what a rate has it wait.
    copying: Duration,
    said: Instant,
    longest_hold: Duration,
}

impl<'a> Rounds<'a> {
    /// Nothing is copied yet; the daemon was told to track.
    pub fn new(client: &'a mut Client, pairs: Vec<Pair>, rate: Option<u64>, says: bool) -> Self {
        let begun = Instant::now();
        let (copied_bytes, copying, longest_hold) = (0, Duration::ZERO, Duration::ZERO);
        Self { client, pairs, rate, says, begun, copied_bytes, copying, said: begun, longest_hold }
    }

    /// Copies until everything is the same at one point.
    ///
    /// # Errors
    /// The daemon is gone or has failed, a file cannot be read or written, or no hold is reached.
    pub fn run(mut self) -> Result<Point, Failure> {
        self.copy_free()?;
        let (mut before, mut holds) = (u64::MAX, 0);
        loop {
            self.approach()?;
            self.take_changes()?;
            let rest: u64 = self.pairs.iter().map(|pair| pair.differs.bytes()).sum();
            if holds == 0 && rest > self.fits_a_hold() && rest / 4 < before / 5 {
                self.say(&format!("{} changed meanwhile", show_bytes(rest)));
                before = rest;
                self.copy_free()?;
                continue;
            }
            let (asks, used) = match holds {
                0..HOLDS_MAX => (Request::Hold {}, HOLD_USED),
                _ => (Request::Pause { for_ms: Some(super::millis(LAST)) }, LAST.saturating_sub(LAST_SPARE)),
            };
            if holds == HOLDS_MAX {
                tracing::warn!(
                    "the guest writes faster than {HOLDS_MAX} holds of {HOLD_MS} ms can copy: writes are \
                     held until the copy is complete"
                );
            }
            match self.hold(&asks, used)? {
                Hold::Done(sequence) => return Ok(Point { sequence, longest_hold: self.longest_hold }),
                Hold::Short if holds == HOLDS_MAX => {
                    return Err(Failure::failed(format!(
                        "changed blocks could not be copied within {LAST:?} of held \
                         writes: repeat it when the guest writes less"
                    )))
                }
                Hold::Refused(why) if holds == HOLDS_MAX => {
                    return Err(Failure::failed(format!("writes cannot be held for a copy: {why}")))
                }
                Hold::Short | Hold::Refused(_) => {}
            }
            holds += 1;
            std::thread::sleep(TURN / holds);
        }
    }

    /// What is copied surely within a part of a hold.
    fn fits_a_hold(&self) -> u64 {
        let seconds = self.copying.as_secs_f64().max(0.001);
        (self.copied_bytes as f64 / seconds * HOLD_PART.as_secs_f64()).max(1e6) as u64
    }

    /// Copies what differs while the guest writes, and brings it to storage: that is not to be done while writes are held.
    fn copy_free(&mut self) -> Result<(), Failure> {
        let piece = self.rate.map_or(PIECE_BYTES, |rate| (rate / 8).clamp(PIECE_BYTES_MIN, PIECE_BYTES));
        for index in 0..self.pairs.len() {
            while let Some(range) = self.pairs[index].differs.take(u64::MAX) {
                let (mut at, end) = (range.start, range.end.min(self.pairs[index].bytes));
                while at < end {
                    let (began, before) = (Instant::now(), self.copied_bytes);
                    let Pair { from, to, .. } = &self.pairs[index];
                    let mut copied = 0;
                    let mut one = |bytes| {
                        copied += bytes;
                        // A file of many small pieces is looked up in many steps: look around now and then all the same.
                        copied < piece && began.elapsed() < LOOK
                    };
                    let done = copy_range(from, to, at..end, piece, &mut one);
                    at = done.map_err(|e| self.failed(index, &e))?;
                    self.copied_bytes = before + copied;
                    self.copying += began.elapsed();
                    self.look_around()?;
                }
            }
        }
        let began = Instant::now();
        for index in 0..self.pairs.len() {
            self.pairs[index].to.sync_all().map_err(|e| self.failed(index, &e))?;
        }
        self.copying += began.elapsed();
        Ok(())
    }

    /// Says how far it is, keeps to the rate, and sees whether the daemon is there.
    fn look_around(&mut self) -> Result<(), Failure> {
        loop {
            if self.client.is_readable() {
                return Err(self.client.lost(&"the daemon ended it, so the copy is not complete: repeat it"));
            }
            if self.said.elapsed() >= SAY {
                self.said = Instant::now();
                self.say(&format!("{} copied", show_bytes(self.copied_bytes)));
            }
            let due = self.rate.map_or(Duration::ZERO, |rate| {
                Duration::try_from_secs_f64(self.copied_bytes as f64 / rate as f64).unwrap_or(Duration::MAX)
            });
            let early = due.saturating_sub(self.begun.elapsed());
            if early.is_zero() {
                return Ok(());
            }
            std::thread::sleep(early.min(LOOK));
        }
    }

    fn say(&self, what: &str) {
        if self.says {
            // Nobody has to read it.
            drop(writeln!(io::stderr(), "{what}"));
        }
    }

    fn approach(&mut self) -> Result<(), Failure> {
        match self.client.ask(&Request::Approach {})?.1 {
            Answer::Done(_) => Ok(()),
            _ => Err(super::unexpected()),
        }
    }

    fn take_changes(&mut self) -> Result<(), Failure> {
        for (disk, pair) in (0..).zip(&mut self.pairs) {
            let mut more = true;
            while more {
                let Answer::Changed(changed) = self.client.ask(&Request::Changed { disk })?.1 else {
                    return Err(super::unexpected());
                };
                changed.ranges.iter().for_each(|(start, end)| pair.differs.insert(*start..*end));
                more = changed.more;
            }
        }
        Ok(())
    }

    fn hold(&mut self, asks: &Request, used: Duration) -> Result<Hold, Failure> {
        let asked = Instant::now();
        let sequence = match self.client.ask_or_hear(asks)? {
            Ok(Answer::Sequence(answer)) => answer.sequence,
            Ok(_) => return Err(super::unexpected()),
            Err(why) => return Ok(Hold::Refused(why)),
        };
        self.take_changes()?;
        let goes_on = || asked.elapsed() < used;
        for index in 0..self.pairs.len() {
            while let Some(range) = self.pairs[index].differs.take(u64::MAX) {
                let Pair { from, to, bytes, .. } = &self.pairs[index];
                let (at, end) = (range.start, range.end.min(*bytes));
                let ended = match goes_on() {
                    true => copy_range(from, to, at..end, HELD_PIECE_BYTES, &mut |_| goes_on()),
                    false => Ok(at),
                };
                let ended = ended.map_err(|e| self.failed(index, &e))?;
                if ended < end {
                    self.pairs[index].differs.insert(ended..end);
                    break;
                }
            }
        }
        let done = self.pairs.iter().all(|pair| pair.differs.is_empty());
        let held = self.client.ask_or_hear(&Request::Resume {})?;
        self.longest_hold = self.longest_hold.max(asked.elapsed());
        // Writes were held all the time: the daemon says so, and only then.
        let whole = matches!(held, Ok(Answer::Done(_)));
        Ok(if done && whole { Hold::Done(sequence) } else { Hold::Short })
    }

    fn failed(&self, index: usize, error: &io::Error) -> Failure {
        Failure::failed(format!("cannot copy {}: {error}", self.pairs[index].name))
    }
}

enum Hold {
    /// Everything is the same, as of this number.
    Done(u64),
    /// There was not time enough.
    Short,
    /// There was none.
    Refused(String),
}
