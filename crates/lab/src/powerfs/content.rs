//! One file's content: what storage is sure to have, and what it has been sent since.
//!
//! ```text
//!   write, punch, truncate ──► operations (in order, volatile) ── settle (fsync) ──► object file (durable)
//!                                   │
//!                                   └── cut: each sector of each operation may or may not get there
//! ```
//!
//! The outcomes of a power cut, for one sector (512 bytes, or as many as the disk writes whole): the durable value, or that of any one of the volatile
//! writes to it (a later one may be lost while an earlier one was kept), or, torn, the first bytes of a kept
//! write followed by the bytes that it found. The length: the durable one, or that after any volatile
//! operation; sectors that were kept but lie beyond it are gone, sectors within it that were not kept are
//! zero. Whole requests are lost or kept together half of the time, since real drives mostly do that.

use std::collections::{BTreeMap, VecDeque};
use std::fs::File;
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt};

use rustix::fs::{fallocate, seek, FallocateFlags, SeekFrom};

use super::dice::Dice;

/// The unit in which a cut decides.
pub const SECTOR_BYTES: u64 = 512;
/// The unit in which volatile content is remembered for reading.
pub const PAGE_BYTES: u64 = 4096;

/// How a power cut treats what was not synced.
#[derive(Clone, Copy, Debug)]
pub struct Lottery {
    /// Of 1000 volatile sectors, how many get through (a whole-request decision uses the same odds).
    pub kept_per_mille: u64,
    /// Of 1000 kept sectors, how many are torn in the middle. Disks promise not to do that to one sector,
    /// and file systems rely on it: leave it at 0 unless what is tested claims to survive it.
    pub torn_per_mille: u64,
    /// What the disk writes whole, in bytes: a power of two, at least 512.
    pub sector_bytes: u64,
}

/// What a cut did, in sectors.
#[derive(Clone, Copy, Debug, Default, serde::Serialize, serde::Deserialize)]
pub struct CutTally {
    /// Volatile sectors that got through whole.
    pub sectors_kept: u64,
    /// Volatile sectors that did not.
    pub sectors_lost: u64,
    /// Sectors that got through in part.
    pub sectors_torn: u64,
}

#[derive(Debug)]
enum Kind {
    Write {
        offset: u64,
        data: Box<[u8]>,
    },
    /// Zeroes, by punching a hole.
    Zero {
        offset: u64,
        length: u64,
    },
    /// A new length; everything in `zero_from..zero_to` is cut off.
    Length {
        length: u64,
        zero_from: u64,
        zero_to: u64,
    },
}

#[derive(Debug)]
struct Operation {
    sequence: u64,
    kind: Kind,
    /// Whether the pages it touches are counted in `pages` (an operation that changes nothing has none).
    counted: bool,
}

impl Operation {
    /// The bytes that it changes.
    fn span(&self) -> (u64, u64) {
        match &self.kind {
            Kind::Write { offset, data } => (*offset, offset + data.len() as u64),
            Kind::Zero { offset, length } => (*offset, offset + length),
            Kind::Length { zero_from, zero_to, .. } => (*zero_from, *zero_to),
        }
    }
}

/// A page as a reader sees it now, while volatile operations cover it.
#[derive(Debug)]
struct Page {
    /// `None` is zeroes.
    data: Option<Box<[u8; PAGE_BYTES as usize]>>,
    /// How many operations touch it: with the last one settled, the object file tells the same.
    operations: u32,
}

/// One file's content.
#[derive(Debug)]
pub struct Content {
    object: File,
    durable_length: u64,
    length: u64,
    operations: VecDeque<Operation>,
    pages: BTreeMap<u64, Page>,
    volatile_bytes: u64,
}

impl Content {
    /// Content over an object file, nothing volatile.
    pub fn open(object: File) -> io::Result<Content> {
        let length = object.metadata()?.len();
        Ok(Content {
            object,
            durable_length: length,
            length,
            operations: VecDeque::new(),
            pages: BTreeMap::new(),
            volatile_bytes: 0,
        })
    }

    /// The length as readers see it.
    pub fn length(&self) -> u64 {
        self.length
    }

