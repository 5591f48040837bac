//! `FILE.state`: says that an image is not complete without an arena.
//!
//! ```text
//! first serve ─► arena made ─► FILE.state written, synced ─► journals may be absorbed
//! orderly end ─► everything home and synced ─► FILE.state removed, synced ─► arena removed
//! ```
//!
//! Outcomes. Whatever the crash, an image whose journal may have been absorbed has its state file: it is durable before
//! the first absorbed write is answered, and goes only when the image is a plain raw file. A kill between the two removals
//! leaves an arena that nothing names: memory, until the host restarts, and never a state file that asks for an arena
//! that was given up. The file is replaced by a rename, so it is the old one or the new one, whole.
//!
//! The format is in `docs/state-file.md`.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use afterimage_block::advice;
use afterimage_order::Contract;
use afterimage_store::open_ours;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::versions::arena::ArenaIdentity;

/// The version that is written and read.
pub const VERSION: u32 = 1;
/// A longer file is none.
const BYTES_MAX: u64 = 16 << 10;
/// Where Linux says which boot this is.
const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";

/// Why a state file cannot be used. Each message names the file.
#[derive(Debug, thiserror::Error)]
pub enum StateError {
    /// It contradicts itself.
    #[error("the state file {path} is damaged: {what}", path = .path.display())]
    Corrupt {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        what: String,
    },
    /// Another program's format.
    #[error(
        "the state file {path} has version {version}, this program reads {VERSION}: use the afterimage that wrote it",
        path = .path.display()
    )]
    Unsupported {
        /// The file.
        path: PathBuf,
        /// Its version.
        version: u64,
    },
    /// The operating system's no.
    #[error("cannot {doing} {path}: {source}{}", advice(.source), path = .path.display())]
    Io {
        /// What was tried.
        doing: &'static str,
        /// To which file.
        path: PathBuf,
        /// The operating system's error.
        source: io::Error,
    },
}

impl StateError {
    pub(crate) fn io(doing: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self + use<> {
        let path = path.to_owned();
        move |source| Self::Io { doing, path, source }
    }
}

/// An image as its state file and its arena know it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ImageIdentity {
    /// Inode number.
    pub inode: u64,
    /// Size in bytes.
    pub size_bytes: u64,
}

impl ImageIdentity {
    /// Looks at an image file. `None` for a block device, which has no place beside it that outlives a restart.
    ///
    /// # Errors
    /// It cannot be looked at.
    pub fn of(image: &Path) -> Result<Option<Self>, StateError> {
        let found = fs::metadata(image).map_err(StateError::io("look at", image))?;
        let device = found.file_type().is_block_device();
        Ok((!device).then(|| Self { inode: found.ino(), size_bytes: found.len() }))
    }
}

/// What the file says.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct State {
    /// The arena's file.
    pub arena: PathBuf,
    /// The arena's identity, which its header repeats.
    pub arena_uuid: Uuid,
    /// The image.
    pub image: ImageIdentity,
    /// The boot of the host in which the arena was made: memory does not outlive it.
    pub boot_id: Uuid,
    /// The contract in force, as `--survives` spells it: what was promised about the retained journals.
    pub contract: String,
}

/// The file as it stands.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Stored {
    /// [`VERSION`]
    afterimage_state: u32,
    state: State,
    /// CRC-32C of `state` as JSON without blanks, in hexadecimal.
    crc32c: String,
}

/// Enough of any version to tell which it is.
#[derive(Deserialize)]
struct AnyVersion {
    afterimage_state: u64,
}

impl State {
    /// What the arena's header must say.
    pub fn arena_identity(&self) -> ArenaIdentity {
        ArenaIdentity {
            uuid: *self.arena_uuid.as_bytes(),
            inode: self.image.inode,
            size_bytes: self.image.size_bytes,
        }
    }

    /// Whether a power cut can have cost something that was promised: under `power-window` what is durable needs no
    /// arena.
    pub fn survives_power(&self) -> bool {
        matches!(self.contract.parse(), Ok(Contract::PowerWindow { .. } | Contract::Power))
    }

    /// The file's bytes.
    pub fn to_bytes(&self) -> Vec<u8> {
        let stored =
            Stored { afterimage_state: VERSION, state: self.clone(), crc32c: format!("{:08x}", self.crc()) };
        let mut bytes = serde_json::to_vec_pretty(&stored).unwrap_or_default();
        bytes.push(b'\n');
        bytes
    }

    fn crc(&self) -> u32 {
        // Only a path that is no text could fail; such a state is never made.
        crc32c::crc32c(&serde_json::to_vec(self).unwrap_or_default())
    }

