//! The guest's disk: an ext4 whose last blocks are in use, and what is written there.

use std::sync::LazyLock;

use afterimage_block::Sector;
use afterimage_journal::layout::superblock::{Features, JournalSuperblock};
use afterimage_journal::layout::{self, Found, Layout, Source};
use afterimage_journal::log::encode::MAGIC_BYTES;
use afterimage_journal::log::LogGeometry;
use afterimage_journal::{Block, FsBlock, BLOCK_BYTES};

use crate::oracle::SECTORS;

const BLOCKS: u64 = 2560;
/// Blocks in use at the end.
const USED: u64 = 64;
/// Blocks of the file system that go through its journal, and behind them blocks that are written directly.
pub const STATE_BLOCKS: usize = 12;
pub const DATA_BLOCKS: usize = 16;

/// Made once.
pub struct Disk {
    pub bytes: Vec<u8>,
    pub layout: Layout,
    pub superblock: JournalSuperblock,
    pub geometry: LogGeometry,
}

pub static DISK: LazyLock<Disk> = LazyLock::new(make);

/// What a block is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    State,
    Data,
}

pub fn home(kind: Kind, block: usize) -> FsBlock {
    let first = match kind {
        Kind::State => BLOCKS - USED,
        Kind::Data => BLOCKS - USED / 2,
    };
    FsBlock(first + block as u64)
}

/// A version of a block. Some look like a block of a journal, which jbd2 has to escape there.
pub fn content(kind: Kind, block: usize, version: u32) -> Box<Block> {
    let mut bytes = Box::new([version as u8 ^ block as u8; BLOCK_BYTES]);
    for (i, sector) in bytes.chunks_mut(512).enumerate() {
        sector[..4].copy_from_slice(if version % 8 == 3 { &MAGIC_BYTES } else { b"sim." });
        sector[4..8].copy_from_slice(&[kind as u8 + 1, block as u8, i as u8, 0]);
        sector[8..12].copy_from_slice(&version.to_le_bytes());
    }
    bytes
}

/// Which version each sector of a block holds; `None`: zeroes.
///
/// # Errors
/// It is none.
pub fn versions(kind: Kind, block: usize, bytes: &[u8]) -> Result<[Option<u32>; SECTORS], String> {
    let mut found = [None; SECTORS];
    for (i, sector) in bytes.chunks(512).enumerate() {
        if sector.iter().all(|byte| *byte == 0) {
            continue;
        }
        let version = u32::from_le_bytes([sector[8], sector[9], sector[10], sector[11]]);
        if sector != &content(kind, block, version)[i * 512..][..512] {
            return Err(format!(
                "{kind:?} block {block} sector {i} holds what nobody wrote: {:02x?}",
                &sector[..16]
            ));
        }
        found[i] = Some(version);
    }
    Ok(found)
}

struct Bytes<'a>(&'a [u8]);

impl Source for Bytes<'_> {
    fn read(&mut self, sector: Sector, buf: &mut [u8]) -> Result<(), afterimage_block::BlockError> {
        buf.copy_from_slice(&self.0[sector.0 as usize * 512..][..buf.len()]);
        Ok(())
    }
}

fn run(program: &str, arguments: &[&str], image: &std::path::Path) {
    let output = std::process::Command::new(program).args(arguments).arg(image).output();
    let output = output.unwrap_or_else(|e| panic!("running {program}: {e}"));
    assert!(output.status.success(), "{program}: {}", String::from_utf8_lossy(&output.stderr));
}

fn make() -> Disk {
    let image = tempfile::NamedTempFile::new().expect("a file");
    image.as_file().set_len(BLOCKS * BLOCK_BYTES as u64).expect("room");
    let path = image.path();
    let options = ["-q", "-F", "-b", "4096", "-J", "size=4", "-O", "^resize_inode"];
    run("mkfs.ext4", &options, path);
    let used = format!("setb {} {USED}", BLOCKS - USED);
    run("debugfs", &["-w", "-R", &used], path);
    let bytes = std::fs::read(path).expect("just made");
    let found = layout::find(&mut Bytes(&bytes), bytes.len() as u64 / 512).expect("just made");
    let layout = match found.into_iter().next() {
        Some(Found::FileSystem(layout)) => layout,
        other => panic!("its journal cannot be retained: {other:?}"),
    };
    let journal = layout.journal[0].home.0 as usize * BLOCK_BYTES;
    let block: Block = bytes[journal..][..BLOCK_BYTES].try_into().expect("a block");
    let features = Features { revoke: true, bits64: true, csum_v3: true, ..Features::default() };
    let superblock = with_features(block);
    let extents = layout.journal.iter().map(|e| (e.home, FsBlock(e.home.0 + u64::from(e.blocks))));
    let geometry = LogGeometry {
        first: superblock.first(),
        maxlen: superblock.maxlen(),
        features,
        uuid: superblock.uuid(),
        fs_blocks: BLOCKS,
        forbidden: extents.collect(),
    };
    assert!(geometry.forbidden.iter().all(|(_, to)| to.0 <= BLOCKS - USED), "the journal is elsewhere");
    Disk { bytes, layout, superblock, geometry }
}

/// As the kernel sets them at a mount: revoke, 64bit, csum_v3 (include/linux/jbd2.h).
fn with_features(mut block: Block) -> JournalSuperblock {
    block[0x28..0x2c].copy_from_slice(&(1u32 | 2 | 0x10).to_be_bytes());
    block[0x50] = 4;
    block[0xfc..0x100].fill(0);
    let sum = !crc32c::crc32c(&block[..1024]);
    block[0xfc..0x100].copy_from_slice(&sum.to_be_bytes());
    JournalSuperblock::parse(&block).expect("a sound superblock")
}
