//! What one guest was promised, boot by boot, and what later boots find of it.

use std::collections::BTreeMap;
use std::time::Duration;

use afterimage_lab::channel::Arrival;
use afterimage_lab::demo::{judge, Ack, Allowance, Journal, Ledger, Survivors};
use afterimage_order::Contract;

use super::script::{CHECKED, ENDED, FOLDER, LOOKED, READY, REFUSED, SYNCED};

/// What one boot was promised.
struct Boot {
    ledger: Ledger,
    /// The operations of which `synced` was told that they are durable, and how many of the ledger's lines came before each (vext4).
    synced: Vec<(u64, usize)>,
    /// The power was cut since it was last looked at: the newest boot at the first cut.
    cut: Option<u32>,
    /// A cut has left what is there of it: no later one takes any of that.
    durable: bool,
    /// So much of what it published its daemon may not have taken: both died together, or storage failed.
    untaken: Duration,
    /// How often it was found as it has to be.
    found: u32,
}

/// See the module.
#[derive(Default)]
pub struct Promises {
    boots: BTreeMap<u32, Boot>,
    /// A boot came as far as to work: from then on there is a file system.
    pub was_ready: bool,
    /// Work that was acknowledged, in all.
    pub acknowledged: u64,
    /// Of these lost as the contract allows.
    pub lost: u64,
    /// Times that a boot's work was looked at.
    pub looks: u64,
    /// Checks of the file system.
    pub checks: u64,
}

/// A boot's work is looked at so often before it is removed.
const LOOKS: u32 = 2;

/// What nobody says in a guest whose disk has not failed: the agent, and the kernel.
const FAILURES: [&str; 5] =
    ["\"agent\":\"failed\"", "I/O error", "EXT4-fs error", "Aborting journal", "BUG: "];

/// How a boot ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Death {
    /// By what.
    pub end: End,
    /// It was to look, and to end.
    pub last: bool,
    /// An error may have hit it.
    pub failing: bool,
    /// So much of what it had published may not have been taken.
    pub untaken: Duration,
}

/// What ended a boot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// It was killed, or what it asked of its disk failed.
    Killed,
    /// By itself, as the last one does.
    Itself,
}

impl Promises {
    /// The boots whose work is looked at next, and those whose is removed.
    pub fn next(&mut self) -> (Vec<u32>, Vec<u32>) {
        let done = self.boots.iter().filter(|(_, boot)| boot.found >= LOOKS).map(|(id, _)| *id);
        let done: Vec<u32> = done.collect();
        done.iter().for_each(|id| drop(self.boots.remove(id)));
        (self.boots.keys().copied().collect(), done)
    }

    /// The power was cut. Before that, what the boot that it ended has said is to be heard: it had looked at earlier ones.
    pub fn cut(&mut self) {
        let newest = self.boots.keys().next_back().copied();
        for boot in self.boots.values_mut().filter(|boot| !boot.durable) {
            boot.cut = boot.cut.or(newest);
        }
    }

