//! Traces on drives: sizes, time, options, and the commands.

use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;

use afterimage_flash::cli::{self, CliError};
use afterimage_flash::control::{Control, RunError};
use afterimage_flash::place::RunOptions;
use afterimage_flash::place::{Precondition, Region};
use afterimage_flash::report::Report;
use afterimage_flash::scan::Scan;
use afterimage_flash::sim::run;
use afterimage_flash::trace::{Options, Prefetch};
use afterimage_flash::workload::Random;
use afterimage_flash::{Config, FtlKind};
use clap::Parser;

fn write(dir: &Path, name: &str, text: &str) -> PathBuf {
    let file = dir.join(name);
    std::fs::write(&file, text).unwrap();
    file
}

fn simulate(text: &str, config: &Config, kind: FtlKind, options: RunOptions) -> Result<Report, RunError> {
    let dir = tempfile::tempdir().unwrap();
    let files = [write(dir.path(), "t.spc", text)];
    let open = || Prefetch::open(&files, &Options::default()).unwrap();
    let scan = Scan::trace(config.geometry, open(), &Control::default())?;
    run(config, kind, &scan, open(), &options, &Control::default())
}

/// Random writes of 4 KB on a few megabytes, with reads.
fn random_trace(seed: u64, requests: u32) -> String {
    let mut random = Random::new(seed);
    let line = |i: u32| {
        let (page, kind) = (random.below(2000), if random.below(4) == 0 { 'r' } else { 'w' });
        format!("{},{},4096,{kind},{}.{:03}\n", page % 2, page * 8, i / 1000, i % 1000)
    };
    (0..requests).map(line).collect()
}

#[test]
fn a_request_waits_for_those_before_it() {
    // Three writes of two pages at once, one much later: 2 x 263 us each.
    let text = "0,0,4096,w,0\n0,8,4096,w,0\n0,16,4096,w,0\n0,24,4096,w,10\n";
    let report = simulate(text, &Config::default(), FtlKind::Page, RunOptions::default()).unwrap();
    let near = |ns: u64, expected: u64| ns.abs_diff(expected) * 1000 <= expected;
    assert!(near(report.response.max_ns, 3 * 526_000), "{:?}", report.response);
    assert!(near(report.response.p50_ns, 526_000), "{:?}", report.response);
    assert!(near(report.service.max_ns, 526_000), "{:?}", report.service);
    assert_eq!(report.device_ns, 4 * 526_000);
    let untimed = RunOptions { timed: false, ..RunOptions::default() };
    let report = simulate(text, &Config::default(), FtlKind::Page, untimed).unwrap();
    assert!(near(report.response.max_ns, 526_000), "{:?}", report.response);
}

#[test]
fn the_end_of_time_is_no_panic() {
    let text = "0,0,4096,w,0\n0,8,4096,w,18446744073\n0,16,4096,w,18446744073.7\n0,24,4096,w,1\n";
    let report = simulate(text, &Config::default(), FtlKind::Fast, RunOptions::default()).unwrap();
    assert_eq!(report.traffic.writes, 4);
}

#[test]
fn a_region_is_the_traced_pages_and_all_of_them_are_written_before() {
    // 100 pages in two far places, of which 36 are only read.
    let text = "0,0,131072,w,0\n0,8000000,73728,r,1\n";
    for kind in FtlKind::ALL {
        let report = simulate(text, &Config::default(), kind, RunOptions::default()).unwrap();
        assert_eq!(
            (report.pages.read, report.pages.read_unwritten, report.pages.written),
            (36, 0, 64),
            "{kind}"
        );
        assert_eq!(report.logical_pages, 128, "{kind}");
        let blocks = RunOptions { region: Region::Blocks, ..RunOptions::default() };
        let report = simulate("0,0,2048,w,0\n0,800,2048,w,0\n", &Config::default(), kind, blocks).unwrap();
        assert_eq!(report.logical_pages, 128, "{kind}");
    }
}

