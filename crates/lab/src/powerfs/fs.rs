//! The FUSE side: requests become operations of the [`Core`], replies wait for the modelled device.
//!
//! ```text
//!   kernel ─ WRITE ─► core (volatile, readable) ─► model ─► reply at its time
//!          ─ FSYNC ─► core (covers what arrived) ─► model ─► settle, reply at its time
//!                            │ power cut meanwhile: EIO, nothing settled
//! ```
//!
//! Buffered files use the kernel's page cache with write-back, as on a local file system: a write reaches us
//! when the kernel sends it. Files opened with O_DIRECT bypass it, and their writes run in parallel.

use std::ffi::OsStr;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use fuser::{
    Errno, FileAttr, FileHandle, FileType, Filesystem, FopenFlags, Generation, INodeNo, InitFlags,
    KernelConfig, LockOwner, OpenFlags, RenameFlags, ReplyAttr, ReplyCreate, ReplyData, ReplyDirectory,
    ReplyEmpty, ReplyEntry, ReplyLseek, ReplyOpen, ReplyStatfs, ReplyWrite, ReplyXattr, Request, TimeOrNow,
    WriteFlags,
};

use super::core::{Attributes, Core, NodeKind};
use super::names::NodeId;
use super::shared::{Inside, Shared};
use crate::device::Place;

/// Names and attributes are asked for every time: after a cut and restore the same name is another node.
const NAME_LIFE: Duration = Duration::ZERO;
const ATTRIBUTES_LIFE: Duration = Duration::from_secs(1);

/// The file system as FUSE sees it.
pub(super) struct PowerFs {
    pub shared: Arc<Shared>,
}

fn to_errno(error: &io::Error) -> Errno {
    Errno::from_i32(error.raw_os_error().unwrap_or(libc::EIO))
}

/// Replies with the value or the error.
macro_rules! answer {
    ($reply:ident, $result:expr, $value:ident => $ok:expr) => {
        match $result {
            Ok($value) => $ok,
            Err(error) => $reply.error(to_errno(&error)),
        }
    };
}

fn attributes_of(inside: &Inside, id: NodeId) -> io::Result<FileAttr> {
    let node = inside.core.node(id)?;
    let (kind, size, blocks) = match (&node.kind, &node.content) {
        (NodeKind::Directory, _) => (FileType::Directory, 4096, 8),
        (NodeKind::Symlink(target), _) => (FileType::Symlink, target.as_os_str().len() as u64, 0),
        (NodeKind::File, Some(content)) => (FileType::RegularFile, content.length(), content.blocks()),
        (NodeKind::File, None) => (FileType::RegularFile, 0, 0),
    };
    let attributes = &node.attributes;
    Ok(FileAttr {
        ino: INodeNo(id.0),
        size,
        blocks,
        atime: attributes.atime,
        mtime: attributes.mtime,
        ctime: attributes.ctime,
        crtime: attributes.ctime,
        kind,
        perm: attributes.mode as u16,
        nlink: if kind == FileType::Directory { 2 } else { inside.core.tree().links(id) },
        uid: attributes.uid,
        gid: attributes.gid,
        rdev: 0,
        blksize: 4096,
        flags: 0,
    })
}

/// Only what programs may set of their own is kept.
fn user_attribute(name: &OsStr) -> io::Result<&str> {
    let user = name.to_str().filter(|name| name.starts_with("user."));
    user.ok_or_else(|| io::Error::from_raw_os_error(libc::EOPNOTSUPP))
}

/// The answer to whoever reads attributes; with no room at all only their size is asked for.
fn give(reply: ReplyXattr, size: u32, result: io::Result<Vec<u8>>) {
    match result {
        Ok(data) if size == 0 => reply.size(data.len() as u32),
        Ok(data) if data.len() > size as usize => reply.error(Errno::ERANGE),
        Ok(data) => reply.data(&data),
        Err(error) => reply.error(to_errno(&error)),
    }
}

fn open_flags(flags: i32) -> FopenFlags {
    if flags & libc::O_DIRECT != 0 {
        FopenFlags::FOPEN_DIRECT_IO | FopenFlags::FOPEN_PARALLEL_DIRECT_WRITES
    } else {
        FopenFlags::FOPEN_KEEP_CACHE
    }
}

impl PowerFs {
    fn make(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        kind: NodeKind,
        mode: u32,
    ) -> io::Result<FileAttr> {
        let mut inside = self.shared.lock();
        let attributes = Attributes::new(mode, request.uid(), request.gid());
        let (id, due) = inside.core.create(NodeId(parent.0), name, kind, attributes)?;
        inside.cut_if(due)?;
        attributes_of(&inside, id)
    }

