//! Damaged and forged structures: the same layout, or a refusal; never a panic, never a layout that cannot be.

use afterimage_block::{BlockError, Sector};
use afterimage_journal::layout::fuzz::assert_sound;
use afterimage_journal::layout::superblock::JournalSuperblock;
use afterimage_journal::layout::{find, Found, Layout, Source};
use afterimage_journal::AreaBlock;
use rand::{Rng, RngExt, SeedableRng};

use crate::image::{run, Image, MIB};

/// An image in memory: thousands of variations a second.
struct Memory(Vec<u8>);

impl Memory {
    fn of(image: &Image) -> Self {
        Self(image.read_at(0, image.bytes() as usize))
    }

    fn find(&mut self) -> Vec<Found> {
        let sectors = self.0.len() as u64 / 512;
        find(self, sectors).expect("memory can be read")
    }
}

impl Source for Memory {
    fn read(&mut self, sector: Sector, buf: &mut [u8]) -> Result<(), BlockError> {
        let at = sector.0 as usize * 512;
        buf.copy_from_slice(&self.0[at..at + buf.len()]);
        Ok(())
    }
}

/// A fragmented journal, two levels of extents below the inode.
fn fragmented(features: &str) -> Image {
    let image = Image::mkfs(32, &["-O", &format!("^has_journal,{features}")]);
    let script: String = (1000..7900).step_by(2).map(|block| format!("setb {block}\n")).collect();
    image.debugfs_script(&script);
    run("tune2fs", &["-j", "-J", "size=8", image.path().to_str().expect("a plain path")]);
    image
}

/// The places of an image's structures: superblock, descriptor, inode, extent tree, journal superblock.
fn structures(layout: &Layout) -> Vec<std::ops::Range<usize>> {
    let inode = layout.watched.iter().find(|w| w.what.contains("inode's mode")).expect("an inode");
    let inode = inode.block.0 as usize * 4096 + inode.offset;
    let group = layout.watched.iter().find(|w| w.what.contains("inode table")).expect("a descriptor");
    let group = group.block.0 as usize * 4096 + group.offset - 8;
    let journal = layout.home_of(AreaBlock(0)).expect("a block").0 as usize * 4096;
    let mut places = vec![1024..2048, group..group + 64, inode..inode + 256, journal..journal + 256];
    let tree = layout.watched.iter().filter(|w| w.what.contains("extent tree"));
    places.extend(tree.map(|w| w.block.0 as usize * 4096).map(|at| at..at + 4096));
    places
}

/// With checksums every flipped bit is noticed, or was none that matters.
#[test]
fn flipped_bits() {
    let image = fragmented("metadata_csum");
    // The journal's superblock gets its checksum from the first mount; debugfs opens it likewise.
    let block = image.path().with_file_name("block");
    std::fs::write(&block, [1; 4096]).expect("room");
    image.debugfs_script(&format!("jo -c -v 3\njw -b 900 {}\njc\n", block.display()));
    let expected = image.find();
    let layout = image.layout();
    let mut memory = Memory::of(&image);
    let mut refusals = 0;
    for place in structures(&layout) {
        // The tree is large, and its blocks are alike: every 31st bit.
        let step = if place.len() == 4096 { 31 } else { 1 };
        for bit in (place.start * 8..place.end * 8).step_by(step) {
            memory.0[bit / 8] ^= 1 << (bit % 8);
            match memory.find().as_slice() {
                [Found::Passthrough { .. }] => refusals += 1,
                // Without its magic number it is nothing.
                [] => assert!((1024 + 56..1024 + 58).contains(&(bit / 8)), "bit {bit}"),
                // Without `metadata_csum` nothing has checksums, for the kernel neither.
                [Found::FileSystem(same)] if bit == (1024 + 0x65) * 8 + 2 => {
                    assert!(!layout.identity_changed(same) && *same != layout);
                }
                same => assert!(same == expected, "bit {bit}"),
            }
            memory.0[bit / 8] ^= 1 << (bit % 8);
        }
    }
    assert!(refusals > 12_000, "{refusals}");
    assert!(memory.find() == expected);
}

/// Without checksums a changed byte may be believed, but what comes of it must be possible.
#[test]
fn forged_structures() {
    for (image, rounds) in [
        (Image::mkfs(16, &["-O", "^metadata_csum"]), 3000),
        (fragmented("^metadata_csum,^resize_inode,meta_bg"), 1500),
    ] {
        let layout = image.layout();
        let mut memory = Memory::of(&image);
        let sectors = memory.0.len() as u64 / 512;
        let check = |memory: &mut Memory| {
            memory.find().iter().for_each(|found| match found {
                Found::FileSystem(layout) => assert_sound(layout, sectors),
                Found::Passthrough { why, .. } => assert!(!why.is_empty()),
            });
        };
        let places = structures(&layout);
        for place in places.iter().take(4) {
            for at in place.clone() {
                let before = memory.0[at];
                for value in [0, 1, 0x7F, 0x80, 0xFF, before ^ 0x10] {
                    memory.0[at] = value;
                    check(&mut memory);
                }
                memory.0[at] = before;
            }
        }
        let mut random = rand_chacha::ChaCha8Rng::seed_from_u64(4);
        for _ in 0..rounds {
            let mut undo = Vec::new();
            for _ in 0..random.random_range(1..5) {
                let place = &places[random.random_range(0..places.len())];
                let at = random.random_range(place.start..place.end - 4) / 4 * 4;
                let word: [u8; 4] = memory.0[at..at + 4].try_into().expect("four bytes");
                undo.push((at, word));
                let value: u32 = match random.random_range(0..4) {
                    0 => random.random_range(0..5),
                    1 => !random.random_range(0..5),
                    2 => u32::from_le_bytes(word) ^ 1 << random.random_range(0..32),
                    _ => random.next_u32(),
                };
                memory.0[at..at + 4].copy_from_slice(&value.to_le_bytes());
            }
            check(&mut memory);
            for (at, word) in undo.into_iter().rev() {
                memory.0[at..at + 4].copy_from_slice(&word);
            }
        }
    }
}

