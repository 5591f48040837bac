//! The bytes on disk, spelled out: a change here is a new format version.

mod common;

use afterimage_format::log::{
    ImageEntry, ImageName, LogHeader, RecordHeader, RecordKind, WitnessEntry, FEATURE_SETS, KIND_MORE,
    RECORD_MAGIC, STATE_CLEAN,
};
use afterimage_format::mark::{Mark, MarkedLog, CONTRACT_POWER, CONTRACT_POWER_WINDOW, MARK_PATH_BYTES_MAX};
use afterimage_format::recording::{
    ChunkHeader, Extent, FileHeader, RecordHeader as EventHeader, RecordKind as EventKind, TargetBody,
    LAYER_STORAGE, OWN_BASE, ROLE_LOG,
};
use afterimage_format::reference::Reference;
use afterimage_format::{checksum, FormatError};
use common::hex;
use proptest::prelude::*;
use zerocopy::{FromZeros as _, IntoBytes as _};

fn header() -> LogHeader {
    let mut uuid = [0; 16];
    uuid.iter_mut().zip(0xa0..).for_each(|(b, v)| *b = v);
    let mut header = LogHeader::new(uuid, 0x10000, 0x1122_3344_5566_7788);
    header.generation = 3.into();
    header.tail_position = 0x4_0040.into();
    header.tail_sequence = 17.into();
    header.durable_sequence = 19.into();
    header.image_count = 1.into();
    header.images[0] = ImageEntry {
        device: 0xfd00.into(),
        inode: 42.into(),
        size_bytes: 0x10_0000.into(),
        mtime_ns: (-2).into(),
    };
    header.witness_count = 1.into();
    header.witnesses[0] =
        WitnessEntry { sector: 8.into(), disk: 0.into(), sectors: 8.into(), hash: 0xdead_beef.into() };
    header
}

#[test]
fn the_checksum_is_crc32c() {
    // RFC 3720, appendix B.4.
    assert_eq!(checksum(&[0; 32]), 0x8a91_36aa);
    assert_eq!(checksum(b"123456789"), 0xe306_9283);
}

#[test]
fn a_header_is_these_bytes() {
    let bytes = header().seal();
    assert_eq!(
        hex(&bytes[..96]),
        "4146494c4f470d0a\
         02000000\
         CRC00000\
         00000000\
         01000000\
         0300000000000000\
         a0a1a2a3a4a5a6a7a8a9aaabacadaeaf\
         0000010000000000\
         4000040000000000\
         1100000000000000\
         8877665544332211\
         1300000000000000\
         01000000\
         01000000"
            .replace("CRC00000", &hex(&bytes[12..16]))
    );
    assert_eq!(hex(&bytes[96..128]), "00fd0000000000002a000000000000000000100000000000feffffffffffffff");
    assert_eq!(hex(&bytes[608..624]), "080000000000000000000800efbeadde");
    let mut unsealed = bytes;
    unsealed[12..16].fill(0);
    assert_eq!(bytes[12..16], checksum(&unsealed).to_le_bytes());
    assert_eq!(header().slot_offset(), 4096);
    let parsed = LogHeader::parse(&bytes).expect("valid");
    assert_eq!(parsed.images(), &header().images[..1]);
}

#[test]
fn a_header_of_a_log_with_sets_is_these_bytes() {
    let mut header = header();
    assert!(!header.has_sets());
    header.features_incompat = FEATURE_SETS.into();
    let bytes = header.seal();
    assert_eq!(hex(&bytes[16..24]), "0100000001000000");
    assert!(LogHeader::parse(&bytes).expect("understood").has_sets());
}

#[test]
fn a_record_header_is_these_bytes() {
    let mut record = RecordHeader::new_zeroed();
    record.magic = RECORD_MAGIC.into();
    record.payload_hash = 0x0102_0304.into();
    record.disk = 2.into();
    record.kind = RecordKind::Write.code().into();
    record.incarnation = 0x1111.into();
    record.sequence = 0x2222.into();
    record.sector = 0x3333.into();
    record.sectors = 8.into();
    record.durable_sequence = 0x2200.into();
    record.group_tag = 0x4444.into();
    record.seal();
    let bytes = record.as_bytes();
    assert_eq!(
        hex(bytes),
        "41464952CRC000000403020102000100\
         11110000000000002222000000000000\
         33330000000000000800000000000000\
         00220000000000004444000000000000"
            .replace("CRC00000", &hex(&bytes[4..8]))
    );
    assert_eq!(RecordHeader::parse(bytes), Some(record));
    assert_eq!(record.payload_bytes(), Some(4096));
    assert!(!record.more());
    // The same, with another one of its set behind it.
    record.kind = (RecordKind::Write.code() | KIND_MORE).into();
    record.seal();
    let bytes = record.as_bytes();
    assert_eq!(hex(&bytes[..16]), "41464952CRC000000403020102000180".replace("CRC00000", &hex(&bytes[4..8])));
    let parsed = RecordHeader::parse(bytes).expect("sound");
    assert!(parsed.more() && parsed.kind() == Some(RecordKind::Write));
    assert_eq!(parsed.payload_bytes(), Some(4096));
    for kind in 0..8 {
        assert!(RecordKind::from_code(kind).is_none_or(|k| k.code() == kind));
    }
}

