//! What is not ext4: recognised by signature, so that `status` can say what it is.
//!
//! Signatures as in the formats' own documents: LVM2 `lib/format_text/layout.h`, LUKS1/LUKS2 on-disk format, kernel
//! `include/uapi/linux/raid/md_p.h`, `include/linux/swap.h`, `fs/xfs/libxfs/xfs_format.h`, `fs/btrfs`.

use std::ops::Range;

use afterimage_block::{BlockError, Sector, SECTOR_BYTES};

use super::group::u32_at;
use super::Source;

/// `MD_SB_MAGIC`.
const MD_MAGIC: u32 = 0xA92B_4EFC;
const PAGE_BYTES: [usize; 4] = [4096, 8192, 16384, 65536];

/// Sectors of a volume in which a file system says what it is: XFS, ext4, swap space with pages of each size, btrfs (behind the last).
pub const SIGNATURES: [Range<u64>; 6] = [0..1, 2..4, 7..8, 15..16, 31..32, 127..129];

/// A sentence, and the UUID where the signature has one in binary.
type Recognised = Option<(String, Option<[u8; 16]>)>;

/// A layer between a file system and the disk.
///
/// # Errors
/// The disk cannot be read.
pub fn container(
    source: &mut dyn Source,
    start: Sector,
    sectors: u64,
    head: &[u8],
) -> Result<Recognised, BlockError> {
    if head.starts_with(b"LUKS\xba\xbe") {
        return Ok(Some(("LUKS: an encrypted volume's journal cannot be seen".into(), None)));
    }
    // The label stands in one of the first four sectors.
    let label = |sector: &[u8]| sector.starts_with(b"LABELONE") && sector[24..].starts_with(b"LVM2 001");
    if head[..4 * SECTOR_BYTES as usize].chunks(SECTOR_BYTES as usize).any(label) {
        return Ok(Some((
            "an LVM physical volume: the file systems inside it are not looked for".into(),
            None,
        )));
    }
    for (at, superblock) in [(0, &head[..512]), (8, &head[4096..4608])] {
        if let Some(uuid) = md_1(superblock, at) {
            return Ok(Some((md_sentence("1.x", "at its beginning"), Some(uuid))));
        }
    }
    let mut sector = vec![0; SECTOR_BYTES as usize];
    // Version 1.0 stands 8 to 12 KiB before the end, 0.90 in the last aligned 64 KiB.
    if sectors >= 24 {
        let at = (sectors - 16) & !7;
        source.read(Sector(start.0 + at), &mut sector)?;
        if let Some(uuid) = md_1(&sector, at) {
            return Ok(Some((md_sentence("1.0", "at its end"), Some(uuid))));
        }
    }
    if sectors >= 256 {
        let at = (sectors & !127) - 128;
        source.read(Sector(start.0 + at), &mut sector)?;
        if u32_at(&sector, 0) == MD_MAGIC && u32_at(&sector, 4) == 0 && u32_at(&sector, 8) == 90 {
            return Ok(Some((md_sentence("0.90", "at its end"), None)));
        }
    }
    Ok(None)
}

fn md_sentence(version: &str, place: &str) -> String {
    format!(
        "a member of an md array (superblock {version} {place}); mdadm --zero-superblock removes a stale one"
    )
}

/// The array's UUID, where this is a version 1 superblock that says of itself that it stands at this sector.
fn md_1(superblock: &[u8], at: u64) -> Option<[u8; 16]> {
    let offset = u64::from(u32_at(superblock, 148)) << 32 | u64::from(u32_at(superblock, 144));
    (u32_at(superblock, 0) == MD_MAGIC && u32_at(superblock, 4) == 1 && offset == at)
        .then(|| superblock[16..32].try_into().unwrap_or_default())
}

/// A file system, or swap space, without a journal that could be retained.
pub fn file_system(head: &[u8]) -> Option<String> {
    let swap = |page: &usize| {
        let end = &head[page - 10..*page];
        end == b"SWAPSPACE2" || end == b"SWAP-SPACE"
    };
    let what = if head.starts_with(b"XFSB") {
        "xfs: only ext4's journal is retained"
    } else if head[0x1_0040..].starts_with(b"_BHRfS_M") {
        "btrfs: only ext4's journal is retained"
    } else if PAGE_BYTES.iter().any(swap) {
        "swap space: it has no journal"
    } else {
        return None;
    };
    Some(what.into())
}
