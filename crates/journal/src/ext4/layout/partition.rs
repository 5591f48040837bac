//! Partition tables as Linux reads them (kernel: `block/partitions/msdos.c`, `efi.c`; UEFI specification 2.10, § 5).
//!
//! ```text
//! sector 0: MBR ─► an entry of type 0xEE: sector 1, GPT header ─► entries       (both checksums verified)
//!              └─► else: primary partitions; extended ones ─► chain of EBRs ─► logical partitions
//! ```
//! The primary GPT alone counts, as in a kernel that was not started with `gpt`. What is out of range is left out or cut
//! off, as the kernel does; a table that contradicts itself is reported.

use std::collections::BTreeSet;

use afterimage_block::{BlockError, Sector, SECTOR_BYTES};

use super::checksum::crc32;
use super::group::u32_at;
use super::Source;

const SECTOR: usize = SECTOR_BYTES as usize;
/// Partitions that are looked at; Linux makes 255 devices of a disk at most.
pub const PARTITIONS_MAX: usize = 256;
/// Boot records of a chain that are read; `parse_extended` gives up after 100 empty ones.
const CHAIN_MAX: usize = 128;
const MBR_ENTRIES_AT: usize = 446;
const TYPE_PROTECTIVE: u8 = 0xEE;

const GPT_ENTRY_BYTES: usize = 128;
/// Half a MiB of entries; tools make 128 of them.
const GPT_ENTRIES_MAX: usize = 4096;
const GPT_HEADER_BYTES: usize = 92;

/// A partition, cut off at the disk's end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Partition {
    pub start: Sector,
    pub sectors: u64,
}

/// What a disk's first sectors say.
#[derive(Debug, Default)]
pub struct Table {
    /// Partitions in the table's order, none twice.
    pub partitions: Vec<Partition>,
    /// A sound GPT: sectors 1 and 2 are its own, so that no file system begins at sector 0.
    pub gpt: bool,
    /// Where a table contradicts itself, and how.
    pub damage: Vec<(Sector, String)>,
}

impl Table {
    /// Reads the tables of a disk; without any, the result is empty.
    ///
    /// # Errors
    /// The disk cannot be read.
    pub fn read(source: &mut dyn Source, disk_sectors: u64) -> Result<Self, BlockError> {
        let mut table = Self::default();
        if disk_sectors < 2 {
            return Ok(table);
        }
        let mut sector = [0; SECTOR];
        source.read(Sector(0), &mut sector)?;
        let Some(entries) = boot_record(&sector) else { return Ok(table) };
        if entries.iter().any(|e| e.kind == TYPE_PROTECTIVE) {
            match gpt(source, disk_sectors)? {
                Ok(partitions) => {
                    table.gpt = true;
                    partitions.into_iter().for_each(|p| table.add(p.start.0, p.sectors, disk_sectors));
                }
                Err(why) => table.damage.push((Sector(1), format!("the GUID partition table {why}"))),
            }
            return Ok(table);
        }
        for entry in entries {
            if entry.is_extended() {
                table.chain(source, disk_sectors, entry)?;
            } else {
                table.add(u64::from(entry.start), u64::from(entry.sectors), disk_sectors);
            }
        }
        Ok(table)
    }

    fn add(&mut self, start: u64, sectors: u64, disk_sectors: u64) {
        let sectors = sectors.min(disk_sectors.saturating_sub(start));
        // What begins at sector 0 is the whole disk, which is looked at anyway.
        if start == 0 || sectors == 0 {
            return;
        }
        let start = Sector(start);
        if let Some(twin) = self.partitions.iter_mut().find(|p| p.start == start) {
            twin.sectors = twin.sectors.max(sectors);
        } else if self.partitions.len() < PARTITIONS_MAX {
            self.partitions.push(Partition { start, sectors });
        }
    }

