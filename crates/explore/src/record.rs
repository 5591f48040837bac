//! Runs a workload in a guest and records its block stream above and below the daemon's layers.
//!
//! ```text
//!   guest ── vhost-user ── Server ─────────────────► tap ─► journals ─► Group ─► taps ─► images, log       one process: this one
//!      │ marks               └─► control disk ──────┘ └─────────────────┬──────┘
//!      └─────────────────────────────────────────────────────────► Recorder ─► recording file
//!
//!   make file system ─► mount ─► setup ─► sync ─► all home ─► mark begin ─► COMMAND ─► mark end ─► settle ─► kill
//! ```
//!
//! Crash points lie between the marks. What follows the end is recorded until the window has passed, so that the sync
//! that covers the last acknowledgement is there; then the guest is killed without unmounting. The group is closed after
//! the recorder has stopped listening: the orderly end is no part of the workload.
//!
//! In virtual time ([`RecordOptions::virtual_time`]) another program does the same with a guest whose time is a number: `aside`.
//!
//! What a guest hands over to its control disk ([`RecordOptions::control_disk`]) passes the tap of the disk whose journal it belongs to, as
//! a write that completes as if flushed: so it has its place among what the guest asks of that disk, and to whoever reads the
//! recording the guest's stream is that of a guest which writes its journal itself. No other request of a guest is of that kind. Memory may be lent
//! to it in virtual time only, where what is published there is in the recording before anybody is told of it ([`crate::published`]).
//!
//! Images and log are files in memory (`/dev/shm`): what a sync costs is not what is looked at. They go when this returns.

mod aside;
mod rig;
mod script;
mod summary;

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use afterimage_lab::channel::Arrival;
use afterimage_lab::guest::{fetch_kernel, Guest, Said, Vmm};
use afterimage_lab::{locate, LabError};
use afterimage_order::Contract;
use afterimage_protocol::recording::End;
use afterimage_protocol::report::Mark;
use serde_json::{Map, Value};

use crate::layers::{CONTROL_DISK, JOURNAL, RETAIN};
use crate::{ExploreError, Result};
use rig::Rig;

pub use script::{mark_line, MARK_NAME_BYTES_MAX};
pub use summary::Summary;

/// How often an interruption and the limit are looked at.
const LOOK: Duration = Duration::from_millis(50);
/// How long the guest lives on after its command's end where no window says how long.
const SETTLE_MIN: Duration = Duration::from_millis(100);

/// What is below a guest in virtual time (docs/virtual-time.md): models, by their names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModelledHost {
    /// The device.
    pub device: String,
    /// Its file system: `bare` is none.
    pub file_system: String,
}

impl Default for ModelledHost {
    /// An SSD on which image and log lie bare.
    fn default() -> Self {
        Self { device: "ssd".to_owned(), file_system: "bare".to_owned() }
    }
}

/// What to record, and how.
#[derive(Clone, Debug)]
pub struct RecordOptions {
    /// The file to write.
    pub out: PathBuf,
    /// Write over it if it is there.
    pub force: bool,
    /// What an acknowledged flush survives.
    pub contract: Contract,
    /// The guest's journals are retained (`--journal retain`).
    pub retain: bool,
    /// The guest has a control disk, to which its file systems may hand over commits (`--control-disk`; with a retained journal only).
    pub control_disk: bool,
    /// Size of each disk in bytes, a multiple of 4096.
    pub disk_bytes: u64,
    /// Disks of the guest, 1 to 16: the first holds the file system, the others are the command's.
    pub disks: u16,
    /// Size of the redo log in bytes (`power-window` only), at least 16 MiB.
    pub log_bytes_max: u64,
    /// Shell that makes the file system; the device's name is appended.
    pub mkfs: String,
    /// Options of the mount, as `mount -o` takes them; none where empty.
    pub mount_options: String,
    /// Which machine runs the guest.
    pub vmm: Vmm,
    /// The guest runs in virtual time, by itself, on this: from one seed the same recording, byte for byte.
    pub virtual_time: Option<ModelledHost>,
    /// Shell that runs before the recording's part that is explored; nothing where empty.
    pub setup: String,
    /// Shell that is explored.
    pub command: String,
    /// Shell that says about a recovered file system whether it is sound; kept for the exploration.
    pub check: Option<String>,
    /// The guest's memory in MiB.
    pub memory_mib: u32,
    /// The guest is killed after this.
    pub limit: Duration,
    /// Where the file system is mounted in the guest.
    pub mount_point: String,
    /// For the command, as `$AFTERIMAGE_SEED`; in virtual time of everything random.
    pub seed: u64,
    /// A folder for the disks as the guest sees them at the end of the recording (`guest-0.img`, …), the images
    /// (`image-0.img`, …) and the log (`log.img`). What is not home yet is brought home first, on the recording.
    pub snapshot: Option<PathBuf>,
}

