//! What programs do that sync: the append of Figs. 6 to 8, and those of Figs. 10 and 11 up to their end.
//!
//! ```text
//!   set up, nothing measured ─► synced ─► "ready" ─► the program, each fsync timed (`syncs.c`) ─► "end"
//! ```

use std::path::{Path, PathBuf};
use std::process::Command;

use afterimage_bench_kit::process::run as run_program;
use afterimage_bench_kit::Result;
use afterimage_lab::locate;
use afterimage_lab::process::quote;
use serde::{Deserialize, Serialize};

use crate::scale::Scale;
use crate::script::{syncs_file, Script};
use crate::tpcc;

/// Photographs of a burst, as the paper's.
const PHOTOS: u32 = 20;
const PHOTO_KIB: u32 = 3072;
/// Rows of the YCSB table, of ten fields of 100 bytes.
const YCSB_ROWS: u32 = 10_000;
/// The package's files, of filebench's fileserver: 128 KiB on average.
const PACKAGE_FILES: u32 = 200;
/// Filebench's.
const MAIL_FILES: u32 = 1000;

/// Which.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Task {
    /// 80 KiB, 0.1 s, an fsync (Figs. 6 to 8).
    #[default]
    Append,
    /// SQLite, an insert a transaction, a rollback journal that is truncated (Fig. 10).
    SqliteRollback,
    /// The same with a write-ahead log.
    SqliteWal,
    /// A burst of photographs (Fig. 11).
    Photos,
    /// `dpkg` installs a package.
    Install,
    /// YCSB's workload A on SQLite with a write-ahead log: half reads, half updates, rows drawn by Zipf's law.
    Ycsb,
    /// TPC-C on MariaDB, sixteen clients (`tpcc.lua`).
    Tpcc,
    /// Filebench's.
    Varmail,
}

impl Task {
    /// Those of the figures before it need not be written in results.
    pub fn is_append(&self) -> bool {
        *self == Task::Append
    }

    /// The name in results.
    pub fn name(self) -> &'static str {
        match self {
            Task::Append => "append",
            Task::SqliteRollback => "sqlite-rollback",
            Task::SqliteWal => "sqlite-wal",
            Task::Photos => "photos",
            Task::Install => "install",
            Task::Ycsb => "ycsb",
            Task::Tpcc => "tpcc",
            Task::Varmail => "varmail",
        }
    }

    /// Its shell. `work` runs under `$BOOST`; whoever else syncs has to. Fsyncs are noted in `/run/syncs`, but by those who report their times themselves.
    pub fn script(self, scale: Scale, seed: u64, tools: &Tools) -> Script {
        let timed =
            format!("LD_PRELOAD={} AFTERIMAGE_SYNCS=/run/syncs", quote(&tools.syncs.to_string_lossy()));
        let (set_up, work) = match self {
            Task::Append => {
                let work = format!("\"$A\" sync-times /mnt/disk/file --seconds {} --stat /sys/block/vda/stat", scale.seconds);
                return Script { work, ..Script::default() };
            }
            Task::Varmail => {
                let files = format!("varmail /mnt/disk/mail --files {MAIL_FILES} --seed {seed}");
                return Script {
                    set_up: format!("\"$A\" workload-prepare {files}"),
                    work: format!("\"$A\" workload {files} --seconds {} --sync-times", scale.seconds),
                    ..Script::default()
                };
            }
            Task::Tpcc => return tpcc::script(scale, seed, &timed, &tools.tpcc),
            Task::SqliteRollback => sqlite("truncate", scale.transactions, seed),
            Task::SqliteWal => sqlite("wal", scale.transactions, seed),
            Task::Ycsb => ycsb(scale.transactions, seed),
            Task::Photos => (
                format!("mkdir /mnt/disk/photos\nhead -c {PHOTO_KIB}K /dev/urandom > /run/photo"),
                format!(
                    "n=0\nwhile [ $n -lt {PHOTOS} ]; do dd if=/run/photo of=/mnt/disk/photos/$n bs=256K conv=fsync status=none; n=$((n + 1)); done"
                ),
            ),
            Task::Install => (
                "D=/mnt/disk/root/var/lib/dpkg\nmkdir -p $D/info $D/updates $D/triggers\n: > $D/status\n: > $D/available".to_owned(),
                format!(
                    "dpkg --root=/mnt/disk/root --refuse-unsafe-io --log=/run/dpkg.log --install {} > /run/dpkg.said 2>&1 || {{ cat /run/dpkg.said; exit 1; }}",
                    quote(&tools.package.to_string_lossy())
                ),
            ),
        };
        Script {
            set_up: format!("{set_up}\n{}", syncs_file()),
            work: format!("export {timed}\n{work}"),
            tear_down: String::new(),
        }
    }
}

/// Statements are made before; whoever reads them as a script says how it ended.
fn with_sqlite(set_up: &str, journal: &str, statements: &str) -> (String, String) {
    let pragmas = format!("PRAGMA page_size=4096; PRAGMA journal_mode={journal}; PRAGMA synchronous=full;");
    (
        format!(
            "{statements}\n{{ echo '{pragmas}'; {set_up}; }} | sqlite3 -batch -bail -init /dev/null /mnt/disk/db > /dev/null\n\
             {{ echo '{pragmas}'; cat /run/statements; }} > /run/all"
        ),
        "sqlite3 -batch -bail -init /dev/null /mnt/disk/db < /run/all > /run/said".to_owned(),
    )
}

/// Park and Miller's generator, which every awk counts alike.
const DRAW: &str = "function draw(n) { x = (x * 16807) % 2147483647; return x % n }\n\
                    function text(n, t, i) { t = \"\"; for (i = 0; i < n; i += 5) t = t sprintf(\"%05d\", draw(100000)); return t }";

