//! The naive oracle: what a guest was told, and what a crash may leave of it (docs/crash-rules.md).
//!
//! A data block has versions, a file system states: the one after each transaction. Each is written once, between two
//! moments of the guest's time; what had completed by some moment has to be there, and under `power-window` what is there
//! is a prefix: whatever had completed before the newest of it was asked for.

use std::time::Duration;

use afterimage_order::Contract;

pub const SECTORS: usize = 8;

/// When something was asked for, and when it was answered with success.
#[derive(Clone, Copy, Debug)]
pub struct Span {
    submitted: u64,
    completed: Option<u64>,
}

#[derive(Clone, Copy, Debug)]
struct Version {
    zero: bool,
    span: Span,
}

/// A block that is written directly.
#[derive(Clone, Debug)]
struct Block {
    /// What each sector held when this history began: a version, or zeroes.
    base: [Option<u32>; SECTORS],
    /// The number of the first version.
    first: u32,
    versions: Vec<Version>,
}

/// A flush.
#[derive(Clone, Copy, Debug)]
struct Ack {
    submitted: u64,
    at: Duration,
}

pub struct Oracle {
    moment: u64,
    blocks: Vec<Block>,
    /// After each transaction: the version of each block of the file system.
    states: Vec<Vec<u32>>,
    commits: Vec<Span>,
    acks: Vec<Ack>,
    /// Everything that had completed at this moment has been said to be durable, whatever the contract.
    durable: u64,
}

/// What is found of the disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    pub data: Vec<[Option<u32>; SECTORS]>,
    pub state: Vec<u32>,
}

/// What has happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Crash {
    /// The guest died, or the daemon.
    Process,
    Power,
}

impl Oracle {
    pub fn new(blocks: usize, state_blocks: usize) -> Self {
        let block = Block { base: [None; SECTORS], first: 1, versions: Vec::new() };
        Self {
            moment: 0,
            blocks: vec![block; blocks],
            states: vec![vec![0; state_blocks]],
            commits: Vec::new(),
            acks: Vec::new(),
            durable: 0,
        }
    }

    pub fn moment(&mut self) -> u64 {
        self.moment += 1;
        self.moment
    }

    /// The next version of a block is asked for. Returns its number.
    pub fn write(&mut self, block: usize, zero: bool) -> u32 {
        let span = Span { submitted: self.moment(), completed: None };
        let block = &mut self.blocks[block];
        block.versions.push(Version { zero, span });
        block.first + block.versions.len() as u32 - 1
    }

    pub fn written(&mut self, block: usize, version: u32) {
        let now = self.moment();
        let block = &mut self.blocks[block];
        block.versions[(version - block.first) as usize].span.completed = Some(now);
    }

    /// The state after the newest transaction.
    pub fn state(&self) -> &[u32] {
        self.states.last().expect("there is a first one")
    }

    /// The commit block of a transaction is asked for.
    pub fn commit(&mut self, state: Vec<u32>) -> usize {
        let span = Span { submitted: self.moment(), completed: None };
        self.states.push(state);
        self.commits.push(span);
        self.commits.len()
    }

    pub fn committed(&mut self, transaction: usize) {
        self.commits[transaction - 1].completed = Some(self.moment());
    }

    pub fn flushed(&mut self, submitted: u64, at: Duration) {
        self.acks.push(Ack { submitted, at });
    }

    /// Everything that has completed is durable: somebody was told so.
    pub fn settled(&mut self, submitted: u64) {
        self.durable = self.durable.max(submitted);
    }

    /// Whether a read that was asked for at `submitted` may have found this in a sector.
    pub fn may_read(&self, block: usize, sector: usize, found: Option<u32>, submitted: u64) -> bool {
        self.blocks[block].may_hold(sector, found, submitted)
    }

