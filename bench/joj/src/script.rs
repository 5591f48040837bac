//! The shell that runs inside the guest.
//!
//! ```text
//!   statements made ─► mount ─► "ready" ─► meet ─► one sqlite3: table, filled and emptied once ─► mark ─► inserts ─► mark ─► updates ─► mark ─► deletes ─► mark
//!     ─► meet ─► unmount
//! ```
//! A mark is two times with the guest's counts between them: the phase that ends there does not pay for them, and neither does the next.
//! The table was full before, as in all of the paper's rounds but the first: log and database need not grow.
//! SQLite's pages have 1024 bytes, as in the paper's version: its 2,576 bytes of a commit are a journal's header (512) and two of its
//! records of such a page (1032 each). Everything else is SQLite's default, with `synchronous=full`.

use std::path::PathBuf;

use afterimage_lab::process::quote;

use crate::plan::{Arm, Key, Log, Scale};

/// `$phase` ends here, and another begins.
const MARK: &str = r#"cat > /run/mark << 'END'
{
    date "+joj: ended $phase %s%N"
    sed 's/^/joj: stat /' /sys/block/vda/stat
    cat /proc/fs/vjbd2/*/single_io 2> /dev/null | sed 's/^/joj: vext4 /'
    date "+joj: began $phase %s%N"
} >> /run/marks
END
"#;

/// Statements, of a seed: a generator of Park and Miller's, which every awk counts alike.
const STATEMENTS: &str = r#"awk -v records=$RECORDS -v size=$OPERATIONS -v seed=$SEED '
function draw(n) { x = (x * 16807) % 2147483647; return x % n }
function text(t, i) { t = ""; for (i = 0; i < 20; i++) t = t sprintf("%05d", draw(100000)); return t }
function shuffle(i, j, t) {
    for (i = 1; i <= records; i++) key[i] = i
    for (i = records; i > 1; i--) { j = 1 + draw(i); t = key[i]; key[i] = key[j]; key[j] = t }
}
function phase(what, i) {
    for (i = 1; i <= records; i++) {
        if (size > 1 && (i - 1) % size == 0) print "BEGIN;"
        if (what == "insert") printf "INSERT INTO t VALUES (%d, \047%s\047);\n", i, text()
        if (what == "update") printf "UPDATE t SET v = \047%s\047 WHERE k = %d;\n", text(), key[i]
        if (what == "delete") printf "DELETE FROM t WHERE k = %d;\n", key[i]
        if (size > 1 && (i % size == 0 || i == records)) print "COMMIT;"
    }
    print ".system phase=" what "; . /run/mark"
}
BEGIN {
    x = seed * 7919 + 1
    for (i = 0; i < 10; i++) draw(2)
    print "BEGIN;"
    for (i = 1; i <= 10000; i++) printf "INSERT INTO t VALUES (%d, \047%s\047);\n", i, text()
    print "COMMIT; DELETE FROM t;\n.system sync; phase=start; . /run/mark"
    phase("insert"); shuffle(); phase("update"); shuffle(); phase("delete")
}' > /run/statements
"#;

/// Files of the host's that guests read.
#[derive(Clone, Debug)]
pub struct Tools {
    /// SQLite's, of `guest/sqlite`.
    pub extension: PathBuf,
    /// `flush.c`, built.
    pub flush: PathBuf,
}

/// Where the control disk is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Control {
    /// Behind the end of the disk, as in virtual time.
    Behind,
    /// A device of its own.
    Device,
}

/// The script of one round.
pub fn script(key: &Key, scale: Scale, tools: &Tools, control: Control) -> String {
    let (kind, options) = key.arm.mount();
    let work = if key.log == Log::File { files(key, scale) } else { sqlite(key, scale, tools) };
    let (control, vma_disk) = match (key.arm, control) {
        (Arm::Vma, Control::Behind) => {
            ("addpart /dev/vda 9 $(($(blockdev --getsz /dev/vda) - 131072)) 131072\n", ",vma_disk=/dev/vda9")
        }
        (Arm::Vma, Control::Device) => ("", ",vma_disk=/dev/vdb"),
        _ => ("", ""),
    };
    format!(
        "{MARK}{}{control}mount -t {kind} -o {options}{vma_disk} /dev/vda1 /mnt/disk\ntell ready\nmeet\n{}\ncat /run/marks\nmeet\numount /mnt/disk\n",
        work.0, work.1
    )
}

fn sqlite(key: &Key, scale: Scale, tools: &Tools) -> (String, String) {
    let load = match key.arm {
        Arm::Adaptive => ".load /run/journaling.so\n",
        _ => "",
    };
    let (journal, sync) = match key.log {
        Log::Wal => ("wal", "full"),
        Log::Off => ("off", "off"),
        Log::Rollback | Log::File => ("delete", "full"),
    };
    let set_up = format!(
        "RECORDS={} OPERATIONS={}\n{STATEMENTS}cp {} /run/journaling.so\ncp {} /run/flush.so\n\
         cat > /run/begin << 'END'\n{load}.open /mnt/disk/db\nPRAGMA page_size=1024;\nPRAGMA journal_mode={journal};\n\
         PRAGMA synchronous={sync};\nCREATE TABLE t(k INTEGER PRIMARY KEY, v CHAR(100));\nEND\n",
        scale.records(key.log, key.operations),
        key.operations,
        quote(&tools.extension.to_string_lossy()),
        quote(&tools.flush.to_string_lossy())
    );
    let preload = if key.arm == Arm::NoJournal { "LD_PRELOAD=/run/flush.so " } else { "" };
    let left = "echo 'SELECT count(*) FROM t; PRAGMA integrity_check;' > /run/end\n";
    let run = format!(
        "cat /run/begin /run/statements /run/end > /run/all\n\
               said=$({preload}sqlite3 -batch -bail -init /dev/null < /run/all 2>&1 | tail -n 2 | tr '\\n' ' ')\n\
               [ \"$said\" = '0 ok ' ] || {{ echo \"sqlite3 says: $said\"; exit 1; }}"
    );
    (format!("{set_up}{left}"), run)
}

/// `dd` asks for each sync itself (O_SYNC).
fn files(key: &Key, scale: Scale) -> (String, String) {
    let writes = scale.records(key.log, key.operations);
    let dd = |more: &str| {
        format!(
            "dd if=/dev/zero of=/mnt/disk/file bs=4k count={writes} oflag=sync conv=notrunc{more} status=none"
        )
    };
    let mark = |phase: &str| format!("phase={phase}; . /run/mark\n");
    let run =
        format!("{}{}\n{}{}\n{}", mark("start"), dd(""), mark("append"), dd(",nocreat"), mark("overwrite"));
    (String::new(), run)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan;

    #[test]
    fn every_script_is_shell() {
        for (key, on_machine) in [false, true].into_iter().flat_map(|on| {
            plan::keys(Scale::QUICK, on, 1, &[]).unwrap().into_iter().map(move |key| (key, on))
        }) {
            let tools = Tools { extension: "/a b/it's.so".into(), flush: "/a b/flush.so".into() };
            let control = if on_machine { Control::Device } else { Control::Behind };
            let script = script(&key, Scale::QUICK, &tools, control);
            let status = std::process::Command::new("/bin/sh").args(["-n", "-c", &script]).status().unwrap();
            assert!(status.success(), "{script}");
        }
    }

    // Each record is inserted, updated and deleted once, in transactions of the size; another seed has another order.
    #[test]
    fn statements_are_a_function_of_the_seed() {
        let folder = std::env::temp_dir().join(format!("joj-statements-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let out = folder.join("out");
        let made = |seed: u64, size: u32| {
            let script = format!("RECORDS=40 OPERATIONS={size} SEED={seed}\n{STATEMENTS}")
                .replace("/run/statements", &quote(&out.to_string_lossy()));
            assert!(std::process::Command::new("/bin/sh").args(["-c", &script]).status().unwrap().success());
            let made = std::fs::read_to_string(&out).unwrap();
            made.split_once("phase=start").unwrap().1.to_owned()
        };
        let one = made(1, 1);
        assert_eq!(one, made(1, 1));
        assert_ne!(one, made(2, 1));
        let count = |text: &str, word: &str| text.lines().filter(|line| line.starts_with(word)).count();
        for (word, times) in [("INSERT", 40), ("UPDATE", 40), ("DELETE", 40), (".system", 3), ("BEGIN", 0)] {
            assert_eq!(count(&one, word), times, "{word}");
        }
        let mut deleted: Vec<&str> = one.lines().filter(|line| line.starts_with("DELETE")).collect();
        assert!(!deleted.is_sorted());
        deleted.sort_unstable();
        deleted.dedup();
        assert_eq!(deleted.len(), 40);
        let large = made(1, 10);
        assert_eq!((count(&large, "BEGIN"), count(&large, "COMMIT")), (12, 12));
        std::fs::remove_dir_all(folder).unwrap();
    }
}
