//! What a file holds: of a template on the host's disk, which is not changed, and above it in memory only pages that were written. So
//! an image of the papers' sizes costs what its guest wrote, and pages of zeroes cost nothing.

use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::hash::Hasher as _;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::sync::Arc;

use afterimage_block::Medium;
use parking_lot::Mutex;
use rustix::fs::{seek, SeekFrom};
use twox_hash::XxHash3_64;

use crate::extents::Extents;

const PAGE: usize = 4096;
const PAGE_BYTES: u64 = PAGE as u64;
static ZEROES: [u8; PAGE] = [0; PAGE];

/// `None`: zeroes.
type Page = Option<Box<[u8; PAGE]>>;

/// See the module. Reaching past its end is a defect of the caller's.
#[derive(Debug)]
pub struct Content {
    bytes: u64,
    template: Option<Template>,
    pages: Mutex<HashMap<u64, Page>>,
}

#[derive(Debug)]
struct Template {
    file: File,
    /// What of it is no hole, in whole pages.
    data: Extents,
}

impl Content {
    /// Zeroes.
    pub fn new(bytes: u64) -> Arc<Self> {
        Arc::new(Self { bytes, template: None, pages: Mutex::default() })
    }

    /// What a file holds now; it may not change while this lives.
    ///
    /// # Errors
    /// It cannot be read.
    pub fn of_file(path: &Path) -> io::Result<Arc<Self>> {
        let file = File::open(path)?;
        let bytes = file.metadata()?.len();
        let mut data = Extents::default();
        let mut at = 0;
        // Past its last data there is no next.
        while let Ok(from) = seek(&file, SeekFrom::Data(at)) {
            at = seek(&file, SeekFrom::Hole(from))?;
            data.insert(from / PAGE_BYTES * PAGE_BYTES..at.next_multiple_of(PAGE_BYTES));
        }
        Ok(Arc::new(Self { bytes, template: Some(Template { file, data }), pages: Mutex::default() }))
    }

    /// Where its template is no hole.
    pub fn data(&self) -> impl Iterator<Item = Range<u64>> + '_ {
        self.template.iter().flat_map(|template| template.data.iter())
    }

    /// Writes all of it into a file; zeroes become holes.
    ///
    /// # Errors
    /// The file cannot be made or written.
    pub fn save(&self, path: &Path) -> io::Result<()> {
        let file = File::create(path)?;
        file.set_len(self.bytes)?;
        self.each(|page, bytes| {
            let part = (self.bytes - page * PAGE_BYTES).min(PAGE_BYTES) as usize;
            file.write_all_at(&bytes[..part], page * PAGE_BYTES)
        })
    }

    /// A sum of all of it.
    ///
    /// # Errors
    /// Its template cannot be read.
    pub fn sum(&self) -> io::Result<u64> {
        let mut sum = XxHash3_64::with_seed(self.bytes);
        self.each(|page, bytes| {
            sum.write_u64(page);
            sum.write(bytes);
            Ok(())
        })?;
        Ok(sum.finish())
    }

    /// Pages that are not zeroes, upwards.
    fn each(&self, mut visit: impl FnMut(u64, &[u8; PAGE]) -> io::Result<()>) -> io::Result<()> {
        let pages = self.pages.lock();
        let written: BTreeMap<u64, &Page> = pages.iter().map(|(page, bytes)| (*page, bytes)).collect();
        let below = self.data().flat_map(|run| run.start / PAGE_BYTES..run.end / PAGE_BYTES);
        let mut below = below.filter(|page| !written.contains_key(page)).peekable();
        let mut scratch = ZEROES;
        let mut written = written.iter().peekable();
        loop {
            let at = match (below.peek(), written.peek()) {
                (None, None) => return Ok(()),
                (Some(page), other) if other.is_none_or(|(at, _)| page < *at) => Some(*page),
                _ => None,
            };
            match at {
                Some(page) => {
                    below.next();
                    self.of_template(page, &mut scratch)?;
                    if scratch != ZEROES {
                        visit(page, &scratch)?;
                    }
                }
                None => {
                    if let Some((page, Some(bytes))) = written.next() {
                        visit(*page, bytes)?;
                    }
                }
            }
        }
    }

    /// A page of the template, zeroes behind its end.
    fn of_template(&self, page: u64, bytes: &mut [u8; PAGE]) -> io::Result<()> {
        bytes.fill(0);
        let Some(template) = &self.template else { return Ok(()) };
        let start = page * PAGE_BYTES;
        if !template.data.missing(start..start + PAGE_BYTES).is_empty() {
            return Ok(());
        }
        let part = (self.bytes - start).min(PAGE_BYTES) as usize;
        template.file.read_exact_at(&mut bytes[..part], start)
    }

    /// A copy of all of it.
    #[cfg(test)]
    pub fn bytes(&self) -> Vec<u8> {
        let mut bytes = vec![0; self.bytes as usize];
        self.read_at(&mut bytes, 0).expect("it can be read");
        bytes
    }

    /// A range page by page: the page, and the part of it.
    fn parts(&self, offset: u64, len: u64) -> impl Iterator<Item = (u64, Range<usize>)> {
        assert!(offset.checked_add(len).is_some_and(|end| end <= self.bytes), "past the end");
        let end = offset + len;
        (offset / PAGE_BYTES..end.div_ceil(PAGE_BYTES)).map(move |page| {
            let start = page * PAGE_BYTES;
            let (from, to) = (offset.max(start) - start, end.min(start + PAGE_BYTES) - start);
            (page, from as usize..to as usize)
        })
    }

    /// Makes a part of a page these bytes.
    fn put(
        &self,
        pages: &mut HashMap<u64, Page>,
        page: u64,
        part: Range<usize>,
        bytes: &[u8],
    ) -> io::Result<()> {
        if part.len() == PAGE {
            let known = pages.entry(page).or_default();
            match known {
                _ if bytes == ZEROES => *known = None,
                Some(known) => known.copy_from_slice(bytes),
                None => known.insert(Box::new(ZEROES)).copy_from_slice(bytes),
            }
            return Ok(());
        }
        let mut whole = match pages.remove(&page) {
            Some(known) => known.unwrap_or_else(|| Box::new(ZEROES)),
            None => {
                let mut whole = Box::new(ZEROES);
                self.of_template(page, &mut whole)?;
                whole
            }
        };
        whole[part].copy_from_slice(bytes);
        pages.insert(page, (*whole != ZEROES).then_some(whole));
        Ok(())
    }
}

