//! A campaign over deaths: each judged at every level, counted as any other campaign's states.
//!
//! A death takes guest, VMM and daemon, and the next daemon recovers. What may be left then: the disk is what the guest's own recovery makes of
//! the plain one, in every block that anybody needs and in its tree; and because every request that had completed is in it, so is
//! whatever had been acknowledged. The latter is the guest's own business where the former holds, and asked of the application's check.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;
use std::time::{Duration, Instant};

use afterimage_order::Contract;
use afterimage_trace::{Layer, Recording, Sparse};

use super::deaths::{deaths, Death, DeathOptions};
use crate::campaign::{Failure, Progress, FIRST_STATES};
use crate::check::fsck::Fsck;
use crate::check::pool::{Pool, PoolCheck, PoolOptions, PoolStats, BOOTED};
use crate::check::{Checker, Observation};
use crate::judge::{Class, Expectation, Judge, Verdict};
use crate::layers::{guest_disks, retains};
use crate::marks::{bounds, marks};
use crate::model::{Choice, Model};
use crate::report::Report;
use crate::setup::{commits_fast, Level, Setup};
use crate::state::{Image, Scratch};
use crate::{saved, ExploreError, Result};

/// Prints one line that two mounts agree on where their trees do: everything of every inode but its access time. A truncation
/// that the kernel finishes at the mount is as old as the mount, so the times of what changed since the guest has booted do not
/// count: an instant that is the same for all trees, later than the recording, and earlier than any mount.
fn tree(root: &str, booted: &str) -> String {
    let inode = "%P|%y|%m|%U|%G|%s|%n|%i|%b|%l";
    format!(
        "cd {root} && {{ find . -xdev -newercm {booted} -printf '{inode}\\n' -o -printf '{inode}|%T@|%C@\\n' | sort; \
         find . -xdev -type f -print0 | sort -z | xargs -0 -r sha256sum; }} | sha256sum | cut -c1-32"
    )
}

/// Failures that are kept.
const FAILURES_MAX: usize = 8;

/// A campaign.
pub struct Deaths<'a> {
    /// What it is called.
    pub name: &'a str,
    /// The guest's stream.
    pub recording: &'a Recording,
    /// How deaths are drawn; the window is the recording's own.
    pub how: DeathOptions,
    /// How far they are judged; `log`: block by block only.
    pub level: Level,
    /// The application's check where it is not the recording's own, as in [`Setup::check`]; asked at the level `mount`.
    pub check: Option<String>,
    /// Ends with the first death that breaks a promise.
    pub first_only: bool,
    /// How long the application's check may take.
    pub check_timeout: Duration,
    /// Of the time.
    pub time: Duration,
    /// Where campaigns keep their failures: deaths keep none, and one of an earlier campaign goes.
    pub out: Option<&'a Path>,
}

struct Judges {
    fsck: Option<Fsck>,
    tree: Option<(Arc<Pool>, Box<dyn Checker>)>,
    application: Option<Box<dyn Checker>>,
    promised: Judge,
}