    /// The node behind an open file, unless the file was opened before a cut.
    fn opened(inside: &Inside, ino: INodeNo, handle: FileHandle) -> io::Result<NodeId> {
        if handle.0 == inside.core.epoch() {
            Ok(NodeId(ino.0))
        } else {
            Err(io::Error::from_raw_os_error(if inside.core.powered() { libc::ESTALE } else { libc::EIO }))
        }
    }

    fn epoch(&self) -> u64 {
        self.shared.lock().core.epoch()
    }

    /// A change of names: no time of its own, but it counts as an operation.
    fn names(&self, reply: ReplyEmpty, change: impl FnOnce(&mut Core) -> io::Result<bool>) {
        let mut inside = self.shared.lock();
        let result = change(&mut inside.core).and_then(|due| inside.cut_if(due));
        drop(inside);
        answer!(reply, result, done => { let () = done; reply.ok() });
    }

    fn set_attributes(
        &self,
        id: NodeId,
        mode: Option<u32>,
        owner: (Option<u32>, Option<u32>),
        size: Option<u64>,
        times: (Option<TimeOrNow>, Option<TimeOrNow>),
    ) -> io::Result<FileAttr> {
        let at = |time: TimeOrNow| match time {
            TimeOrNow::SpecificTime(time) => time,
            TimeOrNow::Now => SystemTime::now(),
        };
        let mut inside = self.shared.lock();
        if let Some(size) = size {
            let (_, due) = inside.core.set_length(id, size)?;
            inside.cut_if(due)?;
        }
        let attributes = &mut inside.core.node_mut(id)?.attributes;
        attributes.mode = mode.map_or(attributes.mode, |m| m & 0o7777);
        attributes.uid = owner.0.unwrap_or(attributes.uid);
        attributes.gid = owner.1.unwrap_or(attributes.gid);
        attributes.atime = times.0.map_or(attributes.atime, at);
        attributes.mtime = times.1.map_or(attributes.mtime, at);
        attributes.ctime = SystemTime::now();
        attributes_of(&inside, id)
    }
}

impl Filesystem for PowerFs {
    fn init(&mut self, _request: &Request, config: &mut KernelConfig) -> io::Result<()> {
        // The first is what makes buffered files behave as on a local file system; without it the lab would
        // test something else. The others let direct I/O run in parallel, and stay coherent with mappings.
        config
            .add_capabilities(InitFlags::FUSE_WRITEBACK_CACHE)
            .map_err(|_| io::Error::other("this kernel's FUSE has no write-back cache"))?;
        // Nothing here is set-user-id, so there is nothing to kill; without the last one the kernel would ask for a
        // file's security attributes before each write.
        for wish in [
            InitFlags::FUSE_ASYNC_DIO,
            InitFlags::FUSE_DIRECT_IO_ALLOW_MMAP,
            InitFlags::FUSE_PARALLEL_DIROPS,
            InitFlags::FUSE_HANDLE_KILLPRIV_V2,
        ] {
            // A wish: older kernels go without.
            let _ = config.add_capabilities(wish);
        }
        let _ = config.set_max_write(1 << 20);
        let _ = config.set_max_background(256);
        Ok(())
    }

    fn lookup(&self, _request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let mut inside = self.shared.lock();
        let result = inside.core.lookup(NodeId(parent.0), name).and_then(|id| attributes_of(&inside, id));
        drop(inside);
        answer!(reply, result, found => reply.entry(&NAME_LIFE, &found, Generation(self.epoch())));
    }

    fn forget(&self, _request: &Request, ino: INodeNo, nlookup: u64) {
        self.shared.lock().core.forget(NodeId(ino.0), nlookup);
    }

    fn getattr(&self, _request: &Request, ino: INodeNo, _fh: Option<FileHandle>, reply: ReplyAttr) {
        let result = attributes_of(&self.shared.lock(), NodeId(ino.0));
        answer!(reply, result, found => reply.attr(&ATTRIBUTES_LIFE, &found));
    }

    fn setattr(
        &self,
        _request: &Request,
        ino: INodeNo,
        mode: Option<u32>,
        uid: Option<u32>,
        gid: Option<u32>,
        size: Option<u64>,
        atime: Option<TimeOrNow>,
        mtime: Option<TimeOrNow>,
        _ctime: Option<SystemTime>,
        _fh: Option<FileHandle>,
        _crtime: Option<SystemTime>,
        _chgtime: Option<SystemTime>,
        _bkuptime: Option<SystemTime>,
        _flags: Option<fuser::BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        let result = self.set_attributes(NodeId(ino.0), mode, (uid, gid), size, (atime, mtime));
        answer!(reply, result, found => reply.attr(&ATTRIBUTES_LIFE, &found));
    }

