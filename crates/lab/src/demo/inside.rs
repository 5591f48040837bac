//! What runs inside the guests: shell around real programs.
//!
//! Reports are JSON lines. Those made here carry the member `demo`.

use std::fs;
use std::path::Path;

use rand_chacha::ChaCha8Rng;

use super::sql::{self, Journal};
use crate::error::{Context, Result};
use crate::process::quote;

/// What ext4 puts into its journal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Data {
    /// Metadata; ext4's default.
    Ordered,
    /// Everything.
    Journal,
}

impl Data {
    /// The mount option.
    pub fn option(self) -> &'static str {
        match self {
            Data::Ordered => "data=ordered",
            Data::Journal => "data=journal",
        }
    }
}

/// How much work a guest is given.
#[derive(Clone, Copy, Debug)]
pub struct Load {
    /// Transactions per journal mode; more than can be done before the end, so that the guest never idles.
    pub transactions: u32,
    /// Postmark's files and transactions per round; rounds follow each other without end.
    pub postmark: (u32, u32),
    /// Threads that write records.
    pub threads: u32,
}

impl Load {
    /// For a guest at native speed.
    pub const NATIVE: Load = Load { transactions: 30_000, postmark: (100, 500), threads: 2 };
    /// For a guest whose instructions are translated.
    pub const TRANSLATED: Load = Load { transactions: 10_000, postmark: (100, 300), threads: 2 };
}

/// Work that ends, for timing.
#[derive(Clone, Copy, Debug)]
pub struct Timed {
    /// Records with an fsync each.
    pub records: u32,
    /// Transactions per journal mode.
    pub transactions: u32,
    /// Postmark's files and transactions.
    pub postmark: (u32, u32),
}

/// Work for comparing journals: one long file, and many short ones that are each made safe.
#[derive(Clone, Copy, Debug)]
pub struct Mixed {
    /// Bytes of the long file, appended 8 KiB at a time.
    pub append_bytes: u64,
    /// Short files, an fsync after each. Their sizes are gamma-distributed.
    pub files: u32,
    /// The median of their sizes.
    pub median_bytes: u32,
}

/// Writes postmark's commands.
fn postmark(path: &Path, location: &str, (files, transactions): (u32, u32), seed: u32) -> Result<()> {
    let text = format!(
        "set location {location}\nset number {files}\nset transactions {transactions}\nset size 500 20000\n\
         set seed {seed}\nset buffering false\nrun\nquit\n"
    );
    fs::write(path, text).context(|| format!("write {}", path.display()))
}

/// Writes what the scripts below need into `folder`, which the guest sees under the same name.
///
/// # Errors
/// The folder can not be written.
pub fn write_inputs(
    folder: &Path,
    transactions: u32,
    rounds: (u32, u32),
    rng: &mut ChaCha8Rng,
) -> Result<()> {
    for journal in Journal::ALL {
        let put = |name: String, text: String| {
            let path = folder.join(name);
            fs::write(&path, text).context(|| format!("write {}", path.display()))
        };
        put(format!("{}.sql", journal.name()), sql::transactions(journal, transactions, rng))?;
        put(format!("{}-state.sql", journal.name()), sql::state(journal))?;
    }
    postmark(&folder.join("postmark"), "/mnt/postmark", rounds, 42)?;
    postmark(&folder.join("postmark-after"), "/mnt/postmark-after", (100, 300), 43)
}

/// Mounts, and makes the folders that the programs work in.
fn begin(make_file_system: bool, data: Data) -> String {
    let mut text = String::from("say() { \"$AFTERIMAGE_AGENT\" say \"$1\"; }\nset -e\n");
    if make_file_system {
        text.push_str(
            "mkfs.ext4 -q -F -b 4096 -E lazy_itable_init=0,lazy_journal_init=0,nodiscard /dev/vda\n",
        );
    }
    text.push_str(&format!(
        "mkdir -p /mnt\n\
         mount -t ext4 -o {} /dev/vda /mnt\n\
         mkdir /mnt/postmark /mnt/records\n",
        data.option()
    ));
    for journal in Journal::ALL {
        text.push_str(&format!("mkdir /mnt/{}\n", journal.name()));
    }
    text.push_str("sync\n");
    text
}

/// sqlite3 with its output on the report channel, a line a write: reports of several programs must not mix.
fn run_transactions(journal: Journal, folder: &str) -> String {
    let name = journal.name();
    format!("stdbuf -oL sqlite3 -batch /mnt/{name}/bank < {folder}/{name}.sql > $AFTERIMAGE_REPORT")
}

/// Makes a fresh ext4 and works on it until somebody ends it: SQLite in both journal modes, postmark, and
/// acknowledged records, side by side. A program that ends by itself ends the guest with an error.
pub fn work(folder: &Path, load: Load, data: Data) -> String {
    let folder = quote(&folder.to_string_lossy());
    // A virtio port takes one writer at a time: there, a pipe collects the lines (each at most PIPE_BUF, so whole).
    let mut text = String::from(
        "case $AFTERIMAGE_REPORT in /dev/vport*)\n\
         mkfifo /run/report; cat /run/report > $AFTERIMAGE_REPORT &\n\
         exec 9<> /run/report; AFTERIMAGE_REPORT=/run/report;;\nesac\n",
    );
    text.push_str(&begin(true, data));
    for journal in Journal::ALL {
        let run = run_transactions(journal, &folder);
        text.push_str(&format!(
            "( {}; say '{{\"demo\":\"ended\",\"what\":\"sqlite {}\"}}' ) &\n",
            run,
            journal.name()
        ));
    }
    text.push_str(&format!(
        "( while postmark {folder}/postmark > /run/postmark.out 2>&1; do say '{{\"demo\":\"postmark-round\"}}'; done;\n\
         cat /run/postmark.out; say '{{\"demo\":\"ended\",\"what\":\"postmark\"}}' ) &\n\
         ( \"$AFTERIMAGE_AGENT\" ack-write /mnt/records --seconds 3600 --threads {} || true\n\
         say '{{\"demo\":\"ended\",\"what\":\"records\"}}' ) &\n\
         wait\nexit 3\n",
        load.threads
    ));
    text
}

