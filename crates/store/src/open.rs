//! Everything that is checked before an image is served. Nothing is written here.

use std::fs::{File, OpenOptions as FileOptions};
use std::io;
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use afterimage_block::{Geometry, Health, SECTOR_BYTES};
use rustix::fs::{fcntl_getfl, fcntl_setfl, ioctl_blkpbszget, ioctl_blksszget, OFlags};

use crate::core::Core;
use crate::direct::{self, Backing};
use crate::magic::{self, HEAD_BYTES};
use crate::note::Note;
use crate::syncs::Syncs;
use crate::transfer::{sync_data, Alignment};
use crate::{claim, lock, Counters, DirectMode, OpenError, OpenOptions};

/// At most this much of a serial is shown (virtio 1.2 § 5.2.6.1, VIRTIO_BLK_T_GET_ID).
const SERIAL_BYTES_MAX: usize = 20;

/// Opens, checks and locks.
pub(crate) fn open(options: &OpenOptions) -> Result<Core, OpenError> {
    let path = &options.path;
    let file = open_file(path, options.read_only, options.lock_wait)?;
    // Before the content is looked at: a holder may be about to change it.
    lock::take_image(&file, path, options.read_only, options.lock_wait)?;
    let size = direct::size(&file).map_err(OpenError::io("finding the size of", path))?;
    let has_sectors = size > 0 && size % SECTOR_BYTES == 0;
    // What cannot be a raw disk is said to be what it is, whatever content is taken: to extend it would be bad advice.
    if !(options.any_content && has_sectors) {
        check_format(&file, path, size)?;
    }
    if size == 0 {
        return Err(OpenError::Empty(path.clone()));
    }
    if !has_sectors {
        return Err(OpenError::BadSize { path: path.clone(), bytes: size });
    }
    let alignment = choose_direct(&file, path, size, options.direct)?;
    let geometry =
        geometry(&file, size, alignment, options.read_only).map_err(OpenError::io("examining", path))?;
    if size % u64::from(geometry.logical_block_bytes) != 0 {
        return Err(OpenError::BadSize { path: path.clone(), bytes: size });
    }
    let backing = direct::backing(&file).map_err(OpenError::io("examining", path))?;
    let is_device = file.metadata().is_ok_and(|metadata| metadata.file_type().is_block_device());
    tracing::debug!(path = %path.display(), size, ?alignment, ?backing, "image opened");
    let (file, counters, health) = (Arc::new(file), Arc::<Counters>::default(), Health::default());
    let syncs = Syncs::new(path, health.clone(), sync_data(&file, &counters));
    if !options.read_only && backing != Backing::Memory {
        // What is written past the cache leaves nothing in it; what an earlier process wrote through it may have.
        let note = match alignment {
            None => Note::of(&file, size).map(Some),
            Some(_) => Note::found(&file, size),
        };
        note.map_err(OpenError::io("looking for the note of", path))?
            .into_iter()
            .for_each(|note| syncs.keep(note));
    }
    let core = Core {
        serial: serial(options),
        geometry,
        syncs,
        health,
        counters,
        alignment,
        backing,
        methods: Default::default(),
        path: path.clone(),
        file,
    };
    // Before anything is read of it: its cache may be older than what it holds.
    if !options.read_only && is_device {
        core.settle().map_err(OpenError::io("making sure of what is on", path))?;
    }
    Ok(core)
}

fn open_file(path: &Path, read_only: bool, wait: Duration) -> Result<File, OpenError> {
    // Looked at first: opening a pipe would wait for its other end, opening a tape may rewind it.
    let metadata = std::fs::metadata(path).map_err(|e| match e.kind() {
        io::ErrorKind::NotFound => OpenError::NotFound(path.to_owned()),
        _ => OpenError::io("opening", path)(e),
    })?;
    check_kind(path, metadata.file_type())?;
    let not_writable = |reason: String| OpenError::NotWritable { path: path.to_owned(), reason };
    if !read_only && metadata.file_type().is_file() && metadata.mode() & 0o222 == 0 {
        // Root could, and would surprise whoever protected the file.
        return Err(not_writable("its mode allows nobody to write".into()));
    }
    let is_device = metadata.file_type().is_block_device();
    let open = |flags| {
        let flags = flags | libc::O_CLOEXEC | libc::O_NONBLOCK;
        FileOptions::new().read(true).write(!read_only).custom_flags(flags).open(path)
    };
    let opened = match is_device && !read_only {
        true => claim::open_claimed(path, &metadata, wait, || open(libc::O_EXCL))?,
        false => open(0),
    };
    let file = opened.map_err(|e| match e.raw_os_error() {
        Some(libc::EACCES | libc::EPERM | libc::EROFS) if !read_only => not_writable(e.to_string()),
        _ => OpenError::io("opening", path)(e),
    })?;
    // O_NONBLOCK was for the opening only: io_uring would give requests up instead of letting them wait.
    let flags = fcntl_getfl(&file).and_then(|flags| fcntl_setfl(&file, flags - OFlags::NONBLOCK));
    flags.map_err(|e| OpenError::io("opening", path)(e.into()))?;
    // Again on the descriptor: the name may lead elsewhere by now.
    let metadata = file.metadata().map_err(OpenError::io("examining", path))?;
    check_kind(path, metadata.file_type())?;
    if metadata.file_type().is_block_device() {
        if !is_device {
            let changed = io::Error::other("it became a device meanwhile");
            return Err(OpenError::io("opening", path)(changed));
        }
        if read_only {
            claim::refuse_claimed(path, &metadata, wait)?;
        }
    } else if !read_only {
        claim::refuse_attached(path, &metadata)?;
    }
    Ok(file)
}