    fn readlink(&self, _request: &Request, ino: INodeNo, reply: ReplyData) {
        let result = self.shared.lock().core.node(NodeId(ino.0)).and_then(|node| match &node.kind {
            NodeKind::Symlink(target) => Ok(target.clone()),
            _ => Err(io::Error::from_raw_os_error(libc::EINVAL)),
        });
        answer!(reply, result, target => reply.data(target.as_os_str().as_encoded_bytes()));
    }

    fn mknod(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        _umask: u32,
        _rdev: u32,
        reply: ReplyEntry,
    ) {
        if mode & libc::S_IFMT != libc::S_IFREG {
            // Sockets and pipes have no place on a modelled disk.
            reply.error(Errno::EPERM);
            return;
        }
        let result = self.make(request, parent, name, NodeKind::File, mode);
        answer!(reply, result, made => reply.entry(&NAME_LIFE, &made, Generation(self.epoch())));
    }

    fn mkdir(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        _umask: u32,
        reply: ReplyEntry,
    ) {
        let result = self.make(request, parent, name, NodeKind::Directory, mode);
        answer!(reply, result, made => reply.entry(&NAME_LIFE, &made, Generation(self.epoch())));
    }

    fn symlink(&self, request: &Request, parent: INodeNo, name: &OsStr, target: &Path, reply: ReplyEntry) {
        let result = self.make(request, parent, name, NodeKind::Symlink(target.to_path_buf()), 0o777);
        answer!(reply, result, made => reply.entry(&NAME_LIFE, &made, Generation(self.epoch())));
    }

    fn link(&self, _request: &Request, ino: INodeNo, newparent: INodeNo, newname: &OsStr, reply: ReplyEntry) {
        let mut inside = self.shared.lock();
        let result = inside
            .core
            .link(NodeId(ino.0), NodeId(newparent.0), newname)
            .and_then(|due| inside.cut_if(due))
            .and_then(|()| attributes_of(&inside, NodeId(ino.0)));
        drop(inside);
        answer!(reply, result, made => reply.entry(&NAME_LIFE, &made, Generation(self.epoch())));
    }

    fn unlink(&self, _request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        self.names(reply, |core| core.unlink(NodeId(parent.0), name, false));
    }

    fn rmdir(&self, _request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        self.names(reply, |core| core.unlink(NodeId(parent.0), name, true));
    }

    fn rename(
        &self,
        _request: &Request,
        parent: INodeNo,
        name: &OsStr,
        newparent: INodeNo,
        newname: &OsStr,
        flags: RenameFlags,
        reply: ReplyEmpty,
    ) {
        if flags.intersects(RenameFlags::RENAME_EXCHANGE | RenameFlags::RENAME_WHITEOUT) {
            reply.error(Errno::EINVAL);
            return;
        }
        let replace = !flags.contains(RenameFlags::RENAME_NOREPLACE);
        self.names(reply, |core| core.rename(NodeId(parent.0), name, NodeId(newparent.0), newname, replace));
    }

    fn create(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        _umask: u32,
        flags: i32,
        reply: ReplyCreate,
    ) {
        let result = self.make(request, parent, name, NodeKind::File, mode);
        let epoch = self.epoch();
        answer!(reply, result, made => {
            reply.created(&NAME_LIFE, &made, Generation(epoch), FileHandle(epoch), open_flags(flags));
        });
    }

    fn open(&self, _request: &Request, ino: INodeNo, flags: OpenFlags, reply: ReplyOpen) {
        let inside = self.shared.lock();
        let result = inside.core.node(NodeId(ino.0)).map(|_| inside.core.epoch());
        drop(inside);
        answer!(reply, result, epoch => reply.opened(FileHandle(epoch), open_flags(flags.0)));
    }

    fn read(
        &self,
        _request: &Request,
        ino: INodeNo,
        fh: FileHandle,
        offset: u64,
        size: u32,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        reply: ReplyData,
    ) {
        let mut inside = self.shared.lock();
        let result = Self::opened(&inside, ino, fh).and_then(|id| {
            let data = inside.core.read(id, offset, u64::from(size))?;
            let object = inside.core.node(id)?.object;
            let due = inside.model.read(Place::of(object, offset), data.len() as u64);
            Ok((data, due, inside.core.epoch()))
        });
        drop(inside);
        answer!(reply, result, found => {
            let (data, due, epoch) = found;
            self.shared.at(due, epoch, move |inside| answer!(reply, inside, powered => {
                let _ = powered;
                reply.data(&data);
            }));
        });
    }

