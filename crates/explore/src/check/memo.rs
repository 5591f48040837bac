//! Checks that need not be made again: a checker that read the same bytes finds the same.
//!
//! ```text
//!   state ─► digest of read set 1 known? ─► … of read set n known? ─► no: check, note what was read ─► remember
//!                    └─ yes ─► the answer of then
//! ```
//!
//! Exact, up to collisions of 128-bit digests: what a deterministic checker reads next depends only on what it has read
//! before. So if a state agrees with an earlier one on all that was read there, the checker would have read just that,
//! and have found the same. Other states do not matter, nor does what was written: that stays in memory.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use rustc_hash::FxHashMap;

use super::Observation;
use crate::hash::mix;
use crate::state::{Image, ReadSet};

/// Read sets that are tried per state, the most recently successful first.
const SETS_MAX: usize = 32;
/// Answers kept per read set; the oldest goes first.
const ANSWERS_MAX: usize = 4096;

/// See the module. Shared by all workers that use the same checker.
#[derive(Debug, Default)]
pub struct Memo {
    sets: Mutex<Vec<Set>>,
    hits: AtomicU64,
    misses: AtomicU64,
}

#[derive(Debug)]
struct Set {
    /// One per disk.
    reads: Vec<ReadSet>,
    answers: FxHashMap<u128, Observation>,
    order: VecDeque<u128>,
}

/// Digest of what a set of reads sees.
fn digest(reads: &[ReadSet], images: &[Image]) -> u128 {
    reads.iter().zip(images).fold(0, |digest: u128, (pages, image)| {
        let part = image.digest_of(pages);
        // Disks are told apart by their order, whatever index they carry.
        let turned = digest.rotate_left(1);
        part ^ turned ^ u128::from(mix(turned as u64 ^ (turned >> 64) as u64))
    })
}

impl Memo {
    /// What was found where the checker read the same as it would here, if that is known.
    pub fn find(&self, images: &[Image]) -> Option<Observation> {
        // Digests are computed without the lock, from a copy of the sets in the order in which they are tried.
        let tried: Vec<Vec<ReadSet>> = self.sets.lock().iter().map(|set| set.reads.clone()).collect();
        for reads in tried {
            if reads.len() != images.len() {
                continue;
            }
            let digest = digest(&reads, images);
            let mut sets = self.sets.lock();
            let Some(at) = sets.iter().position(|set| set.reads == reads) else { continue };
            if let Some(found) = sets[at].answers.get(&digest).cloned() {
                sets[..=at].rotate_right(1);
                self.hits.fetch_add(1, Ordering::Relaxed);
                return Some(found);
            }
        }
        self.misses.fetch_add(1, Ordering::Relaxed);
        None
    }

    /// Remembers what was found, with what was read of each image.
    ///
    /// # Panics
    /// Where there is not one read set per image.
    pub fn remember(&self, reads: Vec<ReadSet>, images: &[Image], found: &Observation) {
        assert_eq!(reads.len(), images.len(), "one read set per disk");
        let digest = digest(&reads, images);
        let mut sets = self.sets.lock();
        let at = match sets.iter().position(|set| set.reads == reads) {
            Some(at) => at,
            None => {
                sets.truncate(SETS_MAX - 1);
                sets.push(Set { reads, answers: FxHashMap::default(), order: VecDeque::new() });
                sets.len() - 1
            }
        };
        let set = &mut sets[at];
        if set.answers.insert(digest, found.clone()).is_none() {
            set.order.push_back(digest);
            if set.order.len() > ANSWERS_MAX {
                if let Some(oldest) = set.order.pop_front() {
                    set.answers.remove(&oldest);
                }
            }
        }
        sets[..=at].rotate_right(1);
    }

