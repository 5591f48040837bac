//! What the fuzzer does with its bytes: a log is written as jbd2 would, then bytes in it are changed, and blocks given
//! good checksums again, so that what lies behind the checksums is reached too.
//!
//! ```text
//! [formats][first][log blocks][tail][tid][transactions] ; each [homes][revokes] and their bytes
//! then patches [block][offset, 2 bytes][length | 0x80: sign again][bytes] until the input ends
//! ```

use std::collections::HashMap;

use super::encode::{Draft, Encoder, MAGIC_BYTES};
use super::oracle::replay;
use super::{commit_tid, parse, AreaView, LogGeometry, Parsed};
use crate::ext4::layout::superblock::Features;
use crate::ids::{AreaBlock, FsBlock, Tid, BLOCK_BYTES};
use crate::versions::unescape;

/// Blocks of the file system that the fuzzed log belongs to, and where its own journal lies in it.
const FS_BLOCKS: u64 = 200;
const JOURNAL: (FsBlock, FsBlock) = (FsBlock(100), FsBlock(120));

/// Bytes of the input, zeroes after its end.
struct Input<'a>(&'a [u8]);

impl Input<'_> {
    fn byte(&mut self) -> u8 {
        let (first, rest) = self.0.split_first().unwrap_or((&0, &[]));
        self.0 = rest;
        *first
    }
}

fn geometry(input: &mut Input<'_>) -> LogGeometry {
    let formats = input.byte();
    let features = Features {
        checksum: formats & 3 == 1,
        revoke: true,
        bits64: formats & 4 != 0,
        async_commit: formats & 8 != 0,
        csum_v2: formats & 3 == 2,
        csum_v3: formats & 3 == 3,
    };
    let first = input.byte() % 4;
    LogGeometry {
        first: AreaBlock(first.into()),
        maxlen: u32::from(first) + u32::from(input.byte() % 64),
        features,
        uuid: [formats; 16],
        fs_blocks: FS_BLOCKS,
        forbidden: vec![JOURNAL],
    }
}

fn draft(input: &mut Input<'_>) -> Draft {
    let mut draft = Draft { commit_sec: 1, ..Draft::default() };
    let (logged, revokes) = (input.byte() % 16, input.byte() % 8);
    for _ in 0..logged {
        let (home, fill) = (input.byte(), input.byte());
        let mut content = Box::new([fill; BLOCK_BYTES]);
        if fill & 1 == 1 {
            content[..4].copy_from_slice(&MAGIC_BYTES);
        }
        draft.logged.push((FsBlock(home.into()), content));
    }
    draft.revokes = (0..revokes).map(|_| FsBlock(input.byte().into())).collect();
    draft
}

/// Reads a log that the input describes, in both ways.
///
/// # Panics
/// A home block out of range came out, or parser and recovery disagree about a log that both find sound.
pub fn fuzz_log(data: &[u8]) {
    let mut input = Input(data);
    let geometry = geometry(&mut input);
    let blocks = geometry.log_blocks();
    let tail = AreaBlock(geometry.first.0 + u32::from(input.byte()) % blocks.max(1));
    let tid = Tid(u32::from(input.byte()).wrapping_sub(2));
    let mut log = Encoder::new(&geometry, tail, tid);
    for _ in 0..input.byte() % 6 {
        log.transaction(&draft(&mut input));
    }
    while !input.0.is_empty() {
        let at = AreaBlock(geometry.first.0 + u32::from(input.byte()) % blocks.max(1));
        let offset = usize::from(input.byte()) << 8 | usize::from(input.byte());
        let length = input.byte();
        let block = log.blocks.entry(at).or_insert_with(|| Box::new([0; BLOCK_BYTES]));
        for i in 0..usize::from(length & 0x1f) {
            block[(offset + i) % BLOCK_BYTES] = input.byte();
        }
        if length & 0x80 != 0 {
            log.seal(at);
        }
    }
    judge(&mut log, &geometry, tail, tid);
}

fn judge(view: &mut Encoder, geometry: &LogGeometry, tail: AreaBlock, tid: Tid) {
    let (mut homes, mut walked) = (HashMap::new(), 0);
    let (mut at, mut next, mut sound) = (tail, tid, true);
    while walked <= geometry.log_blocks() {
        let Ok(parsed) = parse(view, geometry, at, next) else {
            sound = false;
            break;
        };
        let Parsed::Complete(found) = parsed else { break };
        for tag in &found.tags {
            assert!(tag.home.0 < FS_BLOCKS && !(JOURNAL.0..JOURNAL.1).contains(&tag.home), "{tag:?}");
            assert!(geometry.contains(tag.at), "{tag:?}");
            let mut scratch = [0; BLOCK_BYTES];
            let mut content =
                Box::new(view.block(tag.at, &mut scratch).map_or([0; BLOCK_BYTES], |block| *block));
            if tag.escaped {
                unescape(&mut content);
            }
            homes.insert(tag.home, content);
        }
        for revoked in &found.revokes {
            homes.remove(revoked);
        }
        let commit = if found.next == geometry.first { geometry.maxlen } else { found.next.0 } - 1;
        assert!(view
            .blocks
            .get(&AreaBlock(commit))
            .is_some_and(|block| commit_tid(&block[..]) == Some(next)));
        walked += found.blocks;
        (at, next) = (found.next, next.next());
    }
    let Ok(replayed) = replay(view, geometry, tail, tid) else { return };
    for (home, _) in &replayed.writes {
        assert!(home.0 < FS_BLOCKS && !(JOURNAL.0..JOURNAL.1).contains(home), "{home:?}");
    }
    let features = geometry.features;
    let may_be_missing = features.async_commit && (features.csum_v2 || features.csum_v3);
    if sound && replayed.damaged.is_empty() && !may_be_missing && walked <= geometry.log_blocks() {
        assert_eq!(replayed.end, next);
        assert_eq!(replayed.next, at);
        assert!(replayed.homes() == homes, "two readers, two outcomes");
    }
}

/// Inputs to begin with: logs in every format, with revokes, escapes, wraps, and patches.
pub fn samples() -> Vec<Vec<u8>> {
    let mut samples = Vec::new();
    for formats in 0..16 {
        for (tail, blocks) in [(0, 60), (40, 50)] {
            let mut sample = vec![formats, 1, blocks, tail, 7, 3];
            sample.extend([3, 1, 10, 2, 11, 3, 12, 4, 13]);
            sample.extend([2, 2, 10, 6, 14, 7, 11, 12]);
            sample.extend([1, 0, 11, 8]);
            samples.push(sample.clone());
            // A home inside the journal, in a descriptor that is signed again.
            sample.extend([1, 0, 15, 0x81, 105]);
            samples.push(sample.clone());
            sample.extend([tail, 0x0f, 0xff, 1, 0xee]);
            samples.push(sample);
        }
    }
    samples
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_are_judged() {
        for sample in samples() {
            fuzz_log(&sample);
            for end in 0..sample.len() {
                fuzz_log(&sample[..end]);
            }
        }
    }
}
