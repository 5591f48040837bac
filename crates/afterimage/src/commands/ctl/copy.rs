//! `ctl copy`: every image of the group, at one point of the guest's history.

use std::ffi::{OsStr, OsString};
use std::fs::{File, Metadata, Permissions};
use std::io;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use afterimage_order::Ranges;
use rustix::fs::{ioctl_ficlone, AtFlags, Mode, OFlags, RenameFlags};
use rustix::io::Errno;
use serde::Serialize;

use super::rounds::{Pair, Rounds};
use crate::control::client::Client;
use crate::control::protocol::{Answer, ImageAnswer, Request};
use crate::failure::Failure;

#[derive(Serialize)]
struct Copied {
    ok: bool,
    sequence: u64,
    /// The longest time for which writes were held.
    held_ms: u64,
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
        write!(f, "all at sequence number {}; writes were held for {} ms", self.sequence, self.held_ms)
    }
}

/// One image, and where it goes.
struct Plan {
    image: ImageAnswer,
    from: File,
    name: OsString,
}

impl Plan {
    fn found(&self) -> Result<Metadata, Failure> {
        self.from.metadata().map_err(|e| Failure::failed(format!("cannot look at {}: {e}", self.image.file)))
    }

    /// What it has lost would be zeros in a copy, which nobody could tell from the guest's.
    fn check_whole(&self) -> Result<(), Failure> {
        let found = self.found()?;
        let (file, bytes, left) = (&self.image.file, self.image.bytes, found.len());
        if left < bytes {
            return Err(Failure::failed(format!(
                "{file} was shortened while it is served, from {bytes} to {left} bytes: copy what is left with `ctl \
                 pause -- cp ...`"
            )));
        }
        Ok(())
    }
}

/// Copies while the guest writes. Copies that are not complete, consistent and on storage are removed again.
///
/// The daemon hands the images over as descriptors: its paths may mean something else where this runs.
pub fn run(
    client: &mut Client,
    folder: &Path,
    rate: Option<u64>,
    progress: bool,
    json: bool,
) -> Result<(), Failure> {
    super::super::can_say(folder, json)?;
    let Answer::Status(status) = client.ask(&Request::Status {})?.1 else { return Err(super::unexpected()) };
    let plans =
        (0..status.disks.len() as u64).map(|disk| plan(client, disk)).collect::<Result<Vec<_>, _>>()?;
    let mut target = Target::open(folder)?;
    for (index, plan) in plans.iter().enumerate() {
        let mut path = target.path(&plan.name);
        let why = if plans[..index].iter().any(|other| other.name == plan.name) {
            "is the name of two images: copy them with `ctl pause -- cp ...`"
        } else if plans.iter().any(|other| other.name == unfinished(&plan.name)) {
            path = target.path(&unfinished(&plan.name));
            "is the name of one image's copy and of another's unfinished copy: copy them with `ctl pause -- cp ...`"
        } else if target.has(&plan.name) {
            "exists already: choose another folder"
        } else if target.has(&unfinished(&plan.name)) {
            path = target.path(&unfinished(&plan.name));
            "is left by an interrupted copy: remove it, or choose another folder"
        } else {
            continue;
        };
        return Err(Failure::failed(format!("{} {why}", path.display())));
    }
    let Answer::Done(_) = client.ask(&Request::Track {})?.1 else { return Err(super::unexpected()) };
    let pairs = plans.iter().map(|plan| target.begin(plan)).collect::<Result<Vec<_>, _>>()?;
    let point = Rounds::new(client, pairs, rate, progress).run()?;
    // What was shortened meanwhile was copied as a hole.
    plans.iter().try_for_each(Plan::check_whole)?;
    target.finish(&plans)?;
    let copies = plans
        .into_iter()
        .map(|plan| Copy {
            to: target.path(&plan.name),
            from: plan.image.file.into(),
            bytes: plan.image.bytes,
        })
        .collect();
    target.keep();
    super::super::print_report(
        &Copied { ok: true, sequence: point.sequence, held_ms: super::millis(point.longest_hold), copies },
        json,
    )
}

fn plan(client: &mut Client, disk: u64) -> Result<Plan, Failure> {
    let (image, from) = client.ask_image(disk)?;
    let found =
        from.metadata().map_err(|e| Failure::failed(format!("cannot look at {}: {e}", image.file)))?;
    if !found.is_file() {
        return Err(Failure::failed(format!(
            "{} is not a regular file: copy it with `ctl pause -- dd ...`",
            image.file
        )));
    }
    let name = Path::new(&image.file).file_name().map(OsString::from);
    let name = name.ok_or_else(|| Failure::failed(format!("{} has no file name", image.file)))?;
    Ok(Plan { image, from, name })
}

/// What a copy is called until it is complete, consistent and on storage: whoever is interrupted leaves nothing that looks like one.
fn unfinished(name: &OsStr) -> OsString {
    let mut unfinished = name.to_owned();
    unfinished.push(".part");
    unfinished
}

/// The folder that takes the copies. Dropped, it removes those that were not kept.
struct Target {
    path: PathBuf,
    folder: File,
    /// By what they are called now.
    made: Vec<(OsString, File)>,
}

