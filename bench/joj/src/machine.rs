//! A cell in real time, on a disk of the machine's: the same script in the same kernel, above a daemon of its own.
//!
//! ```text
//!   an image whose blocks are all written ─► mke2fs ─► afterimage serve ─► User Mode Linux ─► record
//! ```

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use afterimage_bench_kit::Result;
use afterimage_lab::daemon::{Daemon, ServeOptions};
use afterimage_lab::guest::{Guest, Vmm};
use afterimage_lab::locate;
use afterimage_lab::process::Workdir;
use afterimage_lab::processor::Processor;

use crate::disks;
use crate::plan::{Arm, Key, Scale};
use crate::record::{record, Record, LIMIT_S, MEMORY_MIB};
use crate::script::{script, Control, Tools};

/// What a cell in virtual time is given by its machine.
const PROLOGUE: &str = "set -e\ncd /\nmkdir -p /mnt/disk\nmeet() { :; }\ntell() { :; }\n";

/// The machine's disk, as a file on it, for one cell at a time.
pub struct Machine {
    kernel: PathBuf,
    image: PathBuf,
    /// For the daemon and the guest, of which one at a time computes.
    _processor: Processor,
    _folder: Workdir,
}

impl Machine {
    /// Writes a disk into a folder; it goes with this. From here on this thread, and what it starts, stays on one processor.
    ///
    /// # Errors
    /// There is no room for it, or no kernel.
    pub fn new(folder: &Path) -> Result<Self> {
        let kernel = locate::virtual_kernel()?.join("linux").canonicalize()?;
        let folder = Workdir::new_in(folder, "joj-machine")?;
        let image = folder.join("disk.raw");
        // The host's file system has nothing left to note of a block that was written before.
        let mut file = File::create(&image)?;
        let zeroes = vec![0; 1 << 20];
        for _ in 0..disks::BYTES >> 20 {
            file.write_all(&zeroes)?;
        }
        file.sync_all()?;
        Ok(Self { kernel, image, _processor: Processor::take(), _folder: folder })
    }

    /// Runs a cell.
    ///
    /// # Errors
    /// It comes to no end, or the guest does not say what it has to.
    pub fn measure(&self, key: &Key, scale: Scale, tools: &Tools) -> Result<Record> {
        disks::format(&self.image, key.arm.is_bare())?;
        let hands_over = key.arm == Arm::Vma;
        let arena = Workdir::new_in(Path::new("/dev/shm"), "joj-arena")?;
        let contract = if hands_over { "guest-crash" } else { "power" };
        let mut options = ServeOptions::new(contract, std::slice::from_ref(&self.image));
        if hands_over {
            options.control_disk = true;
            options.extra = ["--journal", "retain", "--arena"].map(str::to_owned).to_vec();
            options.extra.push(arena.path().display().to_string());
        }
        let began = Instant::now();
        let daemon = Daemon::serve(&options)?;
        let guest = Guest::builder(Vmm::Uml)
            .kernel(&self.kernel)
            .memory_mib(MEMORY_MIB)
            .limit(Duration::from_secs(LIMIT_S));
        let guest = daemon.sockets().iter().fold(guest, |guest, socket| guest.disk(socket));
        let text = format!("{PROLOGUE}SEED={}\n{}", key.seed, script(key, scale, tools, Control::Device));
        let mut guest = guest.start(&text)?;
        guest.wait_success()?;
        let output = guest.output();
        drop(guest);
        daemon.stop()?;
        record(key, scale, &output, began.elapsed().as_secs_f64())
    }
}
