//! What a medium holds: pages that are shared until they are changed, so that a world is copied in no time.

use std::ops::Range;
use std::sync::Arc;

/// The unit in which a dying process's last write may be cut.
pub(super) const PAGE_BYTES: usize = 4096;

type Page = [u8; PAGE_BYTES];

#[derive(Clone)]
pub(super) struct Content {
    pages: Vec<Arc<Page>>,
    len: usize,
}

impl Content {
    pub(super) fn new(bytes: &[u8]) -> Self {
        let empty = Arc::new([0; PAGE_BYTES]);
        let page = |chunk: &[u8]| {
            if chunk.iter().all(|byte| *byte == 0) {
                return Arc::clone(&empty);
            }
            let mut page = [0; PAGE_BYTES];
            page[..chunk.len()].copy_from_slice(chunk);
            Arc::new(page)
        };
        Self { pages: bytes.chunks(PAGE_BYTES).map(page).collect(), len: bytes.len() }
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    pub(super) fn to_vec(&self) -> Vec<u8> {
        let mut bytes = vec![0; self.len];
        self.read(0, &mut bytes);
        bytes
    }

    pub(super) fn read(&self, offset: usize, target: &mut [u8]) {
        let mut done = 0;
        for (page, part) in pieces(offset, target.len()) {
            let to = done + part.len();
            target[done..to].copy_from_slice(&self.pages[page][part]);
            done = to;
        }
    }

    pub(super) fn write(&mut self, offset: usize, source: &[u8]) {
        let mut done = 0;
        for (page, part) in pieces(offset, source.len()) {
            let to = done + part.len();
            Arc::make_mut(&mut self.pages[page])[part].copy_from_slice(&source[done..to]);
            done = to;
        }
    }

    pub(super) fn zero(&mut self, offset: usize, len: usize) {
        for (page, part) in pieces(offset, len) {
            Arc::make_mut(&mut self.pages[page])[part].fill(0);
        }
    }
}

/// The pages of a range, and which part of each.
fn pieces(offset: usize, len: usize) -> impl Iterator<Item = (usize, Range<usize>)> {
    let end = offset + len;
    (offset / PAGE_BYTES..end.div_ceil(PAGE_BYTES)).map(move |page| {
        let start = page * PAGE_BYTES;
        (page, offset.max(start) - start..end.min(start + PAGE_BYTES) - start)
    })
}
