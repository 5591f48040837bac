//! Simulations: seed by seed, each in a process of its own.

use std::path::{Path, PathBuf};
use std::time::Duration;

use afterimage_lab::process::Workdir;
use afterimage_virtual_time::{simulate, Canary, GuestKernel, SimulateOptions, Simulated, Tally};
use clap::Args;

use crate::Kernel;

/// What is simulated
#[derive(Args)]
pub struct Seeds {
    #[command(flatten)]
    kernel: Kernel,
    /// The program that runs in the guests
    #[arg(long)]
    agent: PathBuf,
    /// Seeds from A, up to B exclusive
    #[arg(long, value_name = "A..B", value_parser = seeds, default_value = "1..11")]
    seeds: std::ops::Range<u64>,
    /// End after the seed that is being run then
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..))]
    minutes: Option<u64>,
    /// Largest number of guests that share the device
    #[arg(long, default_value_t = 3)]
    guests_max: usize,
    /// Run each seed twice, and compare
    #[arg(long)]
    twice: bool,
    /// Plant a fault: succeed if a seed fails with it and passes without it. Device faults: syncs, synced-page, last-writes,
    /// rewrites. Stale page cache at a start: stale-cache. Lost messages: lost-kick, untold-error. Faults of our layers:
    /// order-drop-log-sync, journal-release-early and more; an unknown name lists them all
    #[arg(long, value_name = "NAME", default_value = "nothing")]
    canary: Canary,
    /// Guests have vext4, in its build with planted faults
    #[arg(long)]
    vext4: bool,
    /// Mount with ijournal; vext4-recover, beside this program, recovers
    #[arg(long, requires = "vext4")]
    ijournal: bool,
    /// Mount with data=vma: commits are handed over to a control disk
    #[arg(long, requires = "vext4", conflicts_with = "ijournal")]
    vma: bool,
    /// Print JSON: one line for each seed, and one for all
    #[arg(long)]
    json: bool,
    /// Folder for the last seed's trace of requests and faults
    #[arg(long)]
    trace: Option<PathBuf>,
    /// Limit of a seed in real time, in seconds
    #[arg(long, default_value_t = 900)]
    limit_s: u64,
    /// The first of the seeds, in this process
    #[arg(long, hide = true)]
    here: bool,
}

fn seeds(text: &str) -> Result<std::ops::Range<u64>, String> {
    let wrong = || format!("{text} is no range of seeds: 1..11 is ten of them, and 7 is one");
    let number = |text: &str| text.parse::<u64>().map_err(|_| wrong());
    let range = match text.split_once("..") {
        None => number(text).map(|seed| seed..seed.saturating_add(1))?,
        Some((from, to)) => number(from)?..number(to)?,
    };
    // Whoever has tried no seed has found nothing, and would be told that nothing is broken.
    if range.is_empty() {
        return Err(wrong());
    }
    Ok(range)
}

/// The tests' programs, which guests have by this name: where one is missing a guest would do less, and say nothing.
fn programs(kernel: &Path) -> Result<PathBuf, String> {
    let folder = kernel.canonicalize().map_err(|e| format!("{}: {e}", kernel.display()))?;
    match ["journaling", "synced", "areas"].iter().find(|name| !folder.join(name).is_file()) {
        Some(name) => {
            Err(format!("{}: there is no {name}: ./x simulate --vext4 builds it", folder.display()))
        }
        None => Ok(folder),
    }
}

