//! Real guests: a stock kernel, the host's real programs, disks over vhost-user-blk.
//!
//! ```text
//!   boot ─► insert modules ─► overlay (host's root, read-only │ tmpfs) ─► chroot ─► script ─► exit report
//!                                                                          │ output ─► Guest::output
//!                                                                          └ reports ─► Guest::channel
//! ```
//!
//! Everything on the host's root file system is there inside, under the same names, with a writable layer
//! that dies with the guest; nothing of the host is ever written. `/dev`, `/proc`, `/sys`, `/run` and
//! `/dev/shm` are the guest's own.
//!
//! The outcomes of a guest's death: what the daemon acknowledged before it is in the image; the report channel
//! holds every line that the guest had sent in full, since its other end is a socket of this process.

mod boot;
mod cli;
mod initramfs;
mod kernel;
mod mconsole;
mod patience;
mod probe;
mod qemu;
mod qmp;
mod release;
mod script;
mod uml;

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

pub use boot::{write_bootable, Firmware};
pub use cli::{run_cli, RunOptions, VmmChoice};
pub use kernel::fetch_kernel;
pub use probe::kvm_boots;
pub use qmp::Qmp;
pub use release::Release;

use afterimage_protocol::report::Agent;
use serde::Deserialize;
use serde_json::json;

use self::patience::Patience;
use crate::channel::Channel;
use crate::error::{Context, LabError, Result};
use crate::process::{Group, Workdir};

/// Which machine runs the guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Vmm {
    /// User Mode Linux.
    Uml,
    /// QEMU's q35, with KVM only where it has been seen to work.
    Qemu,
}

/// What a guest is to be. Start from [`Guest::builder`].
#[derive(Clone, Debug)]
pub struct GuestBuilder {
    pub(crate) vmm: Vmm,
    pub(crate) disks: Vec<PathBuf>,
    pub(crate) memory_mib: u32,
    pub(crate) cpus: u32,
    pub(crate) queues: u16,
    pub(crate) kernel_arguments: Vec<String>,
    pub(crate) modules: Vec<String>,
    pub(crate) limit: Duration,
    pub(crate) reconnect_s: Option<u32>,
    pub(crate) environment: Vec<(String, String)>,
    pub(crate) kernel: Option<PathBuf>,
    pub(crate) firmware: Option<(Firmware, Release)>,
}

impl GuestBuilder {
    /// Adds a disk by its vhost-user-blk socket: the first is `/dev/vda`, the next `/dev/vdb`.
    pub fn disk(mut self, socket: impl Into<PathBuf>) -> Self {
        self.disks.push(socket.into());
        self
    }

    /// The guest's memory. Default 512 MiB.
    pub fn memory_mib(mut self, mib: u32) -> Self {
        self.memory_mib = mib;
        self
    }

    /// Processors (QEMU only). Default 1.
    pub fn cpus(mut self, cpus: u32) -> Self {
        self.cpus = cpus;
        self
    }

    /// Queues per disk (QEMU only). Default 1.
    pub fn queues(mut self, queues: u16) -> Self {
        self.queues = queues;
        self
    }

    /// Adds a kernel argument.
    pub fn kernel_argument(mut self, argument: &str) -> Self {
        self.kernel_arguments.push(argument.to_owned());
        self
    }

    /// Adds a kernel module, by name, with what it depends on (QEMU only; ext4, overlay and the virtio drivers
    /// are always there; User Mode Linux has ext4, XFS and Btrfs built in).
    pub fn module(mut self, name: &str) -> Self {
        self.modules.push(name.to_owned());
        self
    }

    /// The guest is killed when it runs longer than this. Default 120 s.
    pub fn limit(mut self, limit: Duration) -> Self {
        self.limit = limit;
        self
    }

    /// Reconnect to a daemon that went away, after this many seconds (QEMU only; User Mode Linux gives up its
    /// disk, so that the daemon's `keep` has to hold the sockets instead).
    pub fn reconnect_s(mut self, seconds: u32) -> Self {
        self.reconnect_s = Some(seconds);
        self
    }

    /// Sets a variable in the script's environment.
    pub fn environment(mut self, name: &str, value: &str) -> Self {
        self.environment.push((name.to_owned(), value.to_owned()));
        self
    }

    /// Another kernel than the package's (User Mode Linux only), which has all that it needs built in.
    pub fn kernel(mut self, path: impl Into<PathBuf>) -> Self {
        self.kernel = Some(path.into());
        self
    }

