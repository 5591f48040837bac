//! One state that a crash may leave, without a copy of the disk: shared durable content and an overlay of sectors.

use std::io;
use std::sync::Arc;

use afterimage_block::Medium;
use afterimage_trace::{Page, Sparse, PAGE_BYTES};
use parking_lot::Mutex;
use rustc_hash::{FxHashMap, FxHashSet};

use crate::hash;

/// Bytes in a sector: the unit in which storage keeps or loses writes.
pub const SECTOR_BYTES: usize = 512;

pub(crate) const SECTORS_PER_PAGE: u64 = (PAGE_BYTES / SECTOR_BYTES) as u64;

/// The content of one sector: a part of recorded data, or zeroes.
#[derive(Clone, Debug)]
pub struct Content {
    data: Option<Arc<[u8]>>,
    at: u32,
    hash: u128,
}

impl Content {
    /// Zeroes.
    pub const ZERO: Self = Self { data: None, at: 0, hash: 0 };

    /// The sector that begins at byte `at` of `data`.
    ///
    /// # Panics
    /// Where `data` ends before it.
    pub fn of(data: &Arc<[u8]>, at: usize) -> Self {
        let hash = hash::content(&data[at..at + SECTOR_BYTES]);
        if hash == 0 {
            return Self::ZERO;
        }
        Self { data: Some(Arc::clone(data)), at: at as u32, hash }
    }

    /// A sector of its own.
    pub fn owned(sector: &[u8; SECTOR_BYTES]) -> Self {
        Self::of(&Arc::from(&sector[..]), 0)
    }

    /// The bytes; `None`: zeroes.
    pub fn bytes(&self) -> Option<&[u8]> {
        self.data.as_ref().map(|data| &data[self.at as usize..self.at as usize + SECTOR_BYTES])
    }

    /// Hash of the content.
    pub fn hash(&self) -> u128 {
        self.hash
    }
}

/// What one medium holds after a crash.
#[derive(Clone, Debug)]
pub struct Image {
    medium: usize,
    base: Arc<Sparse>,
    overlay: FxHashMap<u64, Content>,
    digest: u128,
}

impl Image {
    /// `base`, whose digest is known. `medium` is its index, part of the digest.
    pub fn new(medium: usize, base: Arc<Sparse>, digest: u128) -> Self {
        Self { medium, base, overlay: FxHashMap::default(), digest }
    }

    /// As [`Image::new`], with the digest computed.
    pub fn digested(medium: usize, base: Arc<Sparse>) -> Self {
        let digest = digest(medium, &base);
        Self::new(medium, base, digest)
    }

    /// Size in bytes.
    pub fn len(&self) -> u64 {
        self.base.len()
    }

    /// Whether it has no bytes at all.
    pub fn is_empty(&self) -> bool {
        self.base.is_empty()
    }

    /// The content that all states of this cut share.
    pub fn base(&self) -> &Arc<Sparse> {
        &self.base
    }

    /// The sectors in which this state differs from its base, in no order.
    pub fn overlay(&self) -> impl Iterator<Item = (u64, &Content)> {
        self.overlay.iter().map(|(sector, content)| (*sector, content))
    }

    /// Digest of the whole content.
    pub fn digest(&self) -> u128 {
        self.digest
    }

    /// Replaces a sector.
    pub fn set(&mut self, sector: u64, content: Content) {
        let new = hash::placed(self.medium, sector, content.hash);
        let old = match self.overlay.insert(sector, content) {
            Some(old) => old.hash,
            None => base_hash(&self.base, sector),
        };
        self.digest ^= hash::placed(self.medium, sector, old) ^ new;
    }

    /// Fills `buf` from `offset`; both may be unaligned.
    ///
    /// # Panics
    /// Where the range reaches past the end.
    pub fn read_at(&self, buf: &mut [u8], offset: u64) {
        self.base.read_at(buf, offset);
        if self.overlay.is_empty() || buf.is_empty() {
            return;
        }
        let (end, first) = (offset + buf.len() as u64, offset / SECTOR_BYTES as u64);
        let count = end.div_ceil(SECTOR_BYTES as u64) - first;
        let mut patch = |sector: u64, content: &Content| {
            let start = sector * SECTOR_BYTES as u64;
            let (from, to) = (start.max(offset), (start + SECTOR_BYTES as u64).min(end));
            if from >= to {
                return;
            }
            let target = &mut buf[(from - offset) as usize..(to - offset) as usize];
            match content.bytes() {
                Some(bytes) => target.copy_from_slice(&bytes[(from - start) as usize..(to - start) as usize]),
                None => target.fill(0),
            }
        };
        if count <= self.overlay.len() as u64 {
            for sector in first..first + count {
                if let Some(content) = self.overlay.get(&sector) {
                    patch(sector, content);
                }
            }
        } else {
            self.overlay.iter().for_each(|(sector, content)| patch(*sector, content));
        }
    }

