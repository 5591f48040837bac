//! `afterimage guest run`: the lab boots a real guest on served disks.

use std::os::unix::process::ExitStatusExt;

use afterimage_lab::guest::{run_cli, RunOptions};
use clap::Subcommand;

use afterimage::failure::Failure;

/// Boot a real guest on served disks
#[derive(clap::Args, Debug)]
pub struct Args {
    #[command(subcommand)]
    command: GuestCommand,
}

#[derive(Subcommand, Debug)]
enum GuestCommand {
    /// Boot a guest, run one command in it, and exit with its status
    ///
    /// The guest's root is the host's root file system with a private writable layer. The host's programs run inside.
    #[command(after_help = "Examples:\n  \
        afterimage guest run --disk /tmp/disk.sock -- sh -c 'mkfs.ext4 /dev/vda && mount /dev/vda /mnt && fio ...'\n  \
        afterimage guest run --vmm qemu --disk /tmp/a.sock --disk /tmp/b.sock -- lsblk")]
    Run(RunOptions),
}

/// Runs it.
pub fn run(args: Args) -> Result<(), Failure> {
    let GuestCommand::Run(options) = args.command;
    let status = run_cli(&options).map_err(Failure::failed)?;
    if status.success() {
        return Ok(());
    }
    // As a shell reports it.
    let code = status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or(0));
    Err(Failure::Status(u8::try_from(code).unwrap_or(1)))
}
