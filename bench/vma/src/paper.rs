//! What the paper says, where its text gives a number: bars are not read off. Huang and Chang, § 5.

use crate::catalog::{Mode, Workload};

/// The VMA mode's gain over the journal mode, in percent of the journal mode's time: what is held against ours, and
/// the words around it (§ 5.2.1, § 5.2.2).
pub fn gain_over_journal(workload: Workload) -> Option<(f64, &'static str)> {
    match workload {
        Workload::SeqWrite => {
            Some((50.9, "up to 50.9 % less than journal; 8 guests: 3.4 % more than ordered"))
        }
        Workload::RndWrite => {
            Some((38.0, "up to 38 % less than journal; 3.3–9.8 % more than ordered, writeback"))
        }
        Workload::FileDelete => {
            Some((10.8, "10.8–24.6 % less than journal; up to 16.4 % less than ordered, writeback"))
        }
        Workload::Postmark => Some((
            42.3,
            "up to 42.3 % less than journal, 24.5 % less than ordered, writeback; writes −50 %, −8 %",
        )),
        Workload::Untar => Some((41.1, "up to 41.1 % less than journal; writes −49 %")),
        Workload::Build | Workload::BuildFiles | Workload::Records => None,
    }
}

/// What the text says about a workload that has no number.
pub fn words(workload: Workload) -> &'static str {
    gain_over_journal(workload).map_or("all modes alike (CPU-bound)", |(_, words)| words)
}

/// Table III: seconds and megabytes of a recovery.
pub fn recovery(workload: Workload, mode: Mode) -> Option<(f64, f64)> {
    let rows = match workload {
        Workload::Postmark => [(0.28, 9.3), (0.27, 9.1), (5.39, 132.2), (2.93, 69.6)],
        Workload::Untar => [(0.33, 12.9), (0.33, 12.9), (5.91, 130.8), (3.49, 68.8)],
        Workload::Build | Workload::BuildFiles => [(0.44, 16.5), (0.46, 16.5), (1.1, 33.6), (0.69, 24.3)],
        _ => return None,
    };
    match mode {
        Mode::Writeback => Some(rows[0]),
        Mode::Ordered => Some(rows[1]),
        Mode::Journal => Some(rows[2]),
        Mode::JournalRetain | Mode::Vma => Some(rows[3]),
        _ => None,
    }
}

/// § 5.3: how much less than the journal mode's the recovery takes, in percent.
pub fn recovery_gain(workload: Workload) -> Option<f64> {
    match workload {
        Workload::Postmark => Some(45.6),
        Workload::Untar => Some(40.9),
        Workload::Build | Workload::BuildFiles => Some(37.3),
        _ => None,
    }
}

/// Fig. 12, in words.
pub const FIG12: &str = "performance improves with the growth of MTS (Fig. 12, bars only)";
/// Fig. 14, in words.
pub const FIG14: &str = "1–6.2 % of the journal mode's time; VMA never checkpoints (§ 5.2.5)";
/// Fig. 15, in words.
pub const FIG15: &str = "all modes slower on non-empty disks, the differences among them similar (§ 5.2.6)";
/// Fig. 17, in words.
pub const FIG17: &str = "journal information below 200 kB in a guest of 128 MB (§ 5.4)";

/// Fig. 19, in words.
pub const FIG19: &str =
    "none in the journal and VMA modes; in writeback and ordered the more, the larger the records (§ 5.5, bars only)";

/// Fig. 13, in words.
pub const FIG13: &str = "14.2 µs a page in a batch of 4 MB, 10 µs in one of 40 MB (§ 5.2.4)";
/// Fig. 18, in words.
pub const FIG18: &str =
    "10.3 MB at most in postmark, less than 100 kB in untar and than 20 kB in the micro benchmarks (§ 5.4)";

/// Fig. 16, in words.
pub fn ram_journal(workload: Workload) -> &'static str {
    match workload {
        Workload::RndWrite | Workload::Postmark | Workload::Build | Workload::BuildFiles => {
            "slower than VMA, and slower than the journal on disk"
        }
        _ => "slower than VMA",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_and_the_text_agree() {
        for workload in [Workload::Postmark, Workload::Untar, Workload::Build] {
            let (journal, vma) = (
                recovery(workload, Mode::Journal).unwrap(),
                recovery(workload, Mode::JournalRetain).unwrap(),
            );
            let gain = (1.0 - vma.0 / journal.0) * 100.0;
            assert!((gain - recovery_gain(workload).unwrap()).abs() < 0.1, "{gain}");
        }
    }
}