    fn write(
        &self,
        _request: &Request,
        ino: INodeNo,
        fh: FileHandle,
        offset: u64,
        data: &[u8],
        write_flags: WriteFlags,
        flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        let id = NodeId(ino.0);
        // The kernel follows a buffered O_DSYNC write with an fsync; a direct one it leaves to us.
        let durable = flags.0 & libc::O_DSYNC != 0 && !write_flags.contains(WriteFlags::FUSE_WRITE_CACHE);
        let mut inside = self.shared.lock();
        let result = Self::opened(&inside, ino, fh).and_then(|id| {
            let (sequence, due_cut) = inside.core.write(id, offset, data)?;
            inside.cut_if(due_cut)?;
            let object = inside.core.node(id)?.object;
            let mut due = inside.model.write(Place::of(object, offset), data.len() as u64);
            if durable {
                due = inside.model.flush_at(due);
            }
            Ok((sequence, due, inside.core.epoch()))
        });
        drop(inside);
        let size = data.len() as u32;
        answer!(reply, result, arrived => {
            let (sequence, due, epoch) = arrived;
            self.shared.at(due, epoch, move |inside| {
                let result = inside.and_then(|inside| {
                    if durable { inside.core.finish_durable_write(id, sequence) } else { Ok(()) }
                });
                answer!(reply, result, done => { let () = done; reply.written(size) });
            });
        });
    }

    fn flush(
        &self,
        _request: &Request,
        _ino: INodeNo,
        _fh: FileHandle,
        _owner: LockOwner,
        reply: ReplyEmpty,
    ) {
        // close() promises nothing.
        reply.ok();
    }

    fn fsync(&self, _request: &Request, ino: INodeNo, fh: FileHandle, datasync: bool, reply: ReplyEmpty) {
        let id = NodeId(ino.0);
        let mut inside = self.shared.lock();
        let result = Self::opened(&inside, ino, fh).and_then(|id| {
            let (sequence, due_cut) = inside.core.begin_sync(id)?;
            inside.cut_if(due_cut)?;
            Ok((sequence, inside.model.flush(), inside.core.epoch()))
        });
        drop(inside);
        answer!(reply, result, begun => {
            let (sequence, due, epoch) = begun;
            self.shared.at(due, epoch, move |inside| {
                let result = inside.and_then(|inside| inside.core.finish_sync(id, sequence, !datasync));
                answer!(reply, result, done => { let () = done; reply.ok() });
            });
        });
    }

    fn fsyncdir(
        &self,
        _request: &Request,
        ino: INodeNo,
        _fh: FileHandle,
        _datasync: bool,
        reply: ReplyEmpty,
    ) {
        let id = NodeId(ino.0);
        let mut inside = self.shared.lock();
        let epoch = inside.core.epoch();
        let due = inside.model.flush();
        drop(inside);
        self.shared.at(due, epoch, move |inside| {
            let result = inside.and_then(|inside| {
                let due = inside.core.sync_directory(id)?;
                inside.cut_if(due)
            });
            answer!(reply, result, done => { let () = done; reply.ok() });
        });
    }

    fn setxattr(
        &self,
        _request: &Request,
        ino: INodeNo,
        name: &OsStr,
        value: &[u8],
        flags: i32,
        _position: u32,
        reply: ReplyEmpty,
    ) {
        let id = NodeId(ino.0);
        self.names(reply, |core| {
            let name = user_attribute(name)?;
            match core.node(id)?.extended.live().contains_key(name) {
                true if flags & libc::XATTR_CREATE != 0 => Err(io::Error::from_raw_os_error(libc::EEXIST)),
                false if flags & libc::XATTR_REPLACE != 0 => Err(io::Error::from_raw_os_error(libc::ENODATA)),
                _ => core.set_extended(id, name, Some(value)),
            }
        });
    }

    fn removexattr(&self, _request: &Request, ino: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let id = NodeId(ino.0);
        self.names(reply, |core| {
            let name = user_attribute(name)?;
            if !core.node(id)?.extended.live().contains_key(name) {
                return Err(io::Error::from_raw_os_error(libc::ENODATA));
            }
            core.set_extended(id, name, None)
        });
    }