    /// Parses a file's bytes; `path` is for messages. Never panics, whatever the bytes.
    ///
    /// # Errors
    /// *Corrupt* or *unsupported*.
    pub fn parse(bytes: &[u8], path: &Path) -> Result<Self, StateError> {
        let corrupt = |what: String| StateError::Corrupt { path: path.to_owned(), what };
        let version: AnyVersion = serde_json::from_slice(bytes).map_err(|e| corrupt(e.to_string()))?;
        if version.afterimage_state != u64::from(VERSION) {
            let version = version.afterimage_state;
            return Err(StateError::Unsupported { path: path.to_owned(), version });
        }
        let stored: Stored = serde_json::from_slice(bytes).map_err(|e| corrupt(e.to_string()))?;
        if stored.crc32c != format!("{:08x}", stored.state.crc()) {
            return Err(corrupt("its checksum does not match".to_owned()));
        }
        match stored.state.contract.parse::<Contract>() {
            Ok(_) => Ok(stored.state),
            Err(e) => Err(corrupt(e.to_string())),
        }
    }

    /// Reads a state file (see [`state_path`]); `None` where there is none.
    ///
    /// # Errors
    /// It cannot be read, or is damaged, or is a stranger's ([`afterimage_store::check_owner`]).
    pub fn read(path: &Path) -> Result<Option<Self>, StateError> {
        // Beside its image, which has the name without the ending.
        let file = match open_ours(path, owner_of(&path.with_extension(""))) {
            Ok(file) => file,
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(e) => return Err(StateError::io("read the state file", path)(e)),
        };
        let mut bytes = Vec::new();
        file.take(BYTES_MAX + 1)
            .read_to_end(&mut bytes)
            .map_err(StateError::io("read the state file", path))?;
        if bytes.len() as u64 > BYTES_MAX {
            return Err(StateError::Corrupt {
                path: path.to_owned(),
                what: format!("it has more than {BYTES_MAX} bytes"),
            });
        }
        Self::parse(&bytes, path).map(Some)
    }

    /// Writes a state file. When this returns it is durable; until then the older one, if any, stays.
    ///
    /// # Errors
    /// The folder cannot be written.
    pub fn write(&self, path: &Path) -> Result<(), StateError> {
        let mut temporary = path.as_os_str().to_owned();
        temporary.push(".new");
        let temporary = PathBuf::from(temporary);
        let failed = |e| StateError::io("write the state file", path)(e);
        match fs::remove_file(&temporary) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(failed(e)),
            _ => {}
        }
        // Never through a link that somebody has put there.
        let mut file = OpenOptions::new().write(true).create_new(true).open(&temporary).map_err(failed)?;
        file.write_all(&self.to_bytes()).and_then(|()| file.sync_all()).map_err(failed)?;
        fs::rename(&temporary, path).and_then(|()| sync_folder(path)).map_err(failed)
    }
}

/// Who owns an image, if it is there.
pub(crate) fn owner_of(image: &Path) -> Option<u32> {
    fs::metadata(image).ok().map(|found| found.uid())
}

/// Where an image's state file is: beside the image itself, whatever link led there.
///
/// # Errors
/// The image cannot be found.
pub fn state_path(image: &Path) -> Result<PathBuf, StateError> {
    let real = fs::canonicalize(image).map_err(StateError::io("find", image))?;
    let mut path = real.into_os_string();
    path.push(".state");
    Ok(path.into())
}

/// Removes a state file, durably. Not there is as good.
///
/// # Errors
/// It cannot be removed.
pub fn remove(path: &Path) -> Result<(), StateError> {
    match fs::remove_file(path) {
        Ok(()) => sync_folder(path).map_err(StateError::io("remove the state file", path)),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(e) => Err(StateError::io("remove the state file", path)(e)),
    }
}

/// This boot's identity.
///
/// # Errors
/// The kernel does not say.
pub fn boot_id() -> Result<Uuid, StateError> {
    let path = Path::new(BOOT_ID);
    let text = fs::read_to_string(path).map_err(StateError::io("read", path))?;
    Uuid::parse_str(text.trim()).map_err(|e| StateError::io("read", path)(io::Error::other(e)))
}

