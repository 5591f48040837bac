//! Options that several benchmarks have.

use std::path::PathBuf;

use clap::Args;

/// Of every benchmark.
#[derive(Args, Clone, Debug)]
pub struct Common {
    /// Small and short: a look, not a measurement
    #[arg(long)]
    pub quick: bool,
    /// Measure nothing: print the tables of these raw results
    #[arg(long, value_name = "FILE")]
    pub tables: Option<PathBuf>,
}

/// Of those that take hours, and go on where an earlier run has ended.
#[derive(Args, Clone, Debug)]
pub struct Resume {
    /// Before each cell, wait for the rest of the machine to be idle, for at most this many seconds
    #[arg(long, default_value_t = 0, value_name = "SECONDS")]
    pub calm: u64,
    /// Run these cells again even if they are finished
    #[arg(long)]
    pub fresh: bool,
    /// Say which cells would be run, and run none
    #[arg(long)]
    pub list: bool,
    /// Run no guest: write the reports of what is finished and print the tables as Markdown
    #[arg(long, visible_alias = "markdown", conflicts_with = "tables")]
    pub report: bool,
    /// With --report: put the tables into this file, between its lines `<!-- results: SCALE -->` (full
    /// or quick) and `<!-- end -->`
    #[arg(long, value_name = "FILE", requires = "report")]
    pub into: Option<PathBuf>,
}

impl Resume {
    /// Whether cells are to be run: who lists or reports leaves the finished ones as they are.
    pub fn is_run(&self) -> bool {
        !self.list && !self.report
    }
}

/// Of those whose raw results hold every cell as it was kept.
#[derive(Args, Clone, Debug, Default)]
pub struct Earlier {
    /// Go on from these raw results: what they hold, and is not finished here, counts as finished here
    #[arg(long, value_name = "FILE")]
    pub from: Option<PathBuf>,
}
