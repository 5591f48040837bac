//! Writing headers, and choosing and checking the witness blocks in them.

use std::io;
use std::sync::Arc;

use afterimage_block::Medium;
use afterimage_format::log::{LogHeader, RecordKind, WitnessEntry, WITNESSES_MAX};
use afterimage_format::payload_hash;

use super::area::Area;
use super::extents::{ExtentMap, Source};
use super::scan::Placed;

/// Sectors of a witness block.
const WITNESS_SECTORS: u64 = 8;
/// How many blocks of one round home, or of an image that gets its first log, become witnesses.
const WITNESSES_NEW_MAX: usize = WITNESSES_MAX / 2;

/// Writes a header into the slot that does not hold the one in force. The caller syncs.
pub(super) fn write(log: &dyn Medium, header: &LogHeader) -> io::Result<()> {
    log.write_at(&header.seal(), header.slot_offset())
}

/// Replaces the witnesses by blocks that are now home and, as far as there is room, those of before that were not
/// touched.
pub(super) fn choose_witnesses(header: &mut LogHeader, homes: &[ExtentMap], area: &Area) -> io::Result<()> {
    let mut chosen = Vec::with_capacity(WITNESSES_MAX);
    let logged =
        || homes.iter().zip(0u16..).flat_map(|(map, disk)| map.iter().map(move |(s, e)| (disk, s, e)));
    let count = logged().filter(|(_, _, e)| matches!(e.source, Source::Log(_))).count();
    let step = count.div_ceil(WITNESSES_NEW_MAX).max(1);
    let candidates = logged().filter_map(|(disk, sector, e)| match e.source {
        Source::Log(position) => Some((disk, sector, e.sectors.min(WITNESS_SECTORS), position)),
        Source::Zero { .. } => None,
    });
    for (disk, sector, sectors, position) in candidates.step_by(step) {
        let mut block = vec![0; sectors as usize * 512];
        area.read(position, &mut block)?;
        chosen.push(entry(disk, sector, sectors, &block));
    }
    for old in header.witnesses() {
        let touched = homes
            .get(usize::from(old.disk.get()))
            .is_none_or(|map| map.overlaps(old.sector.get(), u64::from(old.sectors.get())));
        if !touched && chosen.len() < WITNESSES_MAX {
            chosen.push(*old);
        }
    }
    set(header, &chosen);
    Ok(())
}

/// The first witnesses of a new log: blocks spread over the images as they are.
pub(super) fn first_witnesses(header: &mut LogHeader, homes: &[Arc<dyn Medium>]) -> io::Result<()> {
    let mut chosen = Vec::new();
    let each = (WITNESSES_NEW_MAX / homes.len().max(1)).max(1) as u64;
    for (home, disk) in homes.iter().zip(0u16..) {
        let blocks = home.len() / (WITNESS_SECTORS * 512);
        for i in 0..each.min(blocks) {
            let sector = (blocks - 1) * i / each.max(2) * WITNESS_SECTORS;
            let mut block = vec![0; WITNESS_SECTORS as usize * 512];
            home.read_at(&mut block, sector * 512)?;
            chosen.push(entry(disk, sector, WITNESS_SECTORS, &block));
        }
    }
    chosen.truncate(WITNESSES_MAX);
    set(header, &chosen);
    Ok(())
}

fn entry(disk: u16, sector: u64, sectors: u64, block: &[u8]) -> WitnessEntry {
    WitnessEntry {
        sector: sector.into(),
        disk: disk.into(),
        sectors: (sectors as u16).into(),
        hash: payload_hash(block).into(),
    }
}

fn set(header: &mut LogHeader, chosen: &[WitnessEntry]) {
    header.witnesses[..chosen.len()].copy_from_slice(chosen);
    header.witnesses[chosen.len()..].fill(WitnessEntry::default());
    header.witness_count = (chosen.len() as u32).into();
}

/// The first witness that is not what it was; `None` where all are, but for those under live records (whose home may be
/// in any state between).
pub(super) fn false_witness(
    header: &LogHeader,
    records: &[Placed],
    homes: &[Arc<dyn Medium>],
) -> io::Result<Option<WitnessEntry>> {
    let mut block = Vec::new();
    for witness in header.witnesses() {
        let (disk, sector, sectors) =
            (witness.disk.get(), witness.sector.get(), u64::from(witness.sectors.get()));
        let live = records.iter().any(|r| {
            r.kind != RecordKind::Incarnation
                && r.disk.0 == disk
                && r.sector < sector.saturating_add(sectors)
                && sector < r.sector.saturating_add(r.sectors)
        });
        if live {
            continue;
        }
        let home = homes.get(usize::from(disk));
        let inside =
            |home: &&Arc<dyn Medium>| sector.checked_add(sectors).is_some_and(|end| end <= home.len() / 512);
        let Some(home) = home.filter(inside) else { return Ok(Some(*witness)) };
        block.resize(sectors as usize * 512, 0);
        home.read_at(&mut block, sector * 512)?;
        if payload_hash(&block) != witness.hash.get() {
            return Ok(Some(*witness));
        }
    }
    Ok(None)
}
