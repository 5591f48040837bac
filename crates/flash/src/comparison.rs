//! Runs against those of a baseline trace.

use serde::Serialize;

use crate::config::FtlKind;
use crate::report::Report;

/// One trace on one FTL against the baseline on the same FTL. `None`: the baseline's figure is zero.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Against {
    /// The trace.
    pub trace: String,
    /// The FTL.
    pub ftl: FtlKind,
    /// 1 − erases / the baseline's: what the study calls a lifetime extension.
    pub erase_reduction: Option<f64>,
    /// The baseline's erases / these: the true lifetime ratio under even wear.
    pub lifetime_ratio: Option<f64>,
    /// The baseline's most erased block / this one's.
    pub worst_block_ratio: Option<f64>,
    /// 1 − GC overhead / the baseline's.
    pub gc_reduction: Option<f64>,
}

/// Everything a comparison found.
#[derive(Debug, Serialize)]
pub struct Comparison<'a> {
    /// The trace compared with.
    pub baseline: &'a str,
    /// All runs are in it.
    pub complete: bool,
    /// The runs.
    pub runs: Vec<&'a Report>,
    /// Against the baseline.
    pub against: Vec<Against>,
}

impl<'a> Comparison<'a> {
    /// Of finished runs.
    pub fn new(baseline: &'a str, complete: bool, runs: Vec<&'a Report>) -> Self {
        let against = runs.iter().filter_map(|run| {
            let base = runs.iter().find(|r| r.ftl == run.ftl && r.trace == baseline)?;
            Some(against(run, base))
        });
        Self { baseline, complete, against: against.collect(), runs }
    }
}

fn against(run: &Report, base: &Report) -> Against {
    let quotient = |a: f64, b: f64| (b > 0.0).then(|| a / b);
    let (erases, base_erases) = (run.erases as f64, base.erases as f64);
    Against {
        trace: run.trace.clone(),
        ftl: run.ftl,
        erase_reduction: quotient(erases, base_erases).map(|q| 1.0 - q),
        lifetime_ratio: quotient(base_erases, erases),
        worst_block_ratio: quotient(f64::from(base.wear.max), f64::from(run.wear.max)),
        gc_reduction: quotient(run.collection.ns as f64, base.collection.ns as f64).map(|q| 1.0 - q),
    }
}
