//! What vext4 counted of commits that it handed over (`/proc/fs/vjbd2/DEVICE/vma`, docs/guest-kernel.md).

use serde::{Deserialize, Serialize};

/// Commits of so many blocks, and fewer than twice as many.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Batch {
    /// The least of them.
    pub blocks_min: u64,
    /// Commits.
    pub commits: u64,
    /// Their blocks.
    pub blocks: u64,
    /// From the first command of each to the last answer.
    pub ns: u64,
}

/// A guest's commits.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HandedOver {
    /// Requests for them.
    pub commands: u64,
    /// The most blocks that were copied at a time: those of the longest transaction.
    pub copied_blocks_max: u64,
    /// By size.
    pub batches: Vec<Batch>,
}

/// Blocks are 4 KiB.
pub const BLOCK_BYTES: u64 = 4096;

impl HandedOver {
    /// Of the kernel's lines, with `;` between them. `None` where one is missing, or something was not handed over.
    pub fn of(text: &str) -> Option<Self> {
        let lines = || text.split(';').map(str::trim);
        let number = |name: &str| {
            lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')?.parse::<u64>().ok())
        };
        if number("fallbacks")? != 0 || number("too_long")? != 0 {
            return None;
        }
        let batch = |line: &str| {
            let words: Vec<&str> = line.split(' ').collect();
            let ["batch", blocks_min, "commits", commits, "blocks", blocks, "ns", ns] = words[..] else {
                return None;
            };
            Some(Batch {
                blocks_min: blocks_min.parse().ok()?,
                commits: commits.parse().ok()?,
                blocks: blocks.parse().ok()?,
                ns: ns.parse().ok()?,
            })
        };
        let batches = lines().filter(|line| line.starts_with("batch ")).map(batch).collect::<Option<_>>()?;
        Some(Self { commands: number("commands")?, copied_blocks_max: number("copied_blocks_max")?, batches })
    }

    /// What came since an earlier moment. (The longest transaction may have been before it.)
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        let then = |size| earlier.batches.iter().find(|batch| batch.blocks_min == size);
        let batch = |batch: &Batch| {
            let then = then(batch.blocks_min).copied().unwrap_or_default();
            Batch {
                blocks_min: batch.blocks_min,
                commits: batch.commits - then.commits,
                blocks: batch.blocks - then.blocks,
                ns: batch.ns - then.ns,
            }
        };
        Self {
            commands: self.commands - earlier.commands,
            copied_blocks_max: self.copied_blocks_max,
            batches: self.batches.iter().map(batch).filter(|batch| batch.commits > 0).collect(),
        }
    }

    /// Commits of all sizes.
    pub fn commits(&self) -> u64 {
        self.batches.iter().map(|batch| batch.commits).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str =
        "handed_over 3;handed_over_blocks 70;handed_over_ns 9;commands 8;fallbacks 0;too_long 0;\
                        blocks_a_command 125;copied_blocks_max 60;batch 4 commits 2 blocks 10 ns 4;\
                        batch 32 commits 1 blocks 60 ns 5;";

    #[test]
    fn lines_of_the_kernel_are_read_and_what_was_not_handed_over_is_no_result() {
        let now = HandedOver::of(TEXT).unwrap();
        assert_eq!((now.commands, now.copied_blocks_max, now.commits()), (8, 60, 3));
        assert_eq!(now.batches[1], Batch { blocks_min: 32, commits: 1, blocks: 60, ns: 5 });
        for (from, to) in
            [("fallbacks 0", "fallbacks 1"), ("too_long 0", "too_long 2"), ("blocks 10", "blocks x")]
        {
            assert_eq!(HandedOver::of(&TEXT.replace(from, to)), None, "{to}");
        }
        assert_eq!(HandedOver::of(""), None);
        let then =
            HandedOver::of(&TEXT.replace("4 commits 2 blocks 10 ns 4", "4 commits 1 blocks 6 ns 1")).unwrap();
        assert_eq!(now.since(&then).batches, [Batch { blocks_min: 4, commits: 1, blocks: 4, ns: 3 }]);
    }
}
