//! `afterimage guest run`: one command in one guest.

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitStatus;

use crate::error::{LabError, Result};

/// Which virtual machine monitor runs the guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum VmmChoice {
    /// QEMU with KVM where a probe boots within its deadline, User Mode Linux otherwise.
    Auto,
    /// User Mode Linux: no KVM needed, native speed, one processor.
    Uml,
    /// QEMU: KVM where a probe boots within its deadline, TCG otherwise.
    Qemu,
}

/// What `afterimage guest run` takes.
#[derive(Clone, Debug, clap::Args)]
pub struct RunOptions {
    /// Which virtual machine monitor runs the guest
    #[arg(long, value_enum, default_value = "auto")]
    pub vmm: VmmChoice,
    /// A vhost-user-blk socket; the first is /dev/vda in the guest, the next /dev/vdb
    #[arg(long = "disk", value_name = "SOCKET", required = true)]
    pub disks: Vec<PathBuf>,
    /// The guest's memory, with K, M or G
    #[arg(long, value_name = "SIZE", default_value = "512M")]
    pub memory: String,
    /// Queues per disk (QEMU; User Mode Linux has one)
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub queues: u16,
    /// Kill the guest after this many seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 600)]
    pub timeout: u64,
    /// Keep the folder with the console and the scripts, and say where it is
    #[arg(long)]
    pub keep: bool,
    /// The command to run in the guest, as root, on the host's root file system with a private writable layer
    #[arg(last = true, required = true, value_name = "COMMAND")]
    pub command: Vec<OsString>,
}

/// Boots a guest, runs the command, prints its output, and returns its exit status.
///
/// # Errors
/// The guest would not boot, died, or ran past its deadline.
pub fn run_cli(options: &RunOptions) -> Result<ExitStatus> {
    Err(LabError::Missing(format!("cannot run {:?} yet", options.command)))
}