impl RecordOptions {
    /// A guest with 256 MiB and one disk of 64 MiB with an ext4.
    pub fn new(out: PathBuf, contract: Contract, command: String) -> Self {
        Self {
            out,
            force: false,
            contract,
            retain: false,
            control_disk: false,
            disk_bytes: 64 << 20,
            disks: 1,
            log_bytes_max: 64 << 20,
            mkfs: "mkfs.ext4 -q -F -b 4096".to_owned(),
            mount_options: String::new(),
            vmm: Vmm::Uml,
            virtual_time: None,
            setup: String::new(),
            command,
            check: None,
            memory_mib: 256,
            limit: Duration::from_secs(120),
            mount_point: "/mnt".to_owned(),
            seed: 0,
            snapshot: None,
        }
    }

    fn check(&self) -> Result<()> {
        let wrong = |text: String| Err(ExploreError::Usage(text));
        if self.out.exists() && !self.force {
            let out = self.out.display();
            return wrong(format!(
                "{out} is there already: name another file, or have it replaced (--force)"
            ));
        }
        if self.disk_bytes == 0 || self.disk_bytes % 4096 != 0 {
            return wrong(format!("a disk of {} bytes: it must be a multiple of 4096", self.disk_bytes));
        }
        if !(1..=16).contains(&self.disks) {
            return wrong(format!("{} disks: a guest has 1 to 16", self.disks));
        }
        if self.retain && self.contract == Contract::Power {
            return wrong(
                "a retained journal does not go with `power`: record under power-window=50ms or guest-crash"
                    .to_owned(),
            );
        }
        if self.control_disk && !self.retain {
            return wrong(
                "commits are handed over where journals are retained: a control disk needs --journal retain"
                    .to_owned(),
            );
        }
        if self.virtual_time.is_some() && (self.disks != 1 || self.vmm != Vmm::Uml || self.snapshot.is_some())
        {
            return wrong(
                "in virtual time a guest is User Mode Linux with one disk, of which no snapshot is made"
                    .to_owned(),
            );
        }
        if self.command.trim().is_empty() {
            return wrong("there is no command to record".to_owned());
        }
        Ok(())
    }

    /// What is said in the recording about it.
    fn about(&self) -> Result<Map<String, Value>> {
        let mut about = Map::new();
        let mut say = |key: &str, value: Value| drop(about.insert(key.to_owned(), value));
        say("command", self.command.as_str().into());
        say("contract", self.contract.to_string().into());
        if let Contract::PowerWindow { window } = self.contract {
            say("window_ms", (window.as_secs_f64() * 1000.0).into());
            say("log_bytes", self.log_bytes_max.into());
        }
        if self.retain {
            say(JOURNAL, RETAIN.into());
        }
        if self.control_disk {
            say(CONTROL_DISK, true.into());
        }
        say("disk_bytes", self.disk_bytes.into());
        say("disks", self.disks.into());
        say("mkfs", self.mkfs.as_str().into());
        if let Some(file_system) = script::file_system(&self.mkfs) {
            say("file_system", file_system.into());
        }
        say("mount", self.mount_options.as_str().into());
        say("mount_point", self.mount_point.as_str().into());
        say("setup", self.setup.as_str().into());
        if let Some(check) = &self.check {
            say("check", check.as_str().into());
        }
        say("memory_mib", self.memory_mib.into());
        say("seed", self.seed.into());
        if let Some(ModelledHost { device, file_system }) = &self.virtual_time {
            say("kernel", aside::kernel()?.into());
            say("host", format!("{device}, {file_system}").into());
        } else {
            say("kernel", kernel(self.vmm)?.into());
        }
        say("recorder", concat!("afterimage ", env!("CARGO_PKG_VERSION")).into());
        Ok(about)
    }

