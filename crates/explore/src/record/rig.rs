//! The daemon's layers in this process, with taps above and below.

use std::fs;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use afterimage_block::Disk;
use afterimage_compose::{Plan, Prepared, Stack};
use afterimage_control_disk::{ControlDisk, Durability, Promise};
use afterimage_frontend::{Endpoint, FrontendStats, ServeOptions, Server};
use afterimage_journal::group::{Ending, JournalOptions};
use afterimage_lab::process::Workdir;
use afterimage_order::{Contract, SystemClock};
use afterimage_store::{create_image, DirectMode, Image as _, OpenOptions};
use afterimage_trace::{read_disk, Finished, Recorder, Sparse, Taps, TraceError};

use super::RecordOptions;
use crate::{ExploreError, Result};

/// How long the last acknowledgement may take to become durable: a second where nobody flushes, and a slow machine.
const DURABLE_LIMIT: Duration = Duration::from_secs(10);
/// How long everything that a setup wrote may take to go home, to files in memory.
const HOME_LIMIT: Duration = Duration::from_secs(30);

/// Fields are dropped in this order: nothing serves a group that is gone, and the files go last.
pub(super) struct Rig {
    servers: Vec<Server>,
    stack: Stack,
    recorder: Arc<Recorder>,
    folder: Workdir,
}

fn layers<E: std::fmt::Display>(what: &str) -> impl Fn(E) -> ExploreError + '_ {
    move |error| ExploreError::io(what)(std::io::Error::other(error.to_string()))
}

fn trace(error: TraceError) -> ExploreError {
    match error {
        // A folder that is not there, a full disk: tried and failed, as wherever else a file is written.
        TraceError::Io { what, source } => ExploreError::Io { what, source },
        error => ExploreError::Usage(error.to_string()),
    }
}

impl Rig {
    pub fn start(options: &RecordOptions) -> Result<Self> {
        let memory = Path::new("/dev/shm");
        let folder =
            if memory.is_dir() { Workdir::new_in(memory, "record")? } else { Workdir::new("record")? };
        let usage = |error: &dyn std::fmt::Display| ExploreError::Usage(error.to_string());
        let mut images = Vec::new();
        for index in 0..options.disks {
            let path = folder.join(format!("disk{index}.img"));
            create_image(&path, options.disk_bytes).map_err(|e| usage(&e))?;
            // Buffered, as the contracts with a process rule need it.
            images.push(OpenOptions { direct: DirectMode::Off, ..OpenOptions::new(&path) });
        }
        let plan = Plan {
            images,
            contract: options.contract,
            log_bytes_max: options.log_bytes_max,
            log: None,
            journal: JournalOptions {
                retain: options.retain,
                // Gone with everything else, however this ends.
                arena_folder: folder.path().to_owned(),
                ..JournalOptions::passthrough()
            },
        };
        let prepared = Prepared::new(plan).map_err(|e| usage(&e))?;
        let recorder = Recorder::create(&options.out, &options.about()?).map_err(trace)?;
        let taps = Taps::new(Arc::clone(&recorder));
        let stack = prepared.open(Some(taps)).map_err(|e| usage(&e))?;
        let disks: Vec<_> = stack.disks.iter().map(|disk| Arc::clone(&disk.disk)).collect();
        let control = options.control_disk.then(|| control_disk(&stack, disks.clone())).transpose()?;
        let mut rig = Self { servers: Vec::new(), stack, recorder, folder };
        for disk in disks {
            rig.serve(disk, ServeOptions::default())?;
        }
        if let Some(control) = control {
            // As `serve` does: its writes are commands, and no guest has to flush them.
            rig.serve(control, ServeOptions { write_cache: false, ..ServeOptions::default() })?;
        }
        Ok(rig)
    }

    fn socket(&self, index: usize) -> PathBuf {
        self.folder.join(format!("disk{index}.sock"))
    }

