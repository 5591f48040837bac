//! Naive implementations of the four FTLs, written from the papers' rules as docs/flash.md has them and from nothing else: the oracle.
//!
//! They move one page at a time, search where the crate keeps indices, and sort where it keeps queues.

use std::collections::BTreeMap;

pub mod dftl;
pub mod fast;
pub mod flash;
pub mod page;
pub mod superblock;

/// Reads, programs, erases by the name of their cause.
pub type Tally = BTreeMap<&'static str, [u64; 3]>;

pub const READ: usize = 0;
pub const PROGRAM: usize = 1;
pub const ERASE: usize = 2;

/// An FTL whose pages hold the number of the write that filled them.
pub trait Naive {
    fn write(&mut self, lpn: u32, stamp: u32);
    /// What a read returns.
    fn read(&mut self, lpn: u32) -> Option<u32>;
    fn discard(&mut self, lpn: u32);
    fn tally(&self) -> &Tally;
    fn spare_reads(&self) -> u64 {
        0
    }
}
