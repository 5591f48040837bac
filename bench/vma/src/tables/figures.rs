//! The tables of single figures: commits, checkpoints, aged disks, RAM-disk journals, memory.

use std::collections::{BTreeMap, BTreeSet};

use afterimage_protocol::status::FileSystemStatus;
use afterimage_report::number::{number, MIB};
use afterimage_report::Spread;

use super::{count, median, percent, section, show};
use crate::catalog::{Kind, Mode, Setup, Workload, RECORD_KILLS, ROOMY_JOURNALS_MIB};
use crate::handed_over::{Batch, HandedOver, BLOCK_BYTES};
use crate::memory::{moments, peak, Moment};
use crate::paper;
use crate::record::{CellKey, GuestResult, Record, Records, Store};
use crate::scale::{Scale, ROOMY_MIB};
use crate::summary::{elapsed, stored, synced, with_mode, Cells};
use crate::virtual_cell::UPDATE_NS;

const UPDATE_US: u64 = UPDATE_NS / 1000;

pub(super) fn memory_table(text: &mut String, note: &str, store: &Store, table: &Cells<'_>) {
    let mut rows = Vec::new();
    for key in table.keys().filter(|key| key.kind == Kind::Run && key.setup == Setup::Plain) {
        let most = |value: fn(&Moment) -> f64| {
            table.spread(key, |record| {
                let moments = moments(store.samples(&record.key));
                (!moments.is_empty()).then(|| peak(&moments, value))
            })
        };
        let Some(information) = most(|m| m.information_bytes / 1024.0) else { continue };
        let counted = |count_of: fn(&FileSystemStatus) -> u64| {
            count(table.spread(key, |record| record.file_systems.first().map(|found| count_of(found) as f64)))
        };
        rows.push(vec![
            key.device.name().to_owned(),
            key.contract.clone(),
            key.workload.name().to_owned(),
            key.mode.title().to_owned(),
            table.rounds(key).len().to_string(),
            show(Some(information)),
            show(most(|m| m.data_bytes / MIB)),
            counted(|f| f.classes.journal_commits),
            counted(|f| f.classes.releases),
            counted(|f| f.classes.checkpoints),
            counted(|f| f.classes.journal_truncations),
            counted(|f| f.classes.page_writebacks),
        ]);
    }
    section(
        text,
        "Fig. 17: what is retained",
        "device|contract|workload|mode|seeds|information KiB, peak|data MiB, peak|commits|releases|checkpoints|tail moves|home writes",
        rows,
        &format!(
            "{note} The paper: {}. Sampled every 100 ms; the curves are in the HTML report. Counts are medians.",
            paper::FIG17
        ),
    );
}

/// Every commit that a single guest has handed over in one of the scale's cells, by its size.
pub(super) fn handed_over_table(text: &mut String, note: &str, scale: &Scale, table: &Cells<'_>) {
    let keys = runs(table, |key| key.mode.hands_over() && key.guests == 1);
    let records: Vec<&Record> = keys.iter().flat_map(|key| table.rounds(key).iter().copied()).collect();
    let batches = |record: &Record| -> Vec<Batch> {
        let of = |guest: &GuestResult| {
            guest.handed_over.iter().flat_map(|h| h.batches.clone()).collect::<Vec<_>>()
        };
        record.guests.iter().flat_map(of).collect()
    };
    let mut by_size: BTreeMap<u64, Vec<Batch>> = BTreeMap::new();
    for batch in records.iter().flat_map(|record| batches(record)) {
        by_size.entry(batch.blocks_min).or_default().push(batch);
    }
    let rows = by_size.iter().map(|(size, found)| {
        let sum = |value: fn(&Batch) -> u64| found.iter().map(value).sum::<u64>();
        let each = |batch: &Batch| batch.ns as f64 / 1000.0 / batch.blocks as f64;
        vec![
            format!("{size}–{}", 2 * size - 1),
            number(*size as f64 * BLOCK_BYTES as f64 / MIB),
            found.len().to_string(),
            sum(|batch| batch.commits).to_string(),
            number(sum(|batch| batch.blocks) as f64 / sum(|batch| batch.commits) as f64),
            show(Spread::of(found.iter().map(each))),
        ]
    });
    let words = match (scale.syscall_ns, scale.request_ns) {
        (_, 0) => "Where processors are free a command costs nothing, and what is left is waiting for the layers below.",
        _ => "Of it a command is charged what any request is; the copy is not.",
    };
    section(
        text,
        "Fig. 13: a commit that is handed over, by its size",
        "blocks|MiB, from|cells|commits|blocks each|µs a block",
        rows,
        &format!(
            "{note} From a commit's first command to its last answer, as the guest's file system counts it (`/proc/fs/vjbd2/*/vma`), in all \
             cells of `data=vma` with one guest; the spread is over cells. {words} What a daemon's processor really takes is below. The paper: {}.",
            paper::FIG13
        ),
    );
}