    /// The transaction whose state is found, where that is allowed.
    ///
    /// # Errors
    /// It is not.
    pub fn judge(&self, found: &Found, crash: Crash, contract: &Contract) -> Result<usize, String> {
        let Some(state) = self.states.iter().rposition(|state| *state == found.state) else {
            return Err(format!(
                "the file system is in no state that it was ever in: {:?}, last {:?}",
                found.state,
                self.state()
            ));
        };
        let mut required = match (crash, contract) {
            (Crash::Process, _) => self.moment + 1,
            (Crash::Power, Contract::Power) => self.acks.iter().map(|ack| ack.submitted).max().unwrap_or(0),
            (Crash::Power, Contract::PowerWindow { window }) => {
                let last = self.acks.iter().map(|ack| ack.at).max().unwrap_or_default();
                let old = self.acks.iter().filter(|ack| ack.at + *window < last);
                old.map(|ack| ack.submitted).max().unwrap_or(0)
            }
            (Crash::Power, Contract::GuestCrash) => 0,
        };
        required = required.max(self.durable);
        if let (Crash::Power, Contract::PowerWindow { .. }) = (crash, contract) {
            required = required.max(self.newest(found, state));
            for (block, sectors) in found.data.iter().enumerate() {
                if sectors.iter().any(|sector| *sector != sectors[0]) && self.blocks[block].base != *sectors {
                    return Err(format!("data block {block} is torn: {sectors:?}"));
                }
            }
        }
        let needed = self.commits.iter().rposition(|commit| commit.is_before(required));
        if needed.is_some_and(|needed| state < needed + 1) {
            return Err(format!(
                "transaction {} was lost, the last one there is {state}",
                needed.map_or(0, |n| n + 1)
            ));
        }
        for (block, sectors) in found.data.iter().enumerate() {
            for (sector, version) in sectors.iter().enumerate() {
                if !self.blocks[block].may_hold(sector, *version, required) {
                    return Err(format!(
                        "data block {block} sector {sector} holds version {version:?} at moment {}, required {required}: {:?}",
                        self.moment, self.blocks[block]
                    ));
                }
            }
        }
        Ok(state)
    }

    /// When the newest of what is there was asked for.
    fn newest(&self, found: &Found, state: usize) -> u64 {
        let data = found.data.iter().zip(&self.blocks).flat_map(|(sectors, block)| {
            sectors.iter().flatten().filter_map(|version| {
                Some(block.versions.get(version.checked_sub(block.first)? as usize)?.span.submitted)
            })
        });
        let commit = state.checked_sub(1).map(|at| self.commits[at].submitted);
        data.chain(commit).max().unwrap_or(0)
    }

    /// After a power cut: what is found is all that ever was.
    pub fn rebase(&mut self, found: &Found) {
        for (block, base) in self.blocks.iter_mut().zip(&found.data) {
            block.first += block.versions.len() as u32;
            block.versions.clear();
            block.base = *base;
        }
        self.states = vec![found.state.clone()];
        self.commits.clear();
        self.acks.clear();
        self.durable = 0;
    }

    /// The guest has recovered from its own death: transactions that had not been committed never will be.
    pub fn recovered(&mut self, state: usize) {
        self.states.truncate(state + 1);
        self.commits.truncate(state);
    }
}

impl Span {
    fn is_before(&self, moment: u64) -> bool {
        self.completed.is_some_and(|at| at < moment)
    }
}

impl Block {
    /// Whether a sector may hold this where everything is there that had completed at that moment.
    fn may_hold(&self, sector: usize, found: Option<u32>, required: u64) -> bool {
        let from = self.versions.iter().rposition(|version| version.span.is_before(required));
        if from.is_none() && self.base[sector] == found {
            return true;
        }
        let candidates = self.versions.iter().enumerate().skip(from.unwrap_or(0));
        candidates.into_iter().any(|(i, version)| match found {
            None => version.zero,
            Some(found) => !version.zero && found == self.first + i as u32,
        })
    }
}
