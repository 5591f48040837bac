//! What a running daemon knows about itself: shared by the control socket and the metrics.

use std::fs::{File, Metadata};
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::Arc;
use std::time::Instant;

use afterimage_block::{Bell, Disk};
use afterimage_control_disk::ControlDisk;
use afterimage_frontend::{FrontendStats, RequestKind};
use afterimage_journal::group::RetainGroup;
use afterimage_store::{Image as _, ImageStore};

use super::disk_spec::SocketSpec;
use super::settings::DiskSettings;
use crate::control::protocol::{
    ControlDiskStatus, DiskStatus, ImageAnswer, LogStatus, OperationStatus, ReplayStatus, SequenceStatus,
    StatusAnswer, StorageStatus,
};
use crate::control::retained as journals;
use crate::failure::Failure;
use crate::sandbox::SandboxReport;

/// A running daemon.
pub struct Daemon {
    /// The consistency group, and what is retained of its guest's journals.
    pub group: Arc<RetainGroup>,
    /// Its disks.
    pub disks: Vec<ServedDisk>,
    /// The control disk.
    pub control_disk: Option<ServedControlDisk>,
    /// What locks the process in.
    pub sandbox: SandboxReport,
    /// A `keep` process holds the sockets.
    pub kept: bool,
    /// When it started.
    pub started: Instant,
    /// Rung while a guest's device cannot stop, because writes are held back.
    pub hurry: Arc<Bell>,
}

/// The control disk of the daemon.
pub struct ServedControlDisk {
    /// Where the guest connects.
    pub socket: PathBuf,
    /// What the guest sees.
    pub disk: Arc<ControlDisk>,
    /// What the guest asked for.
    pub stats: Arc<FrontendStats>,
}

impl ServedControlDisk {
    /// How it is described on the control socket.
    pub fn status(&self) -> ControlDiskStatus {
        let (guest, commands) = (self.stats.snapshot(), self.disk.commands());
        let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        ControlDiskStatus {
            socket: self.socket.display().to_string(),
            attached: guest.attached,
            connections: guest.connections,
            vorders: count(&commands.vorders),
            vflushes: count(&commands.vflushes),
            waits: count(&commands.waits),
            not_yet: count(&commands.not_yet),
            mprotects: count(&commands.mprotects),
            handed_over_blocks: count(&commands.handed_over_blocks),
            published: count(&commands.published),
            published_blocks: count(&commands.published_blocks),
            file_systems: count(&commands.file_systems),
            refused: count(&commands.refused),
            failed: count(&commands.failed),
        }
    }
}

/// One disk of the daemon.
pub struct ServedDisk {
    /// How it was described.
    pub settings: DiskSettings,
    /// The image.
    pub image: Arc<ImageStore>,
    /// What the guest sees.
    pub disk: Arc<dyn Disk>,
    /// What the guest asked for.
    pub stats: Arc<FrontendStats>,
    /// The same file once more, for those who copy it.
    pub readable: Readable,
}

/// An image's file, open for reading and nothing else: a description of its own, without locks, that may be handed to
/// whoever may use the control socket.
#[derive(Debug)]
pub struct Readable {
    file: File,
    path: PathBuf,
    bytes: u64,
}

impl Readable {
    /// Opens the image's file again, before the sandbox closes.
    ///
    /// # Errors
    /// It cannot be opened for reading.
    pub fn open(image: &ImageStore) -> Result<Self, Failure> {
        let name = image.path().display();
        let failed = |e: io::Error| Failure::failed(format!("cannot open {name} for copies: {e}"));
        let path = std::fs::canonicalize(image.path()).map_err(failed)?;
        let file = File::open(&path).map_err(failed)?;
        let (found, served) = (file.metadata().map_err(failed)?, image.identity().map_err(failed)?);
        if (found.dev(), found.ino()) != (served.dev, served.ino) {
            return Err(Failure::failed(format!("{name} became another file during the start: start again")));
        }
        Ok(Self { file, path, bytes: image.geometry().bytes() })
    }

