//! What one guest was promised, boot by boot, and what later boots find of it.

use std::collections::BTreeMap;
use std::time::Duration;

use afterimage_lab::channel::Arrival;
use afterimage_lab::demo::{judge, Allowance, Journal, Ledger, Survivors};
use afterimage_order::Contract;

use super::script::{CHECKED, FOLDER, LOOKED, READY, REFUSED, SYNCED};

/// What one boot was promised.
struct Boot {
    ledger: Ledger,
    /// The last operation that `synced` was told is durable (vext4).
    synced: u64,
    /// The power was cut since it began.
    cut: bool,
    /// So much of what it published its daemon may not have taken: both died together.
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

/// How a boot ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Death {
    /// By what.
    pub end: End,
    /// An error may have hit it.
    pub failing: bool,
    /// By a power cut.
    pub cut: bool,
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

    /// The power was cut.
    pub fn cut(&mut self) {
        self.boots.values_mut().for_each(|boot| boot.cut = true);
    }

    /// A boot has ended; what it had said.
    ///
    /// # Errors
    /// The promise that is broken.
    pub fn hear(&mut self, boot: u32, console: &str, death: Death, contract: Contract) -> Result<(), String> {
        let Death { end, failing, cut, untaken } = death;
        // A line that was not said to its end was not said.
        let whole = &console[..console.rfind('\n').map_or(0, |at| at + 1)];
        let lines: Vec<&str> = whole.lines().map(str::trim_end).collect();
        for line in &lines {
            let number = |word: &str| line.strip_prefix(word)?.trim().parse::<u32>().ok();
            if let Some(what) = line.strip_prefix(REFUSED) {
                // Where the device fails, so may they.
                if !failing {
                    return Err(format!("boot {boot}: the guest's{what} failed"));
                }
            }
            match number(CHECKED) {
                Some(0) => self.checks += 1,
                Some(code) if !failing => {
                    return Err(format!("boot {boot}: e2fsck -fn ended with status {code}"))
                }
                _ => {}
            }
            if let Some(earlier) = number(LOOKED) {
                let from = lines.iter().position(|line| *line == format!("{FOLDER} {earlier}"));
                let to = lines.iter().position(|l| l == line).unwrap_or(lines.len());
                // What fails to be read is not lost.
                if !failing {
                    self.look(earlier, &lines[from.unwrap_or(to)..to], contract)
                        .map_err(|what| format!("boot {boot} looks at boot {earlier}: {what}"))?;
                }
            }
        }
        if end == End::Itself && !lines.iter().any(|line| line.starts_with(CHECKED)) && !failing {
            return Err(format!("boot {boot} ended by itself"));
        }
        let ready = lines.iter().position(|line| *line == READY);
        let Some(ready) = ready else { return Ok(()) };
        self.was_ready = true;
        let acks = |line: &&&str| {
            line.starts_with("{\"agent\":\"ack\"") || line.starts_with("{\"sqlite\":\"commit\"")
        };
        let acks: Vec<Arrival> = lines[ready..].iter().filter(acks).map(arrival).collect();
        let ledger = Ledger::read(&acks, None).map_err(|e| format!("boot {boot}: {e}"))?;
        let synced = lines[ready..]
            .iter()
            .filter_map(|line| line.strip_prefix("{\"mark\":\"op ")?.strip_suffix("\"}")?.parse().ok());
        let synced = synced.max().unwrap_or(0);
        self.acknowledged += acks.len() as u64 + synced;
        self.boots.insert(boot, Boot { ledger, synced, cut, untaken, found: 0 });
        Ok(())
    }

    /// What is found of an earlier boot's work.
    fn look(&mut self, earlier: u32, lines: &[&str], contract: Contract) -> Result<(), String> {
        let Some(boot) = self.boots.get_mut(&earlier) else { return Ok(()) };
        let reports: Vec<Arrival> = lines.iter().filter(|line| line.starts_with('{')).map(arrival).collect();
        let mut found = Survivors::read(&reports).map_err(|e| e.to_string())?;
        // The file system is judged by those who look.
        (found.mounted, found.e2fsck, found.postmark) = (Some(true), Some(0), Some(0));
        let window = match contract {
            Contract::PowerWindow { window } if boot.cut => window,
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
        let synced = lines.iter().find_map(|line| line.strip_prefix(SYNCED)).map_or("nothing", str::trim);
        let ops = synced.strip_prefix("op ").and_then(|ops| ops.parse().ok()).unwrap_or(0);
        if synced == "broken" || (ops < boot.synced && allowance == Allowance::Nothing) {
            return Err(format!(
                "broken: {} operations were synced, and what is there is {synced}",
                boot.synced
            ));
        }
        self.lost += boot.synced.saturating_sub(ops);
        boot.synced = ops.min(boot.synced);
        self.looks += 1;
        self.lost += streams.iter().map(|stream| stream.lost).sum::<u64>();
        // What is there once, is there for good, but for what a later cut may still take.
        let records = found.records.take().unwrap_or_default();
        boot.found += 1;
        for (at, stream) in boot.ledger.streams.iter_mut().enumerate() {
            let newest = at.checked_sub(1).and_then(|at| Some(found.banks[at].as_ref()?.newest));
            stream.acks.retain(|ack| match at {
                0 => records.contains(&ack.number),
                _ => newest.is_some_and(|newest| ack.number <= newest),
            });
        }
        Ok(())
    }
}

fn arrival(line: &&str) -> Arrival {
    Arrival { at_ns: 0, line: (*line).to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WINDOW: Contract = Contract::PowerWindow { window: Duration::from_millis(20) };

    const KILLED: Death = Death { end: End::Killed, failing: false, cut: false, untaken: Duration::ZERO };

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
        promises.hear(1, &worked(acks), Death { cut, ..KILLED }, contract)?;
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
        // Found once, it may not go later.
        let mut promises = then(5, true, WINDOW, &looked(4, 0), false).unwrap();
        promises.boots.get_mut(&1).unwrap().cut = false;
        assert!(promises.hear(3, &looked(3, 0), KILLED, WINDOW).is_err());
    }

    #[test]
    fn synced_operations_are_looked_for() {
        let found = |said: &str, contract| {
            let mut promises = Promises::default();
            let work = format!("{READY}\n{{\"mark\":\"op 6\"}}\n{{\"mark\":\"op 7\"}}\n");
            promises.hear(1, &work, Death { cut: true, ..KILLED }, contract)?;
            let looked = looked(0, 0).replace(LOOKED, &format!("{SYNCED} {said}\n{LOOKED}"));
            promises.hear(2, &looked, KILLED, contract).map(|()| promises.lost)
        };
        assert_eq!(found("op 7", Contract::Power), Ok(0));
        assert_eq!(found("op 8", Contract::Power), Ok(0));
        assert_eq!(found("op 5", WINDOW), Ok(2));
        for (said, contract) in [("op 6", Contract::Power), ("", Contract::Power), ("broken", WINDOW)] {
            assert!(found(said, contract).unwrap_err().contains("7 operations were synced"));
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
        assert!(promises.hear(1, "Kernel panic\n", ITSELF, WINDOW).is_err());
        promises.hear(1, &format!("{CHECKED} 0\n"), ITSELF, WINDOW).unwrap();
        assert!(!promises.was_ready);
    }
}