    /// Logical partitions: a chain of boot records, each with a partition that counts from the record, and the next
    /// record, which counts from the extended partition's beginning.
    fn chain(
        &mut self,
        source: &mut dyn Source,
        disk_sectors: u64,
        extended: Entry,
    ) -> Result<(), BlockError> {
        let first = u64::from(extended.start);
        let mut at = first;
        let mut seen = BTreeSet::new();
        while at < disk_sectors && seen.len() < CHAIN_MAX {
            if !seen.insert(at) {
                self.damage
                    .push((Sector(at), format!("the chain of logical partitions loops at sector {at}")));
                return Ok(());
            }
            let mut sector = [0; SECTOR];
            source.read(Sector(at), &mut sector)?;
            let Some(entries) = boot_record(&sector) else { return Ok(()) };
            // The third and fourth entries are unused, but in tables of OS/2 and DRDOS: those are nobody's now.
            for entry in entries.iter().take(2).filter(|e| !e.is_extended()) {
                self.add(at + u64::from(entry.start), u64::from(entry.sectors), disk_sectors);
            }
            let Some(next) = entries.iter().find(|e| e.is_extended() && e.sectors > 0) else { return Ok(()) };
            at = first + u64::from(next.start);
        }
        Ok(())
    }
}

/// One of the four entries of a boot record.
#[derive(Clone, Copy)]
struct Entry {
    kind: u8,
    start: u32,
    sectors: u32,
}

impl Entry {
    fn is_extended(&self) -> bool {
        matches!(self.kind, 0x05 | 0x0F | 0x85)
    }
}

/// The entries of a boot record; `None` where it is none, or the boot sector of a file system (boot flags are 0 or 0x80).
fn boot_record(sector: &[u8; SECTOR]) -> Option<[Entry; 4]> {
    let at = |i: usize| MBR_ENTRIES_AT + i * 16;
    if sector[510..] != [0x55, 0xAA] || (0..4).any(|i| sector[at(i)] & 0x7F != 0) {
        return None;
    }
    Some([0, 1, 2, 3].map(|i| Entry {
        kind: sector[at(i) + 4],
        start: u32_at(sector, at(i) + 8),
        sectors: u32_at(sector, at(i) + 12),
    }))
}

/// The primary GPT's partitions, or what is wrong with it, as the rest of a sentence.
fn gpt(source: &mut dyn Source, disk_sectors: u64) -> Result<Result<Vec<Partition>, String>, BlockError> {
    let mut header = [0; SECTOR];
    source.read(Sector(1), &mut header)?;
    if !header.starts_with(b"EFI PART") {
        return Ok(Err("that the protective MBR announces is not there".into()));
    }
    let header_bytes = u32_at(&header, 12) as usize;
    if !(GPT_HEADER_BYTES..=SECTOR).contains(&header_bytes) {
        return Ok(Err(format!("has a header of {header_bytes} bytes")));
    }
    let stored = u32_at(&header, 16);
    let mut unsummed = header;
    unsummed[16..20].fill(0);
    if crc32(&unsummed[..header_bytes]) != stored {
        return Ok(Err("does not agree with its header's checksum".into()));
    }
    let (own, entries_at) = (u64_at(&header, 24), u64_at(&header, 72));
    let (count, entry_bytes) = (u32_at(&header, 80) as usize, u32_at(&header, 84) as usize);
    if own != 1 || entry_bytes != GPT_ENTRY_BYTES || count > GPT_ENTRIES_MAX {
        return Ok(Err(format!(
            "says that it is at sector {own}, with {count} entries of {entry_bytes} bytes"
        )));
    }
    let mut entries = vec![0; (count * GPT_ENTRY_BYTES).next_multiple_of(SECTOR)];
    let end = entries_at.checked_add((entries.len() / SECTOR) as u64);
    if entries_at < 2 || end.is_none_or(|end| end > disk_sectors) {
        return Ok(Err(format!("has its entries at sector {entries_at}, outside the disk")));
    }
    if !entries.is_empty() {
        source.read(Sector(entries_at), &mut entries)?;
    }
    entries.truncate(count * GPT_ENTRY_BYTES);
    if crc32(&entries) != u32_at(&header, 88) {
        return Ok(Err("does not agree with its entries' checksum".into()));
    }
    let partition = |entry: &[u8]| {
        let (first, last) = (u64_at(entry, 32), u64_at(entry, 40));
        let used = entry[..16] != [0; 16] && first <= last && last < disk_sectors;
        used.then(|| Partition { start: Sector(first), sectors: last - first + 1 })
    };
    Ok(Ok(entries.chunks_exact(GPT_ENTRY_BYTES).filter_map(partition).collect()))
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from(u32_at(bytes, at + 4)) << 32 | u64::from(u32_at(bytes, at))
}