#[test]
fn a_whole_drive_is_filled_or_empty_and_must_be_large_enough() {
    let mut config = Config { geometry: "64M".parse().unwrap(), ..Config::default() };
    config.spare = 0.1;
    let with = |precondition| RunOptions { precondition, ..RunOptions::default() };
    for kind in FtlKind::ALL {
        let read = "0,70000,2048,r,0\n0,0,2048,w,0\n";
        let filled = simulate(read, &config, kind, with(Precondition::Drive)).unwrap();
        assert_eq!((filled.pages.read_unwritten, filled.logical_pages), (0, 460 * 64), "{kind}");
        let empty = simulate(read, &config, kind, with(Precondition::None)).unwrap();
        assert_eq!(empty.pages.read_unwritten, 1, "{kind}");
    }
    let large = simulate("0,200000,2048,w,0\n", &config, FtlKind::Page, with(Precondition::Drive));
    assert!(matches!(large, Err(RunError::TooLarge(_))), "{large:?}");
}

#[test]
fn parts_of_pages_and_discards_count_only_when_asked_for() {
    let plain = RunOptions::default();
    let text = "0,0,2048,w,0\n0,1,3072,w,1\n";
    let report = simulate(text, &Config::default(), FtlKind::Page, plain).unwrap();
    assert_eq!((report.pages.written, report.operations.total().reads), (3, 0));
    let modify = RunOptions { modify: true, ..plain };
    let report = simulate(text, &Config::default(), FtlKind::Page, modify).unwrap();
    assert_eq!((report.pages.written, report.operations.total().reads), (3, 2));

    let dir = tempfile::tempdir().unwrap();
    let log = "fio version 2 iolog\na write 0 8192\na trim 1024 1099511627776\na read 0 8192\n";
    let files = [write(dir.path(), "t", log)];
    for (discards, discarded, unwritten) in [(false, 0, 0), (true, 3, 3)] {
        let open = || Prefetch::open(&files, &Options::default()).unwrap();
        let scan = Scan::trace(Config::default().geometry, open(), &Control::default()).unwrap();
        let options = RunOptions { discards, ..plain };
        let report =
            run(&Config::default(), FtlKind::Page, &scan, open(), &options, &Control::default()).unwrap();
        assert_eq!((report.pages.discarded, report.pages.read_unwritten), (discarded, unwritten));
    }
}

#[test]
fn a_discard_ends_with_its_device_whichever_is_the_last() {
    let config = Config { geometry: "64M".parse().unwrap(), ..Config::default() };
    let dir = tempfile::tempdir().unwrap();
    let counts = |devices: [&str; 2], precondition| {
        let names = devices.map(|device| format!("# file {device} 1\n")).concat();
        // Two blocks and one block, each discarded with much behind it.
        let lines = "0 a write 0 262144 home\n1 b write 0 131072 home\n2 a discard 0 1073741824 home\n\
                     3 b discard 0 1073741824 home\n4 a read 0 262144 home\n5 b read 0 131072 home\n";
        let files = [write(dir.path(), "t", &format!("# afterimage-trace 1\n{names}{lines}# end\n"))];
        let open = || Prefetch::open(&files, &Options::default()).unwrap();
        let scan = Scan::trace(config.geometry, open(), &Control::default()).unwrap();
        let options = RunOptions { precondition, discards: true, ..RunOptions::default() };
        let report = run(&config, FtlKind::Page, &scan, open(), &options, &Control::default()).unwrap();
        (report.pages, report.operations)
    };
    for precondition in [Precondition::Region, Precondition::Drive, Precondition::None] {
        let (pages, operations) = counts(["a", "b"], precondition);
        assert_eq!((pages.discarded, pages.read_unwritten), (192, 192), "{precondition:?}");
        assert_eq!((pages, operations), counts(["b", "a"], precondition), "{precondition:?}");
    }
}

#[test]
fn what_a_discard_passes_over_costs_nothing() {
    // Looked at block by block, these would take many minutes.
    let text = "fio version 2 iolog\na write 0 4096\na write 1099511627776 4096\nb write 0 4096\n".to_owned()
        + &"a trim 0 17592186044416\n".repeat(1000);
    let dir = tempfile::tempdir().unwrap();
    let files = [write(dir.path(), "t", &text)];
    let open = || Prefetch::open(&files, &Options::default()).unwrap();
    let config = Config::default();
    let scan = Scan::trace(config.geometry, open(), &Control::default()).unwrap();
    for region in [Region::Pages, Region::Blocks] {
        let options = RunOptions { discards: true, region, ..RunOptions::default() };
        let report = run(&config, FtlKind::Page, &scan, open(), &options, &Control::default()).unwrap();
        let pages = if region == Region::Pages { 4 } else { 2 * 64 };
        assert_eq!(report.pages.discarded, 1000 * pages, "{region:?}");
    }
}

