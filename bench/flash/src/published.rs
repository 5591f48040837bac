//! Other simulators, and earlier measurements: quoted here, not run by this benchmark.
//!
//! All are rates under 4 KiB random writes, on one core of a 2-core EPYC virtual machine; a request is two pages of 2 KB.

use afterimage_flash::FtlKind;
use afterimage_report::number::scaled;
use afterimage_report::{or_dash, Spread, Table, NONE};

use crate::cell::Load;
use crate::report::Row;

/// A quoted figure.
#[derive(Debug, Clone, Copy)]
pub struct Published {
    /// Which simulator.
    pub simulator: &'static str,
    /// Which FTL of ours does the same job.
    pub ftl: &'static str,
    /// Flash, GB, where it is known.
    pub size_gb: Option<u32>,
    /// As quoted.
    pub quoted: &'static str,
    /// Page writes a second, lowest quoted.
    pub low: f64,
    /// The same, highest quoted.
    pub high: f64,
}

const fn requests(
    simulator: &'static str,
    ftl: &'static str,
    size_gb: Option<u32>,
    quoted: &'static str,
    low: f64,
    high: f64,
) -> Published {
    Published { simulator, ftl, size_gb, quoted, low: 2.0 * low, high: 2.0 * high }
}

const fn pages(
    simulator: &'static str,
    ftl: &'static str,
    size_gb: u32,
    quoted: &'static str,
    low: f64,
    high: f64,
) -> Published {
    Published { simulator, ftl, size_gb: Some(size_gb), quoted, low, high }
}

const GREEDY_MAP: &str = "a greedy page map on bucket lists";

/// What is quoted.
pub const ALL: &[Published] = &[
    requests("MQSim", "page", None, "67 k requests/s", 67e3, 67e3),
    requests("FlashSim (Penn State), page map", "page", None, "757 k requests/s", 757e3, 757e3),
    pages(GREEDY_MAP, "page", 1, "15.8 M pages/s, 93 % full", 15.8e6, 15.8e6),
    pages(GREEDY_MAP, "page", 32, "2.8–3.2 M pages/s", 2.8e6, 3.2e6),
    requests("FlashSim (Penn State), FAST", "fast", Some(1), "65–78 k requests/s", 65e3, 78e3),
    requests("FlashSim (Penn State), FAST", "fast", Some(32), "3.6 k requests/s", 3.6e3, 3.6e3),
    requests("flashsim (Bjørling), FAST", "fast", None, "152–234 requests/s", 152.0, 234.0),
    pages("a FAST that only counts", "fast", 1, "16.5 M pages/s", 16.5e6, 16.5e6),
    requests("FlashSim (Penn State), DFTL", "dftl", None, "70 k requests/s", 70e3, 70e3),
    requests("flashsim (Bjørling), DFTL", "dftl", None, "141 k requests/s", 141e3, 141e3),
];

/// What the peer that is run here, as another wrote it, did on the machine of the quoted figures: page writes a second.
pub fn greedy_map(size_gb: u32) -> Option<f64> {
    let quoted = ALL.iter().find(|p| p.simulator == GREEDY_MAP && p.size_gb == Some(size_gb))?;
    Some((quoted.low + quoted.high) / 2.0)
}

/// Quoted figures beside ours, in page writes a second: 4 KiB random writes where the same load was run here.
pub fn table(rows: &[Row]) -> String {
    let mut table = Table::new(
        "simulator (quoted, not run here)|quoted|flash|page writes/s|ours, run here: 1 GB|32 GB".split('|'),
    );
    let ours = |ftl: &str, size_gb: u32| {
        let row =
            rows.iter().find(|r| r.ftl == ftl && r.cell.size_gb == size_gb && r.cell.load == Load::Pairs);
        or_dash(row, |r| scaled(r.writes_per_s.median))
    };
    for p in ALL {
        table.row([
            p.simulator.to_owned(),
            p.quoted.to_owned(),
            p.size_gb.map_or("not said".to_owned(), |gb| format!("{gb} GB")),
            if p.low < p.high { format!("{}–{}", scaled(p.low), scaled(p.high)) } else { scaled(p.low) },
            ours(p.ftl, 1),
            ours(p.ftl, 32),
        ]);
    }
    let mut here = |what: String, small: String, large: String| {
        table.row([what, NONE.to_owned(), NONE.to_owned(), NONE.to_owned(), small, large]);
    };
    let superblock = FtlKind::Superblock.name();
    here(
        "no public implementation of Superblock is known".to_owned(),
        ours(superblock, 1),
        ours(superblock, 32),
    );
    let peer = |size_gb: u32| {
        let cells = rows.iter().filter(|r| r.cell.size_gb == size_gb);
        or_dash(Spread::of(cells.flat_map(|r| r.greedy_map_per_s.iter().copied())), |s| s.show(scaled))
    };
    here(format!("run here, not quoted: {GREEDY_MAP}, single pages"), peer(1), peer(32));
    table.markdown()
}