    /// Bytes in volatile operations.
    pub fn volatile_bytes(&self) -> u64 {
        self.volatile_bytes
    }

    /// The sequence number of the oldest volatile operation.
    pub fn oldest(&self) -> Option<u64> {
        self.operations.front().map(|operation| operation.sequence)
    }

    /// Allocated 512-byte blocks, roughly: volatile pages that replace allocated ones count twice.
    pub fn blocks(&self) -> u64 {
        let durable = self.object.metadata().map_or(0, |m| m.blocks());
        let volatile = self.pages.values().filter(|page| page.data.is_some()).count() as u64;
        (durable + volatile * (PAGE_BYTES / SECTOR_BYTES)).min(self.length.div_ceil(PAGE_BYTES) * 8)
    }

    /// Reads up to `size` bytes; short at the end of the file.
    pub fn read(&self, offset: u64, size: u64) -> io::Result<Vec<u8>> {
        let end = (offset + size).min(self.length);
        if offset >= end {
            return Ok(Vec::new());
        }
        let mut buffer = vec![0; (end - offset) as usize];
        read_object(&self.object, &mut buffer, offset)?;
        for (index, page) in self.pages.range(offset / PAGE_BYTES..end.div_ceil(PAGE_BYTES)) {
            let page_start = index * PAGE_BYTES;
            let from = page_start.max(offset);
            let to = (page_start + PAGE_BYTES).min(end);
            let target = &mut buffer[(from - offset) as usize..(to - offset) as usize];
            match &page.data {
                Some(data) => {
                    target.copy_from_slice(&data[(from - page_start) as usize..(to - page_start) as usize]);
                }
                None => target.fill(0),
            }
        }
        Ok(buffer)
    }

    /// A write reaches the drive's cache.
    pub fn write(&mut self, sequence: u64, offset: u64, data: &[u8]) -> io::Result<()> {
        let end = offset + data.len() as u64;
        for index in offset / PAGE_BYTES..end.div_ceil(PAGE_BYTES) {
            let page_start = index * PAGE_BYTES;
            let from = page_start.max(offset);
            let to = (page_start + PAGE_BYTES).min(end);
            let source = &data[(from - offset) as usize..(to - offset) as usize];
            let page = self.touch(index, to - from == PAGE_BYTES)?;
            let bytes = page.data.get_or_insert_with(|| Box::new([0; PAGE_BYTES as usize]));
            bytes[(from - page_start) as usize..(to - page_start) as usize].copy_from_slice(source);
        }
        self.length = self.length.max(end);
        self.volatile_bytes += data.len() as u64;
        self.push(sequence, Kind::Write { offset, data: data.into() }, true);
        Ok(())
    }

    /// A hole is punched, or a range zeroed.
    pub fn zero(&mut self, sequence: u64, offset: u64, length: u64) -> io::Result<()> {
        let end = (offset + length).min(self.length);
        let counted = offset < end && !self.is_hole(offset, end)?;
        if counted {
            self.zero_pages(offset, end)?;
        }
        let length = end.saturating_sub(offset);
        self.push(sequence, Kind::Zero { offset, length }, counted);
        Ok(())
    }

    /// The file is cut off or extended.
    pub fn set_length(&mut self, sequence: u64, length: u64) -> io::Result<()> {
        let (zero_from, zero_to) = (length.min(self.length), self.length);
        let counted = zero_from < zero_to && !self.is_hole(zero_from, zero_to)?;
        if counted {
            self.zero_pages(zero_from, zero_to)?;
        }
        self.length = length;
        self.push(sequence, Kind::Length { length, zero_from, zero_to }, counted);
        Ok(())
    }

    /// Whether the page at `index` has storage of its own, so that overwriting it takes no new space.
    pub fn is_allocated(&self, index: u64) -> io::Result<bool> {
        if let Some(page) = self.pages.get(&index) {
            return Ok(page.data.is_some());
        }
        let start = index * PAGE_BYTES;
        Ok(next_data(&self.object, start)?.is_some_and(|at| at < start + PAGE_BYTES))
    }

