//! Looking at disks that somebody else made up: for libFuzzer, and for tests.
//!
//! An input is a list of patches on a disk of zeroes, for what counts lies far apart:
//! `disk_mib (1 byte)`, then `byte offset (4, little-endian), length (2), bytes` again and again.

use afterimage_block::{BlockError, Sector, SECTOR_BYTES};

use super::checksum::{crc32, crc32c};
use super::superblock::JournalSuperblock;
use super::{find, look, Found, Layout, Source};
use crate::ids::BLOCK_BYTES;

const MIB: usize = 1 << 20;
/// A journal takes 4 MiB at least.
const DISK_MIB_MAX: usize = 16;

struct Memory(Vec<u8>);

impl Source for Memory {
    fn read(&mut self, sector: Sector, buf: &mut [u8]) -> Result<(), BlockError> {
        assert!(!buf.is_empty() && buf.len() as u64 % SECTOR_BYTES == 0, "whole sectors");
        let at = sector.0 as usize * SECTOR_BYTES as usize;
        buf.copy_from_slice(&self.0[at..at + buf.len()]);
        Ok(())
    }
}

/// Looks at the disk that the patches make, as it is and with the checksums that a fuzzer cannot guess.
///
/// # Panics
/// Where finding does, or finds what cannot be: then it is broken.
pub fn fuzz_find(input: &[u8]) {
    let mut disk = Memory(disk_of(input));
    check(&mut disk);
    seal(&mut disk.0);
    check(&mut disk);
}

fn check(disk: &mut Memory) {
    let sectors = disk.0.len() as u64 / SECTOR_BYTES;
    let Ok(found) = find(disk, sectors) else { unreachable!("memory can be read") };
    assert!(found.len() <= super::FOUND_MAX);
    for one in found {
        let Found::FileSystem(layout) = one else { continue };
        assert_sound(&layout, sectors);
        // Another end may be a member of an md array; the same file system it is in any case.
        match look(disk, layout.start, sectors - layout.start.0) {
            Ok(Some(Found::FileSystem(again))) => {
                assert!(again == super::Layout { room_blocks: again.room_blocks, ..layout.clone() });
            }
            Ok(Some(Found::Passthrough { .. })) => {}
            other => panic!("{other:?}"),
        }
        let at = layout.journal[0].home.sector(layout.start).0 as usize * SECTOR_BYTES as usize;
        let Ok(block) = disk.0[at..at + BLOCK_BYTES].try_into() else { unreachable!("a block's length") };
        let Ok(journal) = JournalSuperblock::parse(block) else { unreachable!("it was found sound") };
        let moved = journal.with_tail(journal.sequence().next(), Some(journal.first()));
        assert!(JournalSuperblock::parse(moved.bytes()).is_ok_and(|again| again == moved));
        assert_eq!(moved.with_tail(journal.sequence(), journal.start()), journal);
    }
}

/// What every layout promises, whatever the disk says.
///
/// # Panics
/// Where it does not hold.
pub fn assert_sound(layout: &Layout, disk_sectors: u64) {
    assert!(layout.end().0 <= disk_sectors);
    assert!(layout.journal_blocks() >= 1024);
    let (mut next, mut homes) = (0, Vec::new());
    for extent in &layout.journal {
        assert_eq!(extent.at.0, next);
        assert!(extent.blocks > 0 && extent.home.0 > 0);
        assert!(extent.home.0 + u64::from(extent.blocks) <= layout.blocks);
        homes.push((extent.home.0, extent.home.0 + u64::from(extent.blocks)));
        next += extent.blocks;
    }
    homes.sort_unstable();
    assert!(homes.windows(2).all(|pair| pair[0].1 <= pair[1].0), "a block is in the journal twice");
    for watched in &layout.watched {
        assert!(watched.block.0 < layout.blocks);
        assert!(watched.offset + watched.bytes.len() <= BLOCK_BYTES);
        assert_eq!(watched.bytes.len(), watched.mask.len());
        assert_eq!(layout.area_of(watched.block), None, "{watched:?} lies in the journal");
    }
}

