//! Creating a log, and taking one over.
//!
//! Taking over: check everything ─► write again what storage does not hold ─► rebuild the index ─► incarnation record on a
//! page of its own ─► one sync ─► serve. What that sync declares durable this process has itself written, or read past the
//! cache: after a failed sync of an earlier process pages look clean that storage never got.
//! Nothing waits for records to go home. A crash anywhere in between leaves a log that says the same: the incarnation
//! record counts only behind exactly the records that were found.

use std::collections::VecDeque;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use afterimage_block::{BlockError, Health, Medium, SECTOR_BYTES};
use afterimage_format::log::{
    ImageEntry, ImageName, LogHeader, RecordHeader, RecordKind, WitnessEntry, IMAGES_MAX, NAMES_OFFSET,
    PAGE_BYTES, RECORDS_OFFSET, RECORD_ALIGN, RECORD_MAGIC, STATE_CLEAN,
};
use zerocopy::{FromZeros as _, IntoBytes as _};

use super::append::RESERVE_BYTES;
use super::area::{page_down, page_up, Area};
use super::checkpoint::Pace;
use super::core::{lock, Append, Checkpointing, Config, Core, Counters, Progress};
use super::header;
use super::index::Index;
use super::mutation::Mutation;
use super::scan::{scan_with, Placed, Scan, ScanError};
use super::window::Acknowledgements;
use crate::events::Events;
use crate::signal::Signals;
use crate::Replayed;