impl Target {
    fn open(path: &Path) -> Result<Self, Failure> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let folder = rustix::fs::open(path, flags, Mode::empty())
            .map_err(|e| Failure::failed(format!("cannot copy to the folder {}: {e}", path.display())))?;
        Ok(Self { path: path.to_owned(), folder: folder.into(), made: Vec::new() })
    }

    fn path(&self, name: &OsStr) -> PathBuf {
        self.path.join(name)
    }

    fn has(&self, name: &OsStr) -> bool {
        rustix::fs::statat(&self.folder, name, AtFlags::SYMLINK_NOFOLLOW).is_ok()
    }

    /// Makes the file of a copy. Where blocks can be shared it holds the image as it is now; the guest may write meanwhile.
    fn begin(&mut self, plan: &Plan) -> Result<Pair, Failure> {
        let to = self.path(&plan.name);
        let fail = |e: io::Error| {
            Failure::failed(format!("cannot copy {} to {}: {e}", plan.image.file, to.display()))
        };
        plan.check_whole()?;
        let found = plan.found()?;
        // Never wider than the image, from the first moment, and never over something else.
        let mode = Mode::from_raw_mode(found.mode() & 0o600);
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let name = unfinished(&plan.name);
        let made = rustix::fs::openat(&self.folder, &name, flags, mode).map_err(|e| fail(e.into()))?;
        let file = File::from(made);
        self.made.push((name, file.try_clone().map_err(fail)?));
        let own = file.metadata().map_err(fail)?;
        file.set_permissions(Permissions::from_mode(copy_mode(&found, own.gid()))).map_err(fail)?;
        let mut differs = Ranges::default();
        if ioctl_ficlone(&file, &plan.from).is_err() {
            differs.insert(0..plan.image.bytes);
        }
        file.set_len(plan.image.bytes).map_err(fail)?;
        let (name, bytes) = (format!("{} to {}", plan.image.file, to.display()), plan.image.bytes);
        Ok(Pair { name, from: plan.from.try_clone().map_err(fail)?, to: file, bytes, differs })
    }

    /// Brings the copies to storage, and gives them their names.
    fn finish(&mut self, plans: &[Plan]) -> Result<(), Failure> {
        for ((name, file), plan) in self.made.iter_mut().zip(plans) {
            let path = self.path.join(&plan.name);
            file.sync_all().map_err(|e| Failure::failed(format!("cannot sync {}: {e}", path.display())))?;
            let (folder, from, to) = (&self.folder, &*name, &plan.name);
            let renamed = match rustix::fs::renameat_with(folder, from, folder, to, RenameFlags::NOREPLACE) {
                // File systems that cannot promise it: it was not there when the copy began.
                Err(Errno::INVAL | Errno::NOSYS) => rustix::fs::renameat(folder, from, folder, to),
                renamed => renamed,
            };
            renamed.map_err(|e| Failure::failed(format!("cannot name the copy {}: {e}", path.display())))?;
            name.clone_from(&plan.name);
            if !is_at(folder, name, file) {
                return Err(Failure::failed(format!(
                    "another file has replaced the copy {}: choose a folder that others cannot write to",
                    path.display()
                )));
            }
        }
        self.folder
            .sync_all()
            .map_err(|e| Failure::failed(format!("cannot sync the folder {}: {e}", self.path.display())))
    }

    fn keep(mut self) {
        self.made.clear();
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        for (name, _) in self.made.iter().filter(|(name, file)| is_at(&self.folder, name, file)) {
            if let Err(error) = rustix::fs::unlinkat(&self.folder, name, AtFlags::empty()) {
                tracing::warn!(path = %self.path(name).display(), %error, "cannot remove the incomplete copy");
            }
        }
    }
}

/// Whether a name in the folder is this very file's, and no link.
fn is_at(folder: &File, name: &OsStr, file: &File) -> bool {
    let own = rustix::fs::fstat(file).map(|own| (own.st_dev, own.st_ino));
    let there = rustix::fs::statat(folder, name, AtFlags::SYMLINK_NOFOLLOW);
    there.is_ok_and(|there| own == Ok((there.st_dev, there.st_ino)))
}

/// The image's mode. What it lets its group do is for that group: in a copy that belongs to another one, the group gets
/// what everybody gets.
fn copy_mode(image: &Metadata, group: u32) -> u32 {
    let mode = image.mode() & 0o777;
    if image.gid() == group {
        return mode;
    }
    mode & 0o707 | mode & 0o070 & ((mode & 0o007) << 3)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_stranger_has_put_in_a_copys_place_is_no_copy_and_stays() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        std::fs::write(at("image"), [7; 512]).unwrap();
        let image = ImageAnswer { ok: true, file: at("image").display().to_string(), bytes: 512 };
        let plans = [Plan { image, from: File::open(at("image")).unwrap(), name: "copy".into() }];
        let mut target = Target::open(folder.path()).unwrap();
        let made = File::options().write(true).create_new(true).open(at("copy.part")).unwrap();
        target.made.push(("copy.part".into(), made));
        std::fs::rename(at("copy.part"), at("away")).unwrap();
        std::fs::write(at("copy.part"), "a stranger's").unwrap();
        assert!(target.finish(&plans).is_err());
        drop(target);
        assert_eq!(std::fs::read(at("copy")).unwrap(), b"a stranger's", "not ours to remove");
    }
}