#[test]
fn reports_are_the_same_every_time_and_add_up() {
    let text = random_trace(1, 20_000);
    for kind in FtlKind::ALL {
        let once = || simulate(&text, &Config::default(), kind, RunOptions::default()).unwrap();
        let report = once();
        assert_eq!(report, once(), "{kind}");
        assert_eq!(report.operations.sum(), report.operations.total(), "{kind}");
        assert_eq!(report.erases, report.operations.total().erases, "{kind}");
        assert!(report.erases > 100 && report.collection.ns > 0, "{kind}: nothing was collected");
        let timing = Config::default().timing;
        let gc = report.collection.ops;
        let ns = gc.reads * timing.read_ns + gc.programs * timing.program_ns + gc.erases * timing.erase_ns;
        assert_eq!(report.collection.ns, ns, "{kind}");
        let mean = report.erases as f64 / f64::from(report.geometry.blocks);
        assert!((report.wear.mean - mean).abs() < 1e-9, "{kind}");
        assert!(report.lifetime.worst_runs.unwrap() <= report.lifetime.even_runs.unwrap(), "{kind}");
    }
}

#[test]
fn a_run_can_be_stopped() {
    let dir = tempfile::tempdir().unwrap();
    let files = [write(dir.path(), "t", &random_trace(2, 1000))];
    let open = || Prefetch::open(&files, &Options::default()).unwrap();
    let config = Config::default();
    let scan = Scan::trace(config.geometry, open(), &Control::default()).unwrap();
    let control = Control::default();
    control.stop.store(true, Ordering::Relaxed);
    let stopped = run(&config, FtlKind::Page, &scan, open(), &RunOptions::default(), &control);
    assert!(matches!(stopped, Err(RunError::Interrupted)));
}

#[derive(Parser)]
struct Flash {
    #[command(flatten)]
    args: cli::FlashArgs,
}

#[derive(Parser)]
struct Trace {
    #[command(flatten)]
    args: cli::TraceArgs,
}

fn flash(words: &[&str]) -> Result<String, CliError> {
    let mut out = Vec::new();
    cli::flash(&Flash::try_parse_from(["flash"].iter().chain(words)).unwrap().args, &mut out)?;
    Ok(String::from_utf8(out).unwrap())
}

#[test]
fn a_comparison_writes_a_page_that_needs_nothing_else() {
    let dir = tempfile::tempdir().unwrap();
    let a = write(dir.path(), "a", &random_trace(1, 8000));
    let b = write(dir.path(), "b", &random_trace(2, 4000));
    let page = dir.path().join("out.html");
    let (a, b) = (format!("<journal>={}", a.display()), format!("vma={}", b.display()));
    let html = page.to_str().unwrap();
    let words = ["compare", "--trace", &a, &b, "--baseline", "<journal>", "--html", html];
    let tables = flash(&words).unwrap();
    for needed in ["Requests and traffic", "Erases", "Lifetime against <journal>", "Response time: p99.9"] {
        assert!(tables.contains(needed), "{needed} is not in the tables");
    }
    let json: serde_json::Value =
        serde_json::from_str(&flash(&[&words[..], &["--json"]].concat()).unwrap()).unwrap();
    assert_eq!((json["complete"].as_bool(), json["runs"].as_array().unwrap().len()), (Some(true), 8));
    let vma = json["against"]
        .as_array()
        .unwrap()
        .iter()
        .find(|a| a["trace"] == "vma" && a["ftl"] == "fast")
        .unwrap();
    // The reduction and the true ratio say the same: ratio = 1 / (1 - reduction).
    let (reduction, ratio) =
        (vma["erase_reduction"].as_f64().unwrap(), vma["lifetime_ratio"].as_f64().unwrap());
    assert!((ratio - 1.0 / (1.0 - reduction)).abs() < 1e-9 && reduction > 0.2, "{reduction} {ratio}");
    let text = std::fs::read_to_string(&page).unwrap();
    for needed in
        ["&lt;journal&gt;", "vma", "superblock", "Erase reduction", "true ratio", "<svg", "p99.9", "</html>"]
    {
        assert!(text.contains(needed), "{needed} is not in the page");
    }
    for outside in ["http:", "https:", "<script", "src=", "<journal>"] {
        assert!(!text.contains(outside), "{outside} is in the page");
    }
}