    /// Digest of some pages' content: equal for two states exactly where (up to collisions) those pages are.
    pub fn digest_of(&self, pages: &[u64]) -> u128 {
        let mut digest = 0;
        let mut page = [0; PAGE_BYTES];
        for index in pages {
            let offset = index * PAGE_BYTES as u64;
            let len = (self.len() - offset).min(PAGE_BYTES as u64) as usize;
            self.read_at(&mut page[..len], offset);
            digest ^= digest_page(self.medium, *index, &page[..len]);
        }
        digest
    }
}

fn base_hash(base: &Sparse, sector: u64) -> u128 {
    match base.page(sector / SECTORS_PER_PAGE) {
        None => 0,
        Some(page) => {
            let at = (sector % SECTORS_PER_PAGE) as usize * SECTOR_BYTES;
            hash::content(&page[at..at + SECTOR_BYTES])
        }
    }
}

fn digest_page(medium: usize, index: u64, bytes: &[u8]) -> u128 {
    let first = index * SECTORS_PER_PAGE;
    (first..)
        .zip(bytes.chunks(SECTOR_BYTES))
        .fold(0, |digest, (sector, content)| digest ^ hash::placed(medium, sector, hash::content(content)))
}

/// Digest of a whole content.
pub fn digest(medium: usize, content: &Sparse) -> u128 {
    content.pages().fold(0, |digest, (index, page)| digest ^ digest_page(medium, index, &page[..]))
}

/// What somebody read, as page indices, ascending.
pub type ReadSet = Vec<u64>;

/// A state's medium that recovery and checkers may write to: what they write stays in memory, apart from the state.
#[derive(Debug)]
pub struct Scratch {
    image: Image,
    changes: Mutex<Changes>,
}

#[derive(Debug, Default)]
struct Changes {
    pages: FxHashMap<u64, Box<Page>>,
    /// Pages of the image that were read; `None`: nobody asked.
    reads: Option<FxHashSet<u64>>,
}

impl Scratch {
    /// Nothing written yet.
    pub fn new(image: Image) -> Self {
        Self { image, changes: Mutex::default() }
    }

    /// The state below.
    pub fn image(&self) -> &Image {
        &self.image
    }

    /// Notes from now on which pages of the image are read.
    pub fn note_reads(&self) {
        self.changes.lock().reads = Some(FxHashSet::default());
    }

    /// The pages of the image that were read since [`Scratch::note_reads`], ascending. Whoever reads the same bytes there
    /// and does nothing else by chance does the same again.
    pub fn reads(&self) -> ReadSet {
        let mut reads: Vec<u64> = self.changes.lock().reads.iter().flatten().copied().collect();
        reads.sort_unstable();
        reads
    }

    /// Digest of the content as it is now.
    pub fn digest(&self) -> u128 {
        let changes = self.changes.lock();
        let mut digest = self.image.digest();
        let Image { medium, base, overlay, .. } = &self.image;
        for (index, page) in &changes.pages {
            let below = base.page(*index);
            let sectors = page[..self.page_len(*index)].chunks(SECTOR_BYTES).enumerate();
            for (i, new) in sectors {
                let sector = index * SECTORS_PER_PAGE + i as u64;
                let over = if overlay.is_empty() { None } else { overlay.get(&sector) };
                let old = match over {
                    Some(content) => content.bytes(),
                    None => below.map(|page| &page[i * SECTOR_BYTES..][..new.len()]),
                };
                // Most of what is written is what was there: compared, not hashed.
                if old.unwrap_or(&[0; SECTOR_BYTES][..new.len()]) == new {
                    continue;
                }
                let old = over.map_or_else(|| old.map_or(0, hash::content), Content::hash);
                digest ^=
                    hash::placed(*medium, sector, old) ^ hash::placed(*medium, sector, hash::content(new));
            }
        }
        digest
    }

    /// The content as it is now, as a state of its own.
    pub fn snapshot(&self) -> Image {
        let mut image = self.image.clone();
        for (index, page) in &self.changes.lock().pages {
            let len = self.page_len(*index);
            let data: Arc<[u8]> = Arc::from(&page[..len]);
            for (i, sector) in (index * SECTORS_PER_PAGE..).take(len / SECTOR_BYTES).enumerate() {
                image.set(sector, Content::of(&data, i * SECTOR_BYTES));
            }
        }
        image
    }