#[test]
fn a_mark_is_these_bytes() {
    let log = MarkedLog { group_uuid: [7; 16], disk: 1, path: b"/vm/a.aflog".to_vec() };
    let mark = Mark { contract: CONTRACT_POWER_WINDOW, log: Some(log) };
    let bytes = mark.to_bytes().expect("short enough");
    assert_eq!(
        hex(&bytes),
        "4146494d524b0d0a\
         01000000\
         de659a7c\
         020001000b000000\
         07070707070707070707070707070707\
         2f766d2f612e61666c6f67"
    );
    assert_eq!(Mark::parse(&bytes), Ok(mark.clone()));
    // Cut short anywhere, or one bit changed anywhere: noticed.
    for at in 0..bytes.len() {
        assert!(Mark::parse(&bytes[..at]).is_err());
        let mut damaged = bytes.clone();
        damaged[at] ^= 1;
        assert!(Mark::parse(&damaged).is_err(), "byte {at}");
    }
    let mut newer = bytes.clone();
    newer[8] = 2;
    assert_eq!(Mark::parse(&newer), Err(FormatError::Version { version: 2, known: 1 }));

    let plain = Mark { contract: CONTRACT_POWER, log: None };
    let bytes = plain.to_bytes().expect("no path");
    assert_eq!(bytes.len(), 40);
    assert_eq!(Mark::parse(&bytes), Ok(plain));
    let with_path = |path: Vec<u8>| {
        Mark { contract: 2, log: Some(MarkedLog { group_uuid: [7; 16], disk: 0, path }) }.to_bytes()
    };
    assert!(with_path(vec![b'a'; MARK_PATH_BYTES_MAX]).is_some());
    assert!(with_path(vec![b'a'; MARK_PATH_BYTES_MAX + 1]).is_none() && with_path(Vec::new()).is_none());
}

#[test]
fn a_sidecar_is_these_bytes() {
    let reference = Reference::new([7; 16], 1, b"/vm/a.aflog").expect("short enough");
    let bytes = reference.as_bytes();
    assert_eq!(bytes.len(), 4096);
    assert_eq!(hex(&bytes[..12]), "41464952 45460d0a 01000000".replace(' ', ""));
    assert_eq!(hex(&bytes[32..47]), "0b0001002f766d2f612e61666c6f67");
    assert_eq!(Reference::parse(bytes).expect("valid").log_path(), b"/vm/a.aflog");
    assert!(Reference::new([7; 16], 1, &[b'a'; 5000]).is_none());
}

#[test]
fn what_is_wrong_is_named() {
    let good = header().seal();
    let refused = |change: &dyn Fn(&mut [u8; 4096])| {
        let mut bytes = good;
        change(&mut bytes);
        LogHeader::parse(&bytes).expect_err("refused")
    };
    assert!(matches!(refused(&|b| b[0] = 0), FormatError::Magic { .. }));
    assert!(matches!(refused(&|b| b[8] = 3), FormatError::Version { version: 3, known: 2 }));
    assert!(matches!(refused(&|b| b[50] ^= 1), FormatError::Corrupt(_)));
    let resealed = |change: &dyn Fn(&mut LogHeader)| {
        let mut h = header();
        change(&mut h);
        LogHeader::parse(&h.seal()).expect_err("refused")
    };
    assert_eq!(resealed(&|h| h.features_incompat = 4.into()), FormatError::Features(4));
    assert!(matches!(resealed(&|h| h.area_bytes = 100.into()), FormatError::Corrupt(_)));
    assert!(matches!(resealed(&|h| h.tail_position = 1.into()), FormatError::Corrupt(_)));
    assert!(matches!(resealed(&|h| h.image_count = 17.into()), FormatError::Corrupt(_)));
    assert!(matches!(resealed(&|h| h.state = 9.into()), FormatError::Corrupt(_)));
    assert!(matches!(resealed(&|h| h.durable_sequence = 1.into()), FormatError::Corrupt(_)));
    let mut clean = header();
    clean.state = STATE_CLEAN.into();
    assert!(LogHeader::parse(&clean.seal()).is_ok());
}

