//! What a suite found, as text, as JSON and as the Markdown that stands in the documentation.

use std::time::Duration;

use afterimage_report::{or_dash, Table};
use serde::{Deserialize, Serialize};

use super::faults::Planted;
use super::table2::CaseStudy;
use crate::report::{grouped, Report};

/// See the module.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Summary {
    /// Seed of all draws.
    pub seed: u64,
    /// The short suite.
    pub quick: bool,
    /// The campaigns.
    pub reports: Vec<Report>,
    /// The planted faults.
    pub faults: Vec<Planted>,
    /// vDrive's case studies.
    pub case_studies: Vec<CaseStudy>,
    /// Somebody ended it early.
    pub interrupted: bool,
    /// In all.
    pub elapsed: Duration,
}

impl Summary {
    /// Whether every promise of the daemon held wherever it was looked for, and every planted fault was found. A guest that does not survive an exact
    /// prefix of its own requests is reported, and no failure of the suite.
    pub fn passed(&self) -> bool {
        self.reports.iter().all(Report::is_accepted)
            && self.faults.iter().all(|fault| fault.found)
            && self
                .case_studies
                .iter()
                .flat_map(|study| &study.rows)
                .all(|row| row.points > 0 && row.broken == 0)
    }

    /// States in all.
    pub fn states(&self) -> u64 {
        let campaigns: u64 = self.reports.iter().map(|report| report.progress.tally.states()).sum();
        let studies: u64 = self.case_studies.iter().flat_map(|study| &study.rows).map(|row| row.points).sum();
        campaigns + studies
    }

    /// One line for those who only want to know.
    pub fn line(&self) -> String {
        let above: u64 = self.reports.iter().map(|report| report.progress.tally.above_the_daemon).sum();
        let broken: u64 =
            self.reports.iter().map(|report| report.progress.tally.violations_of_the_daemon()).sum::<u64>()
                + self.case_studies.iter().flat_map(|study| &study.rows).map(|row| row.broken).sum::<u64>();
        let found = self.faults.iter().filter(|fault| fault.found).count();
        format!(
            "explore: {} states in {:.0} s, {} broken{}; {found} of {} planted faults found{}",
            grouped(self.states()),
            self.elapsed.as_secs_f64(),
            grouped(broken),
            if above > 0 {
                format!(", {above} more where the guest does not survive its own order")
            } else {
                String::new()
            },
            self.faults.len(),
            if self.interrupted { "; ended early" } else { "" }
        )
    }

    /// Tables for the documentation.
    pub fn markdown(&self) -> String {
        let tables = [self.campaigns(), self.planted(), self.studies()];
        let shown: Vec<String> = tables.iter().filter(|t| !t.is_empty()).map(Table::markdown).collect();
        shown.join("\n")
    }

    fn campaigns(&self) -> Table {
        let mut table = Table::new(
            "campaign|layer, model, level|crash points|states|distinct bytes\
            |recovered by the daemon|checked|fresh|stale, oldest|lost|inconsistent"
                .split('|'),
        );
        for report in &self.reports {
            let (tally, work) = (&report.progress.tally, &report.progress.tally.work);
            let level = format!("{:?}", report.setup.level).to_lowercase();
            let some = |wanted: bool, count: u64| or_dash(wanted.then_some(count), grouped);
            table.row([
                report.name.clone(),
                format!("{}, {}, {level}", report.setup.layer_name(), report.setup.model.name()),
                grouped(report.cuts as u64),
                grouped(tally.states()),
                grouped(work.states - work.equal_bytes),
                some(work.recovered > 0, work.recovered),
                some(work.checks > 0, work.checked),
                grouped(tally.fresh),
                if tally.stale > 0 {
                    format!("{}, {:.1} ms", grouped(tally.stale), tally.stale_ms_max)
                } else {
                    "0".to_owned()
                },
                grouped(tally.lost),
                if tally.above_the_daemon > 0 {
                    format!("{} ({} above the daemon)", tally.inconsistent, tally.above_the_daemon)
                } else {
                    grouped(tally.inconsistent)
                },
            ]);
        }
        table
    }

    fn planted(&self) -> Table {
        let mut table = Table::new(["planted fault", "found after", "as"]);
        for fault in &self.faults {
            table.row([
                format!("{}: {}", fault.name, fault.describe),
                if fault.found {
                    format!("{} states, {} ms", grouped(fault.states), grouped(fault.elapsed_ms))
                } else {
                    format!("**not found** in {} states", grouped(fault.states))
                },
                fault.how.replace('|', "\\|").lines().next().unwrap_or_default().to_owned(),
            ]);
        }
        table
    }

    fn studies(&self) -> Table {
        let mut table = Table::new(
            "case study|contract|crash points|old|new|inconsistent|oldest|vDrive's Table 2: old, new"
                .split('|'),
        );
        for (study, row) in self.case_studies.iter().flat_map(|s| s.rows.iter().map(move |row| (s, row))) {
            let whose = if row.contract == "power" { "nested" } else { "vDrive" };
            table.row([
                study.name.to_string(),
                if row.on_models { format!("{}, on models", row.contract) } else { row.contract.clone() },
                grouped(row.points),
                grouped(row.old),
                grouped(row.new),
                grouped(row.broken),
                format!("{:.1} ms", row.stale_ms_max),
                or_dash(row.paper, |(old, new)| format!("{whose}: {old}, {new}")),
            ]);
        }
        table
    }
}
