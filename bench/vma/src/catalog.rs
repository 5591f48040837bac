//! What is measured: workloads, devices, journaling modes, and how a disk is set up.

use clap::ValueEnum;
use serde::{Deserialize, Serialize};

use crate::scale::{Scale, ROOMY_MIB};

/// A workload inside the guest (the paper, § 5.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Workload {
    /// Appends of 8 KiB to one file.
    SeqWrite,
    /// Random 4 KiB overwrites of one file.
    RndWrite,
    /// Deletion of many small files by 16 threads.
    FileDelete,
    /// postmark.
    Postmark,
    /// Unpacking a Linux source tree.
    Untar,
    /// Building a tiny kernel: not in the default, a guest takes a quarter of an hour.
    Build,
    /// What that build does to its files, recorded and done again.
    BuildFiles,
    /// Updates of records, by guests that are killed one after the other (§ 5.5): of Fig. 19 only.
    #[value(skip)]
    Records,
}

impl Workload {
    /// All whose time is measured, in the paper's order.
    pub const ALL: [Workload; 7] = [
        Workload::SeqWrite,
        Workload::RndWrite,
        Workload::FileDelete,
        Workload::Postmark,
        Workload::Untar,
        Workload::Build,
        Workload::BuildFiles,
    ];

    /// All but the build itself: a fork costs User Mode Linux so much that even one folder of a kernel takes minutes.
    pub fn usual() -> Vec<Workload> {
        Workload::ALL.into_iter().filter(|workload| *workload != Workload::Build).collect()
    }

    /// The name on the command line, in file names and in tables.
    pub fn name(self) -> &'static str {
        match self {
            Workload::SeqWrite => "seq-write",
            Workload::RndWrite => "rnd-write",
            Workload::FileDelete => "file-delete",
            Workload::Postmark => "postmark",
            Workload::Untar => "untar",
            Workload::Build => "build",
            Workload::BuildFiles => "build-files",
            Workload::Records => "records",
        }
    }
}

/// What holds the images: all guests of a cell share one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Device {
    /// The lab's model of the paper's disk.
    Hdd15k,
    /// The lab's model of a SATA solid-state drive.
    Ssd,
    /// This machine's own disk, no model.
    Disk,
}

impl Device {
    /// All.
    pub const ALL: [Device; 3] = [Device::Hdd15k, Device::Ssd, Device::Disk];

    /// The name on the command line, in file names and in tables.
    pub fn name(self) -> &'static str {
        match self {
            Device::Hdd15k => "hdd15k",
            Device::Ssd => "ssd",
            Device::Disk => "disk",
        }
    }

    /// Whether the lab's file system models it and counts below everything.
    pub fn is_model(self) -> bool {
        self != Device::Disk
    }

    /// What it is, for a heading.
    pub fn description(self) -> &'static str {
        match self {
            Device::Hdd15k => {
                "`hdd15k`, a model of the paper's disk (4 ms seek, 2 ms rotation, 63 MB/s, 16 MiB cache)"
            }
            Device::Ssd => {
                "`ssd`, a model of a SATA drive (90 µs read, 30 µs cached write, 400 MB/s, 1 ms a flush)"
            }
            Device::Disk => "`disk`, the machine's own disk and file system, no model: **in real time**",
        }
    }
}

/// The guest file system's journaling and what is done with its journal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Mode {
    /// `data=writeback`.
    Writeback,
    /// `data=ordered`.
    Ordered,
    /// `data=journal`.
    Journal,
    /// `data=journal` with `serve --journal retain`: the paper's VMA mode.
    JournalRetain,
    /// `data=ordered` with `serve --journal retain`.
    OrderedRetain,
    /// vext4's `data=vma` with `serve --journal retain` and a control disk: the paper's mode in its own form, commits are handed over.
    Vma,
    /// Bound A: `data=journal`, what is written to the journal is dropped. Unsafe.
    JournalDrop,
    /// Bound A of `data=ordered`.
    OrderedDrop,
    /// Bound B: ext4 without a journal.
    NoJournal,
}

/// What `serve --journal` is given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum JournalPolicy {
    /// Written like everything else.
    Passthrough,
    /// Kept in host memory.
    Retain,
    /// Forgotten, for the bounds.
    Drop,
}

impl Mode {
    /// All, baselines first.
    pub const ALL: [Mode; 9] = [
        Mode::Writeback,
        Mode::Ordered,
        Mode::Journal,
        Mode::JournalRetain,
        Mode::OrderedRetain,
        Mode::Vma,
        Mode::JournalDrop,
        Mode::OrderedDrop,
        Mode::NoJournal,
    ];

