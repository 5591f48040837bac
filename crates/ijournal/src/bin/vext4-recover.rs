//! For a guest's initramfs, before `mount -t vext4`: a static program that recovers what fsyncs wrote under iJournaling, and makes the areas
//! that they write to.

use std::fs::OpenOptions;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use afterimage_format::ijournal::{
    Areas, AREAS_BLOCKS_MAX, AREAS_MAX, AREA_BLOCKS_MIN, BLOCK_BYTES, FILE_NAME,
};
use afterimage_ijournal::{is_needed, recover, Error, FileStorage};
use clap::error::ErrorKind;
use clap::{CommandFactory as _, Parser, Subcommand};
use rustix::fs::{ioctl_getflags, ioctl_setflags, IFlags};
use zerocopy::IntoBytes as _;

/// 2 is for usage.
const FAILED: u8 = 1;
/// Recovered, but for i-transactions that could not be; asked with --check: recovery has to come first.
const NOT_PLAIN: u8 = 3;

/// Recovers an ext4 with iJournaling: its journal first, then its i-transactions. Any ext4 driver mounts the result. An ext4
/// without i-transactions gets a journal replay. Exit status: 0 recovered; 3 recovered except for the named i-transactions; 1 failed.
#[derive(Parser)]
#[command(
    version,
    args_conflicts_with_subcommands = true,
    subcommand_negates_reqs = true,
    arg_required_else_help = true
)]
struct Options {
    /// The image or block device with the file system.
    #[arg(required = true)]
    target: Option<PathBuf>,
    /// Offset of the file system, in bytes.
    #[arg(long, default_value_t = 0, value_name = "BYTES")]
    offset: u64,
    /// Change nothing; exit status 3 if a mount needs recovery first, else 0.
    #[arg(long)]
    check: bool,
    #[command(subcommand)]
    command: Option<Command>,
}

#[derive(Subcommand)]
enum Command {
    /// Create the file that holds the areas, on a mounted file system.
    Areas {
        /// Mount point of the file system.
        mount_point: PathBuf,
        /// Number of areas; one for each CPU is best.
        #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=i64::from(AREAS_MAX)))]
        areas: u32,
        /// Blocks of 4 KiB in each area; all areas together have at most 16 GiB.
        #[arg(long, default_value_t = 1024, value_parser = clap::value_parser!(u32).range(i64::from(AREA_BLOCKS_MIN)..=1 << 20))]
        blocks: u32,
    },
}

fn main() -> ExitCode {
    let options = Options::parse();
    if let Some(Command::Areas { areas, blocks, .. }) = options.command {
        if u64::from(areas) * u64::from(blocks) > u64::from(AREAS_BLOCKS_MAX) {
            let why = format!("{areas} areas of {blocks} blocks are more than 16 GiB");
            Options::command().error(ErrorKind::ValueValidation, why).exit();
        }
    }
    let result = match (options.command, options.target) {
        (Some(Command::Areas { mount_point, areas, blocks }), _) => make_areas(&mount_point, areas, blocks)
            .map(|()| ExitCode::SUCCESS)
            .map_err(|e| format!("{}/{FILE_NAME}: {e}", mount_point.display())),
        (None, Some(target)) => work(&target, options.offset, options.check),
        (None, None) => unreachable!("the parser asks for one of them"),
    };
    result.unwrap_or_else(|why| {
        eprintln!("vext4-recover: {why}");
        ExitCode::from(FAILED)
    })
}

fn work(target: &Path, offset: u64, check: bool) -> Result<ExitCode, String> {
    let failed = |e: Error| format!("{}: {e}", target.display());
    // Which names it.
    let mut storage = FileStorage::open(target).map_err(|e| e.to_string())?;
    if check {
        let needed = is_needed(&mut storage, offset).map_err(failed)?;
        return Ok(if needed { ExitCode::from(NOT_PLAIN) } else { ExitCode::SUCCESS });
    }
    let report = recover(&mut storage, offset).map_err(failed)?;
    println!("{report}");
    Ok(if report.refused.is_empty() { ExitCode::SUCCESS } else { ExitCode::from(NOT_PLAIN) })
}

/// Every block is written, so that the file's map never changes and a run never waits for an allocation.
fn make_areas(mount_point: &Path, areas: u32, blocks: u32) -> io::Result<()> {
    let path = mount_point.join(FILE_NAME);
    let mut file = OpenOptions::new().write(true).create_new(true).open(&path)?;
    let header = Areas::new(areas, blocks, [0; 16], 0);
    let written = (|| {
        file.write_all(header.as_bytes())?;
        let zeroes = vec![0; BLOCK_BYTES * 64];
        let mut left = (header.blocks() - 1) * BLOCK_BYTES as u64;
        while left > 0 {
            let now = left.min(zeroes.len() as u64) as usize;
            file.write_all(&zeroes[..now])?;
            left -= now as u64;
        }
        file.sync_all()?;
        let flags = ioctl_getflags(&file)?;
        ioctl_setflags(&file, flags | IFlags::IMMUTABLE)?;
        file.sync_all()
    })();
    if written.is_err() {
        // Half a file is none; that it was not made is what is told.
        let _ = std::fs::remove_file(&path);
    }
    written
}