    /// How many bytes the file has, where somebody has shortened it: fewer than the disk.
    pub fn shortened(&self) -> Option<u64> {
        let found = self.file.metadata().ok().filter(Metadata::is_file)?;
        (found.len() < self.bytes).then_some(found.len())
    }

    /// How it is described on the control socket.
    pub fn answer(&self) -> ImageAnswer {
        ImageAnswer { ok: true, file: self.path.display().to_string(), bytes: self.bytes }
    }
}

impl AsFd for Readable {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

impl std::fmt::Debug for Daemon {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Daemon").field("disks", &self.disks.len()).finish_non_exhaustive()
    }
}

/// How a disk's socket is written in answers.
pub fn show_socket(socket: &SocketSpec) -> String {
    match socket {
        SocketSpec::Path(path) => path.display().to_string(),
        SocketSpec::Fd(fd) => format!("fd {fd}"),
    }
}

impl Daemon {
    /// The answer to `status`.
    pub fn status(&self) -> StatusAnswer {
        let group = self.group.status();
        StatusAnswer {
            ok: true,
            version: crate::VERSION.to_owned(),
            pid: std::process::id(),
            uptime_s: self.started.elapsed().as_secs_f64(),
            contract: group.contract.to_string(),
            promise: self.group.promise(),
            journal: self.group.journal().to_owned(),
            sequence: SequenceStatus {
                acknowledged: group.acknowledged.0,
                durable: group.durable.0,
                home: group.home.0,
            },
            oldest_not_durable_age_s: group.oldest_not_durable_age.map(|age| age.as_secs_f64()),
            log: LogStatus {
                bytes: group.log_bytes,
                bytes_max: group.log_max_bytes,
                appended_bytes: group.log_appended_bytes,
                syncs: group.log_syncs,
                home_written_bytes: group.home_written_bytes,
                throttled: group.throttled,
                held_flushes: group.held_flushes,
                deleted: group.log_deleted.is_some(),
            },
            replayed: group.replayed.map(|r| ReplayStatus {
                records: r.records,
                bytes: r.bytes,
                sequence: r.sequence,
                torn_tail: r.torn_tail,
            }),
            failure: group.failure.map(|reason| reason.to_string()),
            paused: group.paused,
            sandbox: self.sandbox.clone(),
            kept: self.kept,
            control_disk: self.control_disk.as_ref().map(ServedControlDisk::status),
            disks: self
                .disks
                .iter()
                .enumerate()
                .map(|(index, disk)| disk.status(self.group.disk_status(index)))
                .collect(),
        }
    }
}

impl ServedDisk {
    fn status(&self, retained: Option<afterimage_journal::DiskStatus>) -> DiskStatus {
        let geometry = self.disk.geometry();
        let guest = self.stats.snapshot();
        let storage = self.image.counters().snapshot();
        DiskStatus {
            file: self.settings.file.display().to_string(),
            socket: show_socket(&self.settings.socket),
            bytes: geometry.bytes(),
            deleted: self.image.is_deleted(),
            shortened: self.readable.shortened().is_some(),
            read_only: geometry.read_only,
            serial: self.disk.serial().to_owned(),
            attached: guest.attached,
            write_cache: guest.write_cache,
            connections: guest.connections,
            requests: RequestKind::ALL
                .iter()
                .map(|kind| {
                    let total = guest.total(*kind);
                    OperationStatus {
                        kind: kind.name().to_owned(),
                        requests: total.requests,
                        errors: total.errors,
                        bytes: total.bytes,
                    }
                })
                .collect(),
            storage: StorageStatus {
                reads: storage.reads,
                read_bytes: storage.read_bytes,
                writes: storage.writes,
                write_bytes: storage.write_bytes,
                syncs: storage.syncs,
                discards: storage.discards,
                zeroes: storage.zeroes,
            },
            arena: retained.as_ref().map(journals::arena),
            file_systems: retained.map_or_else(Vec::new, |retained| retained.file_systems),
            failure: self.disk.health().failure().map(|reason| reason.to_string()),
        }
    }
}