    /// The next offset at or after `offset` that holds data, or that is a hole (the end counts as one).
    pub fn seek(&self, offset: u64, data_wanted: bool) -> io::Result<Option<u64>> {
        let mut at = offset;
        while at < self.length {
            let index = at / PAGE_BYTES;
            if self.is_allocated(index)? == data_wanted {
                return Ok(Some(at));
            }
            let mut next = (index + 1) * PAGE_BYTES;
            if data_wanted && !self.pages.contains_key(&index) {
                // Leaps over long holes: the nearest of durable data and volatile pages.
                let durable = next_data(&self.object, at)?.unwrap_or(u64::MAX);
                let volatile = self.pages.range(index..).next().map_or(u64::MAX, |(i, _)| i * PAGE_BYTES);
                next = next.max(durable.min(volatile));
            }
            at = next;
        }
        Ok(if data_wanted { None } else { Some(self.length) })
    }

    /// Makes every operation up to `sequence` durable.
    pub fn settle(&mut self, sequence: u64) -> io::Result<()> {
        while self.operations.front().is_some_and(|operation| operation.sequence <= sequence) {
            if let Some(operation) = self.operations.pop_front() {
                self.settle_one(operation)?;
            }
        }
        Ok(())
    }

    /// Makes one operation durable, and those before it that it could not overtake: writes that it overlaps,
    /// and everything up to the last change of length.
    pub fn settle_single(&mut self, sequence: u64) -> io::Result<()> {
        let Some(at) = self.operations.iter().position(|o| o.sequence == sequence) else { return Ok(()) };
        let is_length = |operation: &Operation| matches!(operation.kind, Kind::Length { .. });
        if let Some(last_length) = self.operations.iter().take(at + 1).rposition(is_length) {
            self.settle(self.operations[last_length].sequence)?;
        }
        let Some(at) = self.operations.iter().position(|o| o.sequence == sequence) else { return Ok(()) };
        let mut later = self.operations.split_off(at + 1);
        // What an operation overlaps goes before it, and what that overlaps before that.
        let mut needed: Vec<(u64, u64)> = Vec::new();
        let mut taken = vec![false; self.operations.len()];
        for (index, operation) in self.operations.iter().enumerate().rev() {
            let (from, to) = operation.span();
            taken[index] = index == at || needed.iter().any(|(start, end)| *start < to && from < *end);
            if taken[index] {
                needed.push((from, to));
            }
        }
        for (operation, taken) in std::mem::take(&mut self.operations).into_iter().zip(taken) {
            if taken {
                self.settle_one(operation)?;
            } else {
                self.operations.push_back(operation);
            }
        }
        self.operations.append(&mut later);
        Ok(())
    }

    /// The power goes. What is left is durable; the content is as after a fresh mount.
    pub fn cut(&mut self, lottery: Lottery, dice: &mut Dice) -> io::Result<CutTally> {
        let mut tally = CutTally::default();
        let operations = std::mem::take(&mut self.operations);
        for operation in operations {
            match operation.kind {
                Kind::Write { offset, data } => self.cut_write(offset, &data, lottery, dice, &mut tally)?,
                Kind::Zero { offset, length } => {
                    let end = (offset + length).min(self.durable_length);
                    if offset < end && dice.chance(lottery.kept_per_mille) {
                        punch(&self.object, offset, end - offset)?;
                    }
                }
                Kind::Length { length, .. } => {
                    if dice.chance(lottery.kept_per_mille) {
                        self.object.set_len(length)?;
                        self.durable_length = length;
                    }
                }
            }
        }
        self.pages.clear();
        self.volatile_bytes = 0;
        self.length = self.durable_length;
        Ok(tally)
    }

    fn cut_write(
        &mut self,
        offset: u64,
        data: &[u8],
        lottery: Lottery,
        dice: &mut Dice,
        tally: &mut CutTally,
    ) -> io::Result<()> {
        let end = offset + data.len() as u64;
        if end > self.durable_length && dice.chance(lottery.kept_per_mille) {
            self.object.set_len(end)?;
            self.durable_length = end;
        }
        let whole = dice.chance(500).then(|| dice.chance(lottery.kept_per_mille));
        let mut at = offset;
        while at < end {
            let next = ((at / lottery.sector_bytes + 1) * lottery.sector_bytes).min(end);
            let kept = whole.unwrap_or_else(|| dice.chance(lottery.kept_per_mille));
            let reachable = next.min(self.durable_length);
            if !kept || at >= reachable {
                tally.sectors_lost += 1;
            } else {
                let mut sector = &data[(at - offset) as usize..(reachable - offset) as usize];
                if dice.chance(lottery.torn_per_mille) && sector.len() > 1 {
                    sector = &sector[..1 + dice.below(sector.len() as u64 - 1) as usize];
                    tally.sectors_torn += 1;
                } else {
                    tally.sectors_kept += 1;
                }
                self.object.write_all_at(sector, at)?;
            }
            at = next;
        }
        Ok(())
    }