    fn settle(&self) -> Duration {
        match self.contract {
            Contract::PowerWindow { window } => (window * 2).max(SETTLE_MIN),
            _ => SETTLE_MIN,
        }
    }
}

/// The guest's kernel: User Mode Linux's version, or the file that QEMU boots.
fn kernel(vmm: Vmm) -> Result<String> {
    if vmm == Vmm::Qemu {
        let image = fetch_kernel()?.image;
        return Ok(image.file_name().unwrap_or_default().to_string_lossy().into_owned());
    }
    let program = locate::system_program("linux.uml", "user-mode-linux")?;
    let said = std::process::Command::new(&program)
        .arg("--version")
        .output()
        .map_err(ExploreError::io(format!("running {} --version", program.display())))?;
    Ok(format!("user-mode-linux {}", String::from_utf8_lossy(&said.stdout).trim()))
}

/// Why the guest is not waited for any longer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stop {
    /// The setup is done, and the guest waits for its data to be home.
    SetUp,
    /// The end.
    For(End),
}

/// Records.
///
/// # Errors
/// As [`record_with`].
pub fn record(options: &RecordOptions) -> Result<Summary> {
    record_with(options, &AtomicBool::new(false), &mut |_| ())
}

/// Records. `interrupt` ends it early; what was recorded until then is whole. `say` gets each line that the guest prints.
///
/// # Errors
/// The request is wrong; something needed is missing; the guest or the command failed, or did not end in time (the file is
/// there then, readable, without the mark `end`); the file could not be written.
pub fn record_with(
    options: &RecordOptions,
    interrupt: &AtomicBool,
    say: &mut dyn FnMut(&str),
) -> Result<Summary> {
    options.check()?;
    if let Some(host) = &options.virtual_time {
        return aside::record(options, host, interrupt);
    }
    let began = Instant::now();
    let mut rig = Rig::start(options)?;
    let mut builder = Guest::builder(options.vmm)
        .memory_mib(options.memory_mib)
        .limit(options.limit)
        .kernel_argument("panic=-1");
    for socket in rig.sockets() {
        builder = builder.disk(socket);
    }
    for (name, value) in script::environment(options)? {
        builder = builder.environment(name, &value);
    }
    let mut guest = builder.start(&script::script(options, script::TELL_AND_WAIT))?;
    let mut listener = Listener { marks_seen: 0, lines_said: 0, states: Vec::new() };
    let mut end = listener.listen(&guest, &rig, interrupt, None, say)?;
    if end == End::Done {
        let settled = Instant::now() + options.settle();
        let after = listener.listen(&guest, &rig, interrupt, Some(settled), say)?;
        end = if after == End::Interrupted { End::Interrupted } else { End::Done };
    }
    let words = guest.last_words();
    guest.kill();
    let finished = rig.finish(options)?;
    judge(options, end, &guest.output(), &words)?;
    Ok(Summary::new(options, &finished, listener.states, began.elapsed(), end == End::Interrupted))
}

/// Whether the recording came to its end. `output`: what the guest said; `words`: what its kernel did.
fn judge(options: &RecordOptions, end: End, output: &str, words: &str) -> Result<()> {
    let left = format!("{} holds what was recorded until then", options.out.display());
    let failed = |text: String| Err(ExploreError::Lab(LabError::Guest(text)));
    match end {
        End::Done | End::Interrupted => Ok(()),
        End::OutOfTime => failed(format!(
            "the command did not end within {} s, the limit; {left}{words}",
            options.limit.as_secs_f32()
        )),
        // What the command printed says why; the kernel has nothing to add.
        End::Failed(code) => {
            let lines: Vec<String> = output.lines().map(|line| format!("\n  | {line}")).collect();
            let last = lines[lines.len().saturating_sub(12)..].concat();
            failed(format!("the guest's script ended with status {code} before the mark `end`; {left}{last}"))
        }
        End::Died => failed(format!("the guest died; {left}{words}")),
    }
}

