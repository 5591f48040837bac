//! What is not handled is left alone, and says why.

use afterimage_block::Sector;
use afterimage_journal::layout::{look, look_ext4, Found};

use crate::image::{run, Image, MIB};

const SUPERBLOCK: u64 = 1024;

/// Changes a 32-bit field of the ext4 superblock and makes its checksum agree.
pub fn set_field(image: &Image, at: u64, change: impl Fn(u32) -> u32) {
    let mut bytes = image.read_at(SUPERBLOCK, 1024);
    let field = &mut bytes[at as usize..][..4];
    let value = change(u32::from_le_bytes(field.try_into().expect("four bytes")));
    field.copy_from_slice(&value.to_le_bytes());
    let sum = !crc32c::crc32c(&bytes[..1020]);
    bytes[1020..].copy_from_slice(&sum.to_le_bytes());
    image.write_at(SUPERBLOCK, &bytes);
}

#[test]
fn kinds_of_ext4() {
    let kinds: &[(&[&str], &str)] = &[
        (&["-b", "1024"], "blocks of 1024 bytes"),
        (&["-b", "2048"], "blocks of 2048 bytes"),
        (&["-t", "ext2"], "without a journal"),
        (&["-O", "^has_journal"], "without a journal"),
        (&["-t", "ext3"], "mapped block by block"),
        (&["-O", "^extents,^64bit"], "mapped block by block"),
        (&["-O", "journal_dev"], "external journal device"),
        (&["-O", "fast_commit"], "fast_commit"),
        (&["-r", "0", "-t", "ext2", "-O", "none"], "revision 0"),
    ];
    for (options, why) in kinds {
        let image = Image::mkfs(64, options);
        assert!(image.why().contains(why), "{options:?}: {}", image.why());
    }
}