/// The seeds, one after another.
pub fn run(args: &Seeds) -> Result<(), String> {
    let agent = args.agent.canonicalize();
    let options = SimulateOptions {
        kernel: GuestKernel::of(&args.kernel.kernel).map_err(|e| e.to_string())?,
        agent: agent.map_err(|e| format!("{}: {e}: ./x simulate builds it", args.agent.display()))?,
        guests_max: args.guests_max.max(1),
        canary: args.canary,
        vext4: args.vext4.then(|| programs(&args.kernel.kernel)).transpose()?,
        ijournal: args.ijournal.then(recovery).transpose()?,
        vma: args.vma,
        limit: Duration::from_secs(args.limit_s),
    };
    if args.canary.guest().is_some() && !args.vext4 {
        return Err(format!("{} is a canary for --vext4", args.canary));
    }
    let scratch = tempfile::tempdir().map_err(|e| format!("make a folder: {e}"))?;
    let trace = args.trace.clone().unwrap_or_else(|| scratch.path().join("trace"));
    if args.here {
        return run_seed_here(args, &options, &trace);
    }
    let once =
        |seed: u64| in_time(args, seed, run_seed(args, seed, args.canary, &options.kernel.pin, &trace)?);
    let begun = std::time::Instant::now();
    let (mut all, mut broken, mut failed) = (Tally::default(), Vec::new(), Vec::new());
    for seed in args.seeds.clone() {
        if args
            .minutes
            .is_some_and(|minutes| begun.elapsed() >= Duration::from_secs(minutes.saturating_mul(60)))
        {
            break;
        }
        let from = std::time::Instant::now();
        let twice = once(seed).and_then(|first| Ok((args.twice.then(|| once(seed)).transpose()?, first)));
        // What one seed fails at is no reason to forget the others.
        let (again, simulated) = match twice {
            Ok(twice) => twice,
            Err(what) => {
                eprintln!("{what}");
                failed.push(what);
                continue;
            }
        };
        if let Some(again) = again.filter(|a| (a.trace, &a.broken) != (simulated.trace, &simulated.broken)) {
            return Err(format!(
                "seed {seed} was another run the second time: {again:?} after {simulated:?}"
            ));
        }
        all.add(&simulated.tally);
        say_seed(args, seed, &simulated, from.elapsed());
        if simulated.broken.is_some() {
            broken.push(seed);
        }
        if args.canary != Canary::default() && !broken.is_empty() {
            // What the seed finds of itself is nothing of the canary's.
            let trace = scratch.path().join("without");
            let without = run_seed(args, seed, Canary::default(), &options.kernel.pin, &trace)?;
            if let Some(what) = without.broken {
                return Err(format!("seed {seed} does not pass without {}, either: {what}", args.canary));
            }
            break;
        }
    }
    say_all(args, &all, &broken, begun.elapsed());
    if let Some(first) = failed.first() {
        return Err(format!("{} seeds came to no end; the first: {first}", failed.len()));
    }
    match (args.canary == Canary::default(), broken.as_slice()) {
        (true, []) => Ok(()),
        (true, broken) => Err(format!("{} of {} seeds broke a promise: {broken:?}", broken.len(), all.runs)),
        (false, []) => Err(format!("{} was not noticed by {} seeds", args.canary, all.runs)),
        (false, _) => Ok(()),
    }
}

/// The folder with `vext4-recover`.
fn recovery() -> Result<PathBuf, String> {
    let program = afterimage_lab::locate::own_program("vext4-recover").map_err(|e| e.to_string())?;
    Ok(program.parent().map(Path::to_path_buf).unwrap_or_default())
}

/// A seed that takes too long is a finding, but none of a canary's: the machine may have been busy.
fn in_time(args: &Seeds, seed: u64, simulated: Simulated) -> Result<Simulated, String> {
    match &simulated.broken {
        Some(what) if simulated.out_of_time && args.canary != Canary::default() => {
            Err(format!("seed {seed}: {what}"))
        }
        _ => Ok(simulated),
    }
}

/// A seed in a process of its own, whose random numbers are pinned.
fn run_seed(args: &Seeds, seed: u64, canary: Canary, pin: &Path, trace: &Path) -> Result<Simulated, String> {
    let failed = |what: &str| format!("seed {seed}: {what}");
    let program = std::env::current_exe().map_err(|e| failed(&format!("find this program: {e}")))?;
    let report = tempfile::NamedTempFile::new().map_err(|e| failed(&format!("make its report: {e}")))?;
    let out = report.reopen().map_err(|e| failed(&format!("make its report: {e}")))?;
    let mut child = std::process::Command::new(program)
        .args(["simulate", "--here", "--seeds", &seed.to_string(), "--canary", &canary.to_string()])
        .args(["--guests-max", &args.guests_max.to_string(), "--limit-s", &args.limit_s.to_string()])
        .args(args.vext4.then_some("--vext4"))
        .args(args.ijournal.then_some("--ijournal"))
        .args(args.vma.then_some("--vma"))
        .arg("--kernel")
        .arg(&args.kernel.kernel)
        .arg("--agent")
        .arg(&args.agent)
        .arg("--trace")
        .arg(trace)
        .env("LD_PRELOAD", pin)
        .env("AFTERIMAGE_GUEST_SEED", seed.to_string())
        .stdout(out)
        .spawn()
        .map_err(|e| failed(&format!("run this program: {e}")))?;
    // It looks at its limit between turns: one that never ends is a finding, too.
    let end = std::time::Instant::now() + Duration::from_secs(args.limit_s + 60);
    let status = loop {
        let ended = child.try_wait().map_err(|e| failed(&format!("wait for it: {e}")))?;
        match ended {
            Some(status) => break status,
            None if std::time::Instant::now() < end => std::thread::sleep(Duration::from_millis(20)),
            None => {
                let _ = child.kill();
                let _ = child.wait();
                let broken = format!(
                    "within {} s of real time it did not end, nor come to its next turn",
                    args.limit_s
                );
                return Ok(Simulated {
                    plan: "?".to_owned(),
                    tally: Tally { runs: 1, judged_nothing: 1, ..Tally::default() },
                    trace: 0,
                    broken: Some(broken),
                    out_of_time: true,
                });
            }
        }
    };
    if !status.success() {
        return Err(failed(&format!("{status}; again: ./x simulate --seeds {seed}")));
    }
    let report = std::fs::read(report.path()).map_err(|e| failed(&format!("read its report: {e}")))?;
    serde_json::from_slice(&report).map_err(|e| failed(&format!("its report cannot be read: {e}")))
}