impl Deaths<'_> {
    /// Whether deaths are what a recording is judged by where no layer is asked for: its journals were retained, and processes die, or its
    /// contract promises nothing for a power cut.
    pub fn suit(recording: &Recording, model: Option<Model>) -> bool {
        let guest_crash = Contract::GuestCrash.to_string();
        retains(recording)
            && match model {
                Some(model) => model == Model::Guest,
                None => recording.about_text("contract") == Some(guest_crash.as_str()),
            }
    }

    /// Looks at them. A violation is no error: see [`Report::holds`].
    ///
    /// # Errors
    /// The campaign cannot be run.
    pub fn run(&self, stop: &AtomicBool) -> Result<Report> {
        let begun = Instant::now();
        // Whatever the time, some deaths are judged.
        let until = || {
            let soon = Instant::now() + FIRST_STATES;
            begun.checked_add(self.time).map(|end| end.max(soon))
        };
        let own = Setup::of(self.recording)?;
        let how = DeathOptions { window: own.window()?, ..self.how.clone() };
        let contract = how.window.map_or(Contract::GuestCrash, |window| Contract::PowerWindow { window });
        let setup = Setup {
            layer: Layer::Guest,
            model: Model::Prefix,
            level: self.level,
            seed: self.how.seed,
            contract: contract.to_string(),
            check: self.check.clone().or(own.check.clone()),
            check_timeout: self.check_timeout,
            ..own
        };
        if commits_fast(self.recording)? {
            return Err(ExploreError::Usage(
                "the guest's ext4 has fast_commit, whose commits are no part of a journal that is retained or recovered here: name a \
                 --layer, and its states are recovered by the kernel"
                    .to_owned(),
            ));
        }
        let tree = || {
            let pool = Pool::new(PoolOptions {
                guests: 1,
                // Each tree is read wholly: nothing is shared.
                memo: false,
                check_timeout: self.check_timeout,
                ..PoolOptions::new(PoolCheck::Command(tree("/mnt", BOOTED)))
            });
            let checker: Box<dyn Checker> = Box::new(pool.checker());
            (pool, checker)
        };
        let application = |check| application(check, self.check_timeout);
        let mut application = setup.check.as_deref().filter(|_| self.level == Level::Mount).map(application);
        let marks = marks(self.recording)?;
        let mut promised = Judge::new(&marks);
        if let Some(application) = application.as_mut().filter(|_| promised.names_states()) {
            let (_, end) = bounds(&marks, self.recording.events.len());
            let content = self.recording.content_before(guest_disks(self.recording)?[0], end);
            application.give_up_at(until());
            promised = match application.check(&disks(&content)) {
                Ok(Observation::Named { .. }) => promised.naming(vec![application.name()]),
                Ok(Observation::NotJudged { .. }) | Err(ExploreError::OutOfTime) => {
                    promised.unknown(vec![application.name()])
                }
                found => found.map(|_| promised)?,
            };
        }
        let mut judges = Judges {
            fsck: (self.level >= Level::Fsck).then(Fsck::new).transpose()?,
            tree: (self.level == Level::Mount).then(tree),
            application,
            promised,
        };
        let mut progress = Progress::default();
        deaths(self.recording, &how, self.time, &mut |death| {
            progress.done += 1;
            let event = death.event;
            judges.give_up_at(until());
            let verdict = match judges.judge(&death, self.recording, &mut progress) {
                Err(error @ ExploreError::OutOfTime) => Verdict::not_judged("deaths", error.to_string()),
                verdict => verdict?,
            };
            progress.tally.count(&verdict);
            progress.tally.differ(None, verdict.class);
            if verdict.class == Class::NotJudged && progress.not_judged.is_none() {
                progress.not_judged.clone_from(&verdict.problem);
            }
            let broken = verdict.class.is_violation();
            if broken && progress.failures.len() < FAILURES_MAX {
                let choice = Choice { lost: Vec::new() };
                progress.failures.push(Failure { cut_event: event, crash_event: event, choice, verdict });
            }
            let ends = stop.load(Ordering::Relaxed) || (broken && self.first_only);
            Ok(!ends)
        })?;
        progress.elapsed = begun.elapsed();
        if let Some(out) = self.out {
            saved::remove(&out.join("failure"))?;
        }
        let guests: Option<PoolStats> = judges.tree.as_ref().map(|(pool, _)| pool.stats());
        Ok(Report {
            name: self.name.to_owned(),
            setup,
            cuts: progress.done as usize,
            all_states: None,
            jobs: 1,
            progress,
            guests,
            known: None,
            saved: None,
            minimised: None,
        })
    }
}

fn application(check: &str, check_timeout: Duration) -> Box<dyn Checker> {
    let pool = PoolOptions { guests: 1, check_timeout, ..PoolOptions::new(PoolCheck::from_text(check)) };
    Box::new(Pool::new(pool).checker())
}

fn broken(check: &str, what: String, evidence: String) -> Verdict {
    Verdict::broken(Class::Inconsistent, check, what, evidence)
}

fn disks(content: &Sparse) -> Vec<Arc<Scratch>> {
    vec![Arc::new(Scratch::new(Image::digested(0, Arc::new(content.clone()))))]
}

impl Judges {
    fn give_up_at(&mut self, until: Option<Instant>) {
        let guests = self.tree.iter_mut().map(|(_, checker)| checker).chain(&mut self.application);
        guests.for_each(|checker| checker.give_up_at(until));
        self.fsck.iter_mut().for_each(|fsck| fsck.give_up_at(until));
    }

