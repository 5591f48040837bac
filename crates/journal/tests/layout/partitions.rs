//! Partition tables, made by hand and read by partx as the oracle.

use afterimage_block::Sector;
use afterimage_journal::layout::Found;

use crate::image::{run, Image, MIB};

/// CRC-32 as zlib has it, bit by bit: an implementation apart from the tested one.
fn crc32(bytes: &[u8]) -> u32 {
    !bytes.iter().fold(!0_u32, |crc, byte| {
        (0..8).fold(crc ^ u32::from(*byte), |crc, _| (crc >> 1) ^ (0xEDB8_8320 * (crc & 1)))
    })
}

/// A boot record at a sector, with entries (type, start, sectors).
fn boot_record(image: &Image, at: u64, entries: &[(u8, u32, u32)]) {
    for (i, (kind, start, sectors)) in entries.iter().enumerate() {
        let mut entry = [0; 16];
        entry[4] = *kind;
        entry[8..12].copy_from_slice(&start.to_le_bytes());
        entry[12..].copy_from_slice(&sectors.to_le_bytes());
        image.write_at(at * 512 + 446 + i as u64 * 16, &entry);
    }
    image.write_at(at * 512 + 510, &[0x55, 0xAA]);
}

/// A GPT with its backup, so that partx has nothing to complain about.
fn gpt(image: &Image, partitions: &[(u64, u64)]) {
    let last = image.bytes() / 512 - 1;
    boot_record(image, 0, &[(0xEE, 1, last as u32)]);
    let mut entries = vec![0; 128 * 128];
    for (entry, (first, end)) in entries.chunks_exact_mut(128).zip(partitions) {
        entry[..16].fill(0xAF);
        entry[16] = *first as u8;
        entry[17..32].fill(1);
        entry[32..40].copy_from_slice(&first.to_le_bytes());
        entry[40..48].copy_from_slice(&end.to_le_bytes());
    }
    for (own, other, entries_at) in [(1, last, 2), (last, 1, last - 32)] {
        let mut header = [0; 92];
        header[..12].copy_from_slice(b"EFI PART\0\0\x01\0");
        header[12] = 92;
        header[24..32].copy_from_slice(&own.to_le_bytes());
        header[32..40].copy_from_slice(&other.to_le_bytes());
        header[40..48].copy_from_slice(&34_u64.to_le_bytes());
        header[48..56].copy_from_slice(&(last - 33).to_le_bytes());
        header[56..72].fill(7);
        header[72..80].copy_from_slice(&entries_at.to_le_bytes());
        header[80] = 128;
        header[84] = 128;
        header[88..92].copy_from_slice(&crc32(&entries).to_le_bytes());
        let sum = crc32(&header);
        header[16..20].copy_from_slice(&sum.to_le_bytes());
        image.write_at(own * 512, &header);
        image.write_at(entries_at * 512, &entries);
    }
}

/// First sector and length of every partition that partx sees, in its order, extended ones left out.
fn partx(image: &Image) -> Vec<(u64, u64)> {
    let text = run(
        "partx",
        &["--show", "--noheadings", "-o", "START,SECTORS,TYPE", image.path().to_str().expect("a plain path")],
    );
    text.lines()
        .map(|line| line.split_whitespace().collect::<Vec<_>>())
        .filter(|words| !matches!(words[2], "0x5" | "0xf" | "0x85"))
        .map(|words| (words[0].parse().expect("a number"), words[1].parse().expect("a number")))
        .collect()
}

/// Where file systems were found, in order, with what their size needs.
fn found(image: &Image) -> Vec<u64> {
    image
        .find()
        .iter()
        .map(|found| match found {
            Found::FileSystem(layout) => {
                assert_eq!(layout.end().0, layout.start.0 + layout.blocks * 8);
                layout.start.0
            }
            refused => panic!("{refused:?}"),
        })
        .collect()
}

/// An ext4 in every partition that partx sees; all of them are found, at partx's places.
fn filled(image: &Image) {
    let places = partx(image);
    assert!(!places.is_empty());
    for (start, sectors) in &places {
        image.mkfs_at(start * 512, sectors / 8 * 4096, &[]);
    }
    assert_eq!(found(image), places.iter().map(|(start, _)| *start).collect::<Vec<_>>());
}

#[test]
fn primary() {
    let image = Image::empty(128 * MIB);
    // One does not begin at a multiple of 4 KiB, and the types say nothing.
    boot_record(&image, 0, &[(0x83, 2048, 64000), (0, 0, 0), (0x07, 70003, 60000), (0x83, 140_000, 66000)]);
    filled(&image);
}

