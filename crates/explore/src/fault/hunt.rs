//! Looks for states that break a contract, at the level of disks alone: no guest, no application.

use std::ops::RangeInclusive;

use afterimage_order::Contract;
use afterimage_trace::{EventKind, Layer, Recording};
use rand::seq::SliceRandom as _;
use rand::SeedableRng as _;
use rand_chacha::ChaCha8Rng;
use rustc_hash::{FxHashMap, FxHashSet};

use super::{Fault, Planted};
use crate::enumerate::Enumeration;
use crate::hash;
use crate::layers::{retains, LayersOptions};
use crate::log_recovery::recover;
use crate::model::{cuts, state_digest, Choice, Cut, LostWrite, Model};
use crate::prefix::Prefixes;
use crate::retained::RetainedOracle;
use crate::state::{Image, SECTOR_BYTES};
use crate::stream::Stream;
use crate::{ExploreError, Result};

/// What a survey saw.
#[derive(Clone, Debug, Default)]
pub struct Survey {
    /// States looked at.
    pub states: u64,
    /// Of these, states with other bytes than any before.
    pub distinct: u64,
    /// How many different prefixes they held.
    pub prefixes: usize,
    /// States that had lost acknowledged flushes, within the contract.
    pub stale: u64,
    /// The first state that breaks the contract.
    pub broken: Option<Broken>,
}

/// A state that breaks the contract.
#[derive(Clone, Debug)]
pub struct Broken {
    /// Cut before that event.
    pub event: usize,
    /// What is lost.
    pub choice: Choice,
    /// Why, in one sentence.
    pub what: String,
}

/// A planted fault that was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    /// States until then.
    pub states_tried: u64,
    /// What was seen, in one sentence.
    pub what: String,
}

/// Plants a fault into the recording's guest layer and looks for a state that shows it, in at most `budget_states`;
/// `None`: not found.
///
/// # Errors
/// As [`Fault::plant`].
pub fn hunt(
    fault: Fault,
    recording: &Recording,
    options: &LayersOptions,
    budget_states: u64,
) -> Result<Option<Found>> {
    let survey = survey(&fault.plant(recording, options)?, options.seed, budget_states)?;
    Ok(survey.broken.map(|broken| Found { states_tried: survey.states, what: broken.what }))
}

/// Looks at up to `budget_states` crash states of a storage stream under the model `disk`, cut by cut in a drawn order, and
/// stops at the first that breaks the contract.
///
/// # Errors
/// The recording lacks a layer or contradicts itself, or the contract promises nothing about disks.
pub fn survey(planted: &Planted, seed: u64, budget_states: u64) -> Result<Survey> {
    let stream = Stream::new(&planted.recording, Layer::Storage)?;
    let cuts = cuts(&stream, Model::Disk);
    let oracle: Box<dyn Oracle> = match planted.contract {
        Contract::PowerWindow { window } => Box::new(WindowOracle {
            history: match retains(&planted.recording) {
                true => History::Retained(Box::new(RetainedOracle::of(&planted.recording)?)),
                false => History::Plain(Box::new(Prefixes::of(&planted.recording)?)),
            },
            window_ns: window.as_nanos() as u64,
            planted,
            log: stream.log().is_some(),
            known: FxHashMap::default(),
        }),
        Contract::Power => Box::new(PowerOracle::new(&planted.recording, &stream)?),
        Contract::GuestCrash => {
            return Err(ExploreError::Usage("guest-crash promises nothing after a power cut".to_owned()))
        }
    };
    look(&stream, &cuts, oracle, seed, budget_states)
}

fn look(
    stream: &Stream,
    cuts: &[Cut],
    mut oracle: Box<dyn Oracle + '_>,
    seed: u64,
    budget: u64,
) -> Result<Survey> {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let mut plans: Vec<(&Cut, Enumeration<'_>)> =
        cuts.iter().map(|cut| (cut, Enumeration::new(stream, cut, seed))).collect();
    plans.shuffle(&mut rng);
    let mut survey = Survey::default();
    let mut seen = FxHashSet::default();
    let mut prefixes = FxHashSet::default();
    for n in 0.. {
        plans.retain(|(_, plan)| plan.count().is_none_or(|count| n < count + PLAIN));
        if plans.is_empty() {
            break;
        }
        for (cut, plan) in &plans {
            if survey.states >= budget {
                survey.prefixes = prefixes.len();
                return Ok(survey);
            }
            let choice = if n < PLAIN { Some(plain(cut, stream, n)) } else { plan.choice(n - PLAIN) };
            let Some(choice) = choice else { continue };
            survey.states += 1;
            let media = cut.state(stream, &choice);
            survey.distinct += u64::from(seen.insert(state_digest(&media)));
            let crash = cut.since(stream, &choice, cut.event)..=cut.event;
            match oracle.judge(media, cut, crash) {
                Ok((prefix, stale)) => {
                    prefixes.insert(prefix);
                    survey.stale += u64::from(stale);
                }
                Err(what) => {
                    survey.broken = Some(Broken { event: cut.event, choice, what });
                    survey.prefixes = prefixes.len();
                    return Ok(survey);
                }
            }
        }
    }
    survey.prefixes = prefixes.len();
    Ok(survey)
}

/// Choices that every cut begins with.
const PLAIN: u64 = 4;

/// What mistakes about order and syncs show first: everything lost, the log's writes alone, the images' alone, the older
/// half.
fn plain(cut: &Cut, stream: &Stream, n: u64) -> Choice {
    let log = stream.log();
    let half = cut.volatile.len() / 2;
    let lost = cut.volatile.iter().enumerate().filter(|(at, volatile)| {
        let of_log = Some(stream.writes[volatile.write].medium) == log;
        match n {
            0 => true,
            1 => of_log,
            2 => !of_log,
            _ => *at < half,
        }
    });
    Choice { lost: lost.map(|(_, volatile)| LostWrite { write: volatile.write, sectors: None }).collect() }
}

/// What a contract allows.
trait Oracle {
    /// The prefix, and whether acknowledgements are lost; or what is wrong.
    fn judge(
        &mut self,
        media: Vec<Image>,
        cut: &Cut,
        crash: RangeInclusive<usize>,
    ) -> std::result::Result<(usize, bool), String>;
}

/// What the disks may hold.
enum History {
    Plain(Box<Prefixes>),
    Retained(Box<RetainedOracle>),
}

struct WindowOracle<'a> {
    history: History,
    window_ns: u64,
    planted: &'a Planted,
    log: bool,
    /// Digest of a state → digest of its disks, or the refusal.
    known: FxHashMap<u128, std::result::Result<u128, String>>,
}

