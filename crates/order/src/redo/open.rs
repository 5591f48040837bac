//! Creating a log, and taking one over.
//!
//! Taking over: check everything ─► sync it, and where a sync had failed write again what storage lost ─► rebuild the index ─►
//! incarnation record on a page of its own ─► one sync ─► serve.
//! Nothing waits for records to go home. A crash anywhere in between leaves a log that says the same: the incarnation
//! record counts only behind exactly the records that were found.

use std::io;
use std::sync::Arc;

use afterimage_block::{BlockError, Medium};
use afterimage_format::log::{
    ImageEntry, ImageName, LogHeader, IMAGES_MAX, NAMES_OFFSET, PAGE_BYTES, RECORDS_OFFSET,
};
use afterimage_format::payload_hash;
use zerocopy::IntoBytes as _;

use super::engine::{Config, Redo};
use super::mutation::{Mistake, Mutation};
use super::prefix::Scan;
use super::recovery::{false_witness, TakeOverError};
use super::scan::scan_with;
use super::space::RESERVE_BYTES;
use super::witness;

/// Size of a log file for `log_max_bytes` in all; the record area is a whole number of pages.
pub fn log_file_bytes(log_max_bytes: u64) -> u64 {
    RECORDS_OFFSET + log_max_bytes.saturating_sub(RECORDS_OFFSET) / PAGE_BYTES * PAGE_BYTES
}

/// Writes an empty log into a medium full of zeroes, and syncs it.
///
/// # Errors
/// The log cannot be written, or an image not be read.
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
    let mut chosen = Vec::new();
    for spot in witness::of_images(&sizes(homes)) {
        let mut block = vec![0; spot.bytes()];
        homes[spot.disk()].read_at(&mut block, spot.sector * 512)?;
        chosen.push(spot.entry(&block));
    }
    witness::replace(&mut new, chosen, &[]);
    for (i, name) in names.iter().enumerate() {
        let offset = NAMES_OFFSET + (i * size_of::<ImageName>()) as u64;
        log.write_at(ImageName::new(name).as_bytes(), offset)?;
    }
    log.write_at(&new.seal(), new.slot_offset())?;
    log.sync()
}

impl Redo {
    /// Takes a log over, after a crash or right after [`create_medium`].
    ///
    /// # Errors
    /// The log cannot be used, does not fit the images, or storage failed.
    pub fn open(config: Config) -> Result<Arc<Self>, TakeOverError> {
        let mistake = config.mistake();
        let scan = scan_with(&config.log, mistake)?;
        check(&scan, &config.homes, config.any_content)?;
        let redo = Self::new(config, &scan);
        if !mistake.is(Mutation::SkipOpenSync) {
            redo.log.settle()?;
        }
        redo.log.index_all(&scan);
        redo.begin_incarnation(&scan, mistake)?;
        Ok(Arc::new(redo))
    }

    /// From here on records are this process's, which begin with a durable one.
    fn begin_incarnation(&self, scan: &Scan, mistake: Mistake) -> Result<(), BlockError> {
        let has_room = self.log.space().has_room(PAGE_BYTES - RESERVE_BYTES, 0);
        if !has_room {
            // Reached only after several deaths in a row without a round home in between, or with more records than we take.
            self.syncer.sync()?;
            self.going_home.all()?;
        }
        if mistake.is(Mutation::SkipIncarnation) {
            self.log.take_incarnation(scan);
        } else {
            self.log.write_incarnation(scan)?;
        }
        if mistake.is(Mutation::SkipOpenSync) {
            let (sequence, position) = self.log.appended();
            self.log.space().synced(position);
            self.board.sequence.durable.raise(sequence);
            return Ok(());
        }
        self.syncer.sync()?;
        Ok(())
    }
}

/// Whether these are the log's images, as far as their content and sizes tell; with `any_content` their sizes alone.
pub(super) fn check(scan: &Scan, homes: &[Arc<dyn Medium>], any_content: bool) -> Result<(), TakeOverError> {
    let witnesses = scan.witnesses(&sizes(homes))?;
    for witness in witnesses.into_iter().filter(|_| !any_content) {
        let mut block = vec![0; usize::from(witness.sectors.get()) * 512];
        homes[usize::from(witness.disk.get())]
            .read_at(&mut block, witness.sector.get() * 512)
            .map_err(|e| BlockError::io("reading an image to recognise it", e))?;
        if payload_hash(&block) != witness.hash.get() {
            return Err(false_witness(&witness));
        }
    }
    Ok(())
}

fn sizes(homes: &[Arc<dyn Medium>]) -> Vec<u64> {
    homes.iter().map(|home| home.len()).collect()
}
