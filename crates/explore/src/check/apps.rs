//! Applications whose promises are tested: what they do in the guest, and the check that fits.
//!
//! ```text
//!   setup ─► (sync) ─► mark begin ─► command: work, mark, work, mark … ─► mark end
//!                                       │ crash
//!                                       ▼
//!                         check: which state is there, is it one at all
//! ```
//!
//! A mark `{"mark":"t7"}` is sent when the application itself would tell its user that transaction 7 is safe; so from there
//! on a crash must leave `t7` or later. Every check answers with the name of a state or fails: nothing between two states
//! passes for one.

use std::fmt::Write as _;

use super::pool::PoolCheck;

/// An application: two pieces of shell for the guest, with its file system mounted at `/mnt`, and the check.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct App {
    /// What it is called.
    pub name: String,
    /// Runs before the recording's `begin`, and is synced.
    pub setup: String,
    /// What is recorded. Ends with status 0.
    pub command: String,
    /// What recovered states are checked with.
    pub check: PoolCheck,
}

/// How SQLite keeps a transaction whole (its `PRAGMA journal_mode`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum JournalMode {
    /// A rollback journal, deleted at commit.
    Delete,
    /// A write-ahead log.
    Wal,
}

impl JournalMode {
    /// The pragma's word.
    pub fn name(self) -> &'static str {
        match self {
            JournalMode::Delete => "delete",
            JournalMode::Wal => "wal",
        }
    }
}

/// How much SQLite syncs (its `PRAGMA synchronous`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Synchronous {
    /// Not at all: a power loss may corrupt the database.
    Off,
    /// At every commit. With a rollback journal the commit may still be undone, since the journal's name is removed without
    /// a sync of the folder.
    Full,
    /// And the folder.
    Extra,
}

impl Synchronous {
    /// The pragma's word.
    pub fn name(self) -> &'static str {
        match self {
            Synchronous::Off => "OFF",
            Synchronous::Full => "FULL",
            Synchronous::Extra => "EXTRA",
        }
    }
}

const ACCOUNTS: u64 = 100;
const OPENING_BALANCE: u64 = 1000;
/// Rows that every transaction rewrites, each about a page of the database: a mixture of two transactions shows in them.
const PAGES: u64 = 6;
const PAGE_TEXT_BYTES: u64 = 3000;

/// What transaction `n` moves, as SQL of `n`.
const PAYER: &str = "({n}*7)%100+1";
const PAYEE: &str = "({n}*13+5)%100+1";
const AMOUNT: &str = "{n}%50+1";

fn of(formula: &str, n: &str) -> String {
    formula.replace("{n}", n)
}

/// A bank in SQLite: transaction `n` moves an amount, notes it as move `n`, and rewrites a few pages to say `n`.
///
/// The states are `t0` (before the first) to `t<transactions>`. The check opens the database for writing, so that SQLite
/// does its own recovery first.
pub fn sqlite_workload(mode: JournalMode, synchronous: Synchronous, transactions: u32) -> App {
    let database = "/mnt/bank/bank.db";
    let schema = format!(
        "PRAGMA journal_mode={};\nPRAGMA synchronous=EXTRA;\n\
         CREATE TABLE accounts(id INTEGER PRIMARY KEY, balance INTEGER NOT NULL);\n\
         CREATE TABLE moves(id INTEGER PRIMARY KEY, payer INTEGER, payee INTEGER, amount INTEGER);\n\
         CREATE TABLE pages(id INTEGER PRIMARY KEY, n INTEGER, body TEXT);\n\
         BEGIN;\n\
         INSERT INTO accounts SELECT value, {OPENING_BALANCE} FROM generate_series(1,{ACCOUNTS});\n\
         INSERT INTO pages SELECT value, 0, printf('%.*c',{PAGE_TEXT_BYTES},'0') FROM generate_series(1,{PAGES});\n\
         COMMIT;\n",
        mode.name()
    );
    let mut work = format!("PRAGMA synchronous={};\n", synchronous.name());
    for n in 1..=transactions {
        let n = n.to_string();
        let (payer, payee, amount) = (of(PAYER, &n), of(PAYEE, &n), of(AMOUNT, &n));
        // Writing to a string does not fail.
        let _ = writeln!(
            work,
            "BEGIN IMMEDIATE; UPDATE accounts SET balance=balance-({amount}) WHERE id={payer}; \
             UPDATE accounts SET balance=balance+({amount}) WHERE id={payee}; \
             INSERT INTO moves VALUES({n},{payer},{payee},{amount}); \
             UPDATE pages SET n={n}, body=printf('%.*c',{PAGE_TEXT_BYTES},char(48+{n}%75)); COMMIT; \
             SELECT '{{\"mark\":\"t{n}\"}}';"
        );
    }
    App {
        name: format!("sqlite-{}-{}", mode.name(), synchronous.name().to_lowercase()),
        setup: format!(
            "mkdir -p /mnt/bank\nsqlite3 -batch -bail {database} <<'END' > /dev/null\n{schema}END\n"
        ),
        // A line a write: other reports go the same way.
        command: format!(
            "stdbuf -oL sqlite3 -batch -bail {database} <<'END' > \"$AFTERIMAGE_REPORT\"\n{work}END\n"
        ),
        check: PoolCheck::Sqlite(sqlite_script(database)),
    }
}