/// The boot after: lets the mount replay the journal, reports what is there, checks the file system, and works on
/// it once more.
pub fn examine(folder: &Path, data: Data) -> String {
    let folder = quote(&folder.to_string_lossy());
    let mut text = format!("options={}\n", data.option());
    text.push_str(
        "say() { \"$AFTERIMAGE_AGENT\" say \"$1\"; }\n\
         dumpe2fs -h /dev/vda > /run/header 2>&1 || true\n\
         if grep -q needs_recovery /run/header; then needed=true; else needed=false; fi\n\
         mkdir -p /mnt\n\
         if mount -t ext4 -o $options /dev/vda /mnt; then say \"{\\\"demo\\\":\\\"mounted\\\",\\\"needed_replay\\\":$needed}\"\n\
         else dmesg | tail -n 20; say '{\"demo\":\"not-mounted\"}'; exit 4; fi\n\
         \"$AFTERIMAGE_AGENT\" verify /mnt/records\n",
    );
    for journal in Journal::ALL {
        let name = journal.name();
        text.push_str(&format!(
            "stdbuf -oL sqlite3 -batch /mnt/{name}/bank < {folder}/{name}-state.sql > $AFTERIMAGE_REPORT\n"
        ));
    }
    text.push_str(&format!(
        "umount /mnt\n\
         e2fsck -fn /dev/vda > /run/e2fsck.out 2>&1; code=$?\n\
         cat /run/e2fsck.out\n\
         say \"{{\\\"demo\\\":\\\"e2fsck\\\",\\\"code\\\":$code}}\"\n\
         mount -t ext4 -o $options /dev/vda /mnt && mkdir -p /mnt/postmark-after &&\n\
         postmark {folder}/postmark-after > /run/postmark.out 2>&1; code=$?\n\
         cat /run/postmark.out\n\
         dmesg | grep -i -E 'EXT4-fs (error|warning)|I/O error|Buffer I/O' | head -n 20\n\
         umount /mnt || code=5\n\
         say \"{{\\\"demo\\\":\\\"postmark-after\\\",\\\"code\\\":$code}}\"\n\
         exit 0\n"
    ));
    text
}

/// Defines `stat NAME`: reports what the guest's kernel has sent so far.
/// `/sys/block/vda/stat` (Documentation/block/stat.rst): writes 5th, sectors written 7th, flushes 16th.
const STAT: &str =
    "stat() { read -r a b c d writes f sectors h i j k l m n o flushes rest < /sys/block/vda/stat\n\
     say \"{\\\"demo\\\":\\\"disk\\\",\\\"at\\\":\\\"$1\\\",\\\"writes\\\":$writes,\\\"sectors\\\":$sectors,\\\"flushes\\\":$flushes}\"; }\n";

/// The same work for every server, on a file system that is there, with a beginning and an end, and what the guest's kernel sent meanwhile.
pub fn timed(folder: &Path, work: Timed) -> String {
    let folder = quote(&folder.to_string_lossy());
    let mut text = begin(false, Data::Ordered);
    text.push_str(STAT);
    text.push_str(
        "clock() { read -r up rest < /proc/uptime; say \"{\\\"demo\\\":\\\"clock\\\",\\\"at\\\":\\\"$1\\\",\\\"s\\\":$up}\"; }\n\
         stat begin\nsleep 0.3\nclock begin\n",
    );
    text.push_str(&format!(
        "\"$AFTERIMAGE_AGENT\" fsync-bench /mnt/records/bench --count {}\nclock records\n",
        work.records
    ));
    for journal in Journal::ALL {
        text.push_str(&format!("{}\nclock {}\n", run_transactions(journal, &folder), journal.name()));
    }
    text.push_str(&format!(
        "postmark {folder}/postmark > /run/postmark.out 2>&1 || {{ cat /run/postmark.out; exit 6; }}\n\
         sync\nclock postmark\nstat end\numount /mnt\n"
    ));
    text
}

/// The same work for each way to keep a journal, on a file system that is there. It begins when the host says so, and
/// is done when everything is on the disk and unmounted.
pub fn mixed(work: Mixed, data: Data) -> String {
    let mut text = begin(false, data);
    text.push_str(STAT);
    // Held open: the kernel forgets what has come when the last user of a serial line closes it.
    text.push_str(
        "exec 5<> \"$AFTERIMAGE_REPORT\"\n\
         \"$AFTERIMAGE_AGENT\" drop-caches\n\
         stat begin\nread -r go <&5\n",
    );
    text.push_str(&format!(
        "\"$AFTERIMAGE_AGENT\" micro append /mnt/long --bytes {} --size 8192\n\
         \"$AFTERIMAGE_AGENT\" micro create /mnt/short --files {} --directories 20 --median {} --fsync\n\
         sync\numount /mnt\nstat end\n",
        work.append_bytes, work.files, work.median_bytes
    ));
    text
}