    /// The name on the command line and in file names.
    pub fn name(self) -> &'static str {
        match self {
            Mode::Writeback => "writeback",
            Mode::Ordered => "ordered",
            Mode::Journal => "journal",
            Mode::JournalRetain => "journal-retain",
            Mode::OrderedRetain => "ordered-retain",
            Mode::Vma => "vma",
            Mode::JournalDrop => "journal-drop",
            Mode::OrderedDrop => "ordered-drop",
            Mode::NoJournal => "no-journal",
        }
    }

    /// The name in tables.
    pub fn title(self) -> &'static str {
        match self {
            Mode::Writeback => "writeback",
            Mode::Ordered => "ordered",
            Mode::Journal => "journal",
            Mode::JournalRetain => "**journal+retain**",
            Mode::OrderedRetain => "**ordered+retain**",
            Mode::Vma => "**vext4 vma**",
            Mode::JournalDrop => "bound A (journal)",
            Mode::OrderedDrop => "bound A (ordered)",
            Mode::NoJournal => "bound B (no journal)",
        }
    }

    /// The title without Markdown.
    pub fn plain_title(self) -> String {
        self.title().replace('*', "")
    }

    /// The mount option; `None` where there is no journal.
    pub fn data(self) -> Option<&'static str> {
        match self {
            Mode::Writeback => Some("writeback"),
            Mode::Ordered | Mode::OrderedRetain | Mode::OrderedDrop => Some("ordered"),
            Mode::Journal | Mode::JournalRetain | Mode::JournalDrop => Some("journal"),
            Mode::Vma => Some("vma"),
            Mode::NoJournal => None,
        }
    }

    /// What the daemon does with the journal.
    pub fn policy(self) -> JournalPolicy {
        match self {
            Mode::JournalRetain | Mode::OrderedRetain | Mode::Vma => JournalPolicy::Retain,
            Mode::JournalDrop | Mode::OrderedDrop => JournalPolicy::Drop,
            Mode::Writeback | Mode::Ordered | Mode::Journal | Mode::NoJournal => JournalPolicy::Passthrough,
        }
    }

    /// Whether the guest hands its commits over: with the file system and the control disk for it.
    pub fn hands_over(self) -> bool {
        self == Mode::Vma
    }

    /// The mode that shows what this one could reach at best.
    pub fn bound_a(self) -> Option<Mode> {
        match self {
            Mode::JournalRetain | Mode::Vma => Some(Mode::JournalDrop),
            Mode::OrderedRetain => Some(Mode::OrderedDrop),
            _ => None,
        }
    }
}

/// How the disk and the journal differ from the main cells'.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Setup {
    /// An empty disk, the scale's journal and guest, commits every 5 s.
    Plain,
    /// A journal of this many MiB: jbd2's largest transaction (the paper's MTS) is a quarter of it.
    JournalMib(u32),
    /// The same in a guest with so much memory that it can hold two such transactions (§ 5.2.5).
    Roomy(u32),
    /// `commit=` this many seconds.
    CommitS(u32),
    /// The disk is 77 % full and what is free is in pieces (§ 5.2.6).
    Aged,
    /// The journal on a RAM disk of 40 MiB taken from the guest's memory (§ 5.2.7).
    RamJournal,
    /// `serve --vflush-at-truncation`: vDrive's policy.
    Vflush,
    /// A file of records of so many KiB, and a journal that takes all of it in one transaction.
    Records(u32),
}

/// Fig. 19's records, in KiB: 4 KiB cannot mix.
pub const RECORDS_KIB: [u32; 5] = [4, 8, 16, 32, 64];
/// How often guests are killed in one cell of Fig. 19: the paper's 120 are five rounds.
pub const RECORD_KILLS: u64 = 24;
/// Fig. 19's file.
pub const RECORDS_BYTES: u64 = 16 << 20;
/// The quarter of it takes the file.
const RECORDS_JOURNAL_MIB: u32 = 96;

/// The RAM disk of § 5.2.7.
pub const RAM_JOURNAL_MIB: u32 = 40;

impl Setup {
    /// The name in file names and tables.
    pub fn name(self) -> String {
        match self {
            Setup::Plain => "plain".to_owned(),
            Setup::JournalMib(mib) => format!("journal-{mib}m"),
            Setup::Roomy(mib) => format!("roomy-{mib}m"),
            Setup::CommitS(seconds) => format!("commit-{seconds}s"),
            Setup::Aged => "aged".to_owned(),
            Setup::RamJournal => "ram-journal".to_owned(),
            Setup::Vflush => "vflush".to_owned(),
            Setup::Records(kib) => format!("records-{kib}k"),
        }
    }

    /// The size of the journal on the disk.
    pub fn journal_mib(self, scale: &Scale) -> u32 {
        match self {
            Setup::JournalMib(mib) | Setup::Roomy(mib) => mib,
            Setup::Records(_) => RECORDS_JOURNAL_MIB,
            _ => scale.journal_mib,
        }
    }

    /// `mem=` of the guests.
    pub fn guest_mib(self, scale: &Scale) -> u32 {
        match self {
            Setup::Roomy(_) => ROOMY_MIB,
            _ => scale.guest_mib,
        }
    }
}

/// Fig. 14: the paper's default journal, and one in which nothing ever has to be checkpointed.
pub const ROOMY_JOURNALS_MIB: [u32; 2] = [128, 1024];

/// What becomes of the guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// It finishes its work.
    Run,
    /// It is killed half-way; the daemon lives and is stopped in order.
    KillGuest,
    /// It is killed half-way, and the daemon too; `afterimage recover` comes first.
    KillBoth,
}

impl Kind {
    /// The name in file names and tables.
    pub fn name(self) -> &'static str {
        match self {
            Kind::Run => "run",
            Kind::KillGuest => "kill-guest",
            Kind::KillBoth => "kill-both",
        }
    }
}

/// A part of the paper's evaluation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Figure {
    /// Figures 6 to 11: time and traffic of every mode; Fig. 17 is sampled in its cells with one guest.
    Main,
    /// Table III: recovery after a kill at half-time.
    Table3,
    /// Fig. 12: the size of a commit.
    Fig12,
    /// Fig. 14: checkpoints.
    Fig14,
    /// Fig. 15: full, fragmented disks.
    Fig15,
    /// Fig. 16: the journal on a RAM disk.
    Fig16,
    /// Fig. 19: which records guests that die leave in pieces.
    Fig19,
    /// What forcing a flush at every truncation of the journal costs.
    Vflush,
}

impl Figure {
    /// All.
    pub const ALL: [Figure; 8] = [
        Figure::Main,
        Figure::Table3,
        Figure::Fig12,
        Figure::Fig14,
        Figure::Fig15,
        Figure::Fig16,
        Figure::Fig19,
        Figure::Vflush,
    ];
}
