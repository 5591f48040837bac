//! The content of a disk in memory, mostly zero, cheap to clone.

use std::sync::Arc;

/// Bytes in a page.
pub const PAGE_BYTES: usize = 4096;

/// One page.
pub type Page = [u8; PAGE_BYTES];

/// Pages in a chunk: cloning copies one pointer a chunk, changing a page of a clone copies one chunk's pointers.
const CHUNK_PAGES: usize = 256;

type Chunk = Vec<Option<Arc<Page>>>;

/// Content of fixed size. Clones share pages until they are changed.
#[derive(Clone, Debug, Default)]
pub struct Sparse {
    bytes: u64,
    chunks: Vec<Option<Arc<Chunk>>>,
}

impl Sparse {
    /// `bytes` zeroes.
    pub fn new(bytes: u64) -> Self {
        let chunks = bytes.div_ceil((CHUNK_PAGES * PAGE_BYTES) as u64) as usize;
        Self { bytes, chunks: vec![None; chunks] }
    }

    /// Its size in bytes.
    pub fn len(&self) -> u64 {
        self.bytes
    }

    /// Whether it has no bytes at all.
    pub fn is_empty(&self) -> bool {
        self.bytes == 0
    }

    /// The page of that index; `None`: zeroes.
    pub fn page(&self, index: u64) -> Option<&Arc<Page>> {
        let (chunk, within) = split(index);
        self.chunks.get(chunk)?.as_ref()?[within].as_ref()
    }

    /// Pages that are not known to be zero, ascending.
    pub fn pages(&self) -> impl Iterator<Item = (u64, &Arc<Page>)> {
        self.chunks.iter().enumerate().flat_map(|(c, chunk)| {
            let first = (c * CHUNK_PAGES) as u64;
            chunk
                .iter()
                .flat_map(|chunk| chunk.iter().enumerate())
                .filter_map(move |(p, page)| Some((first + p as u64, page.as_ref()?)))
        })
    }

    /// The first page from `index` on that is not known to be zero; `None`: none is.
    pub fn next_page(&self, index: u64) -> Option<u64> {
        let (first, mut within) = split(index);
        for (c, chunk) in self.chunks.iter().enumerate().skip(first) {
            if let Some(chunk) = chunk {
                let found = chunk.iter().skip(within).position(Option::is_some);
                if let Some(at) = found {
                    return Some((c * CHUNK_PAGES + within + at) as u64);
                }
            }
            within = 0;
        }
        None
    }

    /// Fills `buf` from `offset`.
    ///
    /// # Panics
    /// Where the range reaches past the end.
    pub fn read_at(&self, buf: &mut [u8], offset: u64) {
        assert!(self.holds(offset, buf.len()), "a read past the end");
        for_pages(offset, buf.len(), |index, within, range| {
            let target = &mut buf[range];
            match self.page(index) {
                Some(page) => target.copy_from_slice(&page[within..within + target.len()]),
                None => target.fill(0),
            }
        });
    }

    /// Stores `buf` at `offset`.
    ///
    /// # Panics
    /// Where the range reaches past the end.
    pub fn write_at(&mut self, buf: &[u8], offset: u64) {
        assert!(self.holds(offset, buf.len()), "a write past the end");
        for_pages(offset, buf.len(), |index, within, range| {
            let source = &buf[range];
            let (chunk, at) = split(index);
            let chunk = self.chunks[chunk].get_or_insert_with(|| Arc::new(vec![None; CHUNK_PAGES]));
            let page = Arc::make_mut(chunk)[at].get_or_insert_with(|| Arc::new([0; PAGE_BYTES]));
            Arc::make_mut(page)[within..within + source.len()].copy_from_slice(source);
        });
    }

    /// Makes a range zero.
    ///
    /// # Panics
    /// Where the range reaches past the end.
    pub fn zero_at(&mut self, offset: u64, len: u64) {
        assert!(self.holds(offset, len as usize), "zeroing past the end");
        // Only pages that are there: a whole disk may be discarded, and most of it holds nothing.
        let (page_bytes, end) = (PAGE_BYTES as u64, offset + len);
        let mut next = self.next_page(offset / page_bytes);
        while let Some(index) = next.filter(|index| index * page_bytes < end) {
            let start = index * page_bytes;
            let (from, to) =
                ((offset.max(start) - start) as usize, (end.min(start + page_bytes) - start) as usize);
            let (chunk, at) = split(index);
            let slot = self.chunks[chunk].as_mut().map(|chunk| &mut Arc::make_mut(chunk)[at]);
            match slot {
                Some(slot) if to - from == PAGE_BYTES => *slot = None,
                Some(Some(page)) => Arc::make_mut(page)[from..to].fill(0),
                _ => {}
            }
            next = self.next_page(index + 1);
        }
    }

    /// Whether two are of one size and hold the same bytes.
    pub fn same_content(&self, other: &Self) -> bool {
        let zero = |page: &Page| page.iter().all(|b| *b == 0);
        let written = |of: &Self| {
            of.pages().filter(|(_, p)| !zero(p)).map(|(i, p)| (i, Arc::clone(p))).collect::<Vec<_>>()
        };
        self.bytes == other.bytes && written(self) == written(other)
    }

    fn holds(&self, offset: u64, len: usize) -> bool {
        offset.checked_add(len as u64).is_some_and(|end| end <= self.bytes)
    }
}

fn split(index: u64) -> (usize, usize) {
    (index as usize / CHUNK_PAGES, index as usize % CHUNK_PAGES)
}

/// Calls with page index, offset within the page, and the range of the caller's buffer, for each page touched.
fn for_pages(offset: u64, len: usize, mut each: impl FnMut(u64, usize, std::ops::Range<usize>)) {
    let mut done = 0;
    while done < len {
        let at = offset + done as u64;
        let within = (at % PAGE_BYTES as u64) as usize;
        let n = (PAGE_BYTES - within).min(len - done);
        each(at / PAGE_BYTES as u64, within, done..done + n);
        done += n;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clones_are_independent() {
        let mut a = Sparse::new(3 << 20);
        a.write_at(&[1; 5000], 4000);
        let b = a.clone();
        a.write_at(&[2; 10], 4096);
        a.zero_at(8192, 808);
        let mut buf = [9; 5100];
        b.read_at(&mut buf, 3990);
        assert!(buf[..10] == [0; 10] && buf[10..5010] == [1; 5000] && buf[5010..] == [0; 90]);
        a.read_at(&mut buf[..20], 4090);
        assert!(buf[..6] == [1; 6] && buf[6..16] == [2; 10] && buf[16..20] == [1; 4]);
        assert_eq!((b.next_page(0), b.next_page(2), b.next_page(3)), (Some(0), Some(2), None));
        a.zero_at(0, 3 << 20);
        assert_eq!((a.pages().count(), b.pages().count()), (0, 3));
    }
}