    fn serve(&mut self, disk: Arc<dyn Disk>, options: ServeOptions) -> Result<()> {
        let socket = self.socket(self.servers.len());
        let listener =
            UnixListener::bind(&socket).map_err(ExploreError::io(format!("making {}", socket.display())))?;
        let name = format!("disk{}", self.servers.len());
        let stats = Arc::new(FrontendStats::new(options.queues));
        let server = Server::start(&name, disk, Endpoint::Listen(listener), options, stats)
            .map_err(|e| ExploreError::Usage(e.to_string()))?;
        self.servers.push(server);
        Ok(())
    }

    /// Of the guest's disks, in their order; the control disk's is the last.
    pub fn sockets(&self) -> Vec<PathBuf> {
        (0..self.servers.len()).map(|index| self.socket(index)).collect()
    }

    pub fn recorder(&self) -> &Recorder {
        &self.recorder
    }

    /// Brings everything that the guest has written so far home, on the recording.
    pub fn bring_home(&self) -> Result<()> {
        self.stack.group.pause(Some(HOME_LIMIT)).map_err(layers("bringing home what the setup wrote"))?;
        self.stack.group.resume();
        Ok(())
    }

    /// Once the guest is dead: lets the last sync be recorded, ends the recording, and only then closes the group.
    pub fn finish(&mut self, options: &RecordOptions) -> Result<Finished> {
        // Nothing is in flight after this.
        self.servers.clear();
        if matches!(options.contract, Contract::PowerWindow { .. }) {
            let acknowledged = self.stack.group.status().acknowledged;
            let durable = self.stack.group.wait_durable(acknowledged, Some(DURABLE_LIMIT));
            if !durable.map_err(layers("waiting for the last window to end"))? {
                tracing::warn!("the last acknowledgements did not become durable: the recording ends before");
            }
        }
        if options.snapshot.is_some() {
            self.stack.group.pause(None).map_err(layers("bringing everything home for the snapshot"))?;
        }
        let finished = self.recorder.finish().map_err(trace)?;
        if let Some(folder) = &options.snapshot {
            self.snapshot(folder)?;
        }
        let end = Ending::Close { attached: false };
        self.stack.group.close_within(HOME_LIMIT, end).map_err(layers("closing the group"))?;
        Ok(finished)
    }

    fn snapshot(&self, folder: &Path) -> Result<()> {
        let make = |e| ExploreError::io(format!("writing to {}", folder.display()))(e);
        fs::create_dir_all(folder).map_err(make)?;
        for (index, (disk, below)) in self.stack.group.disks().iter().zip(&self.stack.disks).enumerate() {
            let seen = read_disk(disk).map_err(layers("reading a disk for the snapshot"))?;
            fs::write(folder.join(format!("guest-{index}.img")), bytes_of(&seen)).map_err(make)?;
            fs::copy(below.image.path(), folder.join(format!("image-{index}.img"))).map_err(make)?;
        }
        let log = afterimage_store::log_beside(&self.folder.join("disk0.img"));
        if log.exists() {
            fs::copy(log, folder.join("log.img")).map_err(make)?;
        }
        Ok(())
    }
}

/// Of the group, which hears what is handed over as it hears its disks. Memory is not lent: here the guest goes on while nobody looks, so what it
/// publishes could be acknowledged before it is in the recording.
fn control_disk(stack: &Stack, disks: Vec<Arc<dyn Disk>>) -> Result<Arc<dyn Disk>> {
    let group = &stack.group;
    let promise = Promise { contract: group.status().contract, text: group.promise(), lends: false };
    let clock = Arc::new(SystemClock);
    let control = ControlDisk::heard(Arc::clone(group) as Arc<dyn Durability>, promise, disks, clock);
    Ok(Arc::new(control.map_err(ExploreError::io("making the control disk"))?))
}

fn bytes_of(content: &Sparse) -> Vec<u8> {
    let mut bytes = vec![0; content.len() as usize];
    content.read_at(&mut bytes, 0);
    bytes
}
