//! One mode and one size: a disk, and guests that are killed on it one after the other.

use std::path::Path;
use std::time::Duration;

use afterimage_protocol::report::{Agent, Integrity};

use super::Iteration;
use crate::daemon::{self, Daemon, ServeOptions};
use crate::error::{LabError, Result};
use crate::guest::{Guest, Vmm};
use crate::process::Workdir;

/// What a guest may submit before it is killed: the paper's 4 MB.
const SUBMITTED_BYTES: u64 = 4 << 20;
/// The database file.
const FILE_BYTES: u64 = 16 << 20;
const IMAGE_BYTES: u64 = 256 << 20;
/// How often the daemon's counter is read.
const LOOK: Duration = Duration::from_micros(500);
const GUEST_LIMIT: Duration = Duration::from_secs(120);

/// A cell of the table.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cell {
    /// ext4's `data=`.
    pub data: &'static str,
    /// `--journal`.
    pub journal: &'static str,
    pub size_bytes: u64,
    pub seed: u64,
}

impl Cell {
    /// As the table has it.
    pub fn name(&self) -> String {
        match self.journal {
            "passthrough" => self.data.to_owned(),
            other => format!("{}+{other}", self.data),
        }
    }

    /// Runs the iterations from one number to another, and hands each over when its records have been verified.
    ///
    /// # Errors
    /// A guest or the daemon did not do what was asked.
    pub fn run(&self, from: u64, to: u64, finished: &mut dyn FnMut(Iteration) -> Result<()>) -> Result<()> {
        let folder = Workdir::new("integrity")?;
        let image = folder.join("disk.raw");
        daemon::create_image(&image, IMAGE_BYTES)?;
        // Removed with everything in it, however this program ends.
        let memory = Workdir::new_in(Path::new("/dev/shm"), "arena")?;
        let mut extra = vec!["--journal".to_owned(), self.journal.to_owned()];
        if self.journal != "passthrough" {
            extra.extend(["--arena".to_owned(), memory.path().display().to_string()]);
        }
        let daemon = Daemon::serve(&ServeOptions { extra, ..ServeOptions::new("guest-crash", &[image]) })?;
        let mut last: Option<(u64, u64)> = None;
        for number in from..=to {
            let (first, works) = (number == from, number < to);
            let mut guest = Guest::builder(Vmm::Uml)
                .disk(daemon.socket())
                .memory_mib(128)
                .limit(GUEST_LIMIT)
                .start(&self.script(first, works, number))?;
            if works {
                let submitted_bytes = self.kill_when_submitted(&daemon, &mut guest)?;
                self.hand_over(&guest, last, finished)?;
                last = Some((number, submitted_bytes));
            } else {
                guest.wait_success()?;
                self.hand_over(&guest, last, finished)?;
            }
        }
        daemon.stop()
    }

    fn script(&self, first: bool, works: bool, number: u64) -> String {
        let options = format!("--size {} --bytes {FILE_BYTES}", self.size_bytes);
        let agent = format!("\"$AFTERIMAGE_AGENT\" integrity %s /mnt/database {options}");
        let mount = format!("mount -t ext4 -o data={},commit=1 /dev/vda /mnt\n", self.data);
        // A journal that takes the whole file in one transaction, as the paper's takes its 4 MB.
        let mut text = String::from("set -e\n");
        text.push_str(if first { "mkfs.ext4 -q -F -b 4096 -J size=96 /dev/vda\n" } else { "" });
        text.push_str(&mount);
        if !first {
            text.push_str(&format!(
                "{} --seed {}\n",
                agent.replace("%s", "verify"),
                self.updates(number - 1)
            ));
        }
        if works {
            text.push_str(&format!(
                "echo 100 > /proc/sys/vm/dirty_expire_centisecs\necho 50 > /proc/sys/vm/dirty_writeback_centisecs\n\
                 {}\nsync\nexec {} --seed {}\n",
                agent.replace("%s", "prepare"),
                agent.replace("%s", "update"),
                self.updates(number)
            ));
        }
        text
    }

    /// The seed of an iteration's updates.
    fn updates(&self, number: u64) -> u64 {
        self.seed.wrapping_mul(1_000_003).wrapping_add(number)
    }

    /// Returns what the guest had submitted.
    fn kill_when_submitted(&self, daemon: &Daemon, guest: &mut Guest) -> Result<u64> {
        guest.wait_report("state", "updating")?;
        let before = written(daemon)?;
        loop {
            let submitted = written(daemon)?.saturating_sub(before);
            if submitted >= SUBMITTED_BYTES {
                guest.kill();
                guest.wait()?;
                return Ok(submitted);
            }
            if guest.out_of_time() {
                return Err(LabError::Guest(format!(
                    "only {submitted} bytes are submitted{}",
                    guest.last_words()
                )));
            }
            std::thread::sleep(LOOK);
        }
    }

    fn hand_over(
        &self,
        guest: &Guest,
        last: Option<(u64, u64)>,
        finished: &mut dyn FnMut(Iteration) -> Result<()>,
    ) -> Result<()> {
        let Some((number, submitted_bytes)) = last else { return Ok(()) };
        for line in guest.channel().lines() {
            if let Some(Agent::Integrity(verified)) = line.agent()? {
                let Integrity::Verified { records, updated, mixed, foreign_blocks, out_of_order_blocks } =
                    verified
                else {
                    continue;
                };
                let out_of_order_blocks = out_of_order_blocks
                    .ok_or_else(|| LabError::Guest("the guest did not look at the order".to_owned()))?;
                return finished(Iteration {
                    mode: self.name(),
                    size_bytes: self.size_bytes,
                    number,
                    records,
                    updated,
                    mixed,
                    foreign_blocks,
                    out_of_order_blocks,
                    submitted_bytes,
                });
            }
        }
        Err(LabError::Guest("the guest verified nothing".to_owned()))
    }
}

/// Bytes that the guest has written so far.
fn written(daemon: &Daemon) -> Result<u64> {
    let requests = daemon.disk()?.requests;
    let write = requests.iter().find(|request| request.kind == "write");
    write
        .map(|request| request.bytes)
        .ok_or_else(|| LabError::Peer("the daemon's status counts no writes".to_owned()))
}