/// What Mobibench does: records of 100 bytes.
fn sqlite(journal: &str, transactions: u32, seed: u64) -> (String, String) {
    let statements = format!(
        "awk 'BEGIN {{ x = {seed} * 7919 + 1; for (i = 1; i <= {transactions}; i++) printf \"INSERT INTO t VALUES (%d, \\047%s\\047);\\n\", i, text(100) }}\n{DRAW}' > /run/statements"
    );
    with_sqlite("echo 'CREATE TABLE t(k INTEGER PRIMARY KEY, v CHAR(100));'", journal, &statements)
}

/// Twice as many operations as there are transactions: a read makes none. One field of a row is updated.
fn ycsb(transactions: u32, seed: u64) -> (String, String) {
    let operations = 2 * transactions;
    let statements = format!(
        "awk 'BEGIN {{\n\
         x = {seed} * 7919 + 1; n = {YCSB_ROWS}\n\
         print \"BEGIN;\" > \"/run/rows\"\n\
         for (i = 1; i <= n; i++) {{\n\
             printf \"INSERT INTO usertable VALUES (\\047user%d\\047\", i > \"/run/rows\"\n\
             for (f = 0; f < 10; f++) printf \", \\047%s\\047\", text(100) > \"/run/rows\"\n\
             print \");\" > \"/run/rows\"; sum += 1 / i ^ 0.99; upto[i] = sum\n\
         }}\n\
         print \"COMMIT;\" > \"/run/rows\"\n\
         for (i = 1; i <= {operations}; i++) {{\n\
             u = draw(1000000) / 1000000 * sum; low = 1; high = n\n\
             while (low < high) {{ mid = int((low + high) / 2); if (upto[mid] < u) low = mid + 1; else high = mid }}\n\
             row = (low * 7919) % n + 1\n\
             if (i % 2) printf \"SELECT * FROM usertable WHERE k = \\047user%d\\047;\\n\", row > \"/run/statements\"\n\
             else printf \"UPDATE usertable SET f%d = \\047%s\\047 WHERE k = \\047user%d\\047;\\n\", draw(10), text(100), row > \"/run/statements\"\n\
         }}\n\
         }}\n{DRAW}'"
    );
    let table =
        "echo 'CREATE TABLE usertable(k TEXT PRIMARY KEY, f0, f1, f2, f3, f4, f5, f6, f7, f8, f9);'; cat /run/rows";
    with_sqlite(table, "wal", &statements)
}

/// Files of the host's that guests read.
#[derive(Clone, Debug)]
pub struct Tools {
    /// `syncs.c`, built.
    pub syncs: PathBuf,
    /// A package of Debian's format.
    pub package: PathBuf,
    /// `tpcc.lua`
    pub tpcc: PathBuf,
}

impl Tools {
    /// Makes them in a folder.
    ///
    /// # Errors
    /// A program that makes them fails.
    pub fn make(folder: &Path) -> Result<Self> {
        std::fs::create_dir_all(folder)?;
        let tools = Self {
            syncs: folder.join("syncs.so"),
            package: folder.join("package.deb"),
            tpcc: folder.join("tpcc.lua"),
        };
        std::fs::write(&tools.tpcc, include_str!("tpcc.lua"))?;
        let source = folder.join("syncs.c");
        std::fs::write(&source, include_str!("syncs.c"))?;
        run_program(
            Command::new("gcc")
                .args(["-O2", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", "-o"])
                .args([&tools.syncs, &source]),
        )?;
        let (tree, control) = (folder.join("package"), folder.join("package/DEBIAN"));
        std::fs::create_dir_all(&control)?;
        std::fs::write(
            control.join("control"),
            "Package: afterimage-bench\nVersion: 1\nArchitecture: all\nMaintainer: nobody <nobody@example.org>\nDescription: files\n",
        )?;
        let files = tree.join("usr/share/afterimage-bench");
        std::fs::create_dir_all(&files)?;
        run_program(
            Command::new(locate::own_program("afterimage-agent")?)
                .args(["workload-prepare", "fileserver"])
                .arg(files)
                .args(["--files", &PACKAGE_FILES.to_string(), "--seed", "1"]),
        )?;
        run_program(
            Command::new("dpkg-deb")
                .args(["--root-owner-group", "-Znone", "--build"])
                .args([&tree, &tools.package])
                .env("SOURCE_DATE_EPOCH", "1700000000"),
        )?;
        std::fs::remove_dir_all(tree)?;
        Ok(tools)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::Figures;

    #[test]
    fn names_are_those_of_results() {
        for task in Figures::ALL.into_iter().flat_map(Figures::tasks) {
            assert_eq!(serde_json::to_string(&task).unwrap(), format!("\"{}\"", task.name()));
        }
    }

    // The guest's awk and sqlite3 are the host's: what they make of the statements is seen here.
    #[test]
    fn ycsb_reads_and_updates_rows_that_there_are() {
        let folder = tempfile::tempdir().unwrap();
        let here = |text: &str| text.replace("/run/", &format!("{}/", folder.path().display()));
        let (set_up, work) = ycsb(50, 3);
        let script = here(&format!("set -e\n{set_up}\n{work}\n")).replace("/mnt/disk/db", &here("/run/db"));
        let run = Command::new("/bin/sh").args(["-c", &script]).status().unwrap();
        assert!(run.success());
        let statements = std::fs::read_to_string(folder.path().join("statements")).unwrap();
        let updates = statements.lines().filter(|line| line.starts_with("UPDATE")).count();
        assert_eq!((updates, statements.lines().count()), (50, 100));
        let said = std::fs::read_to_string(folder.path().join("said")).unwrap();
        assert_eq!(said.lines().filter(|line| line.starts_with("user")).count(), 50);
    }
}