#[test]
fn fields_of_ext4() {
    type Edit = (u64, fn(u32) -> u32, &'static str);
    let edits: &[Edit] = &[
        (0x60, |bits| bits | 0x1, "unknown features (incompat 0x1)"),
        (0x60, |bits| bits | 0x1000, "unknown features (incompat 0x1000)"),
        (0x60, |bits| bits | 0x4000_0000, "iJournaling"),
        (0x60, |bits| bits | 0x8000_0000, "unknown features (incompat 0x80000000)"),
        (0x64, |bits| bits | 0x80, "unknown features (ro_compat 0x80)"),
        (0x64, |bits| bits | 0x10, "two kinds of group checksums"),
        (0x5C, |bits| bits | 0x400, "fast_commit"),
        // An external journal by device number; both kinds at once, which no kernel mounts.
        (0xE0, |_| 0, "external journal"),
        (0xE4, |_| 0x800, "external journal"),
        (0xE0, |_| 9, "not a regular file"),
        (0xE0, |_| u32::MAX, "past the last"),
        (0x4, |blocks| blocks + 1, "room for 16384"),
        (0x150, |_| 1, "room for 16384"),
        (0x150, |_| u32::MAX, "room for 16384"),
        (0x58, |_| 257, "inodes of 257 bytes"),
        (0xFC, |field| field & 0xFFFF, "descriptors of 0 bytes"),
        (0x20, |_| 0, "0 blocks in a group"),
        (0x20, |_| 32769, "32769 blocks in a group"),
        (0x28, |_| 0, "0 inodes in a group"),
        (0x28, |inodes| inodes / 2, "do not hold"),
        (0x14, |_| 1, "begin at block 1"),
        (0x174, |field| field & !0xFF00 | 0x200, "checksum type 2"),
        // A descriptor, then an inode, that no longer agrees with its seed.
        (0x68, |uuid| !uuid, "does not agree with its checksum"),
    ];
    for (at, change, why) in edits {
        let image = Image::mkfs(64, &[]);
        set_field(&image, *at, change);
        assert!(image.why().contains(why), "{at:#x}: {}", image.why());
        // Without the checksum made to agree, that is what is wrong.
        let field = image.read_at(SUPERBLOCK + at, 4);
        let image = Image::mkfs(64, &[]);
        image.write_at(SUPERBLOCK + at, &field);
        assert!(image.why().contains("checksum"), "{at:#x}: {}", image.why());
    }
}

/// The journal's own superblock decides too.
#[test]
fn journal_superblocks() {
    let edits: &[(u64, u32, &str)] = &[
        (0x0, 0, "magic number 0x0"),
        (0x4, 1, "block type 1"),
        (0xC, 1024, "blocks of 1024 bytes"),
        (0xC, 5, "block size of 5 bytes"),
        (0x10, 1023, "fewer than 1024"),
        (0x10, 1025, "only 4194304 bytes"),
        (0x10, u32::MAX, "only 4194304 bytes"),
        (0x14, 0, "begin at block 0"),
        (0x14, 1024, "begin at block 1024"),
        (0x14, 2, "fewer than 1024"),
        (0x1C, 1024, "tail at block 1024"),
        (0x28, 0x20, "fast commits"),
        (0x28, 0x40, "unknown features"),
        (0x28, 0x4000_0000, "iJournaling"),
        (0x28, 0x10, "checksum"),
        (0x28, 0x18, "several kinds of checksums"),
        (0x2C, 1, "unknown features"),
        (0x30, 0, "another UUID"),
    ];
    let image = Image::mkfs(64, &["-J", "size=4"]);
    let at = image.layout().journal[0].home.0 * 4096;
    let sound = image.read_at(at, 4096);
    for (field, value, why) in edits {
        image.write_at(at + field, &value.to_be_bytes());
        assert!(image.why().contains(why), "{field:#x}: {}", image.why());
        image.write_at(at, &sound);
    }
    // A version 1 superblock has no features and no UUID, whatever stands there.
    image.write_at(at + 4, &3_u32.to_be_bytes());
    image.write_at(at + 0x28, &[0xFF; 24]);
    image.layout();
}

#[test]
fn cut_off() {
    let image = Image::mkfs(64, &[]);
    let found = look(&mut image.source(), Sector(0), 64 * 2048 - 8).expect("readable");
    assert!(
        matches!(found, Some(Found::Passthrough { ref why, .. }) if why.contains("room for 16383")),
        "{found:?}"
    );
    let found = look(&mut image.source(), Sector(0), 64 * 2048).expect("readable");
    assert!(matches!(found, Some(Found::FileSystem(_))));
    for sectors in 0..200 {
        let found = look(&mut image.source(), Sector(0), sectors).expect("readable");
        assert!(!matches!(found, Some(Found::FileSystem(_))), "{sectors} sectors");
        assert_eq!(found.is_some(), sectors >= 4, "{sectors} sectors");
    }
}

/// What lies between disk and file system hides it: each signature over a sound ext4.
#[test]
fn layers() {
    let end = 64 * MIB;
    let md = |at: u64| {
        let mut superblock = [0; 256];
        superblock[..4].copy_from_slice(&0xA92B_4EFC_u32.to_le_bytes());
        superblock[4] = 1;
        superblock[144..152].copy_from_slice(&(at / 512).to_le_bytes());
        superblock.to_vec()
    };
    let md_090 = [0xFC, 0x4E, 0x2B, 0xA9, 0, 0, 0, 0, 90, 0, 0, 0].to_vec();
    let label: Vec<u8> = [b"LABELONE".as_slice(), &[0; 16], b"LVM2 001"].concat();
    let cases = [
        (0, b"LUKS\xba\xbe\x00\x02".to_vec(), "LUKS"),
        (0, label.clone(), "LVM"),
        (512, label.clone(), "LVM"),
        (0, md(0), "md array"),
        (4096, md(4096), "md array"),
        (end - 8192, md(end - 8192), "md array"),
        (end - 65536, md_090, "md array"),
    ];
    for (at, bytes, why) in cases {
        let image = Image::mkfs(64, &[]);
        image.write_at(at, &bytes);
        assert!(image.why().contains(why), "{at}: {}", image.why());
    }
    // A superblock of version 1 that belongs to another place means nothing: it ends a partition, or is data.
    let image = Image::mkfs(64, &[]);
    image.write_at(end - 8192, &md(4096));
    image.layout();
}

/// Who was told that an ext4 is there finds it, whatever a file's content looks like, and whatever UUID its journal bears.
#[test]
fn an_ext4_that_is_known_to_be_there() {
    let image = Image::mkfs(64, &["-J", "size=4"]);
    let layout = image.layout();
    let found = |sectors| look_ext4(&mut image.source(), Sector(0), sectors);
    image.write_at(64 * MIB - 65536, &[0xFC, 0x4E, 0x2B, 0xA9, 0, 0, 0, 0, 90, 0, 0, 0]);
    assert!(image.why().contains("md array"), "{}", image.why());
    assert_eq!(found(64 * 2048).expect("an ext4"), layout);
    image.write_at(64 * MIB - 65536, &[0; 12]);
    image.write_at(layout.journal[0].home.0 * 4096 + 0x30, &[0; 4]);
    assert!(image.why().contains("another UUID"), "{}", image.why());
    assert_eq!(found(64 * 2048).expect("an ext4"), layout);
    for (sectors, why) in [(0, "no ext4"), (7, "no ext4"), (64 * 2048 - 8, "room for 16383")] {
        let refused = found(sectors).expect_err("not all of it is there").to_string();
        assert!(refused.contains(why), "{sectors} sectors: {refused}");
    }
    set_field(&image, 0x60, |bits| bits | 0x1);
    assert!(found(64 * 2048).expect_err("unknown features").to_string().contains("unknown features"));
}

/// Other file systems' signatures; beside a sound ext4, which mkfs wrote over them, they are remnants.
#[test]
fn other_file_systems() {
    for (at, bytes, why) in [(0, b"XFSB".as_slice(), "xfs"), (0x1_0040, b"_BHRfS_M", "btrfs")] {
        let image = Image::empty(64 * MIB);
        image.write_at(at, bytes);
        assert!(image.why().contains(why), "{}", image.why());
        // As an ext4 whose remnants lie below.
        image.write_at(1024 + 0x38, &[0x53, 0xEF]);
        assert!(image.why().contains(why), "{}", image.why());
    }
    let image = Image::mkfs(64, &[]);
    image.write_at(0x1_0040, b"_BHRfS_M");
    image.layout();

    let path = image.path().to_str().expect("a plain path");
    run("mkswap", &[path]);
    assert!(image.why().contains("swap"), "{}", image.why());
    image.mkfs_at(0, 64 * MIB, &[]);
    image.layout();
}
