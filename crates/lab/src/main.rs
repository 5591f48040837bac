//! `afterimage-lab`: the lab's programs.

use std::process::ExitCode;

use afterimage_lab::{demo, guest, integrity, powerfs, suite};
use clap::{Parser, Subcommand};
use tracing_subscriber::EnvFilter;

/// Boots real guests, models devices, cuts power
#[derive(Parser)]
#[command(version)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Run one command in one guest
    Run(guest::RunOptions),
    /// Mount the file system that models a device and cuts its power
    Fuse(powerfs::FuseOptions),
    /// The main job: real guests, real crashes, what was kept
    Demo(demo::Options),
    /// The VMA paper's integrity experiment: which records mix old and new blocks after a guest's death, mode by mode
    Integrity(integrity::Options),
    /// Run a test suite
    Test {
        /// Which suite
        #[command(subcommand)]
        suite: Suite,
    },
    /// Fetch what guests need into the cache, and say whether KVM runs a stock kernel here
    Prepare,
}

#[derive(Subcommand)]
enum Suite {
    /// Real guests, real deaths, and whether the promises held
    Guests(suite::SuiteOptions),
    /// Stock QEMU 7.2 and 10 boot by SeaBIOS and OVMF from the daemon's disk, while the daemon is killed
    Firmware(suite::SuiteOptions),
    /// The guest's own kernel part, `vext4`, in QEMU guests beside the stock ext4
    Kernel(suite::KernelOptions),
}

fn main() -> ExitCode {
    let filter = EnvFilter::try_from_env("AFTERIMAGE_LOG").unwrap_or_else(|_| EnvFilter::new("warn"));
    tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).init();
    match run(Cli::parse().command) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("afterimage-lab: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(command: Command) -> afterimage_lab::Result<ExitCode> {
    match command {
        Command::Run(options) => {
            let status = guest::run_cli(&options)?;
            Ok(ExitCode::from(status.code().unwrap_or(1) as u8))
        }
        Command::Fuse(options) => powerfs::run_fuse(&options).map(|()| ExitCode::SUCCESS),
        Command::Demo(options) => Ok(ExitCode::from(u8::from(!demo::run(&options)?))),
        Command::Integrity(options) => Ok(ExitCode::from(u8::from(!integrity::run(&options)?))),
        Command::Test { suite: Suite::Guests(options) } => {
            Ok(ExitCode::from(u8::from(!suite::run(&options)?)))
        }
        Command::Test { suite: Suite::Firmware(options) } => {
            Ok(ExitCode::from(u8::from(!suite::run_firmware(&options)?)))
        }
        Command::Test { suite: Suite::Kernel(options) } => {
            Ok(ExitCode::from(u8::from(!suite::run_kernel(&options)?)))
        }
        Command::Prepare => {
            guest::fetch_kernel()?;
            println!("kvm: {}", if guest::kvm_boots() { "boots" } else { "does not boot a stock kernel" });
            Ok(ExitCode::SUCCESS)
        }
    }
}