#[test]
fn logical() {
    let image = Image::empty(256 * MIB);
    boot_record(&image, 0, &[(0x83, 2048, 64000), (0x0F, 70_000, 400_000)]);
    boot_record(&image, 70_000, &[(0x83, 63, 60_000), (0x05, 100_000, 80_000)]);
    boot_record(&image, 170_000, &[(0x83, 2048, 60_000), (0x05, 200_000, 80_000)]);
    boot_record(&image, 270_000, &[(0x83, 1, 70_000)]);
    filled(&image);

    // The last record leads back to the first, or to itself: what was found stays, and the loop is named.
    for back in [0, 200_000] {
        boot_record(&image, 270_000, &[(0x83, 1, 70_000), (0x05, back, 80_000)]);
        let all = image.find();
        let [Found::Passthrough { why, .. }, rest @ ..] = all.as_slice() else { panic!("{all:?}") };
        assert!(why.contains("loops"), "{why}");
        assert_eq!(rest.len(), 4);
    }
}

#[test]
fn guid_partition_table() {
    let image = Image::empty(128 * MIB);
    gpt(&image, &[(2048, 70_000), (70_001, 140_000), (150_000, 200_000)]);
    filled(&image);

    // Every bit of the header and of the used entries counts.
    let sound = image.read_at(512, 512 + 384);
    for at in 0..92 + 384 {
        let at = if at < 92 { at } else { at - 92 + 512 };
        for bit in 0..8 {
            image.write_at(512 + at as u64, &[sound[at] ^ 1 << bit]);
            assert!(image.why().contains("GUID partition table"), "byte {at}: {:?}", image.find());
        }
        image.write_at(512 + at as u64, &sound[at..=at]);
    }
    assert_eq!(found(&image), [2048, 70_001, 150_000]);
    // Not protective: the kernel takes it for an MBR, and its one partition holds nothing that begins there.
    boot_record(&image, 0, &[(0x83, 1, 1000)]);
    assert_eq!(image.find(), []);
}

#[test]
fn whole_disk_beside_partitions() {
    // An ext4 on the whole disk that has a boot loader, and so a boot sector's signature.
    let image = Image::mkfs(64, &[]);
    boot_record(&image, 0, &[]);
    assert_eq!(found(&image), [0]);
    // Partitioned without wiping: the old one is a remnant.
    boot_record(&image, 0, &[(0x83, 2048, 100_000)]);
    assert_eq!(found(&image), [0]);
    image.mkfs_at(MIB, 48 * MIB, &[]);
    match image.find().as_slice() {
        [Found::Passthrough { start: Sector(0), why, .. }, Found::FileSystem(layout)] => {
            assert!(why.contains("overlaps the file system at sector 2048"), "{why}");
            assert_eq!(layout.start, Sector(2048));
        }
        other => panic!("{other:?}"),
    }
    // All of it belongs to an encrypted volume: nothing inside counts.
    image.write_at(0, b"LUKS\xba\xbe");
    assert!(image.why().contains("LUKS"));
}

#[test]
fn partitions_of_other_kinds_and_sizes() {
    let image = Image::empty(128 * MIB);
    boot_record(
        &image,
        0,
        &[(0x83, 2048, 60_000), (0x83, 70_000, 60_000), (0x83, 2048, 60_001), (0x83, 0, 99)],
    );
    image.mkfs_at(MIB, 60_000 / 8 * 4096, &[]);
    image.write_at(70_000 * 512, b"XFSB");
    match image.find().as_slice() {
        [Found::FileSystem(layout), Found::Passthrough { start: Sector(70_000), why, .. }] => {
            assert_eq!(layout.start, Sector(2048));
            assert!(why.contains("xfs"));
        }
        other => panic!("{other:?}"),
    }
    // One sector too short, past the disk's end, and nothing at all.
    boot_record(
        &image,
        0,
        &[(0x83, 2048, 59_999), (0x83, u32::MAX, u32::MAX), (0x83, 3000, 0), (0x83, 262_143, 9)],
    );
    assert!(image.why().contains("room for 7499"), "{}", image.why());
    // Its end is cut off by the disk's.
    boot_record(&image, 0, &[(0x83, 2048, u32::MAX), (0, 0, 0), (0, 0, 0), (0, 0, 0)]);
    assert_eq!(found(&image), [2048]);
}

/// A table may name as many partitions as it likes: the work and the answer stay bounded.
#[test]
fn many_partitions() {
    let image = Image::empty(16 * MIB);
    let places: Vec<(u64, u64)> = (0..128).map(|i| (2048 + i, 30_000)).collect();
    gpt(&image, &places);
    for (start, _) in &places {
        image.write_at(start * 512, b"XFSB");
    }
    let mut source = image.source();
    let found = afterimage_journal::layout::find(&mut source, image.bytes() / 512).expect("readable");
    assert_eq!(found.len(), 63);
    assert!(
        matches!(&found[62], Found::Passthrough { why, .. } if why.contains("more than 64")),
        "{found:?}"
    );
    assert!(source.reads < 1000);
}