/// The disk that an input describes.
pub fn disk_of(input: &[u8]) -> Vec<u8> {
    let Some((mib, mut patches)) = input.split_first() else { return Vec::new() };
    let mut disk = vec![0; usize::from(*mib) % (DISK_MIB_MAX + 1) * MIB];
    while let [a, b, c, d, short, long, rest @ ..] = patches {
        let at = u32::from_le_bytes([*a, *b, *c, *d]) as usize;
        let len = usize::from(u16::from_le_bytes([*short, *long])).min(rest.len());
        if let Some(place) = at.checked_add(len).and_then(|end| disk.get_mut(at..end)) {
            place.copy_from_slice(&rest[..len]);
        }
        patches = &rest[len..];
    }
    disk
}

/// Makes the checksums of an ext4 superblock and of a GPT agree.
fn seal(disk: &mut [u8]) {
    if let Some(superblock) = disk.get_mut(1024..2048) {
        let sum = crc32c(!0, &superblock[..1020]);
        superblock[1020..].copy_from_slice(&sum.to_le_bytes());
    }
    if disk.get(512..520).is_some_and(|bytes| bytes == b"EFI PART") {
        let entries = 128 * usize::from(disk[512 + 80]);
        let sum = crc32(&disk[1024..1024 + entries]);
        disk[512 + 88..][..4].copy_from_slice(&sum.to_le_bytes());
        disk[512 + 16..][..4].fill(0);
        let sum = crc32(&disk[512..512 + 92]);
        disk[512 + 16..][..4].copy_from_slice(&sum.to_le_bytes());
    }
}

/// Inputs that make sound disks: an ext4 alone, with a tree of extents, in an MBR's and in a GPT's partition.
pub fn samples() -> Vec<Vec<u8>> {
    let mut whole = Sample::new(8);
    whole.ext4(0, false);
    let mut tree = Sample::new(8);
    tree.ext4(0, true);

    let mut logical = Sample::new(12);
    logical.boot_record(0, &[(0x0F, 64, 23_000)]);
    logical.boot_record(64, &[(0x83, 63, 17_000), (0x05, 18_000, 4000)]);
    logical.boot_record(18_064, &[(0x83, 1, 3000)]);
    logical.ext4(64 + 63, false);

    let mut gpt = Sample::new(12);
    gpt.boot_record(0, &[(0xEE, 1, u32::MAX)]);
    let mut header = [0; 92];
    header[..16].copy_from_slice(b"EFI PART\0\0\x01\0\x5C\0\0\0");
    header[24] = 1;
    header[72] = 2;
    (header[80], header[84]) = (4, 128);
    let mut entry = [1; 48];
    entry[32..40].copy_from_slice(&100_u64.to_le_bytes());
    entry[40..48].copy_from_slice(&20_000_u64.to_le_bytes());
    let mut entries = [0; 512];
    entries[..48].copy_from_slice(&entry);
    header[88..].copy_from_slice(&crc32(&entries).to_le_bytes());
    let sum = crc32(&header);
    header[16..20].copy_from_slice(&sum.to_le_bytes());
    gpt.patch(512, &header);
    gpt.patch(1024, &entry);
    gpt.ext4(100, false);
    [whole, tree, logical, gpt].map(|sample| sample.input).into()
}

struct Sample {
    input: Vec<u8>,
}

impl Sample {
    fn new(disk_mib: u8) -> Self {
        Self { input: vec![disk_mib] }
    }

    fn patch(&mut self, at: usize, bytes: &[u8]) {
        self.input.extend((at as u32).to_le_bytes());
        self.input.extend((bytes.len() as u16).to_le_bytes());
        self.input.extend(bytes);
    }

    fn boot_record(&mut self, sector: usize, entries: &[(u8, u32, u32)]) {
        let mut bytes = [0; 66];
        for (entry, (kind, start, sectors)) in bytes.chunks_exact_mut(16).zip(entries) {
            entry[4] = *kind;
            entry[8..12].copy_from_slice(&start.to_le_bytes());
            entry[12..].copy_from_slice(&sectors.to_le_bytes());
        }
        bytes[64..].copy_from_slice(&[0x55, 0xAA]);
        self.patch(sector * 512 + 446, &bytes);
    }

