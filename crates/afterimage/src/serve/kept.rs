//! What a guest that `keep` holds was shown: it goes on with the same disk, or a daemon does not take it over.

use std::ffi::OsString;
use std::path::Path;

use afterimage_frontend::KeepHandle;
use serde::{Deserialize, Serialize};

use super::settings::{file_identity, DiskSettings, Settings};
use crate::failure::Failure;

/// The keeper's name for the control disk.
pub(super) const CONTROL_DISK_NAME: &str = "control-disk";

/// The keeper's name for a disk: its place in the group stays the same across restarts.
pub(super) fn disk_name(index: usize) -> String {
    format!("disk{index}")
}

/// What of a disk may not become another one below a guest that runs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Shown {
    /// For the sentence: an image may have been renamed, and is the same.
    file: OsString,
    identity: (u64, u64, u64),
    /// 0 of a block device.
    bytes: u64,
    read_only: bool,
    queues: u16,
}

impl Shown {
    /// As it is now. `None` where the image cannot be looked at, which is then not opened either.
    pub fn of(disk: &DiskSettings, queues: u16) -> Option<Self> {
        let found = std::fs::metadata(&disk.file).ok()?;
        let file = std::path::absolute(&disk.file).ok()?.into_os_string();
        let identity = file_identity(&found);
        Some(Self { file, identity, bytes: found.len(), read_only: disk.read_only, queues })
    }

    /// As it is kept.
    pub fn to_bytes(&self) -> Vec<u8> {
        serde_json::to_vec(self).unwrap_or_default()
    }

    /// Why a guest that was shown this cannot go on with `now`.
    fn mistake(&self, now: &Self) -> Option<String> {
        let (old, new) = (Path::new(&self.file).display(), Path::new(&now.file).display());
        if self.identity != now.identity {
            return Some(match self.file == now.file {
                true => format!("another file has taken the name of its image {old}"),
                false => format!("its image is {old}, and would be {new}"),
            });
        }
        if now.bytes < self.bytes {
            return Some(format!("its image {old} had {} bytes, and has {}", self.bytes, now.bytes));
        }
        if self.read_only != now.read_only {
            let word = |read_only| if read_only { "read-only" } else { "writable" };
            let (was, is) = (word(self.read_only), word(now.read_only));
            return Some(format!("its image {old} was {was}, and would be {is}"));
        }
        (now.queues < self.queues)
            .then(|| format!("its image {old} had {} queues, and would have {}", self.queues, now.queues))
    }
}

/// Before anything is opened or taken over.
///
/// # Errors
/// A guest that is kept would find another disk, or none.
pub(super) fn check(settings: &Settings, keep: &KeepHandle) -> Result<(), Failure> {
    for name in keep.connected().map_err(Failure::failed)? {
        let index = (0..settings.disks.len()).find(|index| disk_name(*index) == name);
        let mistake = match index {
            None if name == CONTROL_DISK_NAME && settings.control_disk.is_some() => None,
            None => Some("there is no such disk any more".to_owned()),
            Some(index) => {
                let shown = keep.shown(&name).map_err(Failure::failed)?;
                let shown: Option<Shown> = shown.and_then(|bytes| serde_json::from_slice(&bytes).ok());
                let now = Shown::of(&settings.disks[index], settings.queues);
                shown.zip(now).and_then(|(shown, now)| shown.mistake(&now))
            }
        };
        if let Some(mistake) = mistake {
            return Err(refused(&name, &mistake));
        }
    }
    Ok(())
}

/// A guest that is kept cannot go on.
pub(super) fn refused(disk: &str, mistake: &str) -> Failure {
    Failure::failed(format!(
        "the kept guest of {disk} cannot go on: {mistake}; start the daemon with its disks as they were, or end \
         `keep` and the connection"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_guest_goes_on_with_the_disk_that_it_was_shown() {
        let shown =
            Shown { file: "/a.img".into(), identity: (1, 2, 0), bytes: 4096, read_only: false, queues: 2 };
        assert_eq!(serde_json::from_slice::<Shown>(&shown.to_bytes()).unwrap(), shown);
        type Change = fn(&mut Shown);
        let table: [(&str, Change); 8] = [
            ("", |_| {}),
            // The same file under another name, grown, with more queues than the guest knows of.
            ("", |now| now.file = "/b.img".into()),
            ("", |now| (now.bytes, now.queues) = (8192, 4)),
            ("another file has taken the name", |now| now.identity.1 = 3),
            ("and would be /b.img", |now| (now.file, now.identity.0) = ("/b.img".into(), 3)),
            ("had 4096 bytes, and has 512", |now| now.bytes = 512),
            ("was writable, and would be read-only", |now| now.read_only = true),
            ("had 2 queues, and would have 1", |now| now.queues = 1),
        ];
        for (expected, change) in table {
            let mut now = shown.clone();
            change(&mut now);
            let mistake = shown.mistake(&now).unwrap_or_default();
            assert!(mistake.contains(expected) && mistake.is_empty() == expected.is_empty(), "{mistake}");
        }
    }
}
