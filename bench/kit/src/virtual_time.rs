//! Cells in virtual time (docs/virtual-time.md): each is run by a process of its own, `afterimage-virtual cell`, because that program links
//! the layers with the front end's test kit, and the benchmarks do not. Cells do not disturb each other but in how long they take, so
//! several may run at once.
//!
//! ```text
//!   Cell (JSON) ─► afterimage-virtual cell ─► Outcome (JSON)
//!     each guest:  set up ─► tell ready ─► meet ─► work ─► tell end ─► meet ─► what comes after ─► exit
//!     the host:           page cache to the device │ counted from here                    daemons end ─► all on the device
//! ```

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use afterimage_lab::channel::Arrival;
use afterimage_lab::locate;
use afterimage_lab::process::{quote, Group, Workdir};
use afterimage_protocol::cell::{Cell, Guest, Journal, Outcome};

use crate::error::{BenchError, Context, Result};

/// What each request costs its daemon in processor time, where a benchmark is always charged: as long as one takes that waits for nothing.
/// Without it arms that wait for no disk would be as quick as one likes.
pub const REQUEST_NS: u64 = 10_000;
/// And what each system call costs its guest.
pub const SYSCALL_NS: u64 = 5000;

/// Where the program and its guests' kernel are.
#[derive(Clone, Debug)]
pub struct Virtual {
    program: PathBuf,
    kernel: PathBuf,
}

impl Virtual {
    /// Finds them.
    ///
    /// # Errors
    /// One is not there, or nobody says where.
    pub fn find() -> Result<Self> {
        let kernel = locate::virtual_kernel()?;
        Ok(Self { program: locate::own_program("afterimage-virtual")?, kernel })
    }

    /// A program for tests that was built with the guests' kernel. Guests have it under the same path.
    ///
    /// # Errors
    /// That kernel has none.
    pub fn with_kernel(&self, name: &str) -> Result<PathBuf> {
        let path = self.kernel.join(name);
        if path.is_file() {
            return path.canonicalize().context(|| format!("find {}", path.display()));
        }
        let sentence = format!(
            "the guests' kernel has no program {name} beside it: ./x guest-kernel uml builds one that has"
        );
        Err(BenchError::Usage(sentence))
    }

    /// Runs a cell. It ends with this program, however that ends.
    ///
    /// # Errors
    /// It came to no end, or a guest's script failed; what guests said is in the error.
    pub fn run(&self, cell: &Cell) -> Result<Outcome> {
        let folder = Workdir::new_in(Path::new("/dev/shm"), "cell")?;
        let [asked, answered, errors] = ["cell", "outcome", "errors"].map(|name| folder.join(name));
        let json =
            serde_json::to_vec(cell).map_err(std::io::Error::from).context(|| "write a cell".to_owned())?;
        fs::write(&asked, json).context(|| format!("write {}", asked.display()))?;
        let open = |path: &Path| File::create(path).context(|| format!("make {}", path.display()));
        let mut command = Command::new(&self.program);
        command.arg("cell").arg("--kernel").arg(&self.kernel);
        command.stdin(Stdio::from(File::open(&asked).context(|| format!("open {}", asked.display()))?));
        command.stdout(open(&answered)?).stderr(open(&errors)?);
        let mut process = Group::spawn("afterimage-virtual", &mut command, Vec::new(), "")?;
        // It watches its own limit.
        let status = process.wait_for(Duration::from_secs(cell.limit_s + 60))?;
        if !status.is_some_and(|status| status.success()) {
            let said = fs::read_to_string(&errors).unwrap_or_default();
            return Err(BenchError::Workload(format!("afterimage-virtual failed: {}", said.trim_end())));
        }
        let text = fs::read(&answered).context(|| format!("read {}", answered.display()))?;
        let outcome: Outcome = serde_json::from_slice(&text)
            .map_err(std::io::Error::from)
            .context(|| "read what came of a cell".to_owned())?;
        let last = outcome.then.as_deref().unwrap_or(&outcome);
        for (number, guest) in last.guests.iter().enumerate() {
            let may_die = outcome.then.is_none() && outcome.killed;
            if guest.exit != Some(0) && !may_die {
                let sentence =
                    format!("guest {number} ended with {:?}: {}", guest.exit, guest.output.trim_end());
                return Err(BenchError::Workload(sentence));
            }
        }
        Ok(outcome)
    }
}

/// A cell of one guest without anything special: processor free, the paper's disk, and a host that takes everything into its page cache.
///
/// # Errors
/// As [`with_prologue`].
pub fn plain_cell(script: &str) -> Result<Cell> {
    Ok(Cell {
        guests: 1,
        memory_mib: 156,
        script: with_prologue(script)?,
        append: Vec::new(),
        image: None,
        image_bytes: 4 << 30,
        contract: "guest-crash".to_owned(),
        journal: Journal::Passthrough,
        retain_bytes_max: None,
        vflush_at_truncation: false,
        control_disk: false,
        direct: true,
        write_through: false,
        host_fs: "bare".to_owned(),
        laid_out: Vec::new(),
        log_bytes: 256 << 20,
        model: "hdd15k".to_owned(),
        dirty_background_bytes: 800 << 20,
        dirty_bytes: 1600 << 20,
        seed: 1,
        request_ns: 0,
        settle_meetings: 1,
        sample_ns: None,
        kill: None,
        trace: None,
        storage_traces: None,
        images: None,
        limit_s: 3600,
    })
}

/// A script with what all scripts use: `$A` is the agent, which reports to the console; `meet` waits for the other guests; `tell NAME`
/// reports that something has been reached, with the disk's and jbd2's own counts.
///
/// # Errors
/// There is no agent.
pub fn with_prologue(script: &str) -> Result<String> {
    let agent = locate::own_program("afterimage-agent")?;
    Ok(format!("A={}\n{PROLOGUE}{script}", quote(&agent.to_string_lossy())))
}

/// `read` finds no end of a line, which is no failure.
const PROLOGUE: &str = r#"
set -e
cd /
export AFTERIMAGE_AGENT="$A" AFTERIMAGE_REPORT=/dev/console
meet() {
    while read -r may < /sys/block/vda/serial || :; [ "$may" != go ]; do sleep 0.01; done
}
tell() {
    j=$(cat /proc/fs/jbd2/*/info 2>/dev/null | tr '\n\t' ';;' || :)
    "$A" say "{\"bench\":\"$1\",\"stat\":\"$(cat /sys/block/vda/stat)\",\"jbd2\":\"$j\"}"
}
"#;

/// What a guest's script and the agent reported.
pub fn reports(guest: &Guest) -> Vec<Arrival> {
    let lines = guest.output.lines().map(str::trim_end).filter(|line| line.starts_with('{'));
    lines.map(|line| Arrival { at_ns: 0, line: line.to_owned() }).collect()
}