impl Oracle for WindowOracle<'_> {
    fn judge(
        &mut self,
        media: Vec<Image>,
        cut: &Cut,
        crash: RangeInclusive<usize>,
    ) -> std::result::Result<(usize, bool), String> {
        let event = cut.event;
        let digest = state_digest(&media);
        let (log, recovery) = (self.log, &self.planted.recovery);
        let found = self.known.entry(digest).or_insert_with(|| {
            recover(media, log, recovery).map(|found| found.digest).map_err(|e| e.to_string())
        });
        let digest = found.clone()?;
        let floors = &self.planted.floors;
        let floor = floors[..floors.partition_point(|floor| floor.event <= event)].last().map_or(0, |f| f.k);
        let (judged, prefixes) = match &self.history {
            History::Plain(prefixes) => {
                (prefixes.judge(digest, crash, floor, self.window_ns), prefixes.as_ref())
            }
            History::Retained(oracle) => {
                (oracle.judge(digest, crash, floor as u64, self.window_ns), oracle.prefixes())
            }
        };
        let k = judged.map_err(|e| e.to_string())?;
        Ok((k, prefixes.lost(k, event).is_some()))
    }
}

/// `power`: what a completed flush of a disk covers is there. Content is compared sector by sector, where one write alone can
/// have put it there.
struct PowerOracle<'a> {
    /// The guest's layer, all of it.
    guest: Stream,
    storage: &'a Stream,
}

impl<'a> PowerOracle<'a> {
    fn new(recording: &Recording, storage: &'a Stream) -> Result<Self> {
        Ok(Self { guest: Stream::new(&whole(recording), Layer::Guest)?, storage })
    }
}

/// The same events without marks, so that a stream of it keeps every write.
fn whole(recording: &Recording) -> Recording {
    let mut whole = recording.clone();
    for event in &mut whole.events {
        if let EventKind::Mark { text } = &mut event.kind {
            *text = "{}".into();
        }
    }
    whole
}

impl Oracle for PowerOracle<'_> {
    fn judge(
        &mut self,
        media: Vec<Image>,
        cut: &Cut,
        _crash: RangeInclusive<usize>,
    ) -> std::result::Result<(usize, bool), String> {
        // Elsewhere every state of the cut holds the newest durable version.
        let mut open: FxHashMap<(usize, u64), Vec<u128>> = FxHashMap::default();
        for volatile in &cut.volatile {
            let write = &self.storage.writes[volatile.write];
            for place in write.places() {
                open.insert((write.medium, write.first + u64::from(place)), Vec::new());
            }
        }
        // Newest first: the newest version that a flush covers, and every later one, may be there; nothing older.
        let known = self.guest.writes.partition_point(|write| write.submitted < cut.event);
        for write in self.guest.writes[..known].iter().rev() {
            if open.is_empty() {
                break;
            }
            let covered = write.durable.is_some_and(|durable| durable < cut.event);
            for (place, version) in write.contents() {
                let sector = write.first + u64::from(place);
                let place = (write.medium, sector);
                let Some(allowed) = open.get_mut(&place) else { continue };
                allowed.push(version.hash());
                if !covered {
                    continue;
                }
                let mut found = [0; SECTOR_BYTES];
                media[write.medium].read_at(&mut found, sector * SECTOR_BYTES as u64);
                if !allowed.contains(&hash::content(&found)) {
                    return Err(format!(
                        "disk {} sector {sector} holds something older than what an acknowledged flush covers",
                        write.medium
                    ));
                }
                open.remove(&place);
            }
        }
        Ok((0, false))
    }
}
