//! The VMA paper's integrity experiment (§ 5.5, Fig. 19): records of a database file, each updated by one `write(2)`, and a
//! guest that is killed when 4 MB have been submitted to its disk. A record that mixes old and new blocks is corrupted.
//!
//! ```text
//!   guest N: mount (recovery) ─► verify guest N-1's records ─► all records in version 0, synced ─► updates ...
//!   daemon's counter of bytes that the guest has written ≥ 4 MB since then ─► SIGKILL of the VMM
//! ```
//!
//! The paper's figure is the part of the iterations after which any record is corrupted. What is as the paper has it: one
//! guest, updates as fast as they go, nothing synced. What is not: ext4 for ext3, a file of 16 MB, a commit and the
//! write-back of dirty pages after one second instead of five and thirty, so that an iteration takes seconds.

mod run;

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;

use afterimage_protocol::lines::Lines;
use serde::{Deserialize, Serialize};

use crate::error::{Context, Result};

pub(crate) use run::Cell;

/// Sizes of records, in bytes.
pub(crate) const SIZES_BYTES: [u64; 5] = [4 << 10, 8 << 10, 16 << 10, 32 << 10, 64 << 10];
/// Modes of ext4, and what the daemon does with its journal.
pub(crate) const MODES: [(&str, &str); 5] = [
    ("writeback", "passthrough"),
    ("ordered", "passthrough"),
    ("journal", "passthrough"),
    ("ordered", "retain"),
    ("journal", "retain"),
];

/// What `afterimage-lab integrity` takes.
#[derive(Clone, Debug, clap::Args)]
pub struct Options {
    /// Guests killed for each mode and size of records
    #[arg(long, default_value_t = 120)]
    pub iterations: u64,
    /// Only records of this size, in KiB
    #[arg(long, value_name = "KIB")]
    pub size: Option<u64>,
    /// Only modes whose name contains this, such as journal or retain
    #[arg(long, value_name = "NAME")]
    pub only: Option<String>,
    /// Seed of the updates
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// What is finished, one line an iteration: a run goes on from there
    #[arg(long, default_value = "target/lab/integrity.jsonl")]
    pub results: PathBuf,
    /// Print the table as JSON
    #[arg(long)]
    pub json: bool,
}

/// One iteration.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Iteration {
    /// As [`Cell::name`] has it.
    pub mode: String,
    pub size_bytes: u64,
    pub number: u64,
    /// Records in the file.
    pub records: u64,
    /// Records of which recovery brought an update.
    pub updated: u64,
    /// Records that mix versions.
    pub mixed: u64,
    /// Blocks that are no record's at all.
    pub foreign_blocks: u64,
    /// Blocks that are not as any moment of the updates had left them: none, where data is journaled.
    pub out_of_order_blocks: u64,
    /// What the guest had written when it was killed, in bytes.
    pub submitted_bytes: u64,
}

/// A cell of the table.
#[derive(Clone, Debug, Serialize)]
struct Sum {
    mode: String,
    size_kib: u64,
    iterations: u64,
    corrupted_iterations: u64,
    corrupted_records: u64,
    iterations_with_updates: u64,
    foreign_blocks: u64,
    out_of_order_blocks: u64,
}

/// Runs what is missing, and prints the table. `true` if every mode that journals data left what some moment of the updates had left.
///
/// # Errors
/// A guest or a daemon did not do what was asked; what is finished stays finished.
pub fn run(options: &Options) -> Result<bool> {
    if let Some(folder) = options.results.parent() {
        fs::create_dir_all(folder).context(|| format!("make {}", folder.display()))?;
    }
    let (mut results, mut finished) = Lines::open::<Iteration>(&options.results)?;
    for size_bytes in SIZES_BYTES {
        for (data, journal) in MODES {
            let cell = Cell { data, journal, size_bytes, seed: options.seed };
            let wanted = options.size.is_none_or(|kib| kib << 10 == size_bytes)
                && options.only.as_ref().is_none_or(|only| cell.name().contains(only.as_str()));
            let done =
                finished.iter().filter(|i| i.mode == cell.name() && i.size_bytes == size_bytes).count();
            if !wanted || done as u64 >= options.iterations {
                continue;
            }
            tracing::info!(mode = cell.name(), size_bytes, done, "running");
            cell.run(done as u64, options.iterations, &mut |iteration| {
                results.add(&iteration)?;
                finished.push(iteration);
                Ok(())
            })?;
        }
    }
    let sums = sums(&finished);
    if options.json {
        println!("{}", serde_json::to_string_pretty(&sums).unwrap_or_default());
    } else {
        print(&sums);
    }
    Ok(sums
        .iter()
        .all(|sum| !sum.mode.starts_with("journal") || sum.foreign_blocks + sum.out_of_order_blocks == 0))
}

fn sums(finished: &[Iteration]) -> Vec<Sum> {
    let mut cells: BTreeMap<(u64, &str), Sum> = BTreeMap::new();
    for one in finished {
        let sum = cells.entry((one.size_bytes, &one.mode)).or_insert_with(|| Sum {
            mode: one.mode.clone(),
            size_kib: one.size_bytes >> 10,
            iterations: 0,
            corrupted_iterations: 0,
            corrupted_records: 0,
            iterations_with_updates: 0,
            foreign_blocks: 0,
            out_of_order_blocks: 0,
        });
        sum.iterations += 1;
        sum.corrupted_iterations += u64::from(one.mixed > 0);
        sum.corrupted_records += one.mixed;
        sum.iterations_with_updates += u64::from(one.updated > 0);
        sum.foreign_blocks += one.foreign_blocks;
        sum.out_of_order_blocks += one.out_of_order_blocks;
    }
    cells.into_values().collect()
}

fn print(sums: &[Sum]) {
    println!(
        "{:<18} {:>6} {:>11} {:>10} {:>9} {:>13}",
        "mode", "KiB", "iterations", "corrupted", "records", "with updates"
    );
    for sum in sums {
        println!(
            "{:<18} {:>6} {:>11} {:>9.1}% {:>9} {:>13}",
            sum.mode,
            sum.size_kib,
            sum.iterations,
            100.0 * sum.corrupted_iterations as f64 / sum.iterations.max(1) as f64,
            sum.corrupted_records,
            sum.iterations_with_updates
        );
    }
}