    /// A boot has ended; what it had said.
    ///
    /// # Errors
    /// The promise that is broken.
    pub fn hear(&mut self, boot: u32, console: &str, death: Death, contract: Contract) -> Result<(), String> {
        let Death { end, last, failing, untaken } = death;
        // A line that was not said to its end was not said.
        let whole = &console[..console.rfind('\n').map_or(0, |at| at + 1)];
        let lines: Vec<&str> = whole.lines().map(str::trim_end).collect();
        let reports = reports(&lines);
        for line in &lines {
            let number = |word: &str| line.strip_prefix(word)?.trim().parse::<u32>().ok();
            if let Some(what) = line.strip_prefix(REFUSED) {
                // Where the device fails, so may they.
                if !failing {
                    return Err(format!("boot {boot}: the guest's{what} failed"));
                }
            }
            let fails = FAILURES.iter().any(|failure| line.contains(failure))
                || line.strip_prefix(ENDED).is_some_and(|what| !what.ends_with(" 0"));
            if fails && !failing {
                return Err(format!("boot {boot}: nothing had failed, and the guest says: {line}"));
            }
            match number(CHECKED) {
                Some(0) => self.checks += 1,
                Some(code) if !failing => {
                    return Err(format!("boot {boot}: e2fsck -fn ended with status {code}"))
                }
                _ => {}
            }
        }
        // What fails to be read is not lost.
        for (earlier, report) in reports.iter().filter(|_| !failing) {
            // A cut takes the newest: nothing of a boot that another one's work had followed by then, and that is there.
            let cut = self.boots.get(earlier).and_then(|boot| boot.cut);
            let followed = |newest: u32| {
                reports
                    .range(earlier + 1..)
                    .any(|(later, report)| *later <= newest && self.survived(*later, report))
            };
            let takes = cut.is_some_and(|newest| !followed(newest));
            self.look(*earlier, report, contract, takes)
                .map_err(|what| format!("boot {boot} looks at boot {earlier}: {what}"))?;
        }
        let may_end = last && lines.iter().any(|line| line.starts_with(CHECKED));
        if end == End::Itself && !may_end && !failing {
            return Err(format!("boot {boot} ended by itself"));
        }
        let ready = lines.iter().position(|line| *line == READY);
        let Some(ready) = ready else { return Ok(()) };
        self.was_ready = true;
        let acks = |line: &&&str| {
            line.starts_with("{\"agent\":\"ack\"") || line.starts_with("{\"sqlite\":\"commit\"")
        };
        let acks_heard: Vec<Arrival> = lines[ready..].iter().filter(acks).map(arrival).collect();
        let ledger = Ledger::read(&acks_heard, None).map_err(|e| format!("boot {boot}: {e}"))?;
        let mut synced = Vec::new();
        for (at, line) in lines[ready..].iter().enumerate() {
            let op = line.strip_prefix("{\"mark\":\"op ").and_then(|op| op.strip_suffix("\"}")?.parse().ok());
            let before = || lines[ready..][..at].iter().filter(acks).count();
            synced.extend(op.map(|op| (op, before())));
        }
        self.acknowledged += (acks_heard.len() + synced.len()) as u64;
        self.boots.insert(boot, Boot { ledger, synced, cut: None, durable: false, untaken, found: 0 });
        Ok(())
    }

    /// Whether anything that was acknowledged to a boot is there.
    fn survived(&self, boot: u32, report: &[&str]) -> bool {
        let (Some(boot), Ok(found)) = (self.boots.get(&boot), survivors(report)) else { return false };
        let ops = synced(report).ok().flatten().unwrap_or(0);
        let stream =
            |at: usize| boot.ledger.streams[at].acks.iter().any(|ack| is_there(&found, at, ack.number));
        boot.synced.iter().any(|(op, _)| *op <= ops) || (0..boot.ledger.streams.len()).any(stream)
    }

    /// What is found of an earlier boot's work. `cut`: one may have taken of it.
    fn look(&mut self, earlier: u32, lines: &[&str], contract: Contract, cut: bool) -> Result<(), String> {
        let Some(boot) = self.boots.get_mut(&earlier) else { return Ok(()) };
        let mut found = survivors(lines)?;
        // The file system is judged by those who look.
        (found.mounted, found.e2fsck, found.postmark) = (Some(true), Some(0), Some(0));
        let window = match contract {
            Contract::PowerWindow { window } if cut => window,
            _ => Duration::ZERO,
        };
        let allowance = match window + boot.untaken {
            Duration::ZERO => Allowance::Nothing,
            bound => Allowance::Window(bound),
        };
        let (streams, checks) = judge(&boot.ledger, &found, allowance);
        // A database of which nothing has to be left may be in the middle of being made.
        let unmade = |promise: &str| {
            Journal::ALL.iter().zip(&streams[1..]).any(|(journal, stream)| {
                let all_lost = allowance != Allowance::Nothing && stream.lost == stream.acknowledged;
                promise.starts_with(&format!("SQLite ({})", journal.name()))
                    && (stream.acknowledged == 0 || all_lost)
            })
        };
        if let Some(check) = checks.iter().find(|check| !check.held && !unmade(&check.promise)) {
            return Err(format!("broken: {} ({})", check.promise, check.detail));
        }
        let ops = synced(lines)?.unwrap_or(0);
        boot.judge_synced(ops, &found, window + boot.untaken)?;
        self.lost += boot.synced.iter().filter(|(op, _)| *op > ops).count() as u64;
        self.looks += 1;
        self.lost += streams.iter().map(|stream| stream.lost).sum::<u64>();
        // What is there once, is there for good, but for what a later cut may still take of what none has left.
        boot.synced.retain(|(op, _)| *op <= ops);
        for (at, stream) in boot.ledger.streams.iter_mut().enumerate() {
            stream.acks.retain(|ack| is_there(&found, at, ack.number));
        }
        boot.found += 1;
        (boot.durable, boot.cut, boot.untaken) = (boot.durable || boot.cut.is_some(), None, Duration::ZERO);
        Ok(())
    }
}