fn check_kind(path: &Path, kind: std::fs::FileType) -> Result<(), OpenError> {
    match unfit(kind) {
        None => Ok(()),
        Some(what) => Err(OpenError::WrongKind { path: path.to_owned(), what }),
    }
}

/// What it is, where it is neither a regular file nor a block device.
pub(crate) fn unfit(kind: std::fs::FileType) -> Option<&'static str> {
    if kind.is_file() || kind.is_block_device() {
        None
    } else if kind.is_dir() {
        Some("a directory")
    } else if kind.is_fifo() {
        Some("a pipe")
    } else if kind.is_socket() {
        Some("a socket")
    } else {
        Some("a character device")
    }
}

fn check_format(file: &File, path: &Path, size: u64) -> Result<(), OpenError> {
    let (mut head, mut tail) = ([0; HEAD_BYTES], [0; HEAD_BYTES]);
    let looked = size.min(HEAD_BYTES as u64);
    let (head, tail) = (&mut head[..looked as usize], &mut tail[..looked as usize]);
    file.read_exact_at(head, 0).map_err(OpenError::io("reading", path))?;
    file.read_exact_at(tail, size - looked).map_err(OpenError::io("reading", path))?;
    match magic::other_format(head, tail) {
        None => Ok(()),
        Some(format) => Err(OpenError::OtherFormat {
            path: path.to_owned(),
            format,
            hint: ", or, if a guest wrote that into its raw disk, serve it with `format=raw`: `--disk FILE,format=raw`, or `format = \"raw\"` in its `[[disk]]`",
        }),
    }
}

fn choose_direct(
    file: &File,
    path: &Path,
    size: u64,
    mode: DirectMode,
) -> Result<Option<Alignment>, OpenError> {
    if mode == DirectMode::Off {
        return Ok(None);
    }
    let alignment = direct::enable(file, size).map_err(OpenError::io("examining", path))?;
    match (mode, alignment) {
        (DirectMode::On, None) => Err(OpenError::NoDirect(path.to_owned())),
        // Coarser than a sector: a guest that was installed with 512-byte blocks could not even find its partitions.
        (DirectMode::Auto, Some(a)) if u64::from(a.offset) > SECTOR_BYTES => {
            direct::disable(file).map_err(OpenError::io("examining", path))?;
            Ok(None)
        }
        (_, alignment) => Ok(alignment),
    }
}

fn geometry(file: &File, size: u64, alignment: Option<Alignment>, read_only: bool) -> io::Result<Geometry> {
    let metadata = file.metadata()?;
    let device = metadata.file_type().is_block_device();
    let logical = alignment.map_or(512, |a| a.offset).max(512);
    let physical = if device {
        ioctl_blkpbszget(file)?.max(ioctl_blksszget(file)?)
    } else {
        // A file system's block; some report the size of their favourite transfer instead.
        (metadata.blksize() as u32).clamp(512, 4096)
    };
    let physical = if physical.is_power_of_two() { physical.max(logical) } else { 4096 };
    Ok(Geometry {
        sectors: size / SECTOR_BYTES,
        logical_block_bytes: logical,
        physical_block_bytes: physical,
        discard_granularity_bytes: physical.max(4096),
        read_only,
    })
}

fn serial(options: &OpenOptions) -> String {
    let full = match &options.serial {
        Some(serial) => serial.clone(),
        None => options.path.file_name().map(|n| n.to_string_lossy().into_owned()).unwrap_or_default(),
    };
    let mut end = full.len().min(SERIAL_BYTES_MAX);
    while !full.is_char_boundary(end) {
        end -= 1;
    }
    full[..end].to_owned()
}
