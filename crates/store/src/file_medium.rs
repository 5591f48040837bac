//! A plain buffered file, such as a redo log.

use std::fs::{File, OpenOptions as FileOptions};
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::Arc;

use afterimage_block::{BlockError, Health, Medium};
use rustix::fs::{
    fallocate, fstatfs, ioctl_getflags, ioctl_setflags, seek, FallocateFlags, IFlags, SeekFrom,
};

use crate::direct::{self, Backing};
use crate::note::Note;
use crate::open::unfit;
use crate::stored;
use crate::syncs::Syncs;
use crate::transfer::{named, sync_data, Target};
use crate::zero::Methods;
use crate::{open_unlinked, Counters, FileIdentity};

/// A file with a fixed size, read and written through the page cache.
///
/// A write that returned is in the page cache: it survives the process, and a power cut only after a
/// [`Medium::sync`]. The file's name survives a power cut only after [`sync_directory`].
pub struct FileMedium {
    file: Arc<File>,
    path: PathBuf,
    len: AtomicU64,
    counters: Arc<Counters>,
    methods: Methods,
    syncs: Arc<Syncs>,
}

impl FileMedium {
    /// Creates a file of `bytes` bytes, readable by its owner only. Fails where something of that name exists. The
    /// content is durable after [`Medium::sync`], the name after [`sync_directory`].
    ///
    /// # Errors
    /// What the file system says; [`io::ErrorKind::AlreadyExists`] for a name that exists.
    pub fn create(path: &Path, bytes: u64) -> io::Result<Self> {
        Self::create_as(path, path, bytes)
    }

    /// As [`FileMedium::create`], of a draft that is going to be renamed to `path`, which is what messages call it.
    ///
    /// # Errors
    /// As there.
    pub fn create_as(draft: &Path, path: &Path, bytes: u64) -> io::Result<Self> {
        let file = FileOptions::new().read(true).write(true).create_new(true).mode(0o600).open(draft)?;
        // Only a file without content can be told.
        write_in_place(&file, path);
        file.set_len(bytes)?;
        Ok(Self::wrap(file, path, bytes))
    }

    /// Opens an existing file.
    ///
    /// # Errors
    /// What the file system says; [`io::ErrorKind::InvalidInput`] for what is no file, such as a pipe.
    pub fn open(path: &Path, read_only: bool) -> io::Result<Self> {
        // Looked at first: opening a pipe would wait for its other end.
        if let Some(what) = unfit(std::fs::metadata(path)?.file_type()) {
            let kind = format!("it is {what}, not a regular file or a block device");
            return Err(io::Error::new(io::ErrorKind::InvalidInput, kind));
        }
        let file = FileOptions::new().read(true).write(!read_only).open(path)?;
        let len = file.metadata()?.len();
        Ok(Self::wrap(file, path, len))
    }

    /// Opens an existing file of ours: regular, with one name, and no link.
    ///
    /// # Errors
    /// As [`open_unlinked`].
    pub fn open_unlinked(path: &Path, read_only: bool) -> io::Result<Self> {
        let file = open_unlinked(path, read_only)?;
        let len = file.metadata()?.len();
        Ok(Self::wrap(file, path, len))
    }

    fn wrap(file: File, path: &Path, len: u64) -> Self {
        let (file, counters) = (Arc::new(file), Arc::<Counters>::default());
        Self {
            syncs: Syncs::new(path, Health::default(), sync_data(&file, &counters)),
            file,
            path: path.to_owned(),
            len: AtomicU64::new(len),
            counters,
            methods: Methods::default(),
        }
    }

    /// As [`FileMedium::reserve`], but where the file system cannot reserve, zeroes are written over everything: only for a
    /// file without content yet. Whether space was reserved only.
    ///
    /// # Errors
    /// [`io::ErrorKind::StorageFull`], or what the file system says.
    pub fn preallocate(&self) -> io::Result<bool> {
        let is_reserved = self.reserve()?;
        if !is_reserved {
            let (len, target) = (self.len(), self.target());
            let mut at = 0;
            while at < len {
                let n = (len - at).min(crate::zero::ZERO_CHUNK_BYTES as u64);
                target.write_slice(&crate::zero::zeroes()[..n as usize], at)?;
                at += n;
            }
        }
        Ok(is_reserved)
    }

    /// Reserves space for the whole file, so that no later write to it fails for lack of space; its content stays. Whether
    /// the file system can.
    ///
    /// # Errors
    /// [`io::ErrorKind::StorageFull`], or what the file system says.
    pub fn reserve(&self) -> io::Result<bool> {
        self.syncs.note_write(0, 0);
        match fallocate(&self.file, FallocateFlags::empty(), 0, self.len()) {
            Ok(()) => Ok(true),
            Err(rustix::io::Errno::OPNOTSUPP | rustix::io::Errno::NOSYS) => Ok(false),
            Err(e) => Err(e.into()),
        }
    }

    /// Whether space that is reserved holds for every later write. On btrfs it does so only in a file that is written in place.
    pub fn is_written_in_place(&self) -> bool {
        !is_btrfs(&self.file) || ioctl_getflags(&self.file).is_ok_and(|flags| flags.contains(IFlags::NOCOW))
    }