#[test]
fn wrong_requests_and_failures_are_told_apart() {
    let dir = tempfile::tempdir().unwrap();
    let good = write(dir.path(), "good", &random_trace(1, 500));
    let bad = write(dir.path(), "bad", "what is this\n");
    let (good, bad) = (good.to_str().unwrap(), bad.to_str().unwrap());
    let usage = |words: &[&str]| assert!(matches!(flash(words), Err(CliError::Usage(_))), "{words:?}");
    let failed = |words: &[&str]| assert!(matches!(flash(words), Err(CliError::Failed(_))), "{words:?}");
    let run = flash(&["run", "--ftl", "dftl", "--trace", good, "--json"]).unwrap();
    assert_eq!(serde_json::from_str::<serde_json::Value>(&run).unwrap()["traffic"]["reads"], 116);
    assert!(flash(&["run", "--ftl", "dftl", "--trace", good]).unwrap().contains("write amplification"));
    let sweep = ["sweep", "--trace", good, "--vary", "spare=5%,60%", "--vary", "superblock-n=4..8..4"];
    assert_eq!(flash(&sweep).unwrap().lines().count(), 1 + 2 * 2 * 4);
    usage(&["run", "--ftl", "superblock", "--trace", good, "--superblock-m", "0"]);
    usage(&["run", "--ftl", "superblock", "--trace", good, "--superblock-n", "900"]);
    usage(&["compare", "--trace", good, good]);
    usage(&["compare", "--trace", good, "--superblock-m", "0"]);
    usage(&["compare", "--trace", good, "--baseline", "other"]);
    failed(&["run", "--ftl", "page", "--trace", bad]);
    failed(&["run", "--ftl", "page", "--trace", "/nonexistent"]);
    failed(&["compare", "--trace", good, bad]);
    for wrong in [
        &["sweep", "--trace", good, "--vary", "nothing=1"][..],
        &["sweep", "--trace", good, "--vary", "spare=5..1"],
        &["run", "--ftl", "page", "--trace", good, "--geometry", "3"],
        &["run", "--ftl", "page", "--trace", good, "--spare", "200%"],
        &["run", "--ftl", "page", "--trace", good, "--erase-us", "1000001"],
        &["run", "--ftl", "dftl", "--trace", good, "--cmt-protected", "nan"],
        &["run", "--ftl", "page", "--trace", good, "--format", "other"],
        &["run", "--ftl", "page"],
    ] {
        assert!(Flash::try_parse_from(["flash"].iter().chain(wrong)).is_err(), "{wrong:?} was taken");
    }
}

#[test]
fn converted_traces_give_the_same_counters() {
    let dir = tempfile::tempdir().unwrap();
    let original = write(dir.path(), "o", &random_trace(3, 5000));
    let counters = |file: &Path| {
        let open = || Prefetch::open(&[file.to_owned()], &Options::default()).unwrap();
        let scan = Scan::trace(Config::default().geometry, open(), &Control::default()).unwrap();
        let (config, control) = (Config::default(), Control::default());
        run(&config, FtlKind::Fast, &scan, open(), &RunOptions::default(), &control).unwrap().operations
    };
    let expected = counters(&original);
    for (format, name) in
        [("fio3", "f.gz"), ("msr", "m.zst"), ("blkparse", "b"), ("mqsim", "q"), ("disksim", "d")]
    {
        let out = dir.path().join(name);
        let words =
            ["trace", "convert", original.to_str().unwrap(), "--to", format, "--out", out.to_str().unwrap()];
        let args = Trace::try_parse_from(words).unwrap().args;
        cli::trace(&args, &mut Vec::new()).unwrap();
        assert_eq!(counters(&out), expected, "{format}");
        assert!(
            matches!(cli::trace(&args, &mut Vec::new()), Err(CliError::Failed(_))),
            "{name} was replaced without --force"
        );
    }
    let stat = Trace::try_parse_from(["trace", "stat", original.to_str().unwrap()]).unwrap().args;
    let mut out = Vec::new();
    cli::trace(&stat, &mut out).unwrap();
    assert!(String::from_utf8(out).unwrap().contains("devices"));
}