    /// Boots by firmware from the first disk, which [`write_bootable`] made, in a release's QEMU (QEMU only). A reset boots again, and
    /// kernel arguments and modules are the disk's.
    pub fn firmware(mut self, firmware: Firmware, release: Release) -> Self {
        self.firmware = Some((firmware, release));
        self
    }

    /// Boots the guest; returns when its kernel has been started, not when it is up.
    ///
    /// `script` is a POSIX shell script. Its output is [`Guest::output`]; lines that it sends with
    /// `"$AFTERIMAGE_AGENT" say '{...}'` (or writes to `$AFTERIMAGE_REPORT`) come out of [`Guest::channel`].
    ///
    /// # Errors
    /// Something needed is missing, or the machine would not start.
    pub fn start(self, script: &str) -> Result<Guest> {
        let workdir = Workdir::new("guest")?;
        script::write_scripts(&self, workdir.path(), script)?;
        let (channel, report_end) = Channel::open()?;
        let (output, output_end) = Channel::open()?;
        let patience = Patience::new(self.limit);
        let machine = match self.vmm {
            Vmm::Uml => uml::start(&self, workdir.path(), report_end, output_end)?,
            Vmm::Qemu => qemu::start(&self, workdir.path(), report_end, output_end)?,
        };
        Ok(Guest { vmm: self.vmm, patience, channel, output, machine, workdir: Some(workdir), killed: false })
    }
}

/// What the shell around a guest's script reports of the guest itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(tag = "guest", rename_all = "kebab-case", deny_unknown_fields)]
pub enum Said {
    /// The script begins.
    Ready {},
    /// The explorer's script has set up its disk and waits.
    SetUp {},
    /// The script has ended.
    Exit {
        /// Its status.
        code: i32,
    },
}

/// How a guest ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// The script ended with this exit status, and the guest was switched off.
    Exited(i32),
    /// Its kernel panicked.
    Panicked,
    /// We killed the machine.
    Killed,
    /// The machine ended by itself before the script had.
    Died,
}

/// A guest.
pub struct Guest {
    vmm: Vmm,
    patience: Patience,
    channel: Channel,
    output: Channel,
    machine: Group,
    // Declared after the machine: the folder goes when nobody uses it any more.
    workdir: Option<Workdir>,
    killed: bool,
}

impl Guest {
    /// A guest with 512 MiB, one processor, no disks.
    pub fn builder(vmm: Vmm) -> GuestBuilder {
        GuestBuilder {
            vmm,
            disks: Vec::new(),
            memory_mib: 512,
            cpus: 1,
            queues: 1,
            kernel_arguments: Vec::new(),
            modules: Vec::new(),
            limit: Duration::from_secs(120),
            reconnect_s: None,
            environment: Vec::new(),
            kernel: None,
            firmware: None,
        }
    }

    /// The lines that the guest reported.
    pub fn channel(&self) -> &Channel {
        &self.channel
    }

    /// What the script has printed so far.
    pub fn output(&self) -> String {
        let mut text = String::new();
        for arrival in self.output.lines() {
            text.push_str(&arrival.line);
            text.push('\n');
        }
        text
    }

    /// The lines that the script prints, as a channel.
    pub fn output_channel(&self) -> &Channel {
        &self.output
    }

    /// The kernel's console so far.
    pub fn console(&self) -> String {
        let path = self.folder().join("console.log");
        String::from_utf8_lossy(&fs::read(path).unwrap_or_default()).into_owned()
    }

    /// The guest's folder on the host: scripts, console, sockets.
    pub fn folder(&self) -> &Path {
        self.workdir.as_ref().map_or(Path::new("/nonexistent"), Workdir::path)
    }

    /// The machine's process id on the host.
    pub fn pid(&self) -> u32 {
        self.machine.pid()
    }

    fn left(&self) -> Duration {
        self.patience.left(self.machine.pid())
    }

    /// Whether the guest has run past its limit.
    pub fn out_of_time(&self) -> bool {
        self.left().is_zero()
    }

    /// Asks again while it has waited for the host since the last look.
    fn patiently<T>(&self, mut found: impl FnMut() -> Result<Option<T>>) -> Result<Option<T>> {
        loop {
            match found() {
                Err(LabError::Deadline { .. }) if !self.out_of_time() => {}
                found => return found,
            }
        }
    }

