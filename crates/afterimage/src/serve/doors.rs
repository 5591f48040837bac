//! Everything that is listened on, opened before any image is touched.

use std::collections::HashMap;
use std::net::TcpListener;
use std::os::unix::net::UnixListener;
use std::path::Path;

use afterimage_frontend::{Endpoint, KeepHandle};

use super::disk_spec::SocketSpec;
use super::settings::Settings;
use super::sockets::{self, SocketFile};
use crate::failure::Failure;

/// Where guests, operators and scrapers come in.
pub(super) struct Doors {
    /// A disk each.
    pub disks: Vec<Endpoint>,
    pub control_disk: Option<UnixListener>,
    /// The disks' socket files: removed at the end, unless they are left to the next daemon.
    pub files: Vec<SocketFile>,
    pub control: Option<(UnixListener, SocketFile)>,
    pub metrics: Option<TcpListener>,
}

/// The keeper's name for the control disk.
pub(super) const CONTROL_DISK_NAME: &str = "control-disk";

/// The keeper's name for a disk: its place in the group stays the same across restarts.
pub(super) fn disk_name(index: usize) -> String {
    format!("disk{index}")
}

impl Doors {
    /// # Errors
    /// A name is taken, a descriptor that was passed in is none, or the system has no more of them.
    pub fn open(settings: &Settings, keep: Option<&KeepHandle>) -> Result<Self, Failure> {
        // Everything inherited first: a number that is opened by us could be mistaken for one that was passed in.
        let mut inherited: HashMap<usize, Endpoint> = HashMap::new();
        for (index, disk) in settings.disks.iter().enumerate() {
            if let SocketSpec::Fd(fd) = disk.socket {
                inherited.insert(index, sockets::inherited(fd)?);
            }
        }
        let mut disks = Vec::new();
        let mut files = Vec::new();
        for (index, disk) in settings.disks.iter().enumerate() {
            let SocketSpec::Path(path) = &disk.socket else {
                disks.push(inherited.remove(&index).expect("taken over above"));
                continue;
            };
            let what = format!("disk {}", disk.file.display());
            disks.push(Endpoint::Listen(listen(&disk_name(index), path, &what, keep, &mut files)?));
        }
        let control_disk = settings.control_disk.as_deref();
        let control_disk = control_disk
            .map(|path| listen(CONTROL_DISK_NAME, path, "the control disk", keep, &mut files))
            .transpose()?;
        let control = settings
            .control
            .as_deref()
            .map(|path| sockets::listen(path, "the control socket", true))
            .transpose()?;
        let metrics = settings
            .metrics
            .map(|address| {
                TcpListener::bind(address).map_err(|e| {
                    Failure::failed(format!(
                        "cannot serve metrics on {address}: {e}; choose another address or port"
                    ))
                })
            })
            .transpose()?;
        Ok(Self { disks, control_disk, files, control, metrics })
    }
}

/// A listening socket that the keeper has, or a new one, which it gets.
fn listen(
    name: &str,
    path: &Path,
    what: &str,
    keep: Option<&KeepHandle>,
    files: &mut Vec<SocketFile>,
) -> Result<UnixListener, Failure> {
    let kept = keep.map(|k| k.listener(name)).transpose().map_err(Failure::failed)?.flatten();
    if let Some(listener) = kept {
        files.extend(SocketFile::adopt(path));
        return Ok(listener);
    }
    let (listener, file) = sockets::listen(path, what, false)?;
    files.push(file);
    if let Some(keep) = keep {
        keep.keep_listener(name, &listener).map_err(Failure::failed)?;
    }
    Ok(listener)
}