#[test]
fn wear_levelling_is_shown_where_it_is_on() {
    let dir = tempfile::tempdir().unwrap();
    let file = write(dir.path(), "t", &random_trace(1, 8000));
    let file = file.to_str().unwrap();
    let both = |words: &[&str], shown: &str| {
        let words = [words, &["--trace", file]].concat();
        assert!(!flash(&words).unwrap().contains(shown), "{words:?}");
        let levelled = flash(&[&words[..], &["--static-wear", "1"]].concat()).unwrap();
        assert!(levelled.contains(shown), "{words:?}: {levelled}");
    };
    both(&["run", "--ftl", "page"], "wear levelling beside GC");
    both(&["compare", "--ftl", "page"], "Static wear levelling (time, beside GC)");
    both(&["sweep", "--ftl", "page", "--vary", "gc-low=3"], "levelling");
}

fn trace(words: &[&str]) -> Result<String, CliError> {
    let mut out = Vec::new();
    cli::trace(&Trace::try_parse_from(["trace"].iter().chain(words)).unwrap().args, &mut out)?;
    Ok(String::from_utf8(out).unwrap())
}

#[test]
fn a_converted_capture_says_what_the_original_said() {
    let dir = tempfile::tempdir().unwrap();
    let (source, out) = (dir.path().join("source"), dir.path().join("out"));
    let [source_name, out_name] = [&source, &out].map(|path| path.to_str().unwrap());
    let cut = "# afterimage-trace 1\n# begun 1000\n# file disk0 4096 a.img\n# file log 4096 a.img.aflog\n\
               10 log write 0 4096 log\n12 disk0 write 0 4096 journal\n# dropped 900\n20 disk0 write 4096 4096 home\n";
    let converted =
        "# afterimage-trace 1\n# converted\n# begun 1010 ns since 1970\n# file disk0 0\n# file disk1 0\n\
                     0 disk1 write 0 4096 log\n2 disk0 write 0 4096 journal\n# dropped 900\n\
                     10 disk0 write 4096 4096 home\n";
    for end in ["", "# end 3 requests, 900 dropped\n"] {
        std::fs::write(&source, cut.to_owned() + end).unwrap();
        trace(&["convert", source_name, "--to", "afterimage", "--out", out_name, "--force"]).unwrap();
        assert_eq!(std::fs::read_to_string(&out).unwrap(), converted.to_owned() + end);
    }
    // Of other formats nothing is known but the requests.
    std::fs::write(&source, "3,8,512,w,6.0\n").unwrap();
    trace(&["convert", source_name, "--to", "afterimage", "--out", out_name, "--force"]).unwrap();
    let unknown = "# afterimage-trace 1\n# converted: the classes are not known\n# file disk0 0\n\
                   0 disk0 write 4096 512 home\n# end 1 requests, 0 dropped\n";
    assert_eq!(std::fs::read_to_string(&out).unwrap(), unknown);
}

