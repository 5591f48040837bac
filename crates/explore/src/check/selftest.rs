//! Whether the pool's guests can tell good from bad: run before a suite relies on them.
//!
//! Everything real: ext4 images made by `mke2fs`, damaged and journalled by `debugfs`, mounted by guests. Needs no root.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use afterimage_block::Medium as _;
use afterimage_lab::locate::system_program;
use afterimage_lab::process::Workdir;
use afterimage_lab::LabError;
use afterimage_trace::{Sparse, PAGE_BYTES};

use super::pool::{Pool, PoolCheck, PoolOptions};
use super::{Checker, Observation};
use crate::state::{Content, Image, Scratch};
use crate::{ExploreError, Result};

/// What the self-test did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SelfTest {
    /// States that guests looked at.
    pub states: u64,
    /// How long a state took a guest, in microseconds, on average.
    pub state_us: u64,
}

/// Runs it, with guests of User Mode Linux.
///
/// # Errors
/// [`LabError::Broken`]: a check passed what is bad, or failed what is good; the text says which. Others: a missing
/// program, a guest that does not boot.
pub fn selftest() -> Result<SelfTest> {
    let folder = Workdir::new("selftest")?;
    let mut done = SelfTest { states: 0, state_us: 0 };
    let mut busy_us = 0;
    for part in [mounting, contents, dying] {
        let start = Instant::now();
        let stats = part(folder.path())?;
        tracing::debug!(ms = start.elapsed().as_millis() as u64, ?stats, "a part of the self-test");
        done.states += stats.looked;
        busy_us += stats.busy_us;
    }
    done.state_us = busy_us / done.states.max(1);
    Ok(done)
}

fn broken(what: String) -> ExploreError {
    LabError::Broken(what).into()
}

fn expect(what: &str, found: &Observation, good: bool) -> Result<()> {
    match (found, good) {
        (Observation::Inconsistent { .. }, false) => Ok(()),
        (Observation::Inconsistent { what: why, evidence }, true) => {
            Err(broken(format!("the pool calls {what} inconsistent: {why}\n{evidence}")))
        }
        (_, true) => Ok(()),
        (found, false) => Err(broken(format!("the pool lets {what} pass as {found:?}"))),
    }
}

/// Runs a program of e2fsprogs and returns what it printed.
fn run(name: &str, arguments: &[&str]) -> Result<String> {
    let program = system_program(name, "e2fsprogs")?;
    let output = Command::new(program)
        .args(arguments)
        .env("LC_ALL", "C")
        .output()
        .map_err(ExploreError::io(format!("run {name}")))?;
    let words = super::fsck::words(&output);
    match output.status.success() {
        true => Ok(words),
        false => Err(ExploreError::Checker(format!("{name} {} failed: {words}", arguments.join(" ")))),
    }
}

fn put(path: &Path, content: &[u8]) -> Result<()> {
    fs::write(path, content).map_err(ExploreError::io(format!("write {}", path.display())))
}

/// An ext4 of 32 MiB with the files of `content`.
fn make(folder: &Path, content: &Path) -> Result<PathBuf> {
    let image = folder.join("image");
    let file = fs::File::create(&image).map_err(ExploreError::io(format!("create {}", image.display())))?;
    file.set_len(32 << 20).map_err(ExploreError::io(format!("extend {}", image.display())))?;
    let (from, to) = (content.to_string_lossy(), image.to_string_lossy());
    run("mke2fs", &["-q", "-F", "-t", "ext4", "-b", "4096", "-d", &from, &to])?;
    Ok(image)
}

fn load(image: &Path) -> Result<Arc<Sparse>> {
    let bytes = fs::read(image).map_err(ExploreError::io(format!("read {}", image.display())))?;
    let mut sparse = Sparse::new(bytes.len() as u64);
    for (index, page) in bytes.chunks(PAGE_BYTES).enumerate() {
        if page.iter().any(|byte| *byte != 0) {
            sparse.write_at(page, (index * PAGE_BYTES) as u64);
        }
    }
    Ok(Arc::new(sparse))
}

fn state(base: &Arc<Sparse>) -> Arc<Scratch> {
    Arc::new(Scratch::new(Image::digested(0, Arc::clone(base))))
}

/// Runs debugfs commands on an image, one a line.
fn debugfs(image: &Path, commands: &str) -> Result<String> {
    let script = image.with_extension("commands");
    put(&script, commands.as_bytes())?;
    run("debugfs", &["-w", "-f", &script.to_string_lossy(), &image.to_string_lossy()])
}

