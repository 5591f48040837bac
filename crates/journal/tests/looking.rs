//! A look at the disk that fails half way: whoever is found again next is still where it is taken to be.

mod common;

use std::sync::atomic::Ordering;

use afterimage_block::Sector;
use afterimage_journal::{AreaBlock, Block, BLOCK_BYTES};
use common::{ext4, journal_superblock, layouts, reads, wait_for_home, Served, NEVER};

/// A table with those of three partitions.
fn table(partitions: &[usize], blocks: usize) -> [u8; 512] {
    let mut table = [0; 512];
    for (n, partition) in partitions.iter().enumerate() {
        let entry = &mut table[446 + 16 * n..][..16];
        entry[4] = 0x83;
        let sectors = blocks as u32 * 8;
        entry[8..12].copy_from_slice(&(2048 + *partition as u32 * sectors).to_le_bytes());
        entry[12..].copy_from_slice(&sectors.to_le_bytes());
    }
    table[510..].copy_from_slice(&[0x55, 0xaa]);
    table
}

#[test]
fn a_look_that_fails_anywhere_leaves_every_journal_in_its_place() {
    let file_systems = [ext4(), ext4(), ext4()];
    let blocks = file_systems[0].len() / BLOCK_BYTES;
    let mut base = vec![0; 1 << 20];
    base[..512].copy_from_slice(&table(&[0, 1, 2], blocks));
    base.extend(file_systems.concat());
    let layout = layouts(&base).remove(2);
    let superblock = journal_superblock(&base, &layout).unwrap();
    let mounted = superblock.with_tail(superblock.sequence(), Some(AreaBlock(1)));
    let sector = |at| layout.home_of(AreaBlock(at)).unwrap().sector(layout.start);
    for nth in 0.. {
        let (mut served, reads) = reads(&base, 4 << 20, wait_for_home());
        served.lane().write(sector(0), mounted.bytes()).unwrap();
        served.lane().write(sector(1), &[9; BLOCK_BYTES]).unwrap();
        // Two of the partitions go, of which nothing is retained.
        reads.store(nth, Ordering::SeqCst);
        let told = served.lane().write(Sector(0), &table(&[2], blocks));
        let failed = reads.swap(NEVER, Ordering::SeqCst) > NEVER;
        assert_eq!(told.is_err(), failed, "read {nth}");
        let mut found: Block = [0; BLOCK_BYTES];
        served.lane().read(sector(1), &mut found).unwrap();
        assert!(found == [9; BLOCK_BYTES], "read {nth}");
        served.lane().write(sector(2), &[8; BLOCK_BYTES]).unwrap();
        served.lane().read(sector(2), &mut found).unwrap();
        assert!(found == [8; BLOCK_BYTES], "read {nth}");
        if !failed {
            assert!(nth > 10, "nobody looked");
            return;
        }
    }
}

/// A logical partition is made in the chain of boot records, behind the sectors in which other tables stand.
#[test]
fn a_logical_partition_that_is_made_is_found() {
    let file_system = ext4();
    let (chain, sectors) = (2048, file_system.len() as u32 / 512);
    let entry = |kind, start: u32, sectors: u32| {
        let mut record = [0; 512];
        record[446 + 4] = kind;
        record[446 + 8..446 + 12].copy_from_slice(&start.to_le_bytes());
        record[446 + 12..446 + 16].copy_from_slice(&sectors.to_le_bytes());
        record[510..].copy_from_slice(&[0x55, 0xaa]);
        record
    };
    let mut base = vec![0; 2 << 20];
    base[..512].copy_from_slice(&entry(5, chain, 2048 + sectors));
    base[chain as usize * 512..][..512].copy_from_slice(&entry(0, 0, 0));
    base.extend(file_system);
    let (mut served, _) = reads(&base, 4 << 20, wait_for_home());
    served.lane().write(Sector(chain.into()), &entry(0x83, 2048, sectors)).unwrap();
    base[chain as usize * 512..][..512].copy_from_slice(&entry(0x83, 2048, sectors));
    let layout = layouts(&base).remove(0);
    let superblock = journal_superblock(&base, &layout).unwrap();
    let mounted = superblock.with_tail(superblock.sequence(), Some(AreaBlock(1)));
    let at = layout.home_of(AreaBlock(0)).unwrap().sector(layout.start);
    served.read_block(at);
    served.lane().write(at, mounted.bytes()).unwrap();
    assert_eq!(served.disk().status().file_systems[0].mode, "retain");
}

/// On the whole disk and in a partition, by a guest that writes nothing else before.
#[test]
fn another_file_system_that_is_made_is_told_of() {
    for (at, signature, why) in [
        (0, &b"XFSB"[..], "xfs"),
        (4086, b"SWAPSPACE2", "swap"),
        (65526, b"SWAPSPACE2", "swap"),
        (0x1_0040, b"_BHRfS_M", "btrfs"),
    ] {
        for partition in [0, 2048] {
            let mut base = vec![0; 2 << 20];
            if partition > 0 {
                base[..512].copy_from_slice(&table(&[0], 2048 / 8));
            }
            let (mut served, _) = reads(&base, 4 << 20, wait_for_home());
            assert!(served.disk().status().file_systems.is_empty());
            let mut sector = [0; 512];
            sector[at % 512..][..signature.len()].copy_from_slice(signature);
            served.lane().write(Sector(partition + at as u64 / 512), &sector).unwrap();
            let found = served.disk().status().file_systems;
            assert!(
                found.len() == 1 && found[0].why.as_deref().is_some_and(|w| w.contains(why)),
                "{at:#x} at {partition}: {found:?}"
            );
        }
    }
}

