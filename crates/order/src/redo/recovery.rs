//! What follows from what a log holds: whether it is of these images, what of it is written again, and how the next process begins.
//!
//! Plain functions of what was read: no file.

use afterimage_block::{BlockError, SequenceNumber};
use afterimage_format::log::{RecordHeader, RecordKind, WitnessEntry, RECORD_MAGIC, STATE_CLEAN};
use afterimage_store::LogReadError;
use zerocopy::FromZeros as _;

use super::prefix::{Placed, Scan};
use crate::sequence::{LogPosition, LoggedDisk};
use crate::Replayed;

/// Why a log was not taken over. Nothing was touched, but for `Block`.
#[derive(Debug, thiserror::Error)]
pub enum TakeOverError {
    /// It cannot be read or contradicts itself.
    #[error(transparent)]
    Scan(#[from] LogReadError),
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

impl Scan {
    /// Records of requests, without what only says who appended.
    fn requests(&self) -> impl Iterator<Item = &Placed> {
        self.records.iter().filter(|record| record.kind != RecordKind::Incarnation)
    }

    /// What taking it over finds.
    pub(crate) fn replayed(&self) -> Replayed {
        Replayed {
            records: self.requests().count() as u64,
            bytes: self.requests().map(|record| record.end().0 - record.position.0).sum(),
            sequence: self.sequence.0,
            torn_tail: self.torn_tail,
        }
    }

    /// The witnesses by which images of these sizes are recognised. One under a live record says nothing: its home may be in any state.
    ///
    /// # Errors
    /// The log is clean, or of images of other sizes.
    pub(super) fn witnesses(&self, home_bytes: &[u64]) -> Result<Vec<WitnessEntry>, TakeOverError> {
        if self.header.state.get() == STATE_CLEAN {
            return Err(TakeOverError::Clean);
        }
        let images = self.header.images();
        if images.len() != home_bytes.len() {
            let why = format!("the log has {} images, not {}", images.len(), home_bytes.len());
            return Err(TakeOverError::WrongImage { disk: 0, why });
        }
        let mut sizes = images.iter().map(|image| image.size_bytes.get()).zip(home_bytes).enumerate();
        if let Some((disk, (logged, bytes))) = sizes.find(|(_, (logged, bytes))| logged != *bytes) {
            let why = format!("its size is {bytes} bytes, and the log expects {logged}");
            return Err(TakeOverError::WrongImage { disk, why });
        }
        let mut telling = Vec::new();
        for witness in self.header.witnesses() {
            let (sector, sectors) = (witness.sector.get(), u64::from(witness.sectors.get()));
            let end = sector.saturating_add(sectors);
            let live = self.requests().any(|record| {
                record.disk.0 == witness.disk.get()
                    && record.sector < end
                    && sector < record.sector.saturating_add(record.sectors)
            });
            let bytes = home_bytes.get(usize::from(witness.disk.get()));
            match bytes.is_some_and(|bytes| end <= bytes / 512) {
                _ if live => {}
                true => telling.push(*witness),
                false => return Err(false_witness(witness)),
            }
        }
        Ok(telling)
    }

    /// The record with which another process begins at `position`. It counts only behind exactly the records that were found.
    pub(super) fn begin(
        &self,
        incarnation: u64,
        durable: SequenceNumber,
        position: LogPosition,
    ) -> (RecordHeader, Placed) {
        let mut record = RecordHeader::new_zeroed();
        record.magic = RECORD_MAGIC.into();
        record.kind = RecordKind::Incarnation.code().into();
        record.incarnation = incarnation.into();
        record.sequence = self.sequence.0.into();
        record.sector = self.incarnation.into();
        record.durable_sequence = durable.0.into();
        record.group_tag = self.header.group_tag().into();
        record.seal();
        let placed = Placed {
            position,
            sequence: self.sequence,
            kind: RecordKind::Incarnation,
            more: false,
            disk: LoggedDisk::default(),
            sector: incarnation,
            sectors: 0,
        };
        (record, placed)
    }
}

/// The image does not hold what this witness says.
pub(super) fn false_witness(witness: &WitnessEntry) -> TakeOverError {
    TakeOverError::FalseWitness { disk: usize::from(witness.disk.get()), sector: witness.sector.get() }
}

#[cfg(test)]
mod tests {
    use afterimage_format::log::{ImageEntry, LogHeader, PAGE_BYTES};

    use super::*;

    fn logged() -> Scan {
        let mut header = LogHeader::new([1; 16], 16 * PAGE_BYTES, 1);
        header.image_count = 1.into();
        header.images[0] = ImageEntry { size_bytes: 8192.into(), ..ImageEntry::default() };
        header.witness_count = 1.into();
        header.witnesses[0] = WitnessEntry { sectors: 8.into(), ..WitnessEntry::default() };
        Scan::begun(header)
    }

    #[test]
    fn other_images_are_refused() {
        let (found, mut clean) = (logged(), logged());
        assert_eq!(found.witnesses(&[8192]).expect("its image").len(), 1);
        assert!(matches!(found.witnesses(&[]), Err(TakeOverError::WrongImage { .. })));
        assert!(matches!(found.witnesses(&[4096]), Err(TakeOverError::WrongImage { disk: 0, .. })));
        clean.header.state = STATE_CLEAN.into();
        assert!(matches!(clean.witnesses(&[8192]), Err(TakeOverError::Clean)));
    }

    #[test]
    fn witnesses_tell_where_no_record_lives() {
        let mut found = logged();
        found.header.witnesses[0].sector = 9.into();
        assert!(matches!(found.witnesses(&[8192]), Err(TakeOverError::FalseWitness { disk: 0, sector: 9 })));
        let (_, begun) = found.begin(2, SequenceNumber(0), LogPosition(0));
        found.records.push(begun);
        assert!(found.witnesses(&[8192]).is_err(), "an incarnation is about no disk");
        found.records.push(Placed { kind: RecordKind::Discard, sector: 16, sectors: 1, ..begun });
        assert!(found.witnesses(&[8192]).expect("it says nothing").is_empty());
    }

    #[test]
    fn witnesses_tell_beside_records() {
        let mut found = logged();
        found.header.image_count = 2.into();
        found.header.images[1] = ImageEntry { size_bytes: 16384.into(), ..ImageEntry::default() };
        found.header.witnesses[0].disk = 1.into();
        found.header.witnesses[0].sector = 8.into();
        let (_, begun) = found.begin(2, SequenceNumber(0), LogPosition(0));
        for (disk, sector, sectors, telling) in
            [(0, 8, 8, 1), (1, 0, 8, 1), (1, 16, 8, 1), (1, 0, 9, 0), (1, 15, 8, 0), (1, 10, 1, 0)]
        {
            let kind = RecordKind::Zero;
            found.records = vec![Placed { kind, disk: LoggedDisk(disk), sector, sectors, ..begun }];
            let witnesses = found.witnesses(&[8192, 16384]).expect("its images");
            assert_eq!(witnesses.len(), telling, "disk {disk}, sector {sector}, {sectors} sectors");
        }
    }
}