impl Boot {
    /// The operations' part of what [`judge`] asks of records and databases. They have no clock, and the order of lines needs none: what was
    /// begun after a lost one is lost as well, and that is bounded by the others' clocks.
    fn judge_synced(&self, ops: u64, found: &Survivors, allowance: Duration) -> Result<(), String> {
        let Some((newest, _)) = self.synced.last() else { return Ok(()) };
        let broken = |what: String| {
            Err(format!("broken: {newest} operations were synced, and what is there is op {ops}{what}"))
        };
        let lost = self.synced.iter().find(|(op, _)| *op > ops);
        if let Some((first, line)) = lost {
            if allowance.is_zero() {
                return broken(String::new());
            }
            for (at, stream) in self.ledger.streams.iter().enumerate() {
                let overtook = |ack: &&Ack| ack.begun_after >= Some(*line) && is_there(found, at, ack.number);
                if let Some(ack) = stream.acks.iter().find(overtook) {
                    return broken(format!(
                        ": {} number {} was begun after op {first} was synced",
                        stream.name, ack.number
                    ));
                }
            }
        }
        // The other way round: of an operation that is there the one before it was told when.
        let begun = self.synced.iter().rev().find(|(op, _)| *op < ops).map_or(0, |(_, line)| *line);
        for (at, stream) in self.ledger.streams.iter().enumerate() {
            let overtaken = |ack: &&Ack| ack.line < begun && !is_there(found, at, ack.number);
            if let Some(ack) = stream.acks.iter().find(overtaken) {
                return broken(format!(
                    ": it was begun after {} number {}, which is lost",
                    stream.name, ack.number
                ));
            }
        }
        Ok(())
    }
}

/// What the looks at earlier boots have said that came to their ends.
fn reports<'a, 'b>(lines: &'a [&'b str]) -> BTreeMap<u32, &'a [&'b str]> {
    let mut reports = BTreeMap::new();
    for (to, line) in lines.iter().enumerate() {
        let Some(earlier) = line.strip_prefix(LOOKED).and_then(|id| id.trim().parse().ok()) else { continue };
        let from = lines[..to].iter().rposition(|line| *line == format!("{FOLDER} {earlier}"));
        reports.insert(earlier, &lines[from.unwrap_or(to)..to]);
    }
    reports
}

fn survivors(report: &[&str]) -> Result<Survivors, String> {
    let lines: Vec<Arrival> = report.iter().filter(|line| line.starts_with('{')).map(arrival).collect();
    Survivors::read(&lines).map_err(|e| e.to_string())
}

/// Whether a number of that stream is there.
fn is_there(found: &Survivors, stream: usize, number: u64) -> bool {
    match stream.checked_sub(1) {
        None => found.records.as_ref().is_some_and(|records| records.contains(&number)),
        Some(bank) => found.banks[bank].as_ref().is_some_and(|bank| number <= bank.newest),
    }
}

/// The operation that is there; `None` where it says nothing of any.
fn synced(report: &[&str]) -> Result<Option<u64>, String> {
    let said = report.iter().find_map(|line| line.strip_prefix(SYNCED)).map(str::trim);
    match said {
        Some("broken") => Err("broken: what was synced is in no state of its own".to_owned()),
        said => Ok(said.and_then(|said| said.strip_prefix("op ")?.parse().ok())),
    }
}