    /// An ext4 of 2048 blocks without checksums: inode table in block 2, journal from block 16 on.
    fn ext4(&mut self, sector: usize, tree: bool) {
        let start = sector * 512;
        let mut superblock = [0; 256];
        let mut field = |at: usize, value: u32| superblock[at..at + 4].copy_from_slice(&value.to_le_bytes());
        field(0x0, 16); // inodes
        field(0x4, 2048); // blocks
        field(0x18, 2); // block size
        field(0x20, 32768); // blocks in a group
        field(0x28, 16); // inodes in a group
        field(0x38, 0xEF53);
        field(0x4C, 1); // revision
        field(0x58, 256); // inode size
        field(0x5C, 0x4); // has_journal
        field(0x60, 0x42); // filetype, extents
        field(0xE0, 8); // the journal's inode
        superblock[0x68..0x78].fill(9);
        self.patch(start + 1024, &superblock);
        self.patch(start + BLOCK_BYTES + 8, &[2]);

        let mut inode = [0; 112];
        let mut field = |at: usize, value: u32| inode[at..at + 4].copy_from_slice(&value.to_le_bytes());
        field(0x0, 0x8180); // a regular file
        field(0x4, 4 << 20); // bytes
        field(0x18, 1 << 16); // one link
        field(0x20, 0x8_0000); // extents
        let extent = |at: u32, len: u32, home: u32| [at, len, home].map(u32::to_le_bytes).concat();
        if tree {
            field(0x28, 0x0001_F30A);
            field(0x2C, 0x0001_0004);
            field(0x28 + 16, 5);
            let mut leaf = [0x0A, 0xF3, 2, 0, 84, 1, 0, 0, 0, 0, 0, 0].to_vec();
            leaf.extend(extent(0, 24, 16));
            leaf.extend(extent(24, 1000, 1000));
            self.patch(start + 5 * BLOCK_BYTES, &leaf);
        } else {
            field(0x28, 0x0001_F30A);
            field(0x2C, 4);
            inode[0x34..0x40].copy_from_slice(&extent(0, 1024, 16));
        }
        self.patch(start + 2 * BLOCK_BYTES + 7 * 256, &inode);

        let words = [0xC03B_3998, 4, 0, 4096, 1024, 1, 7, 0, 0, 0, 0, 0].map(u32::to_be_bytes);
        self.patch(start + 16 * BLOCK_BYTES, &[words.concat(), vec![9; 16]].concat());
    }
}

#[cfg(test)]
mod tests {
    use rand::{Rng, RngExt, SeedableRng};

    use super::*;
    use crate::ids::BLOCK_SECTORS;

    #[test]
    fn samples_are_found() {
        for (sample, start) in samples().iter().zip([0, 0, 127, 100]) {
            let mut disk = Memory(disk_of(sample));
            let sectors = disk.0.len() as u64 / SECTOR_BYTES;
            let found = find(&mut disk, sectors).expect("memory can be read");
            assert!(
                matches!(found.as_slice(), [Found::FileSystem(layout)] if layout.start == Sector(start)),
                "{found:?}"
            );
        }
    }