#[test]
fn converting_leaves_its_input_and_what_it_fails_to_replace() {
    let dir = tempfile::tempdir().unwrap();
    let text = random_trace(4, 5000);
    let input = write(dir.path(), "input", &text);
    let name = |file: &str| dir.path().join(file).to_str().unwrap().to_owned();
    std::fs::hard_link(&input, name("hard")).unwrap();
    std::os::unix::fs::symlink(&input, name("soft")).unwrap();
    let other = write(dir.path(), "other", "0,0,512,w,0\n");
    for out in ["input", "hard", "soft"].map(name) {
        let words =
            ["convert", other.to_str().unwrap(), &name("input"), "--to", "spc", "--out", &out, "--force"];
        assert!(matches!(trace(&words), Err(CliError::Usage(_))), "{out}");
        assert_eq!(std::fs::read_to_string(&input).unwrap(), text, "{out}");
    }
    // An input that breaks off in its middle.
    let mut packer = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
    std::io::Write::write_all(&mut packer, random_trace(4, 50_000).as_bytes()).unwrap();
    let packed = packer.finish().unwrap();
    std::fs::write(name("cut.gz"), &packed[..packed.len() - 100]).unwrap();
    let before = std::fs::read_dir(dir.path()).unwrap().count();
    for (out, is) in [("other", Some("0,0,512,w,0\n")), ("new", None)] {
        let failed =
            trace(&["convert", &name("cut.gz"), "--to", "spc", "--out", &name(out), "--force"]).unwrap_err();
        assert!(failed.to_string().contains("is not written"), "{failed}");
        assert_eq!(std::fs::read_to_string(name(out)).ok().as_deref(), is);
    }
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), before, "something was left behind");
    // Through a link to what it names; a device is written, not replaced.
    std::os::unix::fs::symlink(&other, name("link")).unwrap();
    for out in [name("link"), "/dev/null".to_owned()] {
        trace(&["convert", &name("input"), "--to", "spc", "--out", &out, "--force"]).unwrap();
    }
    assert_eq!(std::fs::read_to_string(&other).unwrap().lines().count(), 5000);
    assert!(std::fs::symlink_metadata(name("link")).unwrap().is_symlink());
    assert!(!std::fs::metadata("/dev/null").unwrap().is_file());
}

#[test]
fn a_sweep_runs_what_it_says_or_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let good = write(dir.path(), "good", &random_trace(1, 500));
    let good = good.to_str().unwrap();
    for vary in [
        "gc-low=0",
        "gc-low=1..3",
        "gc-low=4294967295",
        "gc-high=1",
        "gc-high=4097",
        "static-wear=0",
        "read-us=1000001",
        "program-us=-1",
        "cmt-protected=101%",
    ] {
        let words = ["flash", "sweep", "--trace", good, "--vary", vary];
        assert!(Flash::try_parse_from(words).is_err(), "{vary} was taken");
    }
    assert!(flash(&["sweep", "--trace", good, "--vary", "gc-low=2,3", "--vary", "static-wear=1"]).is_ok());
    let blocks = ["sweep", "--trace", good, "--vary", "blocks=2000,4000"];
    assert!(matches!(flash(&blocks), Err(CliError::Usage(_))), "all runs would be the same one");
    let lines = flash(&[&blocks[..], &["--ftl", "page", "--precondition", "none"]].concat()).unwrap();
    assert_eq!(lines.lines().count(), 3);
    let longest = ["run", "--trace", good, "--program-us", "1e6", "--erase-us", "1e6", "--ftl", "dftl"];
    assert!(flash(&[&longest[..], &["--cmt-protected", "100%"]].concat()).is_ok());
    assert!(
        flash(&["sweep", "--trace", good, "--vary", "erase-us=1000000", "--vary", "cmt-protected=1"]).is_ok()
    );
    let words = ["run", "--ftl", "fast", "--trace", good, "--log-blocks", "4294967295"];
    assert!(matches!(flash(&words), Err(CliError::Usage(_))));
}

#[test]
fn a_page_that_cannot_be_written_costs_no_run() {
    let dir = tempfile::tempdir().unwrap();
    let good = write(dir.path(), "good", &random_trace(1, 500));
    let compare = |page: &str| {
        let words =
            ["flash", "compare", "--trace", good.to_str().unwrap(), "--ftl", "page,fast", "--html", page];
        let mut out = Vec::new();
        let verdict = cli::flash(&Flash::try_parse_from(words).unwrap().args, &mut out);
        assert!(matches!(verdict, Err(CliError::Failed(_))), "{page}");
        String::from_utf8(out).unwrap()
    };
    assert_eq!(compare("/nonexistent/out.html"), "", "known before the first run");
    assert!(compare("/dev/full").contains("Erases"), "found out at the end: the tables are there");
    // What was there before stays until there is something new.
    let page = write(dir.path(), "page.html", "old");
    let words = ["compare", "--trace", "/nonexistent", "--html", page.to_str().unwrap()];
    assert!(flash(&words).is_err());
    assert_eq!(std::fs::read_to_string(&page).unwrap(), "old");
}