/// Turns what the guest reports into marks, and passes on what it prints.
struct Listener {
    marks_seen: usize,
    lines_said: usize,
    /// Names of states, in order.
    states: Vec<String>,
}

impl Listener {
    /// Until the mark `end` (or, where it has been, until a moment), the guest's end, an interruption, or the limit.
    fn listen(
        &mut self,
        guest: &Guest,
        rig: &Rig,
        interrupt: &AtomicBool,
        until: Option<Instant>,
        say: &mut dyn FnMut(&str),
    ) -> Result<End> {
        loop {
            let look = until.map_or(LOOK, |until| until.saturating_duration_since(Instant::now()).min(LOOK));
            let from = self.marks_seen;
            // Wakes at each line, so a mark is recorded as soon as it arrives.
            let heard =
                guest.channel().wait_for(from, look, "a mark", |arrival| self.hear(arrival, rig).transpose());
            self.print(guest, say);
            match heard {
                Ok(Some(Err(error))) => return Err(error.into()),
                Ok(Some(Ok(Stop::SetUp))) => {
                    rig.bring_home()?;
                    guest.channel().send("go")?;
                }
                Ok(Some(Ok(Stop::For(end)))) => return Ok(end),
                Ok(None) => return Ok(End::Died),
                Err(_) if interrupt.load(Ordering::SeqCst) => return Ok(End::Interrupted),
                Err(_) if until.is_some_and(|until| Instant::now() >= until) => return Ok(End::Done),
                Err(_) if guest.out_of_time() => return Ok(End::OutOfTime),
                Err(_) => {}
            }
        }
    }

    fn hear(&mut self, arrival: &Arrival, rig: &Rig) -> std::result::Result<Option<Stop>, LabError> {
        self.marks_seen += 1;
        // A line about the guest is for the recorder; a state may be called so.
        match arrival.report("guest")? {
            Some(Said::Exit { code }) => return Ok(Some(Stop::For(End::Failed(code)))),
            Some(Said::SetUp {}) => return Ok(Some(Stop::SetUp)),
            Some(Said::Ready {}) => return Ok(None),
            None => rig.recorder().mark(&arrival.line),
        }
        let Some(Mark { mark }) = arrival.report("mark")? else { return Ok(None) };
        match mark.as_str() {
            "end" => return Ok(Some(Stop::For(End::Done))),
            "begin" => {}
            _ => self.states.push(mark),
        }
        Ok(None)
    }

    fn print(&mut self, guest: &Guest, say: &mut dyn FnMut(&str)) {
        if guest.output_channel().count() == self.lines_said {
            return;
        }
        for arrival in &guest.output_channel().lines()[self.lines_said..] {
            say(&arrival.line);
            self.lines_said += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use afterimage_order::GroupOptions;

    use super::*;

    fn options() -> RecordOptions {
        RecordOptions::new("/nonexistent/x.afrec".into(), Contract::Power, "true".to_owned())
    }

    #[test]
    fn nonsense_is_refused_before_anything_is_touched() {
        let wrong = [
            RecordOptions { out: "/dev/null".into(), ..options() },
            RecordOptions { disk_bytes: 1000, ..options() },
            RecordOptions { disks: 0, ..options() },
            RecordOptions { command: " ".to_owned(), ..options() },
            RecordOptions { retain: true, ..options() },
            RecordOptions { virtual_time: Some(ModelledHost::default()), disks: 2, ..options() },
        ];
        for options in wrong {
            assert!(matches!(record(&options), Err(ExploreError::Usage(_))), "{options:?}");
        }
        assert!(options().check().is_ok() && options().log_bytes_max >= GroupOptions::LOG_MIN_BYTES);
    }
}