/// A script for `sqlite3` that prints `t<n>`, and nothing else, where exactly the transactions 1 to n of
/// [`sqlite_workload`] are there, whole; else what is wrong.
pub fn sqlite_script(database: &str) -> String {
    let (payer, payee, amount) = (of(PAYER, "id"), of(PAYEE, "id"), of(AMOUNT, "id"));
    // Each line of the answer is one thing that is wrong; none: sound.
    let wrong = format!(
        "SELECT 'integrity_check: '||integrity_check FROM pragma_integrity_check WHERE integrity_check<>'ok';\n\
         SELECT 'moves: '||count(*)||' rows, the newest is '||max(id) FROM moves HAVING count(*)<>ifnull(max(id),0);\n\
         SELECT 'move '||id||' is not what it was' FROM moves WHERE payer<>{payer} OR payee<>{payee} OR amount<>{amount};\n\
         SELECT 'account '||id||' holds '||balance FROM accounts a WHERE balance<>{OPENING_BALANCE}\
         -(SELECT ifnull(sum(amount),0) FROM moves WHERE payer=a.id)\
         +(SELECT ifnull(sum(amount),0) FROM moves WHERE payee=a.id);\n\
         SELECT 'accounts: '||count(*)||' of {ACCOUNTS}' FROM accounts HAVING count(*)<>{ACCOUNTS};\n\
         SELECT 'page '||id||' is of transaction '||n||', the newest move is '||(SELECT ifnull(max(id),0) FROM moves) \
         FROM pages WHERE n<>(SELECT ifnull(max(id),0) FROM moves) \
         OR body<>printf('%.*c',{PAGE_TEXT_BYTES},char(48+n%75));\n\
         SELECT 'pages: '||count(*)||' of {PAGES}' FROM pages HAVING count(*)<>{PAGES};\n"
    );
    // The lock for writing makes SQLite recover whatever it would recover for its next user.
    format!(".open {database}\nBEGIN IMMEDIATE;\nCOMMIT;\n{wrong}SELECT 't'||ifnull(max(id),0) FROM moves;")
}

/// How the editor of [`editor_workload`] makes a save safe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Saving {
    /// fsync of the new content before it gets the document's name. Without: the fault that a test has to find. ext4
    /// writes the content before such a rename by itself unless it is mounted with `noauto_da_alloc`.
    pub fsync: bool,
    /// fsync of the folder afterwards. Only then does each save send a mark: without it nobody promised that the new name
    /// is durable.
    pub fsync_folder: bool,
}

/// An editor that saves a document again and again: states `v0` to `v<saves>`.
pub fn editor_workload(saves: u32, saving: Saving) -> App {
    let file = "/mnt/editor/document";
    let mut options = format!("--saves {saves}");
    if !saving.fsync {
        options.push_str(" --no-fsync");
    }
    if saving.fsync_folder {
        options.push_str(" --fsync-dir");
    }
    App {
        name: format!("editor{}", if saving.fsync { "" } else { "-no-fsync" }),
        setup: format!(
            "mkdir -p /mnt/editor\n\"$AFTERIMAGE_AGENT\" editor {file} --from 0 --saves 1 --fsync-dir\n"
        ),
        command: format!("\"$AFTERIMAGE_AGENT\" editor {file} {options}\n"),
        check: PoolCheck::Editor(file.to_owned()),
    }
}