    /// States that were answered, and that were not.
    pub fn counts(&self) -> (u64, u64) {
        (self.hits.load(Ordering::Relaxed), self.misses.load(Ordering::Relaxed))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use afterimage_block::Medium as _;
    use afterimage_trace::Sparse;
    use rand::{RngExt as _, SeedableRng as _};
    use rand_chacha::ChaCha8Rng;

    use super::*;
    use crate::state::{Content, Scratch};

    const PAGES: u64 = 64;

    /// Where it looks next depends on what it has read, and its answer on one byte there.
    fn check(image: &Image) -> (Observation, ReadSet) {
        let scratch = Scratch::new(image.clone());
        scratch.note_reads();
        let mut byte = [0];
        scratch.read_at(&mut byte, 0).unwrap();
        let page = 1 + u64::from(byte[0]) % (PAGES - 1);
        scratch.write_at(&[9; 4096], 4096 * page.max(2) - 4096).unwrap();
        scratch.read_at(&mut byte, page * 4096 + 1000).unwrap();
        (Observation::Named { state: byte[0].to_string() }, scratch.reads())
    }

    #[test]
    fn an_answer_is_what_the_checker_would_say() {
        let mut rng = ChaCha8Rng::seed_from_u64(3);
        let base = Arc::new(Sparse::new(PAGES * 4096));
        let memo = Memo::default();
        for _ in 0..5000 {
            let mut image = Image::digested(0, Arc::clone(&base));
            image.set(0, Content::owned(&[rng.random_range(0..5); 512]));
            for _ in 0..10 {
                image.set(rng.random_range(1..PAGES * 8), Content::owned(&[rng.random_range(0..3); 512]));
            }
            let images = [image];
            let (truth, reads) = check(&images[0]);
            match memo.find(&images) {
                Some(found) => assert_eq!(found, truth),
                None => memo.remember(vec![reads], &images, &truth),
            }
        }
        let (hits, misses) = memo.counts();
        assert!(hits > 4000 && hits + misses == 5000, "{hits} of {}", hits + misses);
        assert!(memo.sets.lock().len() <= 5);
    }

    #[test]
    fn one_byte_is_another_answer() {
        let base = Arc::new(Sparse::new(PAGES * 4096));
        let memo = Memo::default();
        let plain = [Image::digested(0, Arc::clone(&base)), Image::digested(1, Arc::clone(&base))];
        let reads = vec![vec![0, 5], vec![7]];
        memo.remember(reads, &plain, &Observation::Sound);
        assert_eq!(memo.find(&plain), Some(Observation::Sound));
        let mut byte = [0; 512];
        byte[511] = 1;
        for (disk, sector, same) in
            [(0, 7, false), (0, 8, true), (0, 47, false), (1, 56, false), (1, 0, true)]
        {
            let mut images = plain.clone();
            images[disk].set(sector, Content::owned(&byte));
            assert_eq!(memo.find(&images).is_some(), same, "disk {disk} sector {sector}");
        }
        let mut swapped = plain.clone();
        swapped.swap(0, 1);
        swapped[0].set(7, Content::owned(&byte));
        assert_eq!(memo.find(&swapped), None);
        assert_eq!(memo.find(&plain[..1]), None);
    }

    #[test]
    fn it_stays_bounded() {
        let base = Arc::new(Sparse::new(PAGES * 4096));
        let memo = Memo::default();
        let image = [Image::digested(0, base)];
        for set in 0..60 {
            memo.remember(vec![vec![set]], &image, &Observation::Sound);
        }
        assert_eq!(memo.sets.lock().len(), SETS_MAX);
        assert!(memo.find(&image).is_some());
        for state in 0..ANSWERS_MAX as u64 + 50 {
            let mut other = image.clone();
            let mut content = [0; 512];
            content[..8].copy_from_slice(&(state + 1).to_le_bytes());
            other[0].set(0, Content::owned(&content));
            memo.remember(vec![vec![0]], &other, &Observation::Sound);
        }
        assert_eq!(memo.sets.lock()[0].answers.len(), ANSWERS_MAX);
    }
}
