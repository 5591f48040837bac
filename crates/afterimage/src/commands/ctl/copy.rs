//! `ctl copy`: every image of the group, at one point of the guest's history.

use std::fs::{File, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::{ioctl_ficlone, seek, SeekFrom};
use serde::Serialize;

use super::pause;
use crate::control::client::Client;
use crate::control::protocol::{Answer, Request};
use crate::failure::Failure;

/// Bytes copied per system call at most.
const CHUNK_BYTES: usize = 64 << 20;

#[derive(Serialize)]
struct Copied {
    ok: bool,
    sequence: u64,
    copies: Vec<Copy>,
}

#[derive(Serialize)]
struct Copy {
    from: PathBuf,
    to: PathBuf,
    bytes: u64,
}

impl std::fmt::Display for Copied {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        for copy in &self.copies {
            writeln!(f, "copied {} to {}", copy.from.display(), copy.to.display())?;
        }
        write!(f, "all at sequence number {}", self.sequence)
    }
}

/// Pauses, copies, lets writes go on. Copies of a pause that ended early are removed again.
pub fn run(client: &mut Client, folder: &Path, hold: Duration, json: bool) -> Result<(), Failure> {
    let Answer::Status(status) = client.ask(&Request::Status {})?.1 else { return Err(super::unexpected()) };
    let plan = status.disks.iter().map(|disk| plan(&disk.file, folder)).collect::<Result<Vec<_>, _>>()?;
    for (index, copy) in plan.iter().enumerate() {
        let taken =
            copy.to.symlink_metadata().is_ok() || plan[..index].iter().any(|other| other.to == copy.to);
        if taken {
            return Err(Failure::failed(format!(
                "{} exists already: choose another folder",
                copy.to.display()
            )));
        }
    }
    let held = pause::begin(client, hold)?;
    let mut made = Vec::new();
    let copied = plan.iter().try_for_each(|copy| copy_image(copy, &mut made));
    let result = pause::end(client, hold).and(copied);
    if let Err(failure) = result {
        for path in made {
            if let Err(error) = std::fs::remove_file(&path) {
                tracing::warn!(path = %path.display(), %error, "cannot remove the incomplete copy");
            }
        }
        return Err(failure);
    }
    // Only now, when the guest goes on: the copies are complete and nothing hurries any more.
    for copy in &plan {
        File::open(&copy.to)
            .and_then(|file| file.sync_all())
            .map_err(|e| Failure::failed(format!("cannot sync {}: {e}", copy.to.display())))?;
    }
    super::super::print_report(&Copied { ok: true, sequence: held.sequence, copies: plan }, json)
}

/// Where an image goes. Its name in the status is the daemon's: a relative one is useless from another folder.
fn plan(file: &str, folder: &Path) -> Result<Copy, Failure> {
    let from = PathBuf::from(file);
    let found = std::fs::metadata(&from).map_err(|e| {
        Failure::failed(format!(
            "cannot copy {file}: {e}; run this in the daemon's folder, as a user who may read the image"
        ))
    })?;
    if !found.is_file() {
        return Err(Failure::failed(format!(
            "{file} is not a regular file: copy it with `ctl pause -- dd ...`"
        )));
    }
    let name = from.file_name().ok_or_else(|| Failure::failed(format!("{file} has no file name")))?;
    Ok(Copy { to: folder.join(name), bytes: found.len(), from })
}

fn copy_image(copy: &Copy, made: &mut Vec<PathBuf>) -> Result<(), Failure> {
    let fail = |e: io::Error| {
        Failure::failed(format!("cannot copy {} to {}: {e}", copy.from.display(), copy.to.display()))
    };
    let from = File::open(&copy.from).map_err(fail)?;
    let to = OpenOptions::new().write(true).create_new(true).open(&copy.to).map_err(fail)?;
    made.push(copy.to.clone());
    if ioctl_ficlone(&to, &from).is_ok() {
        return Ok(());
    }
    to.set_len(copy.bytes).map_err(fail)?;
    copy_data(&from, &to, copy.bytes).map_err(fail)
}

/// Copies what is not a hole.
fn copy_data(from: &File, to: &File, length: u64) -> io::Result<()> {
    let mut at = 0;
    while at < length {
        let data = match seek(from, SeekFrom::Data(at)) {
            Ok(data) => data,
            // No data behind here.
            Err(rustix::io::Errno::NXIO) => return Ok(()),
            Err(e) => return Err(e.into()),
        };
        let end = seek(from, SeekFrom::Hole(data))?.min(length);
        let (mut source, mut target) = (data, data);
        while source < end {
            let chunk = CHUNK_BYTES.min(usize::try_from(end - source).unwrap_or(CHUNK_BYTES));
            let n = copy_chunk(from, &mut source, to, &mut target, chunk)?;
            if n == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
        }
        at = end;
    }
    Ok(())
}

/// Copies in the kernel where the two file systems allow it, through memory elsewhere.
fn copy_chunk(from: &File, source: &mut u64, to: &File, target: &mut u64, chunk: usize) -> io::Result<usize> {
    use std::os::unix::fs::FileExt;
    match rustix::fs::copy_file_range(from, Some(source), to, Some(target), chunk) {
        Ok(n) => Ok(n),
        Err(rustix::io::Errno::XDEV | rustix::io::Errno::OPNOTSUPP | rustix::io::Errno::INVAL) => {
            let mut buffer = vec![0; chunk.min(1 << 20)];
            let n = from.read_at(&mut buffer, *source)?;
            to.write_all_at(&buffer[..n], *target)?;
            *source += n as u64;
            *target += n as u64;
            Ok(n)
        }
        Err(e) => Err(e.into()),
    }
}
