//! Everything that is listened on, opened before any image is touched.

use std::collections::HashMap;
use std::net::TcpListener;
use std::os::unix::net::{SocketAddr, UnixListener};
use std::path::Path;

use afterimage_frontend::{Endpoint, KeepHandle};

use super::disk_spec::SocketSpec;
use super::kept::{self, disk_name, CONTROL_DISK_NAME};
use super::settings::Settings;
use super::sockets::{self, SocketFile};
use crate::failure::Failure;

/// Where guests, operators and scrapers come in.
pub(super) struct Doors {
    /// A disk each.
    pub disks: Vec<Endpoint>,
    pub control_disk: Option<UnixListener>,
    pub control: Option<(UnixListener, SocketFile)>,
    pub metrics: Option<TcpListener>,
}

/// Disks' sockets that were passed in, by the disk's index.
pub(super) struct Inherited(HashMap<usize, Endpoint>);

impl Inherited {
    /// Takes them. Before anything else is opened: a number that this process opens could be mistaken for one that was passed in.
    ///
    /// # Errors
    /// A descriptor that was to be passed in is none.
    pub fn take(settings: &Settings) -> Result<Self, Failure> {
        let mut taken = HashMap::new();
        for (index, disk) in settings.disks.iter().enumerate() {
            if let SocketSpec::Fd(fd) = disk.socket {
                taken.insert(index, sockets::inherited(fd)?);
            }
        }
        Ok(Self(taken))
    }
}

impl Doors {
    /// The files of the disks' sockets are noted in `files`: removed at the end, unless they are left to the next daemon.
    ///
    /// # Errors
    /// A name is taken, or the system has no more descriptors.
    pub fn open(
        settings: &Settings,
        keep: Option<&KeepHandle>,
        mut inherited: Inherited,
        files: &mut Vec<SocketFile>,
    ) -> Result<Self, Failure> {
        if let Some(keep) = keep {
            kept::check(settings, keep)?;
        }
        let mut disks = Vec::new();
        for (index, disk) in settings.disks.iter().enumerate() {
            let SocketSpec::Path(path) = &disk.socket else {
                disks.push(inherited.0.remove(&index).expect("taken by the same settings"));
                continue;
            };
            let what = format!("disk {}", disk.file.display());
            disks.push(Endpoint::Listen(listen(&disk_name(index), path, &what, keep, files)?));
        }
        let control_disk = settings.control_disk.as_deref();
        let control_disk = control_disk
            .map(|path| listen(CONTROL_DISK_NAME, path, "the control disk", keep, files))
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
        Ok(Self { disks, control_disk, control, metrics })
    }
}

fn is_same(one: &Path, other: &Path) -> bool {
    let absolute = |path: &Path| std::path::absolute(path).ok();
    absolute(one) == absolute(other)
}

/// The keeper's name for what tells the file of a listener from others.
fn file_key(name: &str) -> String {
    format!("{name}/socket-file")
}

fn made(name: &str, keep: &KeepHandle) -> Result<Option<Vec<u8>>, Failure> {
    let key = file_key(name);
    let entries = keep.list(&key).map_err(Failure::failed)?;
    Ok(entries.into_iter().find(|entry| entry.key == key).map(|entry| entry.value))
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
    if let (Some(keep), Some(listener)) = (keep, kept) {
        let address = listener.local_addr().ok();
        let stands = address.as_ref().and_then(SocketAddr::as_pathname).unwrap_or(path);
        let made = made(name, keep)?;
        if is_same(stands, path) {
            match SocketFile::adopt(path, made.as_deref()) {
                Ok(file) => files.push(file),
                Err(why) => tracing::warn!(
                    "the socket {} of {what} {why}: connected guests go on, but no other can connect until `keep` \
                     is restarted",
                    path.display()
                ),
            }
            return Ok(listener);
        }
        if keep.connection(name).map_err(Failure::failed)?.is_some() {
            let (was, is) = (stands.display(), path.display());
            return Err(kept::refused(name, &format!("its socket is {was}, and would be {is}")));
        }
        // Nobody uses it: its file goes, and the keeper has the new one below.
        drop(SocketFile::adopt(stands, made.as_deref()));
    }
    let (listener, file) = sockets::listen(path, what, false)?;
    let made = file.to_bytes();
    files.push(file);
    if let Some(keep) = keep {
        // Never one's name with the other's file: a daemon that dies between the two leaves none.
        let key = file_key(name);
        let kept = keep.delete(&key).and_then(|()| keep.keep_listener(name, &listener));
        kept.and_then(|()| keep.put(&key, &made, &[])).map_err(Failure::failed)?;
    }
    Ok(listener)
}