    /// File systems of 512 MiB, one behind the other after the first MiB, each with a journal of so many single blocks.
    struct InPieces<'a>(&'a [u32]);

    const PLACE_SECTORS: u64 = 131_072 * BLOCK_SECTORS;

    impl InPieces<'_> {
        fn file_system(pieces: u32, at: usize, buf: &mut [u8]) {
            let mut low = Sample::new(1);
            low.ext4(0, false);
            let mut low = disk_of(&low.input);
            let mut put = |at: usize, bytes: &[u8]| low[at..at + bytes.len()].copy_from_slice(bytes);
            put(1024, &64_u32.to_le_bytes());
            put(1024 + 4, &131_072_u32.to_le_bytes());
            let inode = 2 * BLOCK_BYTES + 7 * 256;
            put(inode + 4, &(pieces * 4096).to_le_bytes());
            put(16 * BLOCK_BYTES + 16, &pieces.to_be_bytes());
            // The inode, a block with an index, leaves from block 20 on.
            let node = |entries: u16, max: u16, depth: u16| {
                [0xF30A, entries, max, depth, 0, 0].map(u16::to_le_bytes).concat()
            };
            let index = |logical: u32, block: u32| [logical, block, 0].map(u32::to_le_bytes).concat();
            put(inode + 0x28, &[node(1, 4, 2), index(0, 5)].concat());
            let leaves = pieces.div_ceil(340);
            let upper = (0..leaves).flat_map(|leaf| index(leaf * 340, 20 + leaf)).collect::<Vec<u8>>();
            put(5 * BLOCK_BYTES, &[node(leaves as u16, 340, 1), upper].concat());
            for leaf in 0..leaves {
                let logical = leaf * 340..pieces.min((leaf + 1) * 340);
                let mut block = node(logical.len() as u16, 340, 0);
                for at in logical {
                    let home = if at == 0 { 16 } else { 1000 + 2 * at };
                    block.extend([at, 1, home].map(u32::to_le_bytes).concat());
                }
                put((20 + leaf as usize) * BLOCK_BYTES, &block);
            }
            let there = at.min(low.len())..(at + buf.len()).min(low.len());
            buf.fill(0);
            buf[..there.len()].copy_from_slice(&low[there]);
        }
    }

    impl Source for InPieces<'_> {
        fn read(&mut self, sector: Sector, buf: &mut [u8]) -> Result<(), BlockError> {
            match sector.0.checked_sub(2048) {
                Some(within) => {
                    let pieces = self.0[(within / PLACE_SECTORS) as usize];
                    Self::file_system(pieces, (within % PLACE_SECTORS * SECTOR_BYTES) as usize, buf);
                }
                None => {
                    let mut table = Sample::new(1);
                    let entry =
                        |n: usize| (0x83, (2048 + n as u64 * PLACE_SECTORS) as u32, PLACE_SECTORS as u32);
                    table.boot_record(0, &(0..self.0.len()).map(entry).collect::<Vec<_>>());
                    let at = (sector.0 * SECTOR_BYTES) as usize;
                    buf.copy_from_slice(&disk_of(&table.input)[at..at + buf.len()]);
                }
            }
            Ok(())
        }
    }

    /// What a guest may lay out in single blocks is bounded for a disk, not for a file system.
    #[test]
    fn the_journals_of_a_disk_lie_in_so_many_pieces_together() {
        for (pieces, refused) in [(&[40_000, 40_000, 20_000][..], Some(1)), (&[40_000, 20_000, 2000], None)] {
            let sectors = 2048 + pieces.len() as u64 * PLACE_SECTORS;
            let found = find(&mut InPieces(pieces), sectors).expect("memory can be read");
            assert_eq!(found.len(), pieces.len());
            for (n, found) in found.iter().enumerate() {
                match found {
                    Found::FileSystem(layout) => {
                        assert!(refused != Some(n) && layout.journal.len() == pieces[n] as usize);
                    }
                    // Its guest may be using it, all the same.
                    Found::Passthrough { why, journal, .. } => {
                        assert!(refused == Some(n) && why.contains("too many pieces"), "{n}: {why}");
                        assert_eq!(
                            *journal,
                            Some(Sector(2048 + n as u64 * PLACE_SECTORS + 16 * BLOCK_SECTORS))
                        );
                    }
                }
            }
        }
    }

    #[test]
    fn damaged_samples() {
        let mut random = rand_chacha::ChaCha8Rng::seed_from_u64(7);
        for mut sample in samples() {
            for _ in 0..500 {
                let at = random.random_range(0..sample.len());
                let before = std::mem::replace(&mut sample[at], random.next_u32() as u8);
                fuzz_find(&sample);
                if random.random_range(0..3) > 0 {
                    sample[at] = before;
                }
            }
        }
    }
}