    /// Waits for the script's first line of report that has `key` = `value`.
    ///
    /// # Errors
    /// The deadline passed, or the guest ended first.
    pub fn wait_report(&self, key: &str, value: &str) -> Result<()> {
        let what = format!("the guest's report {key}={value}");
        let found =
            || self.channel.wait_for(0, self.left(), &what, |arrival| arrival.says(key, value).then_some(()));
        match self.patiently(found) {
            Ok(Some(())) => Ok(()),
            Ok(None) => Err(LabError::Guest(format!("the guest ended before {what}{}", self.last_words()))),
            Err(LabError::Deadline { what, limit }) => {
                Err(LabError::Guest(format!("no {what} within {} s{}", limit.as_secs(), self.last_words())))
            }
            Err(error) => Err(error),
        }
    }

    /// Waits until the agent's acknowledged-write workload has acknowledged `count` records in all.
    ///
    /// # Errors
    /// As [`Guest::wait_report`].
    pub fn wait_acknowledged(&self, count: u64) -> Result<()> {
        let mut seen = 0;
        let found = self.patiently(|| {
            seen = 0;
            self.channel.wait_for(0, self.left(), "acknowledgements", |arrival| {
                match arrival.agent() {
                    Ok(said) => seen += u64::from(matches!(said, Some(Agent::Ack(_)))),
                    Err(error) => return Some(Err(error)),
                }
                (seen >= count).then_some(Ok(()))
            })
        })?;
        found.unwrap_or_else(|| {
            Err(LabError::Guest(format!(
                "the guest ended after {seen} of {count} acknowledgements{}",
                self.last_words()
            )))
        })
    }

    /// Waits for the first line that the script prints for which `wanted` returns something.
    ///
    /// # Errors
    /// As [`Guest::wait_report`].
    pub fn wait_printed<T>(&self, what: &str, mut wanted: impl FnMut(&str) -> Option<T>) -> Result<T> {
        let found = self.patiently(|| {
            self.output.wait_for(0, self.left(), what, |arrival| wanted(arrival.line.trim()))
        })?;
        found.ok_or_else(|| LabError::Guest(format!("the guest ended before {what}{}", self.last_words())))
    }

    /// The end of what the guest had to say, for error messages.
    pub fn last_words(&self) -> String {
        let tail = |text: String| {
            let lines: Vec<&str> = text.lines().collect();
            lines[lines.len().saturating_sub(12)..].join("\n  | ")
        };
        let vmm = fs::read_to_string(self.folder().join("qemu.log")).unwrap_or_default();
        let mut words = String::new();
        for (kind, text) in [("output", self.output()), ("console", self.console()), ("QEMU", vmm)] {
            if !text.trim().is_empty() {
                words.push_str(&format!("\n  {kind}:\n  | {}", tail(text)));
            }
        }
        words
    }

    /// Kills the machine with SIGKILL: the death of the VMM.
    pub fn kill(&mut self) {
        self.killed = true;
        self.machine.kill();
    }

    /// Makes the guest's kernel panic, whatever it is doing, and waits for the machine's end.
    ///
    /// # Errors
    /// The machine did not take the order, or lived on.
    pub fn panic(&mut self) -> Result<()> {
        match self.vmm {
            Vmm::Uml => mconsole::request(&self.folder().join("uml/guest/mconsole"), "sysrq c")?,
            Vmm::Qemu => self.qmp()?.execute("inject-nmi", None).map(drop)?,
        }
        let limit = Duration::from_secs(20);
        match self.machine.wait_for(limit)? {
            Some(_) => {
                // User Mode Linux leaves children of its group behind when it panics.
                self.machine.kill();
                Ok(())
            }
            None => Err(LabError::Guest(format!("the guest lives on after a panic{}", self.last_words()))),
        }
    }

    /// Stops the guest's processors (QEMU's `stop`).
    ///
    /// # Errors
    /// The machine did not take the order.
    pub fn pause(&self) -> Result<()> {
        match self.vmm {
            Vmm::Uml => mconsole::request(&self.folder().join("uml/guest/mconsole"), "stop"),
            Vmm::Qemu => self.qmp()?.execute("stop", None).map(drop),
        }
    }