    /// Changes the size; new bytes read as zeroes.
    ///
    /// # Errors
    /// What the file system says; the size is as before.
    pub fn set_len(&self, bytes: u64) -> io::Result<()> {
        self.file.set_len(bytes)?;
        self.len.store(bytes, Ordering::Release);
        self.syncs.note_write(0, 0);
        Ok(())
    }

    /// What has reached the file.
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// The file's identity now.
    ///
    /// # Errors
    /// What the file system says.
    pub fn identity(&self) -> io::Result<FileIdentity> {
        let metadata = self.file.metadata()?;
        Ok(FileIdentity::of(&metadata, metadata.len()))
    }

    /// Keeps, from here on, a note of its syncs that outlives this process. By whoever has the file locked.
    ///
    /// # Errors
    /// There is no memory for it.
    pub(crate) fn keep_note(&self) -> io::Result<()> {
        if direct::backing(&self.file)? != Backing::Memory {
            self.syncs.keep(Note::of(&self.file, self.len())?);
        }
        Ok(())
    }

    /// Whether its last name is gone: the file itself goes with this medium.
    pub fn is_deleted(&self) -> bool {
        self.file().metadata().is_ok_and(|metadata| metadata.nlink() == 0)
    }

    /// Its path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The file itself, for locks.
    pub fn file(&self) -> &File {
        &self.file
    }

    fn target(&self) -> Target<'_> {
        Target { file: &self.file, alignment: None, shard: self.counters.shard(0) }
    }

    fn check(&self, offset: u64, len: u64) -> io::Result<()> {
        match offset.checked_add(len) {
            Some(end) if end <= self.len() => Ok(()),
            _ => Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                format!("bytes {offset}+{len} lie outside {}", self.path.display()),
            )),
        }
    }
}

impl Medium for FileMedium {
    fn len(&self) -> u64 {
        self.len.load(Ordering::Acquire)
    }

    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        self.check(offset, buf.len() as u64)?;
        self.target().read_slice(buf, offset).map_err(named("reading", &self.path, offset))
    }

    /// What is a hole, or only reserved. Where the file system does not tell, everything is data to it.
    fn zeroes_from(&self, offset: u64) -> u64 {
        let data = match seek(&self.file, SeekFrom::Data(offset)) {
            Ok(data) => data,
            Err(rustix::io::Errno::NXIO) => self.len(),
            Err(_) => offset,
        };
        data.min(self.len()).saturating_sub(offset)
    }

    fn write_at(&self, buf: &[u8], offset: u64) -> io::Result<()> {
        self.check(offset, buf.len() as u64)?;
        self.syncs.begin_write(offset, buf.len() as u64);
        let written = self.target().write_slice(buf, offset).map_err(named("writing", &self.path, offset));
        self.syncs.note_write(offset, buf.len() as u64);
        written
    }

    fn zero_at(&self, offset: u64, len: u64, unmap: bool) -> io::Result<()> {
        self.check(offset, len)?;
        self.syncs.begin_write(offset, len);
        let zeroed = self.methods.zero(&self.target(), offset, len, unmap);
        let zeroed = zeroed.map_err(named("zeroing", &self.path, offset));
        self.syncs.note_write(offset, len);
        zeroed
    }

    fn settle(&self) -> io::Result<()> {
        stored::settle(&self.syncs, &self.target(), self.len(), true, &self.path).map(drop)
    }

    fn sync(&self) -> io::Result<()> {
        self.syncs.wait(self.syncs.need()).map_err(BlockError::into_io)
    }
}

/// btrfs gives a block that is written again another place, and reserved space serves the first writing only, unless the file is
/// written in place (`chattr +C`). Its blocks have no checksums of the file system then; those of a log have their own.
fn write_in_place(file: &File, path: &Path) {
    if !is_btrfs(file) {
        return;
    }
    let told = ioctl_getflags(file).and_then(|flags| ioctl_setflags(file, flags | IFlags::NOCOW));
    if let Err(error) = told {
        tracing::warn!(path = %path.display(), %error, "btrfs does not write it in place: a full file system can fail it");
    }
}

fn is_btrfs(file: &File) -> bool {
    fstatfs(file).is_ok_and(|found| found.f_type == BTRFS_MAGIC)
}

/// What statfs says of btrfs (linux/magic.h).
const BTRFS_MAGIC: rustix::fs::FsWord = 0x9123_683e;

/// Makes the names in the directory that holds `path` durable: a created, renamed or removed file is so only then.
///
/// # Errors
/// The directory cannot be opened or synced.
pub fn sync_directory(path: &Path) -> io::Result<()> {
    let parent = match path.parent() {
        Some(p) if !p.as_os_str().is_empty() => p,
        _ => Path::new("."),
    };
    File::open(parent)?.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_only_reserved_is_known_to_be_zeroes() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = FileMedium::create(&folder.path().join("log"), 4 << 20).expect("a file");
        assert!(file.preallocate().expect("room"));
        file.write_at(&[7; 8192], 1 << 20).expect("a write");
        for synced in [false, true] {
            let found = [0, (1 << 20) + 100, (1 << 20) + 8192, 4 << 20].map(|at| file.zeroes_from(at));
            assert_eq!(found, [1 << 20, 0, (3 << 20) - 8192, 0], "synced: {synced}");
            file.sync().expect("a sync");
        }
    }
}