/// The first seed; the report goes to stdout.
fn run_seed_here(args: &Seeds, options: &SimulateOptions, trace: &Path) -> Result<(), String> {
    // Whoever asked for it is gone: nobody reads the report.
    rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL))
        .map_err(|e| format!("ask to end with whoever asked: {e}"))?;
    let folder = Workdir::new_in(Path::new("/dev/shm"), "simulate").map_err(|e| e.to_string())?;
    let simulated = simulate(args.seeds.start, options, folder.path(), trace).map_err(|e| e.to_string())?;
    println!("{}", serde_json::to_string(&simulated).map_err(|e| e.to_string())?);
    Ok(())
}

fn say_seed(args: &Seeds, seed: u64, simulated: &Simulated, took: Duration) {
    let Simulated { plan, tally, trace, broken, .. } = simulated;
    if args.json {
        let line = serde_json::json!({
            "seed": seed, "plan": plan, "trace": format!("{trace:016x}"), "real_s": took.as_secs_f64(),
            "tally": tally, "broken": broken,
        });
        return println!("{line}");
    }
    println!(
        "seed {seed}: {plan}: {:.1} guest-s in {:.1} s, {} boots, {} daemon kills, {} guest kills, {} panics, {} refusals, {} cuts, {} calls lost, \
         {} I/O errors; {} acknowledged, {} lost within a window; trace {trace:016x}",
        tally.guest_s,
        took.as_secs_f64(),
        tally.boots,
        tally.daemon_kills,
        tally.guest_kills,
        tally.panics,
        tally.refusals,
        tally.power_cuts,
        tally.calls_lost,
        tally.io_errors,
        tally.acknowledged,
        tally.lost_within_window,
    );
    if let Some(what) = broken {
        let mut with = if args.vext4 { " --vext4".to_owned() } else { String::new() };
        if args.ijournal {
            with.push_str(" --ijournal");
        }
        if args.vma {
            with.push_str(" --vma");
        }
        if args.guests_max != 3 {
            with.push_str(&format!(" --guests-max {}", args.guests_max));
        }
        if args.canary != Canary::default() {
            with.push_str(&format!(" --canary {}", args.canary));
        }
        println!("BROKEN by seed {seed}: {what}\n  again: ./x simulate --seeds {seed}{with} --trace OUT");
    }
}

fn say_all(args: &Seeds, all: &Tally, broken: &[u64], took: Duration) {
    if args.json {
        let line = serde_json::json!({ "all": all, "broken": broken, "real_s": took.as_secs_f64() });
        return println!("{line}");
    }
    println!(
        "{} seeds, {:.3} guest-hours of virtual time in {:.0} min: {} boots, {} daemons killed ({} while they recovered, {} within a write), \
         {} begun again, {} guests killed, {} panics, {} refusals, {} power cuts, {} interrupts lost, {} stalls, {} I/O errors; {} writes and \
         transactions acknowledged, {} of them lost within a window; judged {} times, {} seeds judged nothing; {} clean file systems; {} broken",
        all.runs,
        all.guest_s / 3600.0,
        took.as_secs_f64() / 60.0,
        all.boots,
        all.daemon_kills,
        all.kills_in_recovery,
        all.kills_in_writes,
        all.restarts,
        all.guest_kills,
        all.panics,
        all.refusals,
        all.power_cuts,
        all.calls_lost,
        all.stalls,
        all.io_errors,
        all.acknowledged,
        all.lost_within_window,
        all.judged,
        all.judged_nothing,
        all.checks,
        broken.len(),
    );
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;

    #[test]
    fn a_range_of_seeds_has_some() {
        assert_eq!(seeds("1..11"), Ok(1..11));
        assert_eq!(seeds("7"), Ok(7..8));
        for text in ["5..5", "5..3", "..", "a..b", "-1..2", "18446744073709551615", ""] {
            assert!(seeds(text).unwrap_err().starts_with(text), "{text}");
        }
    }

    #[derive(clap::Parser)]
    struct Command {
        #[command(flatten)]
        seeds: Seeds,
    }

    fn asked(with: &[&str]) -> Result<Seeds, clap::Error> {
        let asked = ["simulate", "--kernel", "k", "--agent", "a"];
        Command::try_parse_from(asked.iter().chain(with)).map(|command| command.seeds)
    }

    #[test]
    fn there_is_time_for_a_seed() {
        assert!(asked(&["--minutes", "0"]).is_err() && asked(&["--minutes", "1"]).is_ok());
    }

    #[test]
    fn a_seed_without_an_end_has_not_found_what_is_broken_on_purpose() {
        let simulated = |out_of_time: bool| Simulated {
            plan: String::new(),
            tally: Tally::default(),
            trace: 0,
            broken: Some("what".to_owned()),
            out_of_time,
        };
        for (with, out_of_time, finds) in [
            (["--canary", "syncs"], true, false),
            (["--canary", "syncs"], false, true),
            (["--seeds", "7"], true, true),
        ] {
            let found = in_time(&asked(&with).unwrap(), 7, simulated(out_of_time));
            assert_eq!(found.is_ok(), finds, "{with:?} {out_of_time}");
        }
    }
}