#[test]
fn names_round_trip_and_damage_makes_them_unknown() {
    let name = ImageName::new(b"/vm/disk.raw");
    assert_eq!(ImageName::parse(name.as_bytes()).as_deref(), Some(&b"/vm/disk.raw"[..]));
    let mut damaged = name.as_bytes().to_vec();
    damaged[9] ^= 1;
    assert_eq!(ImageName::parse(&damaged), None);
    assert_eq!(ImageName::parse(ImageName::new(&[b'x'; 2000]).as_bytes()), None);
}

proptest! {
    #[test]
    fn parsers_take_anything(bytes in proptest::collection::vec(any::<u8>(), 0..5000)) {
        let _ = LogHeader::parse(&bytes);
        let _ = RecordHeader::parse(&bytes).map(|r| (r.kind(), r.payload_bytes()));
        let _ = Reference::parse(&bytes).map(|r| r.log_path().len());
        let _ = Mark::parse(&bytes);
        let _ = ImageName::parse(&bytes);
    }
}

#[test]
fn a_recordings_headers_are_these_bytes() {
    let header = FileHeader::sealed();
    assert_eq!(
        hex(&header),
        "41464952 45430d0a 01000000 CRC00000 00000000 00000000 00000000 00000000"
            .replace(' ', "")
            .replace("CRC00000", &hex(&header[12..16]))
    );
    let mut unsealed = header;
    unsealed[12..16].fill(0);
    assert_eq!(header[12..16], checksum(&unsealed).to_le_bytes());
    assert!(FileHeader::parse(&header).is_ok());

    let stored = [5; 9];
    let chunk = ChunkHeader::seal(3, 7, 1000, &stored);
    let bytes = chunk.as_bytes();
    assert_eq!(
        hex(bytes),
        "41464348 HCRC0000 SCRC0000 03000000 09000000 07000000 e8030000 00000000"
            .replace(' ', "")
            .replace("HCRC0000", &hex(&bytes[4..8]))
            .replace("SCRC0000", &hex(&checksum(&stored).to_le_bytes()))
    );
    assert_eq!(ChunkHeader::parse(bytes, 3), Some(chunk));
    assert!(ChunkHeader::parse(bytes, 4).is_none(), "another chunk's");

    let record = EventHeader {
        kind: EventKind::Complete.code(),
        flags: 4,
        target: 2.into(),
        payload_bytes: 0x10.into(),
        after_ns: 0x1122.into(),
        id: 0x33.into(),
    };
    assert_eq!(hex(record.as_bytes()), "07040200100000002211000000000000 3300000000000000".replace(' ', ""));
    let target = TargetBody {
        layer: LAYER_STORAGE,
        role: ROLE_LOG,
        index: 1.into(),
        same_as: OWN_BASE.into(),
        reserved: 0.into(),
        bytes: 0x1000.into(),
    };
    assert_eq!(hex(target.as_bytes()), "02020100ffff00000010000000000000");
    let extent = Extent { offset: 0x200.into(), len: 0x400.into() };
    assert_eq!(hex(extent.as_bytes()), "00020000000000000004000000000000");
    for code in 0..=u8::MAX {
        assert_eq!(EventKind::from_code(code).map(EventKind::code), (1..=10).contains(&code).then_some(code));
    }
}

#[test]
fn recordings_of_others_are_told_apart() {
    let good = FileHeader::sealed();
    let with = |at: usize, value: u32| {
        let mut bytes = good;
        bytes[at..at + 4].copy_from_slice(&value.to_le_bytes());
        let mut unsealed = bytes;
        unsealed[12..16].fill(0);
        bytes[12..16].copy_from_slice(&checksum(&unsealed).to_le_bytes());
        FileHeader::parse(&bytes)
    };
    assert!(with(8, 1).is_ok());
    assert_eq!(with(8, 2), Err(FormatError::Version { version: 2, known: 1 }));
    assert!(matches!(with(8, 0), Err(FormatError::Corrupt(_))));
    assert_eq!(with(16, 4), Err(FormatError::Features(4)));
    assert!(matches!(with(0, 0), Err(FormatError::Magic { .. })));
    assert!(matches!(FileHeader::parse(&good[..20]), Err(FormatError::Corrupt(_))));
}