    fn push(&mut self, sequence: u64, kind: Kind, counted: bool) {
        self.operations.push_back(Operation { sequence, kind, counted });
    }

    /// The page, loaded from the object file if it was not volatile yet, with one operation more on it.
    fn touch(&mut self, index: u64, will_be_overwritten: bool) -> io::Result<&mut Page> {
        if !self.pages.contains_key(&index) {
            let mut data = None;
            if !will_be_overwritten {
                let mut bytes = Box::new([0; PAGE_BYTES as usize]);
                read_object(&self.object, &mut bytes[..], index * PAGE_BYTES)?;
                data = Some(bytes);
            }
            self.pages.insert(index, Page { data, operations: 0 });
        }
        let page = self.pages.get_mut(&index).ok_or_else(|| io::Error::other("a page just inserted"))?;
        page.operations += 1;
        Ok(page)
    }

    fn zero_pages(&mut self, from: u64, to: u64) -> io::Result<()> {
        for index in from / PAGE_BYTES..to.div_ceil(PAGE_BYTES) {
            let page_start = index * PAGE_BYTES;
            let start = from.max(page_start);
            let end = to.min(page_start + PAGE_BYTES);
            let all = end - start == PAGE_BYTES;
            let page = self.touch(index, all)?;
            if all {
                page.data = None;
            } else if let Some(data) = &mut page.data {
                data[(start - page_start) as usize..(end - page_start) as usize].fill(0);
            }
        }
        Ok(())
    }

    fn is_hole(&self, from: u64, to: u64) -> io::Result<bool> {
        if self.pages.range(from / PAGE_BYTES..to.div_ceil(PAGE_BYTES)).next().is_some() {
            return Ok(false);
        }
        Ok(next_data(&self.object, from)?.is_none_or(|at| at >= to))
    }

    fn settle_one(&mut self, operation: Operation) -> io::Result<()> {
        let (from, to) = operation.span();
        match &operation.kind {
            Kind::Write { offset, data } => {
                self.object.write_all_at(data, *offset)?;
                self.durable_length = self.durable_length.max(to);
                self.volatile_bytes -= data.len() as u64;
            }
            Kind::Zero { .. } => {
                let end = to.min(self.durable_length);
                if operation.counted && from < end {
                    punch(&self.object, from, end - from)?;
                }
            }
            Kind::Length { length, .. } => {
                self.object.set_len(*length)?;
                self.durable_length = *length;
            }
        }
        if operation.counted && from < to {
            for index in from / PAGE_BYTES..to.div_ceil(PAGE_BYTES) {
                if let Some(page) = self.pages.get_mut(&index) {
                    page.operations -= 1;
                    if page.operations == 0 {
                        self.pages.remove(&index);
                    }
                }
            }
        }
        Ok(())
    }
}

fn punch(object: &File, offset: u64, length: u64) -> io::Result<()> {
    Ok(fallocate(object, FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, offset, length)?)
}

fn next_data(object: &File, offset: u64) -> io::Result<Option<u64>> {
    match seek(object, SeekFrom::Data(offset)) {
        Ok(at) => Ok(Some(at)),
        Err(rustix::io::Errno::NXIO) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// Reads what the object has; the rest of the buffer stays zero.
fn read_object(object: &File, buffer: &mut [u8], offset: u64) -> io::Result<()> {
    let mut done = 0;
    while done < buffer.len() {
        match object.read_at(&mut buffer[done..], offset + done as u64)? {
            0 => break,
            bytes => done += bytes,
        }
    }
    Ok(())
}