    /// Calls with index and content of every page that was written, in no order; the last page of the medium may be short.
    pub fn changed(&self, mut each: impl FnMut(u64, &[u8])) {
        for (index, page) in &self.changes.lock().pages {
            each(*index, &page[..self.page_len(*index)]);
        }
    }

    fn page_len(&self, index: u64) -> usize {
        (self.image.len() - index * PAGE_BYTES as u64).min(PAGE_BYTES as u64) as usize
    }

    fn check(&self, offset: u64, len: usize) -> io::Result<()> {
        match offset.checked_add(len as u64) {
            Some(end) if end <= self.image.len() => Ok(()),
            _ => Err(io::Error::new(io::ErrorKind::InvalidInput, "outside the medium")),
        }
    }

    /// Zeroes whole pages. Those that are zero below need no copy: a discard of a whole disk is mostly free.
    fn zero_pages(&self, range: std::ops::Range<u64>) {
        let Image { base, overlay, .. } = &self.image;
        let mut changes = self.changes.lock();
        changes.pages.retain(|page, _| !range.contains(page));
        let over = overlay.keys().map(|sector| sector / SECTORS_PER_PAGE).filter(|page| range.contains(page));
        let below = std::iter::successors(base.next_page(range.start), |page| base.next_page(page + 1))
            .take_while(|page| *page < range.end);
        for page in over.chain(below) {
            changes.pages.insert(page, Box::new([0; PAGE_BYTES]));
        }
    }

    fn change(&self, offset: u64, len: usize, mut fill: impl FnMut(&mut [u8], std::ops::Range<usize>)) {
        let mut changes = self.changes.lock();
        let changes = &mut *changes;
        let mut done = 0;
        while done < len {
            let at = offset + done as u64;
            let (index, within) = (at / PAGE_BYTES as u64, (at % PAGE_BYTES as u64) as usize);
            let n = (PAGE_BYTES - within).min(len - done);
            let whole = n == self.page_len(index);
            let page = changes.pages.entry(index).or_insert_with(|| {
                let mut page = Box::new([0; PAGE_BYTES]);
                if !whole {
                    self.image.read_at(&mut page[..self.page_len(index)], index * PAGE_BYTES as u64);
                    // The rest of the page is the image's, and may be read later through this copy.
                    if let Some(reads) = &mut changes.reads {
                        reads.insert(index);
                    }
                }
                page
            });
            fill(&mut page[within..within + n], done..done + n);
            done += n;
        }
    }
}