/// A partition of a few sectors at the disk's end, with what looks like an ext4 in it, and then like something else.
#[test]
fn a_place_that_is_smaller_than_a_block_can_be_looked_at() {
    let mut base = vec![0; 1 << 20];
    let start = base.len() as u32 / 512 - 7;
    base[446 + 4] = 0x83;
    base[446 + 8..446 + 12].copy_from_slice(&start.to_le_bytes());
    base[446 + 12..446 + 16].copy_from_slice(&7u32.to_le_bytes());
    base[510..512].copy_from_slice(&[0x55, 0xaa]);
    let (mut served, _) = reads(&base, 4 << 20, wait_for_home());
    let mut content = [0; 4 * 512];
    content[1024 + 0x38..1024 + 0x3a].copy_from_slice(&0xef53u16.to_le_bytes());
    for layer in [b"\0\0\0\0\0\0", b"LUKS\xba\xbe", b"LUKS\xba\xbe"] {
        content[..6].copy_from_slice(layer);
        content[1024] ^= 1;
        served.lane().write(Sector(start.into()), &content).unwrap();
    }
}

/// Seed 92005 of `./x simulate --vext4 --vma` ended with a disk that its own daemon took for another one.
#[test]
fn a_mount_that_fails_anywhere_is_one_or_none() {
    let base = ext4();
    let layout = layouts(&base).remove(0);
    let superblock = journal_superblock(&base, &layout).unwrap();
    let mounted = superblock.with_tail(superblock.sequence(), Some(AreaBlock(1)));
    let sector = |at| layout.home_of(AreaBlock(at)).unwrap().sector(layout.start);
    for nth in 0.. {
        let (mut served, reads) = reads(&base, 4 << 20, wait_for_home());
        reads.store(nth, Ordering::SeqCst);
        let told = served.lane().write(sector(0), mounted.bytes());
        let failed = reads.swap(NEVER, Ordering::SeqCst) > NEVER;
        assert!(told.is_ok() || failed, "read {nth}");
        // The guest tries again, and goes on.
        served.lane().write(sector(0), mounted.bytes()).unwrap();
        served.lane().write(sector(1), &[9; BLOCK_BYTES]).unwrap();
        served.restart();
        let mut found = [0; BLOCK_BYTES];
        served.lane().read(sector(0), &mut found).unwrap();
        assert!(found == *mounted.bytes(), "read {nth}");
        served.lane().read(sector(1), &mut found).unwrap();
        assert!(found == [9; BLOCK_BYTES], "read {nth}");
        assert_eq!(served.disk().status().file_systems[0].mode, "retain", "read {nth}");
        if !failed {
            assert!(nth > 1, "nobody looked");
            return;
        }
    }
}

/// A mount with iJournaling sets the bit in the journal's superblock, which is empty then or has just been replayed; an unmount clears it.
#[test]
fn a_journal_is_left_alone_as_long_as_it_has_ijournalings_bit() {
    let base = ext4();
    let layout = layouts(&base).remove(0);
    let superblock = journal_superblock(&base, &layout).unwrap();
    let mounted = superblock.with_tail(superblock.sequence(), Some(AreaBlock(1)));
    let at = layout.home_of(AreaBlock(0)).unwrap().sector(layout.start);
    let with_bit = |superblock: &[u8; BLOCK_BYTES]| {
        let mut block = *superblock;
        block[0x28] |= 0x40;
        block
    };
    let read = |served: &mut Served, at| {
        let mut block = [0; BLOCK_BYTES];
        served.lane().read(at, &mut block).unwrap();
        block
    };
    let (empty, in_use) = (with_bit(superblock.bytes()), with_bit(mounted.bytes()));
    for retained in [false, true] {
        let (mut served, _) = reads(&base, 4 << 20, wait_for_home());
        read(&mut served, at);
        if retained {
            served.lane().write(at, mounted.bytes()).unwrap();
            assert_eq!(served.disk().status().file_systems[0].mode, "retain");
        }
        for block in [if retained { in_use } else { empty }, in_use, in_use] {
            served.lane().write(at, &block).unwrap();
            let found = served.disk().status().file_systems.remove(0);
            assert_ne!(found.mode, "retain");
            assert!(found.why.is_some_and(|why| why.contains("iJournaling")));
            assert!(read(&mut served, at) == block);
        }
        served.lane().write(at, superblock.bytes()).unwrap();
        // needs_recovery goes behind it.
        let block = read(&mut served, layout.start);
        served.lane().write(layout.start, &block).unwrap();
        read(&mut served, at);
        served.lane().write(at, mounted.bytes()).unwrap();
        assert_eq!(served.disk().status().file_systems[0].mode, "retain");
    }
}