/// The number that follows `key` in debugfs' words.
fn number_after(words: &str, key: &str) -> Result<u64> {
    let digits: String = words
        .split_once(key)
        .map(|(_, rest)| rest.chars().skip_while(|c| !c.is_ascii_digit()).take_while(char::is_ascii_digit))
        .into_iter()
        .flatten()
        .collect();
    digits.parse().map_err(|_| ExploreError::Checker(format!("debugfs does not say '{key}': {words}")))
}

fn new_folder(path: PathBuf) -> Result<PathBuf> {
    fs::create_dir_all(&path).map_err(ExploreError::io(format!("make {}", path.display())))?;
    Ok(path)
}

/// Nothing of one state is seen in the next, journals are recovered, and broken file systems are told.
fn mounting(folder: &Path) -> Result<super::pool::PoolStats> {
    let content = new_folder(folder.join("content"))?;
    put(&content.join("word"), b"old\n")?;
    let image = make(folder, &content)?;
    let old = load(&image)?;
    let block = number_after(&debugfs(&image, "blocks word\n")?, "blocks word\n")?;
    let table = number_after(&debugfs(&image, "imap <2>\n")?, "located at block")?;
    // Committed in the journal, not yet in place: the mount has to replay it.
    let word = folder.join("new-word");
    let mut page = [0; PAGE_BYTES];
    page[..4].copy_from_slice(b"new\n");
    put(&word, &page)?;
    debugfs(&image, &format!("jo -c\njw -b {block} {}\njc\n", word.display()))?;
    let new = load(&image)?;

    let mut options =
        PoolOptions::new(PoolCheck::Command("cat /mnt/word; echo x > /mnt/scribble".to_owned()));
    options.guests = 1;
    // Back and forth: a page that stays in the guest's cache would show the other state's word. The second time the
    // memory of what was read answers, and may not confuse them either.
    let orders = [(&old, "old"), (&new, "new"), (&old, "old"), (&old, "old"), (&new, "new")];
    let mut looked = 0;
    let mut pools = Vec::new();
    for (memo, guests_looked) in [(false, orders.len() as u64), (true, 2)] {
        options.memo = memo;
        let pool = Pool::new(options.clone());
        let mut checker = pool.checker();
        for (base, word) in orders {
            let found = checker.check(&[state(base)])?;
            if found != (Observation::Named { state: word.to_owned() }) {
                return Err(broken(format!("a guest of the pool reads {found:?}, the state says {word}")));
            }
        }
        if pool.stats().looked != guests_looked {
            return Err(broken(format!("{guests_looked} looks were needed: {:?}", pool.stats())));
        }
        looked += guests_looked;
        pools.push(pool);
    }
    let pool = pools.swap_remove(1);
    drop(pools);
    let mut checker = pool.checker();
    let mut lost = Image::digested(0, Arc::clone(&old));
    (table * 8..table * 8 + 8).for_each(|sector| lost.set(sector, Content::ZERO));
    expect("a state without its root folder", &checker.check(&[Arc::new(Scratch::new(lost))])?, false)?;
    let mut lost = Image::digested(0, Arc::clone(&old));
    (0..16).for_each(|sector| lost.set(sector, Content::ZERO));
    expect("a state without a superblock", &checker.check(&[Arc::new(Scratch::new(lost))])?, false)?;
    // What was written by a recovery before counts like what was there.
    let written = state(&old);
    written.write_at(b"two\n", block * PAGE_BYTES as u64).map_err(ExploreError::io("write to a state"))?;
    let found = checker.check(&[written])?;
    if found != (Observation::Named { state: "two".to_owned() }) {
        return Err(broken(format!("a guest of the pool reads {found:?} where recovery wrote 'two'")));
    }
    let mut stats = pool.stats();
    stats.looked += looked - 2;
    Ok(stats)
}