fn arrival(line: &&str) -> Arrival {
    Arrival { at_ns: 0, line: (*line).to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WINDOW: Contract = Contract::PowerWindow { window: Duration::from_millis(20) };

    const KILLED: Death = Death { end: End::Killed, last: false, failing: false, untaken: Duration::ZERO };

    fn ack(n: u64) -> String {
        let at = n * 10_000_000;
        format!("{{\"agent\":\"ack\",\"n\":{n},\"thread\":0,\"slot\":{},\"floor\":{},\"ns\":{at},\"fsync_ns\":1000}}\r\n", n - 1, n - 1)
    }

    fn worked(count: u64) -> String {
        let acks: String = (1..=count).map(ack).collect();
        format!("noise\n{READY}\r\n{acks}{{\"agent\":\"ack\",\"n\":99")
    }

    fn looked(count: u64, code: u32) -> String {
        format!(
            "{FOLDER} 1\r\n{{\"agent\":\"verify-file\",\"thread\":0,\"size\":4096,\"bytes\":0,\"empty\":0,\"present\":[[0,1,{count}]],\"torn\":[]}}\r\n\
             {{\"agent\":\"verify\",\"files\":1,\"intact\":{count},\"torn\":0,\"order_violations\":0,\"shown\":[]}}\r\n{LOOKED} 1\r\n{CHECKED} {code}\r\n"
        )
    }

    /// A first boot's work, and what the next one finds.
    fn then(
        acks: u64,
        cut: bool,
        contract: Contract,
        found: &str,
        failing: bool,
    ) -> Result<Promises, String> {
        let mut promises = Promises::default();
        promises.hear(1, &worked(acks), KILLED, contract)?;
        if cut {
            promises.cut();
        }
        assert_eq!(promises.next().0, [1]);
        promises.hear(2, found, Death { failing, ..KILLED }, contract)?;
        Ok(promises)
    }

    #[test]
    fn what_was_acknowledged_is_looked_for() {
        let kept = then(5, true, Contract::Power, &looked(5, 0), false).unwrap();
        assert_eq!((kept.acknowledged, kept.lost, kept.looks, kept.checks), (5, 0, 1, 1));
        let broken = then(5, true, Contract::Power, &looked(4, 0), false).err().unwrap();
        assert!(broken.contains("records: nothing acknowledged is lost"), "{broken}");
        let broken = then(5, false, Contract::Power, &looked(5, 4), false).err().unwrap();
        assert!(broken.contains("status 4"), "{broken}");
        then(5, false, Contract::Power, &looked(4, 4), true).unwrap();
        let broken = then(5, false, Contract::Power, &format!("{REFUSED} mount\n"), false).err().unwrap();
        assert!(broken.contains("mount"), "{broken}");
    }

    #[test]
    fn a_window_may_be_lost_by_a_cut_and_by_nothing_else() {
        assert_eq!(then(5, true, WINDOW, &looked(3, 0), false).unwrap().lost, 2);
        assert!(then(5, false, WINDOW, &looked(3, 0), false).is_err());
        assert!(then(9, true, WINDOW, &looked(3, 0), false).is_err());
        // Found once, it may not go later: neither with a daemon, nor by a cut that finds what an earlier one has left.
        for cut in [false, true] {
            let mut promises = then(5, true, WINDOW, &looked(4, 0), false).unwrap();
            if cut {
                promises.cut();
            }
            assert!(promises.hear(3, &looked(3, 0), KILLED, WINDOW).is_err(), "{cut}");
        }
        // What no cut has left yet may go by the first one.
        let mut promises = then(5, false, WINDOW, &looked(5, 0), false).unwrap();
        promises.cut();
        promises.hear(3, &looked(4, 0), KILLED, WINDOW).unwrap();
    }

    #[test]
    fn a_cut_takes_nothing_of_a_boot_whose_successors_work_is_there() {
        let both = |second: u64| {
            let of_the_second = |text: String, word| text.replace(&format!("{word} 1"), &format!("{word} 2"));
            looked(4, 0) + &of_the_second(of_the_second(looked(second, 0), FOLDER), LOOKED)
        };
        let found = |second: u64| {
            let mut promises = Promises::default();
            promises.hear(1, &worked(5), KILLED, WINDOW)?;
            promises.hear(2, &worked(3), KILLED, WINDOW)?;
            promises.cut();
            promises.hear(3, &both(second), KILLED, WINDOW).map(|()| promises.lost)
        };
        assert_eq!(found(0), Ok(4), "nothing is there behind it");
        assert!(found(3).unwrap_err().contains("boot 3 looks at boot 1: broken: records: nothing"));
        // What came after the cut is there for another reason.
        let mut promises = Promises::default();
        promises.hear(1, &worked(5), KILLED, WINDOW).unwrap();
        promises.cut();
        promises.hear(2, &worked(3), Death { failing: true, ..KILLED }, WINDOW).unwrap();
        promises.hear(3, &both(3), KILLED, WINDOW).unwrap();
    }

    #[test]
    fn synced_operations_are_looked_for() {
        let found = |said: &str, contract| {
            let mut promises = Promises::default();
            let work = format!("{READY}\n{{\"mark\":\"op 6\"}}\n{{\"mark\":\"op 7\"}}\n");
            promises.hear(1, &work, KILLED, contract)?;
            promises.cut();
            let looked = looked(0, 0).replace(LOOKED, &format!("{SYNCED} {said}\n{LOOKED}"));
            promises.hear(2, &looked, KILLED, contract).map(|()| promises.lost)
        };
        assert_eq!(found("op 7", Contract::Power), Ok(0));
        assert_eq!(found("op 8", Contract::Power), Ok(0));
        assert_eq!(found("op 5", WINDOW), Ok(2));
        for (said, contract) in [("op 6", Contract::Power), ("", Contract::Power)] {
            assert!(found(said, contract).unwrap_err().contains("7 operations were synced"));
        }
        assert!(found("broken", WINDOW).unwrap_err().contains("in no state"));
    }

    /// A record every 10 ms, and an operation behind each.
    #[test]
    fn synced_operations_are_lost_with_what_was_begun_after_them_or_not_at_all() {
        let found = |records: u64, op: u64| {
            let mut promises = Promises::default();
            let both: String = (1..=9).map(|n| format!("{}{{\"mark\":\"op {n}\"}}\n", ack(n))).collect();
            promises.hear(1, &format!("{READY}\n{both}"), KILLED, WINDOW)?;
            promises.cut();
            let looked = looked(records, 0).replace(LOOKED, &format!("{SYNCED} op {op}\n{LOOKED}"));
            promises.hear(2, &looked, KILLED, WINDOW).map(|()| promises.lost)
        };
        assert_eq!((found(9, 9), found(7, 7), found(7, 6)), (Ok(0), Ok(4), Ok(5)));
        // Record 9 was begun after record 8, and that was told after operation 7; operation 9 after operation 8, and record 8.
        for (records, op, what) in [
            (9, 6, "records number 9 was begun"),
            (7, 9, "records number 8, which is lost"),
            (7, 0, "records number 3 was begun after op 1"),
        ] {
            let broken = found(records, op).unwrap_err();
            assert!(broken.contains(what), "{records} {op}: {broken}");
        }
    }

    #[test]
    fn what_was_published_may_be_lost_by_whoever_died_with_its_daemon() {
        let found = |count, untaken| {
            let mut promises = Promises::default();
            promises.hear(1, &worked(5), Death { untaken, ..KILLED }, Contract::GuestCrash)?;
            promises.hear(2, &looked(count, 0), KILLED, Contract::GuestCrash).map(|()| promises.lost)
        };
        let untaken = Duration::from_millis(10);
        assert_eq!(found(4, untaken), Ok(1));
        assert!(found(4, Duration::ZERO).is_err() && found(1, untaken).is_err());
    }

    #[test]
    fn a_boot_that_ends_by_itself_without_a_check_is_no_end() {
        const ITSELF: Death = Death { end: End::Itself, ..KILLED };
        let mut promises = Promises::default();
        let checked = format!("{CHECKED} 0\n");
        assert!(promises.hear(1, "Kernel panic\n", Death { last: true, ..ITSELF }, WINDOW).is_err());
        assert!(promises.hear(1, &checked, ITSELF, WINDOW).is_err(), "it had work to do");
        promises.hear(1, &checked, Death { last: true, ..ITSELF }, WINDOW).unwrap();
        assert!(!promises.was_ready);
    }

    #[test]
    fn what_fails_in_a_guest_is_heard_unless_its_disk_fails() {
        for said in [
            "{\"agent\":\"failed\",\"what\":\"ack-write\",\"error\":\"EIO\"}",
            "simulate: ended wal 1",
            "Buffer I/O error on dev vda, logical block 5",
            "EXT4-fs error (device vda): ext4_journal_check_start:83",
        ] {
            let hear = |failing| {
                let text = format!("{READY}\n{}{said}\n", ack(1));
                Promises::default().hear(1, &text, Death { failing, ..KILLED }, WINDOW)
            };
            assert!(hear(false).unwrap_err().contains("nothing had failed"), "{said}");
            hear(true).unwrap();
        }
        Promises::default().hear(1, &format!("{ENDED} wal 0\n{ENDED} records"), KILLED, WINDOW).unwrap();
    }
}
