//! What the study says where its text gives a number (VMA journaling on SSDs, § IV; bars are not read off), and which
//! of our workloads and modes are its.

use afterimage_bench_vma::catalog::{Mode, Workload};
use afterimage_flash::FtlKind;
use serde::{Deserialize, Serialize};

/// A mode of the study, or what can be derived from one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Variant {
    /// `data=writeback`.
    Writeback,
    /// `data=ordered`.
    Ordered,
    /// `data=journal`: what the others are compared with.
    Journal,
    /// `data=journal` with `serve --journal retain`: the study's VMA mode.
    Retain,
    /// The trace of [`Variant::Journal`] without its requests to the journal area: what retention can reach at best.
    Derived,
}

impl Variant {
    /// All, in the study's order.
    pub const ALL: [Self; 5] = [Self::Writeback, Self::Ordered, Self::Journal, Self::Retain, Self::Derived];
    /// Those that guests are run for.
    pub const TRACED: [Self; 4] = [Self::Writeback, Self::Ordered, Self::Journal, Self::Retain];

    /// The mode whose trace it is made of.
    pub fn mode(self) -> Mode {
        match self {
            Self::Writeback => Mode::Writeback,
            Self::Ordered => Mode::Ordered,
            Self::Journal | Self::Derived => Mode::Journal,
            Self::Retain => Mode::JournalRetain,
        }
    }

    /// In tables.
    pub fn title(self) -> &'static str {
        match self {
            Self::Writeback => "writeback",
            Self::Ordered => "ordered",
            Self::Journal => "journal",
            Self::Retain => "journal+retain",
            Self::Derived => "journal, its journal writes left out (derived)",
        }
    }

    /// In file names.
    pub fn name(self) -> &'static str {
        match self {
            Self::Derived => "journal-derived",
            other => other.mode().name(),
        }
    }

    /// In plots.
    pub fn colour(self) -> &'static str {
        match self {
            Self::Writeback => "#b8b8b8",
            Self::Ordered => "#7f7f7f",
            Self::Journal => "#c44e52",
            Self::Retain => "#2c7fb8",
            Self::Derived => "#e7ba52",
        }
    }
}

/// The study's two kinds of benchmarks; what it has not is of neither.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    /// seq_write, rnd_write.
    Micro,
    /// postmark, untar, kernel_compile.
    Macro,
    /// Not in the study.
    Other,
}

/// Which kind a workload is.
pub fn family(workload: Workload) -> Family {
    match workload {
        Workload::SeqWrite | Workload::RndWrite => Family::Micro,
        Workload::Postmark | Workload::Untar | Workload::Build | Workload::BuildFiles => Family::Macro,
        Workload::FileDelete | Workload::Records => Family::Other,
    }
}

/// From, to, in percent.
pub type Range = (f64, f64);

/// Fig. 2: I/O requests, VMA against journal, all benchmarks.
pub const REQUESTS: Range = (9.4, 48.9);
/// Fig. 3: I/O traffic, VMA against journal, all benchmarks.
pub const TRAFFIC: Range = (42.4, 56.7);

/// Fig. 4: erases, VMA against journal.
pub fn erases(workload: Workload) -> Option<Range> {
    match family(workload) {
        Family::Micro => Some((34.6, 56.0)),
        Family::Macro => Some((48.4, 86.5)),
        Family::Other => None,
    }
}

/// Fig. 5: GC overhead, VMA against journal. (The study's introduction says 13.1 to 75.9 %, which its body contradicts.)
pub fn collection(workload: Workload) -> Option<Range> {
    match family(workload) {
        Family::Micro => Some((13.1, 63.2)),
        Family::Macro => Some((27.0, 80.6)),
        Family::Other => None,
    }
}

/// The best erase reduction of an FTL over all benchmarks, in percent.
pub fn best_erases(ftl: FtlKind) -> Option<f64> {
    match ftl {
        FtlKind::Fast => Some(64.0),
        FtlKind::Superblock => Some(83.0),
        FtlKind::Dftl => Some(86.5),
        FtlKind::Page => None,
    }
}

/// The best reduction of GC overhead of an FTL over all benchmarks, in percent.
pub fn best_collection(ftl: FtlKind) -> Option<f64> {
    match ftl {
        FtlKind::Fast => Some(63.2),
        FtlKind::Superblock => Some(75.9),
        FtlKind::Dftl => Some(80.6),
        FtlKind::Page => None,
    }
}

/// Untar on DFTL: a mode's erases in percent of the journal mode's.
pub fn untar_dftl(variant: Variant) -> Option<f64> {
    match variant {
        Variant::Writeback => Some(37.8),
        Variant::Ordered => Some(40.0),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_best_of_the_ftls_is_the_best_of_the_ranges() {
        let best =
            |of: fn(FtlKind) -> Option<f64>| FtlKind::ALL.into_iter().filter_map(of).fold(0.0, f64::max);
        assert_eq!(best(best_erases), erases(Workload::Untar).unwrap().1);
        assert_eq!(best(best_collection), collection(Workload::Untar).unwrap().1);
    }

    #[test]
    fn every_name_is_its_own() {
        for (i, a) in Variant::ALL.iter().enumerate() {
            assert!(Variant::ALL[..i].iter().all(|b| a.name() != b.name() && a.title() != b.title()));
        }
    }
}