fn sync_folder(path: &Path) -> io::Result<()> {
    File::open(path.parent().unwrap_or(Path::new("/")))?.sync_all()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn example() -> State {
        State {
            arena: "/dev/shm/afterimage-1.arena".into(),
            arena_uuid: Uuid::from_u128(1),
            image: ImageIdentity { inode: 7, size_bytes: 1 << 20 },
            boot_id: Uuid::from_u128(2),
            contract: "power-window=50ms".to_owned(),
        }
    }

    fn parse(bytes: &[u8]) -> Result<State, StateError> {
        State::parse(bytes, Path::new("x.state"))
    }

    #[test]
    fn a_link_in_the_drafts_place_is_not_followed() {
        let dir = tempfile::tempdir().expect("a folder");
        let (path, other) = (dir.path().join("a.state"), dir.path().join("other"));
        fs::write(&other, "another file").expect("another file");
        std::os::unix::fs::symlink(&other, dir.path().join("a.state.new")).expect("a link");
        example().write(&path).expect("written");
        assert_eq!(fs::read(&other).expect("another file"), b"another file");
        assert!(fs::symlink_metadata(&path).expect("the state file").is_file());
        assert_eq!(State::read(&path).expect("read"), Some(example()));
    }

    #[test]
    fn a_strangers_state_file_says_nothing() {
        let dir = tempfile::tempdir().expect("a folder");
        let (path, other) = (dir.path().join("a.state"), dir.path().join("other"));
        let refused = |words: &str| {
            let error = State::read(&path).expect_err("refused").to_string();
            assert!(error.contains(words), "{error}");
            fs::remove_file(&path).expect("it is there");
        };
        example().write(&other).expect("written");
        std::os::unix::fs::symlink(&other, &path).expect("a link");
        refused("is a symbolic link");
        fs::hard_link(&other, &path).expect("a link");
        refused("has 2 names");
        assert!(std::process::Command::new("mkfifo").arg(&path).status().expect("mkfifo").success());
        refused("is a pipe");
        if !afterimage_testing::is_root() {
            return afterimage_testing::skip("only root can give files to others");
        }
        example().write(&path).expect("written");
        std::os::unix::fs::chown(&path, Some(1234), None).expect("given");
        refused("belongs to user 1234");
        // The image's owner may.
        example().write(&path).expect("written");
        fs::write(dir.path().join("a"), "an image").expect("written");
        for file in ["a", "a.state"] {
            std::os::unix::fs::chown(dir.path().join(file), Some(1234), None).expect("given");
        }
        assert_eq!(State::read(&path).expect("read"), Some(example()));
    }

    #[test]
    fn versions_and_blanks() {
        let bytes = example().to_bytes();
        let text = String::from_utf8(bytes).expect("text");
        let compact: String = text.chars().filter(|c| !c.is_whitespace()).collect();
        assert_eq!(parse(compact.as_bytes()).expect("blanks do not count"), example());
        let newer = text.replace("\"afterimage_state\": 1", "\"afterimage_state\": 2");
        assert!(matches!(parse(newer.as_bytes()), Err(StateError::Unsupported { version: 2, .. })));
        assert!(matches!(
            parse(br#"{"afterimage_state":3,"other":1}"#),
            Err(StateError::Unsupported { version: 3, .. })
        ));
        for (from, to) in [
            ("\"inode\": 7", "\"inode\": 8"),
            ("50ms", "51ms"),
            ("\"image\"", "\"colour\": 1, \"image\""),
            ("}", ""),
        ] {
            let changed = text.replacen(from, to, 1);
            assert_ne!(changed, text);
            assert!(matches!(parse(changed.as_bytes()), Err(StateError::Corrupt { .. })), "{changed}");
        }
        for bad in [&b""[..], b"{}", b"[]", b"null", b"\xff"] {
            assert!(matches!(parse(bad), Err(StateError::Corrupt { .. })));
        }
    }

    proptest! {
        #[test]
        fn what_is_written_is_read(
            arena in "(/[a-z\"\\\\ \u{e4}]{1,8}){1,4}",
            uuids in any::<(u128, u128)>(),
            image in any::<(u64, u64)>(),
            window_ms in 1u64..60_000,
        ) {
            let state = State {
                arena: arena.into(),
                arena_uuid: Uuid::from_u128(uuids.0),
                image: ImageIdentity { inode: image.0, size_bytes: image.1 },
                boot_id: Uuid::from_u128(uuids.1),
                contract: format!("power-window={window_ms}ms"),
            };
            prop_assert_eq!(parse(&state.to_bytes()).expect("just written"), state);
        }

        /// One changed byte is noticed, or changes nothing that the file says.
        #[test]
        fn damage_is_noticed(at in any::<prop::sample::Index>(), byte in any::<u8>()) {
            let mut bytes = example().to_bytes();
            let at = at.index(bytes.len());
            bytes[at] = byte;
            if let Ok(state) = parse(&bytes) {
                prop_assert_eq!(state, example());
            }
        }

        #[test]
        fn any_bytes_are_answered(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            let _ = parse(&bytes);
        }

        /// Cut off anywhere it is damaged.
        #[test]
        fn a_part_is_damaged(cut in any::<prop::sample::Index>()) {
            let bytes = example().to_bytes();
            // Its last byte is the newline.
            let cut = cut.index(bytes.len() - 1);
            let damaged = matches!(parse(&bytes[..cut]), Err(StateError::Corrupt { .. }));
            prop_assert!(damaged);
        }
    }
}
