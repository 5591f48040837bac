//! `afterimage guest run`: one command in one guest.

use std::ffi::OsString;
use std::fs;
use std::io::{self, Write};
use std::os::unix::fs::FileTypeExt;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::ExitStatus;
use std::time::Duration;

use super::{kvm_boots, Ended, Guest, Said, Vmm};
use crate::error::{Context, LabError, Result};
use crate::process::quote;

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

impl VmmChoice {
    /// The machine that it is here.
    pub fn vmm(self) -> Vmm {
        match self {
            VmmChoice::Uml => Vmm::Uml,
            VmmChoice::Qemu => Vmm::Qemu,
            VmmChoice::Auto if kvm_boots() => Vmm::Qemu,
            VmmChoice::Auto => Vmm::Uml,
        }
    }
}

/// What `afterimage guest run` takes.
#[derive(Clone, Debug, clap::Args)]
pub struct RunOptions {
    /// Virtual machine monitor
    #[arg(long, value_enum, default_value = "auto")]
    pub vmm: VmmChoice,
    /// A vhost-user-blk socket; the first is /dev/vda in the guest, the next /dev/vdb
    #[arg(long = "disk", value_name = "SOCKET", required = true)]
    pub disks: Vec<PathBuf>,
    /// The guest's memory, with K, M or G
    #[arg(long = "memory", value_name = "SIZE", default_value = "512M", value_parser = memory_mib)]
    pub memory_mib: u32,
    /// Queues per disk (QEMU; User Mode Linux has one)
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=64))]
    pub queues: u16,
    /// Kill the guest after this many seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 600, value_parser = clap::value_parser!(u64).range(1..))]
    pub timeout: u64,
    /// Keep the folder with console and scripts, and print its path
    #[arg(long)]
    pub keep: bool,
    /// Command to run in the guest, as root
    #[arg(last = true, required = true, value_name = "COMMAND")]
    pub command: Vec<OsString>,
}

/// Boots a guest, runs the command, prints its output as it comes, and returns its exit status.
///
/// The guest's report lines (JSON) go to standard error, the command's own output to standard output.
///
/// # Errors
/// The guest would not boot, died, or ran past its deadline.
pub fn run_cli(options: &RunOptions) -> Result<ExitStatus> {
    // Before the machine is chosen: that takes seconds.
    let disks = options.disks.iter().map(|disk| socket(disk)).collect::<Result<Vec<_>>>()?;
    let mut builder = Guest::builder(options.vmm.vmm())
        .memory_mib(options.memory_mib)
        .queues(options.queues)
        .limit(Duration::from_secs(options.timeout));
    for disk in disks {
        builder = builder.disk(disk);
    }
    let words: Vec<String> = options.command.iter().map(|word| quote(&word.to_string_lossy())).collect();
    let mut guest = builder.start(&words.join(" "))?;
    let mut printed = 0;
    let ended = loop {
        // Prints what there is, then looks whether more can come.
        let lines = guest.output_channel().lines();
        let mut out = io::stdout().lock();
        for arrival in &lines[printed..] {
            let _ = writeln!(out, "{}", arrival.line);
        }
        let _ = out.flush();
        drop(out);
        printed = lines.len();
        let more =
            guest.output_channel().wait_for(printed, Duration::from_millis(200), "output", |_| Some(()));
        match more {
            Ok(Some(())) => {}
            Ok(None) => break guest.wait(),
            // Nothing new in a while; the guest's own deadline is kept by `wait`, so check it here.
            Err(_) if guest.out_of_time() => break guest.wait(),
            Err(_) => {}
        }
    };
    for arrival in guest.channel().lines() {
        if !matches!(arrival.report::<Said>("guest"), Ok(Some(_))) {
            eprintln!("{}", arrival.line);
        }
    }
    let code = match ended {
        Ok(Ended::Exited(code)) => code,
        Ok(other) => {
            let words = guest.last_words();
            let folder = guest.keep();
            return Err(LabError::Guest(format!(
                "the guest ended before the command did ({other:?}); its folder is {}{words}",
                folder.display()
            )));
        }
        Err(error) => {
            eprintln!("the guest's folder is {}", guest.keep().display());
            return Err(error);
        }
    };
    if options.keep {
        eprintln!("the guest's folder is {}", guest.keep().display());
    }
    Ok(ExitStatus::from_raw((code & 0xff) << 8))
}

/// Where a disk's socket is. A guest would boot beside anything else, and find no disk.
fn socket(disk: &Path) -> Result<PathBuf> {
    let path = fs::canonicalize(disk).context(|| format!("disk socket {}", disk.display()))?;
    if !fs::metadata(&path).is_ok_and(|found| found.file_type().is_socket()) {
        let why = "is not a socket: name the one on which `afterimage serve` serves the disk";
        return Err(LabError::Guest(format!("--disk {} {why}", disk.display())));
    }
    Ok(path)
}

/// `512M`, `2G`, `262144K`: whole mebibytes.
fn memory_mib(text: &str) -> std::result::Result<u32, &'static str> {
    let bad = || "say it like 512M or 2G, at least 64M";
    let (digits, unit_kib) = match text.strip_suffix(['K', 'k', 'M', 'm', 'G', 'g']) {
        Some(digits) => (
            digits,
            match text.as_bytes()[text.len() - 1].to_ascii_uppercase() {
                b'K' => 1,
                b'M' => 1 << 10,
                _ => 1 << 20,
            },
        ),
        None => (text, 1 << 10),
    };
    let kib = digits.parse::<u64>().ok().and_then(|n| n.checked_mul(unit_kib)).ok_or_else(bad)?;
    u32::try_from(kib >> 10).ok().filter(|mib| *mib >= 64).ok_or_else(bad)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_sizes() {
        assert_eq!(memory_mib("512M").unwrap(), 512);
        assert_eq!(memory_mib("2g").unwrap(), 2048);
        assert_eq!(memory_mib("131072K").unwrap(), 128);
        assert_eq!(memory_mib("256").unwrap(), 256);
        assert!(memory_mib("1M").is_err());
        assert!(memory_mib("lots").is_err());
    }
}