/// Blocks are copied for as long as a commit is under way.
pub(super) fn copies_table(text: &mut String, note: &str, table: &Cells<'_>) {
    let keys = runs(table, |key| key.mode.hands_over() && key.setup == Setup::Plain);
    let rows = keys.iter().map(|key| {
        let counted = |value: fn(&HandedOver) -> f64| {
            table.spread(key, |record| record.guests.first()?.handed_over.as_ref().map(value))
        };
        vec![
            key.device.name().to_owned(),
            key.guests.to_string(),
            key.workload.name().to_owned(),
            table.rounds(key).len().to_string(),
            count(counted(|h| h.commits() as f64)),
            count(counted(|h| h.commands as f64)),
            show(counted(|h| (h.copied_blocks_max * BLOCK_BYTES) as f64 / MIB)),
        ]
    });
    section(
        text,
        "Fig. 18: copies in the guest",
        "device|guests|workload|seeds|commits|commands|copies MiB, peak",
        rows,
        &format!(
            "{note} `data=vma` copies every block of a transaction in the guest, and lets the copies go when the commit is answered: the peak is \
             the largest transaction (a quarter of the journal at most). What the paper copies on a write stays until its next commit; what \
             the host keeps is in Fig. 17's table. The paper: {}.",
            paper::FIG18
        ),
    );
}

pub(super) fn commit_table(text: &mut String, note: &str, scale: &Scale, table: &Cells<'_>) {
    let keys = runs(table, |key| {
        key.guests == 1
            && matches!(key.workload, Workload::Postmark | Workload::Untar)
            && matches!(key.mode, Mode::Journal | Mode::JournalRetain | Mode::Vma)
            && matches!(key.setup, Setup::JournalMib(_) | Setup::CommitS(_))
    });
    let with_bases = with_plain(&keys);
    let rows = with_bases.iter().filter(|key| table.has(key)).map(|key| {
        let jbd2 = |value: fn(&afterimage_bench_kit::Jbd2) -> f64| {
            count(table.spread(key, |record| record.guests.first()?.jbd2.as_ref().map(value)))
        };
        let mts = (key.setup.journal_mib(scale) / 4).to_string();
        vec![
            key.device.name().to_owned(),
            key.workload.name().to_owned(),
            key.mode.title().to_owned(),
            mts,
            if let Setup::CommitS(seconds) = key.setup { seconds.to_string() } else { "5".to_owned() },
            show(table.spread(key, elapsed)),
            show(table.ratio(key, &plain(key), elapsed)),
            median(table.spread(key, |record| Some(stored(record)? / MIB))),
            jbd2(|j| j.transactions as f64),
            jbd2(|j| j.logged_blocks),
        ]
    });
    section(
        text,
        "Fig. 12: the size of a commit",
        "device|workload|mode|MTS MiB|commit s|time s|× plain|MiB stored\
         |transactions|blocks each",
        rows,
        &format!(
            "{note} jbd2's largest transaction is a quarter of the journal, which is the paper's MTS: journals of 16 to 128 \
             MiB, and `commit=` intervals. The paper: {}.",
            paper::FIG12
        ),
    );
}