    fn judge(&mut self, death: &Death, recording: &Recording, progress: &mut Progress) -> Result<Verdict> {
        let work = &mut progress.tally.work;
        work.states += 1;
        work.recovered += 1;
        if let Some(wrong) = &death.wrong {
            return Ok(broken("retained journal", wrong.clone(), String::new()));
        }
        work.checked += 1;
        if let Some(fsck) = &mut self.fsck {
            let ended = [("recovered by the daemon", &death.recovered), ("handed back", &death.handed_back)];
            let looked_at =
                death.looked_at.iter().map(|left| ("left by a daemon that has looked once more", left));
            for (what, content) in ended.into_iter().chain(looked_at) {
                work.checks += 1;
                if let Observation::Inconsistent { what: why, evidence } = fsck.check(&disks(content))? {
                    return Ok(broken("e2fsck", format!("the disk {what}: {why}"), evidence));
                }
            }
        }
        let Some((_, checker)) = &mut self.tree else { return Ok(Verdict::fresh()) };
        let mut trees = Vec::new();
        for content in [&death.plain, &death.recovered, &death.handed_back] {
            work.checks += 1;
            match checker.check(&disks(content))? {
                Observation::Named { state } => trees.push(state),
                Observation::Inconsistent { what, evidence } => return Ok(broken("mount", what, evidence)),
                Observation::NotJudged { what } => return Ok(Verdict::not_judged("trees", what)),
                _ => trees.push(String::new()),
            }
        }
        if trees.iter().any(|tree| *tree != trees[0] || tree.is_empty()) {
            let what = format!(
                "after {} requests the kernel finds tree {} where it recovers the plain disk, {} where the daemon recovered, {} \
                 where it handed the journal back",
                death.requests, trees[0], trees[1], trees[2]
            );
            return Ok(broken("trees", what, String::new()));
        }
        let Some(application) = &mut self.application else { return Ok(Verdict::fresh()) };
        let crash_ns = recording.events.get(death.event).or(recording.events.last()).map_or(0, |e| e.at_ns);
        let mut verdict = Verdict::fresh();
        // Where its daemon lives, everything is.
        let looked_at = death.looked_at.iter().map(|left| (left, death.event));
        for (content, required) in std::iter::once((&death.recovered, death.required)).chain(looked_at) {
            work.checks += 1;
            let found = application.check(&disks(content))?;
            let expected = Expectation { required, crash: death.event, since: death.event, crash_ns };
            verdict = verdict.and(self.promised.judge(application.name(), &found, &expected));
        }
        if let Some(problem) = &mut verdict.problem {
            // The disk is what it would be without a daemon; but how long a commit waits for that one is its own.
            problem.above_the_daemon = death.looked_at.is_none();
        }
        Ok(verdict)
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;
    use std::time::{Duration, SystemTime};

    use super::tree;

    /// A recording may be as young as it likes: only what the mounts change is left out.
    #[test]
    fn times_count_but_for_what_changed_since_the_boot() {
        let folder = tempfile::tempdir().unwrap();
        let (root, booted) = (folder.path().join("mnt"), folder.path().join("booted"));
        std::fs::create_dir(&root).unwrap();
        let file = std::fs::File::create(root.join("file")).unwrap();
        let modify =
            |at_s: u64| file.set_modified(SystemTime::UNIX_EPOCH + Duration::from_secs(at_s)).unwrap();
        let boot = || {
            // Later than what was before by more than a tick of the clock that stamps files.
            std::thread::sleep(Duration::from_millis(30));
            std::fs::write(&booted, "").unwrap();
            std::thread::sleep(Duration::from_millis(30));
        };
        let look = || {
            let script = tree(root.to_str().unwrap(), booted.to_str().unwrap());
            let output = Command::new("sh").args(["-c", &script]).output().unwrap();
            assert!(output.stderr.is_empty() && output.stdout.len() == 33, "{output:?}");
            output.stdout
        };
        modify(1000);
        boot();
        let first = look();
        assert_eq!(look(), first);
        modify(2000);
        boot();
        assert_ne!(look(), first, "it was written before the boot");
        modify(3000);
        let changed = look();
        modify(4000);
        assert_eq!(look(), changed, "a mount has just changed it");
    }
}