impl Medium for Scratch {
    fn len(&self) -> u64 {
        self.image.len()
    }

    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        self.check(offset, buf.len())?;
        self.image.read_at(buf, offset);
        let mut changes = self.changes.lock();
        let changes = &mut *changes;
        if changes.pages.is_empty() && changes.reads.is_none() {
            return Ok(());
        }
        let mut done = 0;
        while done < buf.len() {
            let at = offset + done as u64;
            let (index, within) = (at / PAGE_BYTES as u64, (at % PAGE_BYTES as u64) as usize);
            let n = (PAGE_BYTES - within).min(buf.len() - done);
            match (changes.pages.get(&index), &mut changes.reads) {
                (Some(page), _) => buf[done..done + n].copy_from_slice(&page[within..within + n]),
                (None, Some(reads)) => drop(reads.insert(index)),
                (None, None) => {}
            }
            done += n;
        }
        Ok(())
    }

    fn zeroes_from(&self, offset: u64) -> u64 {
        let changes = self.changes.lock();
        // Knowing that a page is zero is reading it.
        if changes.reads.is_some() || offset >= self.image.len() {
            return 0;
        }
        let first = offset / PAGE_BYTES as u64;
        let end = self.image.len().div_ceil(PAGE_BYTES as u64);
        let below = self.image.base.next_page(first).unwrap_or(end);
        let over = self.image.overlay.keys().map(|sector| sector / SECTORS_PER_PAGE);
        let next =
            over.chain(changes.pages.keys().copied()).filter(|page| *page >= first).fold(below, u64::min);
        (next * PAGE_BYTES as u64).min(self.image.len()).saturating_sub(offset)
    }

    fn write_at(&self, buf: &[u8], offset: u64) -> io::Result<()> {
        self.check(offset, buf.len())?;
        self.change(offset, buf.len(), |target, range| target.copy_from_slice(&buf[range]));
        Ok(())
    }

    fn zero_at(&self, offset: u64, len: u64, _unmap: bool) -> io::Result<()> {
        self.check(offset, len as usize)?;
        let (page, end) = (PAGE_BYTES as u64, offset + len);
        let whole = offset.div_ceil(page)..end / page;
        if whole.is_empty() {
            self.change(offset, len as usize, |target, _| target.fill(0));
        } else {
            self.change(offset, (whole.start * page - offset) as usize, |target, _| target.fill(0));
            self.zero_pages(whole.clone());
            self.change(whole.end * page, (end - whole.end * page) as usize, |target, _| target.fill(0));
        }
        Ok(())
    }

    fn sync(&self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn image() -> Image {
        let mut base = Sparse::new(5 * 4096 + 512);
        base.write_at(&[7; 6000], 100);
        Image::digested(1, Arc::new(base))
    }

    #[test]
    fn digests_follow_the_content() {
        let mut state = image();
        let plain = state.digest();
        let data: Arc<[u8]> = Arc::from(&[9; 1024][..]);
        state.set(3, Content::of(&data, 512));
        state.set(40, Content::of(&data, 0));
        assert_ne!(state.digest(), plain);
        let scratch = Scratch::new(image());
        scratch.write_at(&[9; 512], 3 * 512).unwrap();
        scratch.write_at(&[9; 512], 40 * 512).unwrap();
        assert_eq!(scratch.digest(), state.digest(), "two ways to the same content");
        assert_eq!(scratch.snapshot().digest(), state.digest());
        assert_eq!(digest(1, &materialise(&state)), state.digest());
        state.set(40, Content::ZERO);
        let mut before = [0; 512];
        image().read_at(&mut before, 3 * 512);
        state.set(3, Content::owned(&before));
        assert_eq!(state.digest(), plain);
    }

    fn materialise(image: &Image) -> Sparse {
        let mut bytes = vec![0; image.len() as usize];
        image.read_at(&mut bytes, 0);
        let mut sparse = Sparse::new(image.len());
        sparse.write_at(&bytes, 0);
        sparse
    }

    #[test]
    fn what_is_known_to_be_zero_is_zero() {
        let mut state = image();
        let scratch = Scratch::new(state.clone());
        assert_eq!((scratch.zeroes_from(0), scratch.zeroes_from(8192 + 10)), (0, 3 * 4096 + 512 - 10));
        state.set(33, Content::owned(&[1; 512]));
        let scratch = Scratch::new(state);
        assert_eq!((scratch.zeroes_from(8192), scratch.zeroes_from(5 * 4096)), (8192, 512));
        scratch.write_at(&[1], 3 * 4096).unwrap();
        assert_eq!((scratch.zeroes_from(8192), scratch.zeroes_from(3 * 4096)), (4096, 0));
        scratch.note_reads();
        assert_eq!(scratch.zeroes_from(8192), 0);
    }

    #[test]
    fn zeroing_pages_is_writing_zeroes() {
        let mut state = image();
        state.set(33, Content::owned(&[1; 512]));
        for (offset, len) in
            [(0, 5 * 4096 + 512), (100, 9000), (4096, 4096), (4000, 200), (8192, 12288), (16000, 4992)]
        {
            let (zeroed, written) = (Scratch::new(state.clone()), Scratch::new(state.clone()));
            for scratch in [&zeroed, &written] {
                scratch.write_at(&[3; 5000], 10_000).unwrap();
            }
            zeroed.zero_at(offset, len, true).unwrap();
            written.write_at(&vec![0; len as usize], offset).unwrap();
            assert_eq!(zeroed.digest(), written.digest(), "{offset}+{len}");
            assert_eq!(zeroed.digest(), digest(1, &materialise(&zeroed.snapshot())), "{offset}+{len}");
        }
    }

    #[test]
    fn reads_see_writes_and_are_noted() {
        let scratch = Scratch::new(image());
        scratch.note_reads();
        scratch.write_at(&[1; 4096], 4096).unwrap();
        let mut buf = vec![0; 4098];
        scratch.read_at(&mut buf, 4095).unwrap();
        assert!(buf[0] == 7 && buf[1..4097] == [1; 4096] && buf[4097] == 0);
        assert_eq!(scratch.reads(), [0, 2], "the page it wrote itself is not the state's");
        scratch.zero_at(10, 5, true).unwrap();
        scratch.read_at(&mut buf[..1], 5 * 4096 + 511).unwrap();
        assert_eq!(scratch.reads(), [0, 2, 5]);
        assert!(scratch.read_at(&mut buf, 5 * 4096).is_err());
        assert_eq!(scratch.image().digest_of(&[0, 1, 2, 3, 4, 5]), scratch.image().digest());
    }
}