/// The agent's own checks.
fn contents(folder: &Path) -> Result<super::pool::PoolStats> {
    let content = new_folder(folder.join("contents"))?;
    let agent = afterimage_lab::locate::own_program("afterimage-agent")?;
    let work = |arguments: &[&str]| -> Result<()> {
        let status = Command::new(&agent)
            .args(arguments)
            .env("AFTERIMAGE_REPORT", folder.join("report"))
            .status()
            .map_err(ExploreError::io("run the agent"))?;
        match status.success() {
            true => Ok(()),
            false => Err(ExploreError::Checker(format!("afterimage-agent {} failed", arguments.join(" ")))),
        }
    };
    let (document, records) = (content.join("document"), content.join("records"));
    work(&["editor", &document.to_string_lossy(), "--from", "7", "--saves", "1"])?;
    work(&["ack-write", &records.to_string_lossy(), "--records", "9", "--size", "4096"])?;
    let image = make(folder, &content)?;
    let base = load(&image)?;
    let blocks = number_after(&debugfs(&image, "blocks document\n")?, "blocks document\n")?;
    let record = number_after(&debugfs(&image, "blocks records/records-0-4096\n")?, "-4096\n")?;

    let pool = Pool::new(PoolOptions::new(PoolCheck::Editor("/mnt/document".to_owned())));
    let mut checker = pool.checker();
    let found = checker.check(&[state(&base)])?;
    if found != (Observation::Named { state: "v7".to_owned() }) {
        return Err(broken(format!("version 7 of the document is {found:?}")));
    }
    let mut torn = Image::digested(0, Arc::clone(&base));
    torn.set(blocks * 8 + 9, Content::ZERO);
    expect("a document with a lost sector", &checker.check(&[Arc::new(Scratch::new(torn))])?, false)?;
    let mut stats = pool.stats();

    let pool = Pool::new(PoolOptions::new(PoolCheck::Records("/mnt/records".to_owned())));
    let mut checker = pool.checker();
    let found = checker.check(&[state(&base)])?;
    if found != (Observation::Records { present: vec![(1, 9)], torn: Vec::new() }) {
        return Err(broken(format!("nine records are {found:?}")));
    }
    // Sectors of one record lost: torn; a whole one lost while later ones are there: out of order.
    let mut torn = Image::digested(0, Arc::clone(&base));
    torn.set((record + 8) * 8 + 3, Content::ZERO);
    let found = checker.check(&[Arc::new(Scratch::new(torn))])?;
    if found != (Observation::Records { present: vec![(1, 8)], torn: vec![(0, 8)] }) {
        return Err(broken(format!("eight records and a torn one are {found:?}")));
    }
    let mut lost = Image::digested(0, Arc::clone(&base));
    ((record + 3) * 8..(record + 4) * 8).for_each(|sector| lost.set(sector, Content::ZERO));
    expect("a gap in the records", &checker.check(&[Arc::new(Scratch::new(lost))])?, false)?;
    stats.looked += pool.stats().looked;
    stats.busy_us += pool.stats().busy_us;
    Ok(stats)
}

/// A guest that dies is replaced, and the state called inconsistent; one whose check takes too long is replaced, and the state is not judged; the next
/// one is sound.
fn dying(folder: &Path) -> Result<super::pool::PoolStats> {
    let content = new_folder(folder.join("dying"))?;
    put(&content.join("order"), b"live\n")?;
    let image = make(folder, &content)?;
    let base = load(&image)?;
    let block = number_after(&debugfs(&image, "blocks order\n")?, "blocks order\n")?;
    let command = "read order < /mnt/order; case $order in\n\
        die) \"$AFTERIMAGE_AGENT\" panic;;\n\
        hang) sleep 1000;;\nesac\necho $order";
    let mut options = PoolOptions::new(PoolCheck::Command(command.to_owned()));
    options.check_timeout = Duration::from_secs(3);
    options.memo = false;
    options.guests = 1;
    let pool = Pool::new(options);
    let mut checker = pool.checker();
    for order in ["live", "die", "live", "hang", "live"] {
        let ordered = state(&base);
        ordered
            .write_at(format!("{order}\n").as_bytes(), block * PAGE_BYTES as u64)
            .map_err(ExploreError::io("write to a state"))?;
        let start = Instant::now();
        let found = checker.check(&[ordered])?;
        tracing::debug!(order, ?found, ms = start.elapsed().as_millis() as u64, "a guest was ordered");
        let not_judged = matches!(found, Observation::NotJudged { .. });
        if not_judged != (order == "hang") {
            return Err(broken(format!("a state that tells its guest to {order}: {found:?}")));
        }
        if !not_judged {
            expect(&format!("a state that tells its guest to {order}"), &found, order == "live")?;
        }
    }
    if pool.stats().lost != 3 {
        return Err(broken(format!(
            "a state that kills guests and one that keeps one cost {}",
            pool.stats().lost
        )));
    }
    Ok(pool.stats())
}