/// Why a log was not taken over. Nothing was touched, but for `Block`.
#[derive(Debug, thiserror::Error)]
pub enum TakeOverError {
    /// It cannot be read or contradicts itself.
    #[error(transparent)]
    Scan(#[from] ScanError),
    /// It is marked clean: there is nothing to take over.
    #[error("the log is clean")]
    Clean,
    /// It belongs to other images.
    #[error("disk {disk}: {why}")]
    WrongImage {
        /// The disk that does not fit.
        disk: usize,
        /// Why.
        why: String,
    },
    /// An image does not hold what had gone home.
    #[error("disk {disk} does not hold at sector {sector} what had been written there")]
    FalseWitness {
        /// The disk.
        disk: usize,
        /// The block's first sector.
        sector: u64,
    },
    /// Reading an image, or writing the log, failed.
    #[error(transparent)]
    Block(#[from] BlockError),
}

/// Size of a log file for `log_max_bytes` in all; the record area is a whole number of pages.
pub fn log_file_bytes(log_max_bytes: u64) -> u64 {
    RECORDS_OFFSET + log_max_bytes.saturating_sub(RECORDS_OFFSET) / PAGE_BYTES * PAGE_BYTES
}

/// Writes an empty log into a medium full of zeroes, and syncs it.
pub fn create_medium(
    log: &Arc<dyn Medium>,
    homes: &[Arc<dyn Medium>],
    images: &[ImageEntry],
    names: &[Vec<u8>],
    group_uuid: [u8; 16],
    incarnation: u64,
) -> io::Result<()> {
    assert!(images.len() <= IMAGES_MAX && images.len() == homes.len(), "the caller counts the images");
    let mut new = LogHeader::new(group_uuid, log.len() - RECORDS_OFFSET, incarnation);
    new.images[..images.len()].copy_from_slice(images);
    new.image_count = (images.len() as u32).into();
    header::first_witnesses(&mut new, homes)?;
    for (i, name) in names.iter().enumerate() {
        let offset = NAMES_OFFSET + (i * size_of::<ImageName>()) as u64;
        log.write_at(ImageName::new(name).as_bytes(), offset)?;
    }
    header::write(log.as_ref(), &new)?;
    log.sync()
}

impl Core {
    /// Takes a log over, after a crash or right after [`create_medium`].
    pub fn open(config: Config) -> Result<Arc<Self>, TakeOverError> {
        #[cfg(feature = "mutations")]
        let mutation = config.mutation;
        #[cfg(not(feature = "mutations"))]
        let mutation = None;
        let scan = scan_with(&config.log, mutation)?;
        check(&scan, &config.homes)?;
        let core = Self::build(config, &scan);
        if !core.mutated(Mutation::TrustCache) {
            core.rewrite_lost(&scan)?;
        }
        for record in &scan.records {
            core.index_record(record);
        }
        core.begin_incarnation(&scan)?;
        Ok(Arc::new(core))
    }

    fn build(config: Config, scan: &Scan) -> Self {
        let header = scan.header;
        let tail = header.tail_position.get();
        let head = page_up(scan.end);
        let replayed = (!scan.records.is_empty()).then_some(Replayed {
            records: scan.records.iter().filter(|r| r.kind != RecordKind::Incarnation).count() as u64,
            bytes: scan.end - tail,
            sequence: scan.sequence,
            torn_tail: scan.torn_tail,
        });
        Self {
            area: Area { medium: config.log, bytes: header.area_bytes.get() },
            index: config.homes.iter().map(|home| Index::new(home.len() / SECTOR_BYTES)).collect(),
            homes: config.homes,
            window: config.window,
            clock: config.clock,
            group_tag: header.group_tag(),
            checkpointing: Mutex::new(Checkpointing { header, pace: Pace::default() }),
            append: Mutex::new(Append {
                head,
                sequence: scan.sequence,
                incarnation: config.incarnation,
                paused: false,
                closed: false,
                set_waits: false,
            }),
            set_batch: Mutex::default(),
            sets_announced: AtomicBool::new(header.has_sets()),
            records: Mutex::new(VecDeque::from(scan.records.clone())),
            progress: Mutex::new(Progress {
                durable: header.tail_sequence.get(),
                durable_position: tail,
                tail,
                home: header.tail_sequence.get(),
                acknowledgements: Acknowledgements::default(),
                sync_wanted: false,
                checkpoint_wanted: false,
                sync_time: Duration::ZERO,
                stop: false,
                changes: 0,
            }),
            sync_wake: Condvar::new(),
            checkpoint_wake: Condvar::new(),
            progressed: Condvar::new(),
            acknowledged: AtomicU64::new(scan.sequence),
            durable: AtomicU64::new(header.tail_sequence.get()),
            tail: AtomicU64::new(tail),
            head: AtomicU64::new(head),
            counters: Counters::default(),
            health: Health::default(),
            signals: Signals::default(),
            events: Events::default(),
            replayed,
            #[cfg(feature = "mutations")]
            mutation: config.mutation,
        }
    }

    /// Headers and live records: nothing else of the log is ever believed. Those that storage lacks had never been durable,
    /// so a torn rewrite hurts nothing; of the headers at most one slot does.
    fn rewrite_lost(&self, scan: &Scan) -> Result<(), BlockError> {
        let tail = page_down(scan.header.tail_position.get());
        let headers = self.area.medium.rewrite_lost(0, RECORDS_OFFSET);
        let written = headers.and_then(|n| Ok(n + self.area.rewrite_lost(tail, page_up(scan.end) - tail)?));
        let bytes =
            written.map_err(|e| self.fail("making sure that storage holds the redo log".to_owned(), e))?;
        if bytes > 0 {
            tracing::warn!(bytes, "storage did not hold what an earlier process had logged: written again");
        }
        Ok(())
    }

    /// From here on records are this process's. What was found becomes durable with the same sync: after a process's
    /// death it may have been in the page cache only.
    fn begin_incarnation(&self, scan: &Scan) -> Result<(), BlockError> {
        if !self.has_room(page_up(scan.end) + PAGE_BYTES - RESERVE_BYTES, 0) {
            // Reached only after several deaths in a row without a checkpoint in between, or with more records than we take.
            self.sync_once()?;
            self.checkpoint_all()?;
        }
        if self.mutated(Mutation::SkipIncarnation) {
            lock(&self.append).incarnation = scan.incarnation;
        } else {
            self.write_incarnation(scan)?;
        }
        if self.mutated(Mutation::SkipIncarnationSync) || self.mutated(Mutation::SkipOpenSync) {
            let append = lock(&self.append);
            let mut progress = lock(&self.progress);
            progress.durable = append.sequence;
            progress.durable_position = append.head;
            self.durable.store(append.sequence, std::sync::atomic::Ordering::SeqCst);
            return Ok(());
        }
        self.sync_once()?;
        Ok(())
    }

    fn write_incarnation(&self, scan: &Scan) -> Result<(), BlockError> {
        let mut append = lock(&self.append);
        let mut record = RecordHeader::new_zeroed();
        record.magic = RECORD_MAGIC.into();
        record.kind = RecordKind::Incarnation.code().into();
        record.incarnation = append.incarnation.into();
        record.sequence = scan.sequence.into();
        record.sector = scan.incarnation.into();
        record.durable_sequence = self.durable.load(std::sync::atomic::Ordering::SeqCst).into();
        record.group_tag = self.group_tag.into();
        record.seal();
        let mut page = [0; PAGE_BYTES as usize];
        page[..RECORD_ALIGN as usize].copy_from_slice(record.as_bytes());
        self.area.write(append.head, &page).map_err(|e| self.fail("writing the redo log".to_owned(), e))?;
        let placed = Placed {
            position: append.head,
            sequence: scan.sequence,
            kind: RecordKind::Incarnation,
            more: false,
            disk: 0,
            sector: append.incarnation,
            sectors: 0,
        };
        append.head = placed.end();
        self.head.store(append.head, std::sync::atomic::Ordering::SeqCst);
        lock(&self.records).push_back(placed);
        Ok(())
    }
}

/// Whether these are the log's images, as far as their content and sizes tell.
pub(super) fn check(scan: &Scan, homes: &[Arc<dyn Medium>]) -> Result<(), TakeOverError> {
    if scan.header.state.get() == STATE_CLEAN {
        return Err(TakeOverError::Clean);
    }
    let images = scan.header.images();
    if images.len() != homes.len() {
        let why = format!("the log has {} images, not {}", images.len(), homes.len());
        return Err(TakeOverError::WrongImage { disk: 0, why });
    }
    for (disk, (image, home)) in images.iter().zip(homes).enumerate() {
        if image.size_bytes.get() != home.len() {
            let why =
                format!("its size is {} bytes, and the log expects {}", home.len(), image.size_bytes.get());
            return Err(TakeOverError::WrongImage { disk, why });
        }
    }
    let found = header::false_witness(&scan.header, &scan.records, homes);
    match found.map_err(|e| BlockError::io("reading an image to recognise it", e))? {
        None => Ok(()),
        Some(WitnessEntry { sector, disk, .. }) => {
            Err(TakeOverError::FalseWitness { disk: usize::from(disk.get()), sector: sector.get() })
        }
    }
}
