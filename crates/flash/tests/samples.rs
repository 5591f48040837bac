//! The traces of real runs in `samples/`: read without a broken line, and costing what they cost when they came in. A
//! change of these numbers is a change of a model and belongs in the changelog.

use std::path::PathBuf;

use afterimage_flash::control::Control;
use afterimage_flash::counts::Cause;
use afterimage_flash::place::RunOptions;
use afterimage_flash::report::Report;
use afterimage_flash::scan::Scan;
use afterimage_flash::sim::run;
use afterimage_flash::trace::{Options, Prefetch};
use afterimage_flash::{Config, FtlKind};

fn sample(name: &str) -> (Scan, [PathBuf; 1]) {
    let files = [PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("samples").join(name)];
    let strict = Options { strict: true, ..Options::default() };
    let trace = Prefetch::open(&files, &strict).unwrap();
    (Scan::trace(Config::default().geometry, trace, &Control::default()).unwrap(), files)
}

fn simulate(name: &str, kind: FtlKind) -> Report {
    let (scan, files) = sample(name);
    let trace = Prefetch::open(&files, &Options::default()).unwrap();
    run(&Config::default(), kind, &scan, trace, &RunOptions::default(), &Control::default()).unwrap()
}

#[test]
fn samples_hold_what_fio_was_asked_for() {
    let traffic = |name| sample(name).0.traffic;
    let database = traffic("database.fio3.gz");
    assert_eq!((database.requests(), database.bytes()), (40_000, 40_000 * 4096));
    assert_eq!((database.reads, database.writes), (11_888, 28_112));
    let files = sample("files.fio3.zst").0;
    assert_eq!((files.traffic.writes, files.traffic.reads), (4608, 0));
    assert_eq!(files.extents().len(), 195);
    let stream = sample("stream.fio3.gz").0;
    assert_eq!((stream.traffic.writes, stream.traffic.write_bytes), (1024, 4 * (32 << 20)));
    assert_eq!(stream.pages(), (32 << 20) / 2048);
    assert_eq!(traffic("stream.fio2"), stream.traffic);
}

#[test]
fn guests_traces_are_whole_and_classed() {
    let classes = |name| sample(name).0.tally.classes.unwrap();
    let (journal, retain) = (classes("postmark-journal.trace.zst"), classes("postmark-retain.trace.zst"));
    assert!(journal.journal.write_bytes > journal.home.write_bytes, "data=journal writes everything twice");
    assert!(retain.journal.write_bytes * 1000 < journal.journal.write_bytes, "{retain:?}");
    // What goes home is the same work's, within what the guest's timers make of it.
    let ratio = retain.home.write_bytes as f64 / journal.home.write_bytes as f64;
    assert!((0.9..1.1).contains(&ratio), "{ratio}");
    let window = classes("sqlite-window.trace.zst");
    assert!(window.log.write_bytes > window.home.write_bytes + window.journal.write_bytes);
    assert!(window.log.flushes > 50);
    assert_eq!(sample("sqlite-window.trace.zst").0.extents().len(), 2);
    assert!(sample("churn-power.trace.zst").0.traffic.discards > 0);
}

#[test]
fn samples_cost_what_they_did() {
    // Erases under FAST, Superblock, DFTL and the page map.
    let expected = [
        ("postmark-journal.trace.zst", [6935, 11_052, 14_425, 11_747]),
        ("postmark-retain.trace.zst", [5322, 9752, 8180, 6209]),
        ("sqlite-window.trace.zst", [4808, 4104, 5661, 6521]),
        ("churn-power.trace.zst", [86, 66, 67, 66]),
        ("database.fio3.gz", [8036, 30_888, 13_060, 9667]),
        ("files.fio3.zst", [4086, 7406, 5092, 3970]),
        ("stream.fio3.gz", [1023, 1014, 1019, 1016]),
        ("stream.fio2", [1023, 1014, 1019, 1016]),
    ];
    for (name, erases) in expected {
        for (kind, erases) in FtlKind::ALL.into_iter().zip(erases) {
            let report = simulate(name, kind);
            assert_eq!(report.erases, erases, "{name} on {kind}");
            assert_eq!(report.operations.of(Cause::Host).programs, report.pages.written, "{name} on {kind}");
        }
    }
}

#[test]
fn a_stream_costs_no_copy() {
    for kind in [FtlKind::Fast, FtlKind::Superblock, FtlKind::Page] {
        let report = simulate("stream.fio3.gz", kind);
        assert_eq!(report.collection.ops.programs, 0, "{kind}");
        assert_eq!(report.write_amplification, Some(1.0), "{kind}");
    }
}
