//! Recovery of disks that somebody else made up: for libFuzzer, and for tests.
//!
//! An input is a list of patches on a disk of zeroes, for what counts lies far apart: `disk_mib (1 byte)`, then `byte offset (4,
//! little-endian), length (2), bytes` again and again. It is recovered as it is, and with the runs' checksums made right, which a
//! fuzzer cannot guess.

use std::io;

use afterimage_format::checksum;
use afterimage_format::ijournal::{AREAS_MAGIC, COMMIT_MAGIC, RUN_BLOCKS_MAX, RUN_MAGIC};

use crate::{recover, Storage};

const MIB: usize = 1 << 20;
/// A journal takes 4 MiB at least.
const DISK_MIB_MAX: usize = 16;
const BLOCK: usize = 4096;

/// A disk in memory.
#[derive(Clone, PartialEq, Eq)]
pub struct Memory(pub Vec<u8>);

impl Storage for Memory {
    fn len(&self) -> u64 {
        self.0.len() as u64
    }

    fn read_at(&mut self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        buf.copy_from_slice(&self.0[offset as usize..][..buf.len()]);
        Ok(())
    }

    fn write_at(&mut self, buf: &[u8], offset: u64) -> io::Result<()> {
        assert_eq!(buf.len(), BLOCK, "whole blocks");
        self.0[offset as usize..][..BLOCK].copy_from_slice(buf);
        Ok(())
    }

    fn sync(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// The disk that an input stands for.
pub fn disk_of(input: &[u8]) -> Memory {
    let mib = usize::from(input.first().copied().unwrap_or(0)).clamp(1, DISK_MIB_MAX);
    let mut disk = vec![0; mib * MIB];
    let mut rest = input.get(1..).unwrap_or(&[]);
    while let Some((head, bytes)) = rest.split_at_checked(6) {
        let at = u32::from_le_bytes([head[0], head[1], head[2], head[3]]) as usize % disk.len();
        let len = usize::from(u16::from_le_bytes([head[4], head[5]])).min(bytes.len()).min(disk.len() - at);
        disk[at..at + len].copy_from_slice(&bytes[..len]);
        rest = &bytes[len..];
    }
    Memory(disk)
}

/// An input that stands for a disk.
pub fn input_of(disk: &[u8]) -> Vec<u8> {
    let mut input = vec![disk.len().div_ceil(MIB) as u8];
    for (i, block) in disk.chunks(64).enumerate().filter(|(_, block)| block.iter().any(|byte| *byte != 0)) {
        input.extend_from_slice(&((i * 64) as u32).to_le_bytes());
        let len = block.len() - block.iter().rev().take_while(|byte| **byte == 0).count();
        input.extend_from_slice(&(len as u16).to_le_bytes());
        input.extend_from_slice(&block[..len]);
    }
    input
}

/// Makes the checksums of whatever looks like a run, or like the areas' header, right.
pub fn reseal(disk: &mut [u8]) {
    for at in (0..disk.len() / BLOCK).map(|block| block * BLOCK) {
        let magic = &disk[at..at + 8];
        if magic == AREAS_MAGIC {
            disk[at + 12..at + 16].fill(0);
            let crc = checksum(&disk[at..at + BLOCK]);
            disk[at + 12..at + 16].copy_from_slice(&crc.to_le_bytes());
        } else if magic == RUN_MAGIC {
            let blocks = u32::from_le_bytes([disk[at + 12], disk[at + 13], disk[at + 14], disk[at + 15]]);
            let end = at + blocks.min(RUN_BLOCKS_MAX) as usize * BLOCK;
            if (1..=RUN_BLOCKS_MAX).contains(&blocks) && end <= disk.len() {
                let sub_id = disk[at + 32..at + 40].to_vec();
                disk[end - 32..end - 24].copy_from_slice(&COMMIT_MAGIC);
                disk[end - 24..end - 16].copy_from_slice(&sub_id);
                let crc = checksum(&disk[at..end - 4]);
                disk[end - 4..end].copy_from_slice(&crc.to_le_bytes());
            }
        }
    }
}

/// Recovers an input's disk, as it is and resealed.
///
/// # Panics
/// Where recovery does, or leaves what it would not leave alone the next time.
pub fn fuzz_recover(input: &[u8]) {
    let mut disk = disk_of(input);
    check(disk.clone());
    reseal(&mut disk.0);
    check(disk);
}

fn check(mut disk: Memory) {
    if recover(&mut disk, 0).is_err() {
        return;
    }
    let done = disk.clone();
    match recover(&mut disk, 0) {
        Ok(again) => assert!(!again.had_bit && again.transactions == 0, "{again}"),
        Err(error) => panic!("what was recovered is not sound: {error}"),
    }
    assert!(disk == done, "a second recovery changes something");
}