pub(super) fn checkpoint_table(text: &mut String, note: &str, table: &Cells<'_>) {
    let [small, large] = ROOMY_JOURNALS_MIB.map(Setup::Roomy);
    let keys = runs(table, |key| key.setup == large);
    let rows = keys.iter().map(|key| {
        let base = CellKey { setup: small, ..key.clone() };
        let counted = |count_of: fn(&FileSystemStatus) -> u64| {
            count(table.spread(&base, |record| record.file_systems.first().map(|f| count_of(f) as f64)))
        };
        // Of the time with the ordinary journal, as the paper normalises.
        let cost = table.gain(key, &base, synced);
        vec![
            key.device.name().to_owned(),
            key.guests.to_string(),
            key.workload.name().to_owned(),
            key.mode.title().to_owned(),
            show(table.spread(&base, synced)),
            show(table.spread(key, synced)),
            percent(cost),
            counted(|f| f.classes.journal_truncations),
            counted(|f| f.classes.checkpoints),
        ]
    });
    section(
        text,
        "Fig. 14: the cost of checkpoints",
        "device|guests|workload|mode|128 MiB: s|1 GiB: s|cost\
         |tail moves by the guest|checkpoints by the daemon",
        rows,
        &format!(
            "{note} Time with a journal of 128 MiB against one of 1 GiB, in which none is needed, in guests of \
             {ROOMY_MIB} MiB: with the large journal jbd2 allows transactions of 256 MiB, which have to fit. In so \
             much memory work may end long before it is on the disk: the times here are with the sync after it. Counts are the \
             first daemon's, where it looks into the journal. The paper: {}.",
            paper::FIG14
        ),
    );
}

pub(super) fn aged_table(text: &mut String, note: &str, table: &Cells<'_>) {
    let keys = runs(table, |key| key.setup == Setup::Aged);
    let rows = keys.iter().map(|key| {
        let journal = with_mode(key, Mode::Journal);
        vec![
            key.device.name().to_owned(),
            key.guests.to_string(),
            key.workload.name().to_owned(),
            key.mode.title().to_owned(),
            show(table.spread(&plain(key), elapsed)),
            show(table.spread(key, elapsed)),
            show(table.ratio(key, &plain(key), elapsed)),
            percent(table.gain(&plain(key), &plain(&journal), elapsed)),
            percent(table.gain(key, &journal, elapsed)),
        ]
    });
    section(
        text,
        "Fig. 15: disks that are 77 % full and fragmented",
        "device|guests|workload|mode|empty: s|aged: s|aged/empty|empty: less than journal\
            |aged: less than journal",
        rows,
        &format!("{note} The paper: {}.", paper::FIG15),
    );
}

pub(super) fn ram_table(text: &mut String, note: &str, table: &Cells<'_>) {
    let keys = runs(table, |key| key.setup == Setup::RamJournal);
    let rows = keys.iter().map(|key| {
        let retained = with_mode(&plain(key), Mode::JournalRetain);
        vec![
            key.device.name().to_owned(),
            key.guests.to_string(),
            key.workload.name().to_owned(),
            show(table.spread(&plain(key), elapsed)),
            show(table.spread(key, elapsed)),
            show(table.spread(&retained, elapsed)),
            show(table.ratio(key, &retained, elapsed)),
            show(table.ratio(key, &plain(key), elapsed)),
            paper::ram_journal(key.workload).to_owned(),
        ]
    });
    section(
        text,
        "Fig. 16: the journal on a RAM disk in the guest",
        "device|guests|workload|journal on disk s|on RAM disk s|retained s\
            |RAM disk × retained|RAM disk × on disk|the paper on the RAM disk",
        rows,
        &format!("{note} A RAM disk of 40 MiB, taken from the guest's 128 MiB, holds the journal."),
    );
}