/// The agent's acknowledged records, appended: `records` of `size_bytes` by `threads` threads.
pub fn records_workload(records: u32, size_bytes: u32, threads: u32) -> App {
    App {
        name: "records".to_owned(),
        setup: "mkdir -p /mnt/records\n".to_owned(),
        command: format!(
            "\"$AFTERIMAGE_AGENT\" ack-write /mnt/records --records {records} --size {size_bytes} --threads {threads}\n"
        ),
        check: PoolCheck::Records("/mnt/records".to_owned()),
    }
}

/// Records that are updated in place, each by one write(2) and an fsync (VMA § 5.5, there 4 to 64 KiB): a ring of `slots`
/// in one file. A file system that journals no data may tear the one that is being updated; the check reports it as torn,
/// and which slot it is.
pub fn integrity_workload(updates: u32, record_bytes: u32, slots: u32) -> App {
    let write = |records: u32| {
        format!("\"$AFTERIMAGE_AGENT\" ack-write /mnt/records --records {records} --size {record_bytes} --slots {slots}\n")
    };
    App {
        name: format!("integrity-{}k", record_bytes / 1024),
        setup: "mkdir -p /mnt/records\n".to_owned(),
        command: write(updates),
        check: PoolCheck::Records("/mnt/records".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use afterimage_lab::process::quote;

    use super::*;

    /// The shell as the guest would run it, with `/mnt` and the report channel in a folder.
    fn shell(script: &str, folder: &std::path::Path) -> (bool, String) {
        let script = script.replace("/mnt/", &format!("{}/", folder.display()));
        let output = Command::new("/bin/sh")
            .args(["-e", "-c", &script])
            .env("AFTERIMAGE_REPORT", folder.join("report"))
            .output()
            .unwrap();
        let text =
            String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
        (output.status.success(), text)
    }

    /// As [`PoolCheck::Sqlite`] judges, as a piece of shell: fails where something is wrong.
    fn check() -> String {
        let database = "/mnt/bank/bank.db";
        format!(
            "[ -s {database} ] || {{ echo 'the database is gone or empty'; exit 1; }}\n\
             out=$(sqlite3 -batch -init /dev/null 2>&1 <<'END'\n{}\nEND\n) || :\n\
             echo \"$out\"\n\
             case \"$out\" in *\"\n\"*) exit 1;; t[0-9]*) ;; *) exit 1;; esac\n",
            sqlite_script(database)
        )
    }

    #[test]
    fn a_bank_is_named_by_its_newest_transaction() {
        for mode in [JournalMode::Delete, JournalMode::Wal] {
            let folder = tempfile::tempdir().unwrap();
            let app = sqlite_workload(mode, Synchronous::Extra, 30);
            assert_eq!(shell(&app.setup, folder.path()), (true, String::new()));
            assert_eq!(shell(&check(), folder.path()), (true, "t0\n".to_owned()));
            assert_eq!(shell(&app.command, folder.path()), (true, String::new()));
            assert_eq!(shell(&check(), folder.path()), (true, "t30\n".to_owned()));
            let marks = std::fs::read_to_string(folder.path().join("report")).unwrap();
            assert_eq!(marks.lines().count(), 30, "{marks}");
            assert_eq!(marks.lines().last(), Some("{\"mark\":\"t30\"}"));
        }
    }

    #[test]
    fn every_mixture_is_told() {
        let app = sqlite_workload(JournalMode::Delete, Synchronous::Off, 8);
        for (damage, words) in [
            ("UPDATE accounts SET balance=balance+1 WHERE id=5", "account 5"),
            ("DELETE FROM moves WHERE id=4", "moves: 7 rows"),
            ("UPDATE moves SET amount=amount+1 WHERE id=4", "move 4"),
            ("UPDATE pages SET n=7 WHERE id=2", "page 2"),
            ("UPDATE pages SET body='x' WHERE id=3", "page 3"),
            ("DELETE FROM pages WHERE id=3", "pages: 5 of 6"),
            ("DROP TABLE moves", "no such table"),
        ] {
            let folder = tempfile::tempdir().unwrap();
            shell(&format!("{}{}", app.setup, app.command), folder.path());
            let (done, said) = shell(&format!("sqlite3 /mnt/bank/bank.db {}", quote(damage)), folder.path());
            assert!(done, "{said}");
            let (sound, said) = shell(&check(), folder.path());
            assert!(!sound && said.contains(words), "{damage}: {said}");
        }
        let folder = tempfile::tempdir().unwrap();
        assert!(!shell(&check(), folder.path()).0, "no database is no state");
    }
}
