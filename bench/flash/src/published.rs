//! Other simulators, and earlier measurements: quoted here, not run by this benchmark.
//!
//! All are rates under 4 KiB random writes, on one core of a 2-core EPYC virtual machine; a request is two pages of 2 KB.

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

/// The peer that is run here, too.
pub const GREEDY_MAP: &str = "a greedy page map on bucket lists";

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