    /// Lets them run again.
    ///
    /// # Errors
    /// The machine did not take the order.
    pub fn resume(&self) -> Result<()> {
        match self.vmm {
            Vmm::Uml => mconsole::request(&self.folder().join("uml/guest/mconsole"), "go"),
            Vmm::Qemu => self.qmp()?.execute("cont", None).map(drop),
        }
    }

    /// Stops the machine's process at once, wherever it is: no signal of any kind reaches the daemon.
    pub fn freeze(&self) {
        self.machine.signal(rustix::process::Signal::STOP);
    }

    /// Lets it go on.
    pub fn thaw(&self) {
        self.machine.signal(rustix::process::Signal::CONT);
    }

    /// A connection to QEMU's monitor.
    ///
    /// # Errors
    /// This is no QEMU, or it does not answer.
    pub fn qmp(&self) -> Result<Qmp> {
        Qmp::connect(&self.folder().join("qmp.sock"))
    }

    /// Plugs one disk more into the running machine, which booted by firmware in the release's QEMU.
    ///
    /// # Errors
    /// QEMU refuses.
    pub fn plug(&self, release: Release, socket: &Path) -> Result<()> {
        let (reconnect, value) = release.reconnect(1);
        let address = json!({ "type": "unix", "data": { "path": socket } });
        let backend =
            json!({ "type": "socket", "data": { "addr": address, "server": false, reconnect: value } });
        let mut qmp = self.qmp()?;
        qmp.execute("chardev-add", Some(json!({ "id": "plugged", "backend": backend })))?;
        let device = json!({ "driver": "vhost-user-blk-pci", "chardev": "plugged", "num-queues": 1, "bus": qemu::PLUG });
        qmp.execute("device_add", Some(device)).map(drop)
    }

    /// Waits for the guest's end. A guest that runs past its limit is killed.
    ///
    /// # Errors
    /// It had to be killed at its limit.
    pub fn wait(&mut self) -> Result<Ended> {
        let mut status = self.machine.wait_for(self.left())?;
        while status.is_none() && !self.out_of_time() {
            status = self.machine.wait_for(self.left())?;
        }
        self.machine.kill();
        self.channel.wait_closed(Duration::from_secs(2));
        self.output.wait_closed(Duration::from_secs(2));
        if status.is_none() {
            return Err(LabError::Guest(format!(
                "the guest ran longer than its {} s, not counting what it waited for the host, and was killed{}",
                self.patience.limit().as_secs(),
                self.last_words()
            )));
        }
        for arrival in self.channel.lines().iter().rev().filter(|arrival| arrival.says("guest", "exit")) {
            if let Some(Said::Exit { code }) = arrival.report("guest")? {
                return Ok(Ended::Exited(code));
            }
        }
        Ok(if self.killed {
            Ended::Killed
        } else if self.console().contains("Kernel panic") {
            Ended::Panicked
        } else {
            Ended::Died
        })
    }

    /// Waits for the guest's end and expects the script to have succeeded.
    ///
    /// # Errors
    /// The script failed, or the guest died or ran past its limit.
    pub fn wait_success(&mut self) -> Result<()> {
        match self.wait()? {
            Ended::Exited(0) => Ok(()),
            ended => Err(LabError::Guest(format!("the guest ended with {ended:?}{}", self.last_words()))),
        }
    }

    /// Saves console, output and reports into `folder` as evidence, named after `tag`.
    ///
    /// # Errors
    /// The folder can not be written.
    pub fn save(&self, folder: &Path, tag: &str) -> Result<()> {
        let put = |kind: &str, text: String| {
            let path = folder.join(format!("{tag}.{kind}"));
            fs::write(&path, text).context(|| format!("write {}", path.display()))
        };
        put("console.log", self.console())?;
        put("output.log", self.output())?;
        let reports: Vec<String> = self.channel.lines().into_iter().map(|arrival| arrival.line).collect();
        put("reports.jsonl", reports.join("\n"))
    }

    /// Ends the guest and leaves its folder for a person to look at.
    pub fn keep(mut self) -> PathBuf {
        self.machine.kill();
        self.workdir.take().map(Workdir::keep).unwrap_or_default()
    }
}

/// Runs a script in a fresh guest to its successful end, and returns its reports.
///
/// # Errors
/// As [`GuestBuilder::start`] and [`Guest::wait_success`].
pub fn run_script(builder: GuestBuilder, script: &str) -> Result<Guest> {
    let mut guest = builder.start(script)?;
    guest.wait_success()?;
    Ok(guest)
}