impl Medium for Content {
    fn len(&self) -> u64 {
        self.bytes
    }

    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        let pages = self.pages.lock();
        let mut scratch = ZEROES;
        let mut rest = buf;
        for (page, part) in self.parts(offset, rest.len() as u64) {
            let (now, later) = std::mem::take(&mut rest).split_at_mut(part.len());
            rest = later;
            match pages.get(&page) {
                Some(Some(bytes)) => now.copy_from_slice(&bytes[part]),
                Some(None) => now.fill(0),
                None => {
                    self.of_template(page, &mut scratch)?;
                    now.copy_from_slice(&scratch[part]);
                }
            }
        }
        Ok(())
    }

    fn write_at(&self, buf: &[u8], offset: u64) -> io::Result<()> {
        let mut pages = self.pages.lock();
        let mut rest = buf;
        for (page, part) in self.parts(offset, buf.len() as u64) {
            let (now, later) = rest.split_at(part.len());
            rest = later;
            self.put(&mut pages, page, part, now)?;
        }
        Ok(())
    }

    fn zero_at(&self, offset: u64, len: u64, _unmap: bool) -> io::Result<()> {
        let mut pages = self.pages.lock();
        for (page, part) in self.parts(offset, len) {
            let zeroes = &ZEROES[..part.len()];
            self.put(&mut pages, page, part, zeroes)?;
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

    #[test]
    fn zeroes_are_the_same_wherever_they_come_from() {
        let content = Content::new(1 << 40);
        let empty = content.sum().unwrap();
        content.write_at(&[0; 10_000], 1 << 39).unwrap();
        assert_eq!(content.sum().unwrap(), empty);
        content.write_at(&[7; 5000], 4000).unwrap();
        let mut read = [1; 5010];
        content.read_at(&mut read, 3995).unwrap();
        assert!(read[..5] == [0; 5] && read[5..5005].iter().all(|byte| *byte == 7) && read[5005..] == [0; 5]);
        assert_ne!(content.sum().unwrap(), empty);
        content.zero_at(4000, 100, true).unwrap();
        content.write_at(&[0; 4900], 4100).unwrap();
        assert_eq!(content.sum().unwrap(), empty);
    }

    #[test]
    fn a_template_is_read_below_what_is_written_and_saved_with_its_holes() {
        let folder = tempfile::tempdir().unwrap();
        let (from, to) = (folder.path().join("from"), folder.path().join("to"));
        let file = File::create(&from).unwrap();
        file.set_len((8 << 20) + 512).unwrap();
        for offset in [0, (3 << 20) + 4096, 8 << 20] {
            file.write_all_at(&[7; 512], offset).unwrap();
        }
        let content = Content::of_file(&from).unwrap();
        let mut bytes = std::fs::read(&from).unwrap();
        assert!(content.bytes() == bytes);
        for (offset, byte, len) in
            [(100usize, 9, 50usize), (3 << 20, 0, 8192), (4 << 20, 5, 5000), (8 << 20, 6, 100)]
        {
            content.write_at(&vec![byte; len], offset as u64).unwrap();
            bytes[offset..offset + len].fill(byte);
        }
        assert!(content.bytes() == bytes);
        content.save(&to).unwrap();
        assert!(std::fs::read(&to).unwrap() == bytes);
        assert_eq!(Content::of_file(&to).unwrap().sum().unwrap(), content.sum().unwrap());
        assert_eq!(std::fs::read(&from).unwrap()[100], 7, "the template is as it was");
    }
}