    fn getxattr(&self, _request: &Request, ino: INodeNo, name: &OsStr, size: u32, reply: ReplyXattr) {
        let inside = self.shared.lock();
        let result = inside.core.node(NodeId(ino.0)).and_then(|node| {
            let value = name.to_str().and_then(|name| node.extended.live().get(name));
            value.cloned().ok_or_else(|| io::Error::from_raw_os_error(libc::ENODATA))
        });
        drop(inside);
        give(reply, size, result);
    }

    fn listxattr(&self, _request: &Request, ino: INodeNo, size: u32, reply: ReplyXattr) {
        let inside = self.shared.lock();
        let list =
            |names: Vec<&String>| names.iter().flat_map(|name| [name.as_bytes(), b"\0"].concat()).collect();
        let result = inside.core.node(NodeId(ino.0)).map(|node| list(node.extended.live().keys().collect()));
        drop(inside);
        give(reply, size, result);
    }

    fn readdir(
        &self,
        _request: &Request,
        ino: INodeNo,
        _fh: FileHandle,
        offset: u64,
        mut reply: ReplyDirectory,
    ) {
        let inside = self.shared.lock();
        let id = NodeId(ino.0);
        let result = inside.core.node(id).and_then(|_| {
            inside.core.tree().entries(id).ok_or_else(|| io::Error::from_raw_os_error(libc::ENOTDIR))
        });
        match result {
            Err(error) => reply.error(to_errno(&error)),
            Ok(entries) => {
                let dots = [(OsStr::new("."), id), (OsStr::new(".."), id)];
                let all =
                    dots.into_iter().chain(entries.iter().map(|(name, node)| (name.as_os_str(), *node)));
                for (index, (name, node)) in all.enumerate().skip(offset as usize) {
                    let kind = match inside.core.node(node).map(|n| &n.kind) {
                        Ok(NodeKind::Directory) => FileType::Directory,
                        Ok(NodeKind::Symlink(_)) => FileType::Symlink,
                        _ => FileType::RegularFile,
                    };
                    if reply.add(INodeNo(node.0), index as u64 + 1, kind, name) {
                        break;
                    }
                }
                reply.ok();
            }
        }
    }

    fn statfs(&self, _request: &Request, _ino: INodeNo, reply: ReplyStatfs) {
        let backing = self.shared.lock().core.backing().to_path_buf();
        let result = rustix::fs::statvfs(&backing).map_err(io::Error::from);
        answer!(reply, result, s => reply.statfs(
            s.f_blocks, s.f_bfree, s.f_bavail, s.f_files, s.f_ffree, s.f_bsize as u32, 255, s.f_frsize as u32,
        ));
    }

    fn fallocate(
        &self,
        _request: &Request,
        ino: INodeNo,
        fh: FileHandle,
        offset: u64,
        length: u64,
        mode: i32,
        reply: ReplyEmpty,
    ) {
        let id = NodeId(ino.0);
        let keep_size = mode & libc::FALLOC_FL_KEEP_SIZE != 0;
        let zeroes = mode & (libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_ZERO_RANGE) != 0;
        let known = libc::FALLOC_FL_KEEP_SIZE | libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_ZERO_RANGE;
        if mode & !known != 0 {
            reply.error(Errno::EOPNOTSUPP);
            return;
        }
        let mut inside = self.shared.lock();
        let mut result = Self::opened(&inside, ino, fh).map(drop);
        if zeroes && result.is_ok() {
            result = inside.core.zero(id, offset, length).and_then(|(_, due)| inside.cut_if(due));
        }
        if result.is_ok() && mode & libc::FALLOC_FL_PUNCH_HOLE == 0 {
            result = inside.core.allocate(id, offset, length, keep_size);
        }
        drop(inside);
        answer!(reply, result, done => { let () = done; reply.ok() });
    }

    fn lseek(
        &self,
        _request: &Request,
        ino: INodeNo,
        _fh: FileHandle,
        offset: i64,
        whence: i32,
        reply: ReplyLseek,
    ) {
        let inside = self.shared.lock();
        let invalid = || io::Error::from_raw_os_error(libc::EINVAL);
        let result = inside.core.node(NodeId(ino.0)).and_then(|node| {
            let content = node.content.as_ref().ok_or_else(invalid)?;
            let from = u64::try_from(offset).map_err(|_| invalid())?;
            let data_wanted = match whence {
                libc::SEEK_DATA => true,
                libc::SEEK_HOLE => false,
                _ => return Err(invalid()),
            };
            let found = if from < content.length() { content.seek(from, data_wanted)? } else { None };
            found.ok_or_else(|| io::Error::from_raw_os_error(libc::ENXIO))
        });
        drop(inside);
        answer!(reply, result, found => reply.offset(found as i64));
    }
}