/// Every kill is one of the paper's iterations.
pub(super) fn records_table(text: &mut String, note: &str, table: &Cells<'_>) {
    let rows = table.keys().filter_map(|key| {
        let Setup::Records(kib) = key.setup else { return None };
        let found: Vec<Records> =
            table.rounds(key).iter().flat_map(|record| record.records.iter().copied()).collect();
        let kills = |wanted: fn(&Records) -> bool| found.iter().filter(|one| wanted(one)).count();
        let sum = |count: fn(&Records) -> u64| found.iter().map(count).sum::<u64>().to_string();
        let mixed = kills(|one| one.mixed > 0);
        Some(vec![
            kib.to_string(),
            key.mode.title().to_owned(),
            found.len().to_string(),
            mixed.to_string(),
            format!("{:.0} %", 100.0 * mixed as f64 / found.len().max(1) as f64),
            kills(|one| one.updated > 0).to_string(),
            sum(|one| one.updated),
            sum(|one| one.mixed),
            sum(|one| one.foreign_blocks),
        ])
    });
    section(
        text,
        "Fig. 19: records in pieces after a guest has died",
        "record KiB|mode|kills|with a record in pieces|of all|with updates|records updated|in pieces|blocks of none",
        rows.collect::<Vec<_>>(),
        &format!(
            "{note} Each update is one `write(2)` of {UPDATE_US} µs at least; nothing is synced; the guest dies when it has written 4 MiB \
             to its disk, and one to {RECORD_KILLS} pages, and the next one looks at all records. The paper: {}.",
            paper::FIG19
        ),
    );
}

/// The same work under the contract that survives more.
pub(super) fn contract_table(text: &mut String, note: &str, table: &Cells<'_>) {
    let usual = "guest-crash";
    let keys = runs(table, |key| key.setup == Setup::Plain && key.contract != usual);
    let rows =
        keys.iter().map(|key| beside(table, key, &CellKey { contract: usual.to_owned(), ..key.clone() }));
    section(
        text,
        "What the redo log costs",
        BESIDE,
        rows,
        &format!("{note} The same cells under `{usual}` are 1."),
    );
}

/// vDrive's forced flush at truncation, under strict order an option.
pub(super) fn vflush_table(text: &mut String, note: &str, table: &Cells<'_>) {
    let keys = runs(table, |key| key.setup == Setup::Vflush);
    let rows = keys.iter().map(|key| beside(table, key, &plain(key)));
    section(
        text,
        "A flush at every truncation of the journal",
        BESIDE,
        rows,
        &format!("{note} `serve --vflush-at-truncation`; the same cells without it are 1."),
    );
}

/// Heads of [`beside`].
const BESIDE: &str = "device|guests|workload|mode||time s|×|MiB stored|×|flushes";

/// A cell and its ratios to another.
fn beside(table: &Cells<'_>, key: &CellKey, base: &CellKey) -> Vec<String> {
    vec![
        key.device.name().to_owned(),
        key.guests.to_string(),
        key.workload.name().to_owned(),
        key.mode.title().to_owned(),
        if key.contract == base.contract { key.setup.name() } else { key.contract.clone() },
        show(table.spread(key, elapsed)),
        show(table.ratio(key, base, elapsed)),
        median(table.spread(key, |record| Some(stored(record)? / MIB))),
        show(table.ratio(key, base, stored)),
        count(table.spread(key, |record| Some(record.storage.flushes? as f64))),
    ]
}

fn plain(key: &CellKey) -> CellKey {
    CellKey { setup: Setup::Plain, ..key.clone() }
}

fn runs(table: &Cells<'_>, wanted: impl Fn(&CellKey) -> bool) -> Vec<CellKey> {
    table.keys().filter(|key| key.kind == Kind::Run && wanted(key)).cloned().collect()
}

fn with_plain(keys: &[CellKey]) -> BTreeSet<CellKey> {
    keys.iter().flat_map(|key| [plain(key), key.clone()]).collect()
}
