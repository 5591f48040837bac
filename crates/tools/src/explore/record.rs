//! `afterimage explore record --out FILE -- COMMAND`

use std::path::PathBuf;
use std::time::Duration;

use afterimage_explore::record::{record_with, ModelledHost, RecordOptions};
use afterimage_lab::guest::VmmChoice;
use afterimage_lab::process::quote;
use afterimage_order::Contract;

use super::interrupt;
use afterimage::failure::Failure;
use afterimage::units::{parse_disk_size, parse_duration};

/// Record a workload's disk requests, above and below the daemon
///
/// Boots a guest with the host's programs, whose files it cannot change. Makes a file system on /dev/vda and mounts it
/// at /mnt. Runs SETUP and then COMMAND there. The recording has every write with its data, every flush, discard and
/// mark, above and below the daemon's layers. `explore run` needs no guest, and crashes between the start and the end of
/// COMMAND.
///
/// COMMAND is shell text if it is one word, else a program with its arguments. Its environment has AFTERIMAGE_AGENT (the
/// lab's agent: acknowledged writes), AFTERIMAGE (this program, also in PATH), AFTERIMAGE_MOUNT, AFTERIMAGE_DISK (the
/// device) and AFTERIMAGE_SEED. Ctrl-C ends the recording, which stays valid.
#[derive(clap::Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// The recording to write
    #[arg(long, value_name = "FILE")]
    out: PathBuf,
    /// Replace FILE if it is there
    #[arg(long)]
    force: bool,
    /// What an acknowledged flush survives: power, power-window=TIME or guest-crash
    #[arg(long, value_name = "CONTRACT", default_value = "power")]
    survives: Contract,
    /// The guest's journal: passthrough, or retain (power-window and guest-crash only). `explore run` judges retained
    /// journals after the guest's own recovery
    #[arg(long, value_name = "MODE", default_value = "passthrough", hide_possible_values = true)]
    journal: super::JournalWord,
    /// Add a control disk, at $AFTERIMAGE_CONTROL_DISK in the guest. With --journal retain, `vext4` with data=vma hands commits
    /// over to it; with --virtual, vma_exitless publishes them
    #[arg(long)]
    control_disk: bool,
    /// Size of the disk
    #[arg(long, value_name = "SIZE", default_value = "64M", value_parser = parse_disk_size)]
    size: u64,
    /// Size of the redo log (power-window only)
    #[arg(long, value_name = "SIZE", default_value = "64M", value_parser = parse_disk_size)]
    log_max: u64,
    /// Command that makes the file system; the device is appended
    #[arg(long, value_name = "CMD", default_value = "mkfs.ext4 -q -F -b 4096")]
    mkfs: String,
    /// Options of the mount, as `mount -o` takes them
    #[arg(long, value_name = "OPTS", default_value = "", hide_default_value = true)]
    mount: String,
    /// Which virtual machine monitor runs the guest
    #[arg(long, value_enum, default_value = "uml")]
    vmm: VmmChoice,
    /// Run the guest in virtual time. The same seed, programs and files give the same recording, byte for byte.
    /// `./x virtual record` builds what it needs, and calls it
    #[arg(long = "virtual", conflicts_with = "vmm")]
    virtual_time: bool,
    /// With --virtual: device model below image and log, as in afterimage-virtual
    #[arg(long, value_name = "MODEL", default_value = "ssd", requires = "virtual_time")]
    device: String,
    /// With --virtual: model of the host's file system: bare (none), ordered, ordered-nobarrier, journal
    #[arg(long, value_name = "MODEL", default_value = "bare", requires = "virtual_time")]
    host_fs: String,
    /// Shell text that runs before COMMAND; no crashes fall into it
    #[arg(long, value_name = "SCRIPT", default_value = "", hide_default_value = true)]
    setup: String,
    /// Shell text that checks a recovered file system; the recording keeps it as the default of `explore run`
    #[arg(long, value_name = "CMD")]
    check: Option<String>,
    /// The guest's memory
    #[arg(long, value_name = "SIZE", default_value = "256M", value_parser = parse_disk_size)]
    memory: u64,
    /// Time limit, boot included
    #[arg(long, value_name = "TIME", default_value = "120s", value_parser = parse_duration)]
    limit: Duration,
    /// A number for COMMAND, as $AFTERIMAGE_SEED; with --virtual the seed of everything random
    #[arg(long, value_name = "N", default_value_t = 0)]
    seed: u64,
    /// Answer as JSON; what the guest prints goes to stderr in any case
    #[arg(long)]
    json: bool,
    /// Command to run in the guest
    #[arg(last = true, required = true, value_name = "COMMAND")]
    command: Vec<String>,
}

const EXAMPLES: &str = "\
Examples:
  afterimage explore record --out acks.afrec --survives power-window=50ms -- \\
    '\"$AFTERIMAGE_AGENT\" ack-write /mnt/acks --records 200 --threads 2'
  afterimage explore record --out save.afrec --setup 'echo old > f; sync' -- \\
    'echo new > f.tmp; sync f.tmp; mv f.tmp f; sync .; afterimage explore mark new'
  afterimage explore record --out fio.afrec --size 256M --limit 5m -- \\
    fio --name=w --directory=/mnt --rw=randwrite --size=16M --fsync=8";

/// Runs it.
pub fn run(args: &Args) -> Result<(), Failure> {
    let command = match &args.command[..] {
        [one] => one.clone(),
        words => words.iter().map(|word| quote(word)).collect::<Vec<_>>().join(" "),
    };
    let memory_mib = u32::try_from(args.memory >> 20)
        .ok()
        .filter(|mib| *mib >= 64)
        .ok_or_else(|| Failure::usage("--memory: a guest needs at least 64M"))?;
    let options = RecordOptions {
        force: args.force,
        retain: matches!(args.journal, super::JournalWord::Retain),
        control_disk: args.control_disk,
        disk_bytes: args.size,
        log_bytes_max: args.log_max,
        mkfs: args.mkfs.clone(),
        mount_options: args.mount.clone(),
        vmm: args.vmm.vmm(),
        virtual_time: args
            .virtual_time
            .then(|| ModelledHost { device: args.device.clone(), file_system: args.host_fs.clone() }),
        setup: args.setup.clone(),
        check: args.check.clone(),
        memory_mib,
        limit: args.limit,
        seed: args.seed,
        ..RecordOptions::new(args.out.clone(), args.survives, command)
    };
    let stop = interrupt::flag()?;
    let summary = record_with(&options, &stop, &mut |line| eprintln!("{line}")).map_err(super::explain)?;
    afterimage::commands::print_report(&summary, args.json)?;
    if summary.interrupted {
        return Err(Failure::Status(interrupt::STATUS));
    }
    Ok(())
}
