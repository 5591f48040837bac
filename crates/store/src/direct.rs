//! What O_DIRECT wants of memory and offsets on a file.

use std::fs::File;
use std::io::{self, Seek as _, SeekFrom};
use std::os::fd::AsFd;
use std::os::unix::fs::FileTypeExt;

use afterimage_block::Buffers;
use rustix::fs::{fcntl_getfl, fcntl_setfl, fstatfs, ioctl_blksszget, statx, AtFlags, OFlags, StatxFlags};

use crate::transfer::{Alignment, Target};

/// `TMPFS_MAGIC` and `RAMFS_MAGIC` (linux/magic.h).
pub(crate) const MEMORY_FILE_SYSTEMS: [u64; 2] = [0x0102_1994, 0x8584_58f6];
/// File systems whose buffered writes are a copy into the page cache unless the machine is short of memory: ext2/3/4,
/// XFS, btrfs, F2FS (linux/magic.h). Others, such as FUSE and NFS, may wait for somebody on every write.
pub(crate) const CACHING_FILE_SYSTEMS: [u64; 4] = [0xef53, 0x5846_5342, 0x9123_683e, 0xf2f5_2010];

/// What lies below a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Backing {
    /// Memory: no system call on it ever waits for a device.
    Memory,
    /// A page cache that takes writes without waiting for anybody.
    PageCache,
    /// Anything may wait.
    Other,
}

/// Finds out what lies below `file`.
pub(crate) fn backing(file: &File) -> io::Result<Backing> {
    if file.metadata()?.file_type().is_block_device() {
        return Ok(Backing::PageCache);
    }
    let kind = fstatfs(file)?.f_type as u64;
    Ok(if MEMORY_FILE_SYSTEMS.contains(&kind) {
        Backing::Memory
    } else if CACHING_FILE_SYSTEMS.contains(&kind) {
        Backing::PageCache
    } else {
        Backing::Other
    })
}

/// Switches O_DIRECT on and returns what it needs, or leaves it off and returns `None` where it does not work.
pub(crate) fn enable(file: &File, size: u64) -> io::Result<Option<Alignment>> {
    if backing(file)? == Backing::Memory {
        // Newer tmpfs takes the flag and ignores it.
        return Ok(None);
    }
    let flags = fcntl_getfl(file)?;
    if fcntl_setfl(file, flags | OFlags::DIRECT).is_err() {
        return Ok(None);
    }
    let alignment = match reported(file)? {
        Some(alignment) => alignment,
        None => probed(file, size),
    };
    if alignment.is_none() {
        fcntl_setfl(file, flags)?;
    }
    Ok(alignment)
}

/// The size of a file or device, whose metadata says 0.
pub(crate) fn size(mut file: &File) -> io::Result<u64> {
    file.seek(SeekFrom::End(0))
}

/// Switches O_DIRECT off again.
pub(crate) fn disable(file: &File) -> io::Result<()> {
    let flags = fcntl_getfl(file)?;
    Ok(fcntl_setfl(file, flags - OFlags::DIRECT)?)
}

/// The kernel's own answer (statx, Linux 6.1): `None` where it gives none, `Some(None)` for "not supported".
#[allow(clippy::option_option)]
pub(crate) fn reported(file: &File) -> io::Result<Option<Option<Alignment>>> {
    let Ok(answer) = statx(file.as_fd(), "", AtFlags::EMPTY_PATH, StatxFlags::DIOALIGN) else {
        return Ok(None);
    };
    if answer.stx_mask & StatxFlags::DIOALIGN.bits() == 0 {
        if file.metadata()?.file_type().is_block_device() {
            let sector = ioctl_blksszget(file)?;
            return Ok(Some(Some(Alignment { memory: sector.max(512), offset: sector })));
        }
        return Ok(None);
    }
    let (memory, offset) = (answer.stx_dio_mem_align, answer.stx_dio_offset_align);
    if !memory.is_power_of_two() || !offset.is_power_of_two() {
        return Ok(Some(None));
    }
    Ok(Some(Some(Alignment { memory, offset: offset.max(512) })))
}

/// Reads with each alignment until one works.
fn probed(file: &File, size: u64) -> Option<Alignment> {
    let counters = crate::Counters::default();
    for align in [512u32, 4096] {
        if size < u64::from(align) * 2 {
            continue;
        }
        let block = align as usize;
        let alignment = Alignment { memory: align, offset: align };
        let target = Target { file, alignment: Some(alignment), shard: counters.shard(0) };
        // Page-aligned memory, used at an odd multiple of the alignment under test.
        let memory = Buffers::allocate(2 * block);
        if target.read(&memory.slice(block, block), u64::from(align)).is_ok() {
            return Some(alignment);
        }
    }
    None
}
