//! A file of another host's: FUSE, whose server keeps it in memory and may fail, and whose pages the kernel keeps.

use std::ffi::OsStr;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::{Duration, UNIX_EPOCH};

use fuser::{
    BackgroundSession, Config, Errno, FileAttr, FileHandle, FileType, Filesystem, FopenFlags, Generation,
    INodeNo, InitFlags, KernelConfig, LockOwner, OpenFlags, ReplyAttr, ReplyData, ReplyEmpty, ReplyEntry,
    ReplyOpen, ReplyWrite, Request, WriteFlags,
};

const LIFE: Duration = Duration::from_secs(3600);
const NAME: &str = "disk.img";
const FILE: INodeNo = INodeNo(2);

#[derive(Default)]
struct Server {
    bytes: Vec<u8>,
    fails: bool,
}

struct Host(Arc<Mutex<Server>>);

/// The mounted file.
pub struct Shared {
    server: Arc<Mutex<Server>>,
    folder: PathBuf,
    _session: BackgroundSession,
}

impl Shared {
    pub fn mount(folder: &Path, bytes: Vec<u8>) -> Self {
        let server = Arc::new(Mutex::new(Server { bytes, fails: false }));
        let session = fuser::spawn_mount(Host(Arc::clone(&server)), folder, &Config::default());
        Self { server, folder: folder.to_owned(), _session: session.expect("FUSE") }
    }

    pub fn file(&self) -> PathBuf {
        self.folder.join(NAME)
    }

    pub fn set(&self, bytes: Vec<u8>) {
        self.server.lock().expect("a server").bytes = bytes;
    }

    pub fn get(&self) -> Vec<u8> {
        self.server.lock().expect("a server").bytes.clone()
    }

    pub fn fail(&self, fails: bool) {
        self.server.lock().expect("a server").fails = fails;
    }
}

impl Host {
    fn works<T>(&self, work: impl FnOnce(&mut Server) -> T) -> Result<T, Errno> {
        let mut server = self.0.lock().expect("a server");
        match server.fails {
            true => Err(Errno::EIO),
            false => Ok(work(&mut server)),
        }
    }

    fn attributes(&self, ino: INodeNo) -> FileAttr {
        let size = self.0.lock().expect("a server").bytes.len() as u64;
        let (kind, perm, size) = match ino == FILE {
            true => (FileType::RegularFile, 0o600, size),
            false => (FileType::Directory, 0o700, 4096),
        };
        let time = UNIX_EPOCH;
        let (atime, mtime, ctime, crtime) = (time, time, time, time);
        let (blocks, nlink, uid, gid, rdev, blksize, flags) = (size / 512, 1, 0, 0, 0, 4096, 0);
        FileAttr {
            ino,
            size,
            blocks,
            atime,
            mtime,
            ctime,
            crtime,
            kind,
            perm,
            nlink,
            uid,
            gid,
            rdev,
            blksize,
            flags,
        }
    }
}

impl Filesystem for Host {
    fn init(&mut self, _request: &Request, config: &mut KernelConfig) -> io::Result<()> {
        config
            .add_capabilities(InitFlags::FUSE_WRITEBACK_CACHE)
            .map_err(|_| io::Error::other("no write-back"))
    }

    fn lookup(&self, _request: &Request, _parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        match name == NAME {
            true => reply.entry(&LIFE, &self.attributes(FILE), Generation(0)),
            false => reply.error(Errno::ENOENT),
        }
    }

    fn getattr(&self, _request: &Request, ino: INodeNo, _handle: Option<FileHandle>, reply: ReplyAttr) {
        reply.attr(&LIFE, &self.attributes(ino));
    }

    #[allow(clippy::too_many_arguments)]
    fn setattr(
        &self,
        _request: &Request,
        ino: INodeNo,
        _mode: Option<u32>,
        _uid: Option<u32>,
        _gid: Option<u32>,
        _size: Option<u64>,
        _atime: Option<fuser::TimeOrNow>,
        _mtime: Option<fuser::TimeOrNow>,
        _ctime: Option<std::time::SystemTime>,
        _handle: Option<FileHandle>,
        _crtime: Option<std::time::SystemTime>,
        _chgtime: Option<std::time::SystemTime>,
        _bkuptime: Option<std::time::SystemTime>,
        _flags: Option<fuser::BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        reply.attr(&LIFE, &self.attributes(ino));
    }

    fn open(&self, _request: &Request, _ino: INodeNo, flags: OpenFlags, reply: ReplyOpen) {
        let direct = flags.0 & libc::O_DIRECT != 0;
        let kept = if direct { FopenFlags::FOPEN_DIRECT_IO } else { FopenFlags::FOPEN_KEEP_CACHE };
        reply.opened(FileHandle(0), kept);
    }

    fn read(
        &self,
        _request: &Request,
        _ino: INodeNo,
        _handle: FileHandle,
        offset: u64,
        size: u32,
        _flags: OpenFlags,
        _owner: Option<LockOwner>,
        reply: ReplyData,
    ) {
        let (from, to) = (offset as usize, offset as usize + size as usize);
        match self
            .works(|server| server.bytes[from.min(server.bytes.len())..to.min(server.bytes.len())].to_vec())
        {
            Ok(bytes) => reply.data(&bytes),
            Err(error) => reply.error(error),
        }
    }

    fn write(
        &self,
        _request: &Request,
        _ino: INodeNo,
        _handle: FileHandle,
        offset: u64,
        data: &[u8],
        _write_flags: WriteFlags,
        _flags: OpenFlags,
        _owner: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        let at = offset as usize;
        match self.works(|server| server.bytes[at..at + data.len()].copy_from_slice(data)) {
            Ok(()) => reply.written(data.len() as u32),
            Err(error) => reply.error(error),
        }
    }

    fn flush(&self, _: &Request, _: INodeNo, _: FileHandle, _: LockOwner, reply: ReplyEmpty) {
        reply.ok();
    }

    fn fsync(&self, _: &Request, _: INodeNo, _: FileHandle, _: bool, reply: ReplyEmpty) {
        match self.works(|_| ()) {
            Ok(()) => reply.ok(),
            Err(error) => reply.error(error),
        }
    }
}
