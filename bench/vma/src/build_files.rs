//! What building a kernel does to its files, recorded once on the host.
//!
//! ```text
//!   make, under strace ─► a file of calls for each process ─► one order, by the clock ─► operations, a JSON line each
//! ```
//! A build's compilers cost User Mode Linux a quarter of an hour a guest, and in virtual time, where processors are free, they say nothing: what
//! counts is what reaches the files. That is what the agent's `replay` does in the guests, seconds a guest. What the recording makes of
//! the folder is compared with what make has made of it, directories, names and sizes; else there is no recording.
//!
//! Left out: looking at files without reading them, and what is only read of the source, which is the host's.

mod recording;

use std::fs;
use std::io::Write as _;
use std::path::Path;
use std::process::Command;

use afterimage_bench_kit::process::run;
use afterimage_bench_kit::{BenchError, Context, Result};
use afterimage_lab::process::quote;
use recording::{Files, Recording};

/// Where guests build. make writes this name into its files.
pub const BUILD_FOLDER: &str = "/mnt/build";

/// What changes files or reads them. Whole names: strace takes a missing call of another processor for a mistake.
const CALLS: &str =
    "openat,creat,read,write,pwrite64,lseek,ftruncate,chdir,fchdir,mkdir,mkdirat,rmdir,rename,renameat,renameat2,\
    unlink,unlinkat,symlink,symlinkat,link,linkat,utimensat,chmod,fchmod,fchmodat,\
    open,writev,pwritev,truncate,fallocate,copy_file_range,sendfile,splice";

/// Runs `make`, a line of shell, and keeps what it did in `to`. `work` has the folder that is mounted at /mnt for it, configured, as
/// `folder`; what strace says goes there, too.
///
/// # Errors
/// It cannot be built, or strace saw something that no operation stands for.
pub fn record(work: &Path, make: &str, to: &Path) -> Result<()> {
    let [folder, calls] = ["folder", "calls"].map(|name| work.join(name));
    fs::create_dir(&calls).context(|| format!("make {}", calls.display()))?;
    let before = list(&folder)?;
    let script = format!(
        "set -e; mount --bind {} /mnt\n\
         exec strace -ff -y -qq --seccomp-bpf --absolute-timestamps=format:unix,precision:ns -e signal=none -e trace={CALLS} -o {} {make}",
        quote(&folder.to_string_lossy()),
        quote(&calls.join("of").to_string_lossy()),
    );
    run(Command::new("unshare").args(["-m", "sh", "-c", &script]))?;
    let mut recording = Recording::new(BUILD_FOLDER, before);
    for (process, call) in in_order(&calls)? {
        recording.call(&process, &call).map_err(|story| BenchError::Workload(format!("{story}: {call}")))?;
    }
    let (operations, made) = recording.end();
    let found = list(&folder)?;
    if let Some(name) = made.keys().chain(found.keys()).find(|name| made.get(*name) != found.get(*name)) {
        let [recorded, is] = [&made, &found].map(|files| files.get(name));
        return Err(BenchError::Workload(format!(
            "{name}: the recording is not what make has made of it: {recorded:?} and {is:?} bytes"
        )));
    }
    let fresh = to.with_extension("new");
    let mut text = Vec::new();
    for operation in &operations {
        serde_json::to_writer(&mut text, operation)
            .map_err(|error| BenchError::Workload(error.to_string()))?;
        text.push(b'\n');
    }
    let written = fs::File::create(&fresh).and_then(|mut file| file.write_all(&text));
    written.and_then(|()| fs::rename(&fresh, to)).context(|| format!("write {}", to.display()))
}

/// Those below the build's own folder.
fn list(folder: &Path) -> Result<Files> {
    fn add(root: &Path, folder: &Path, files: &mut Files) -> std::io::Result<()> {
        for entry in fs::read_dir(folder)? {
            let entry = entry?;
            let (kind, path) = (entry.file_type()?, entry.path());
            let name = path.strip_prefix(root).unwrap_or(&path).to_string_lossy().into_owned();
            if kind.is_dir() {
                files.insert(format!("{name}/"), 0);
                add(root, &path, files)?;
            } else {
                files.insert(name, entry.metadata()?.len());
            }
        }
        Ok(())
    }
    let (root, mut files) = (folder.join("build"), Files::new());
    add(&root, &root, &mut files).context(|| format!("look through {}", root.display()))?;
    Ok(files)
}

/// Processes and their calls, `name(arguments) = result`, by the time at which each began.
fn in_order(folder: &Path) -> Result<Vec<(String, String)>> {
    let story = || format!("read {}", folder.display());
    let mut calls = Vec::new();
    for entry in fs::read_dir(folder).context(story)? {
        let entry = entry.context(story)?;
        let process = entry.file_name().to_string_lossy().into_owned();
        let text = fs::read(entry.path()).context(story)?;
        for line in String::from_utf8_lossy(&text).lines() {
            let (at, call) = line.split_once(' ').unwrap_or((line, ""));
            // A process that was killed within a call leaves it without a result.
            if call.contains(" = ") {
                calls.push((at.to_owned(), process.clone(), call.to_owned()));
            }
        }
    }
    // Seconds have as many digits for the next two centuries. What one process does at the same nanosecond stays in its order.
    calls.sort_by(|(a, ..), (b, ..)| a.cmp(b));
    Ok(calls.into_iter().map(|(_, process, call)| (process, call)).collect())
}