/// Extents that a checksum would not save from: the tree's own block in the journal, one block twice, a hole, a loop.
#[test]
fn forged_extents() {
    let image = fragmented("^metadata_csum");
    let layout = image.layout();
    let places = structures(&layout);
    let inode = places[2].start;
    let (upper, leaf) = (places[4].start, places[5].start);
    let root = inode + 0x28;
    let word = |at: usize| u32::from_le_bytes(image.read_at(at as u64, 4).try_into().expect("four bytes"));
    let inode_block = (inode / 4096) as u32;
    // An entry is logical, length (and 16 upper bits), lower 32 bits of the place; in an index the place comes second.
    let cases = [
        (leaf + 12 + 8, (leaf / 4096) as u32, "belongs to the journal twice"),
        (leaf + 24 + 8, word(leaf + 12 + 8), "belongs to the journal twice"),
        (leaf + 48 + 8, inode_block, "lie over its own inode"),
        (leaf + 48 + 8, 1, "lie over its group descriptor"),
        (leaf + 24 + 8, 0, "outside the file system"),
        (leaf + 24 + 8, 8192, "outside the file system"),
        (leaf + 24, 2, "go on at block 2 where 10 comes"),
        (leaf + 24, 0, "go on at block 0 where 10 comes"),
        (leaf + 12 + 4, 0, "never written"),
        (leaf + 12 + 4, 32769, "never written"),
        (leaf, 0xF30A, "is empty"),
        (leaf + 4, 0x155, "damaged"),
        (upper + 12 + 4, (upper / 4096) as u32, "damaged"),
        (root + 12 + 4, (leaf / 4096) as u32, "damaged"),
        (root + 12 + 4, 8192, "would be at block 8192 of 8192"),
        (root + 4, 0x0006_0004, "6 levels deep"),
        (root, 0x0000_F30A, "end at block 0"),
        (root, 0x0005_F30A, "damaged"),
        (upper, 0x0001_F30A, "end at block"),
    ];
    for (at, value, why) in cases {
        let before = image.read_at(at as u64, 4);
        image.write_at(at as u64, &value.to_le_bytes());
        assert!(image.why().contains(why), "{why}: {}", image.why());
        image.write_at(at as u64, &before);
    }
    assert!(image.layout() == layout);
}

/// A journal superblock of random bytes behind a right beginning: refused, or a tail can be set and read again.
#[test]
fn random_journal_superblocks() {
    let image = Image::mkfs(64, &["-J", "size=4"]);
    let sound = image.read_at(image.layout().journal[0].home.0 * 4096, 4096);
    let mut random = rand_chacha::ChaCha8Rng::seed_from_u64(5);
    let mut accepted = 0;
    for _ in 0..20_000 {
        let mut block: [u8; 4096] = sound.as_slice().try_into().expect("a block");
        for _ in 0..random.random_range(1..4) {
            let at = random.random_range(0..0x60);
            block[at] = random.random();
        }
        let Ok(journal) = JournalSuperblock::parse(&block) else { continue };
        accepted += 1;
        assert_eq!(journal.bytes(), &block);
        let moved = journal.with_tail(journal.sequence().next(), Some(journal.first()));
        let again = JournalSuperblock::parse(moved.bytes()).expect("still sound");
        assert_eq!((again.start(), again.sequence()), (Some(journal.first()), journal.sequence().next()));
        assert_eq!(again.bytes()[0x20..0xFC], block[0x20..0xFC], "nothing else changed");
    }
    assert!(accepted > 1000, "{accepted}");
}

/// Noise is nothing, or something refused.
#[test]
fn noise() {
    let mut random = rand_chacha::ChaCha8Rng::seed_from_u64(6);
    let mut memory = Memory(vec![0; 4 * MIB as usize]);
    for _ in 0..30 {
        random.fill_bytes(&mut memory.0);
        memory.0[510..512].copy_from_slice(&[0x55, 0xAA]);
        memory.0[1080..1082].copy_from_slice(&[0x53, 0xEF]);
        for entry in 0..4 {
            memory.0[446 + entry * 16] = 0;
            memory.0[446 + entry * 16 + 4] = [0x83, 0xEE, 0x05, 0x0F][random.random_range(0..4)];
            memory.0[446 + entry * 16 + 9..][..3].fill(0);
        }
        assert!(memory.find().iter().all(|found| matches!(found, Found::Passthrough { .. })));
    }
}
