//! `--disk FILE[,key=value]…`: one disk of the group.

use std::os::fd::RawFd;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use afterimage_store::DirectMode;
use serde::Deserialize;

/// Longest serial that virtio-blk can carry, in bytes (virtio 1.2 § 5.2.6, VIRTIO_BLK_T_GET_ID).
const SERIAL_BYTES_MAX: usize = 20;

/// Where a disk's vhost-user connection comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SocketSpec {
    /// Listen on this path.
    Path(PathBuf),
    /// An inherited descriptor: a listening socket or one that is already connected.
    Fd(RawFd),
}

/// One disk as the user describes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DiskSpec {
    /// The image: a raw file or a block device.
    pub file: PathBuf,
    /// Where the guest connects; `None` means [`default_socket`].
    pub socket: Option<SocketSpec>,
    /// Writes are refused.
    pub read_only: bool,
    /// What the guest sees as the disk's serial.
    pub serial: Option<String>,
    /// O_DIRECT; `None` leaves it to `--cache`.
    pub direct: Option<DirectMode>,
    /// `format=raw`: the content is raw, even where it begins like another image format.
    pub any_content: bool,
}

/// Why a disk description was not understood.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum DiskSpecError {
    /// Nothing before the first comma.
    #[error("--disk needs a file name first, as in --disk FILE,socket=PATH")]
    NoFile,
    /// A key that does not exist.
    #[error("--disk {file}: `{key}` is not known; known are socket=PATH, fd=N, read-only, serial=TEXT, direct=on|off|auto and format=raw (a comma inside a name is written twice)")]
    UnknownKey {
        /// The disk's file.
        file: String,
        /// What was found.
        key: String,
    },
    /// The same key twice.
    #[error("--disk {file}: `{key}` is given twice")]
    Twice {
        /// The disk's file.
        file: String,
        /// The key.
        key: String,
    },
    /// Two ways to say where the guest connects.
    #[error("--disk {file}: `socket` and `fd` exclude each other: leave one of the two out")]
    SocketAndFd {
        /// The disk's file.
        file: String,
    },
    /// A value that the key does not take.
    #[error("--disk {file}: `{key}={value}` is not valid: {expected}")]
    BadValue {
        /// The disk's file.
        file: String,
        /// The key.
        key: String,
        /// What was found.
        value: String,
        /// What the key takes.
        expected: &'static str,
    },
}

impl DiskSpec {
    /// A disk with nothing but a file.
    pub fn new(file: impl Into<PathBuf>) -> Self {
        Self {
            file: file.into(),
            socket: None,
            read_only: false,
            serial: None,
            direct: None,
            any_content: false,
        }
    }
}

/// The socket of a disk that names none: the image's name with `.sock` appended, beside the image.
pub fn default_socket(file: &Path) -> PathBuf {
    let mut name = file.as_os_str().to_owned();
    name.push(".sock");
    PathBuf::from(name)
}

/// Checks a serial: at most 20 printable ASCII characters.
///
/// # Errors
/// In words: what it is not.
pub fn check_serial(serial: &str) -> Result<(), &'static str> {
    let printable = serial.bytes().all(|b| b.is_ascii_graphic() || b == b' ');
    if serial.is_empty() || serial.len() > SERIAL_BYTES_MAX || !printable {
        return Err("a serial has 1 to 20 printable ASCII characters");
    }
    Ok(())
}

/// O_DIRECT in the configuration file and in `--disk`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum DirectWord {
    /// Bypass the page cache, or refuse to start.
    On,
    /// Use the page cache.
    Off,
    /// Bypass the page cache where the file system allows it.
    Auto,
}

/// `format` in the configuration file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum FormatWord {
    /// The only one.
    Raw,
}

impl From<DirectWord> for DirectMode {
    fn from(word: DirectWord) -> Self {
        match word {
            DirectWord::On => DirectMode::On,
            DirectWord::Off => DirectMode::Off,
            DirectWord::Auto => DirectMode::Auto,
        }
    }
}

impl FromStr for DiskSpec {
    type Err = DiskSpecError;

    fn from_str(text: &str) -> Result<Self, DiskSpecError> {
        let mut fields = split_commas(text).into_iter();
        let file = fields.next().filter(|f| !f.is_empty()).ok_or(DiskSpecError::NoFile)?;
        let mut spec = DiskSpec::new(&file);
        let mut seen: Vec<String> = Vec::new();
        for field in fields {
            let (key, value) = match field.split_once('=') {
                Some((key, value)) => (key.to_owned(), Some(value.to_owned())),
                None => (field.clone(), None),
            };
            if seen.contains(&key) {
                return Err(DiskSpecError::Twice { file, key });
            }
            seen.push(key.clone());
            if ["socket", "fd"].into_iter().all(|one| seen.iter().any(|key| key == one)) {
                return Err(DiskSpecError::SocketAndFd { file });
            }
            let bad = |expected| DiskSpecError::BadValue {
                file: file.clone(),
                key: key.clone(),
                value: value.clone().unwrap_or_default(),
                expected,
            };
            match (key.as_str(), value.as_deref()) {
                ("socket", Some(path)) if !path.is_empty() => {
                    spec.socket = Some(SocketSpec::Path(path.into()));
                }
                ("socket", _) => return Err(bad("a path is needed")),
                ("fd", Some(number)) => {
                    let fd = number.parse::<RawFd>().ok().filter(|n| *n >= 0);
                    spec.socket =
                        Some(SocketSpec::Fd(fd.ok_or_else(|| bad("a descriptor number is needed"))?));
                }
                ("fd", None) => return Err(bad("a descriptor number is needed")),
                ("read-only" | "readonly", None | Some("on")) => spec.read_only = true,
                ("read-only" | "readonly", Some("off")) => spec.read_only = false,
                ("read-only" | "readonly", Some(_)) => return Err(bad("on or off is needed")),
                ("serial", serial) => {
                    let serial = serial.unwrap_or_default();
                    check_serial(serial).map_err(bad)?;
                    spec.serial = Some(serial.to_owned());
                }
                ("direct", Some("on")) => spec.direct = Some(DirectMode::On),
                ("direct", Some("off")) => spec.direct = Some(DirectMode::Off),
                ("direct", Some("auto")) => spec.direct = Some(DirectMode::Auto),
                ("format", Some("raw")) => spec.any_content = true,
                ("format", _) => {
                    return Err(bad("only raw is served; convert others with qemu-img convert -O raw"))
                }
                ("direct", _) => return Err(bad("on, off or auto is needed")),
                _ => return Err(DiskSpecError::UnknownKey { file, key }),
            }
        }
        Ok(spec)
    }
}

/// Splits at single commas; two in a row are one literal comma, as in QEMU's option strings.
fn split_commas(text: &str) -> Vec<String> {
    let mut fields = vec![String::new()];
    let mut rest = text.chars().peekable();
    while let Some(c) = rest.next() {
        if c != ',' {
            fields.last_mut().expect("never empty").push(c);
        } else if rest.next_if_eq(&',').is_some() {
            fields.last_mut().expect("never empty").push(',');
        } else {
            fields.push(String::new());
        }
    }
    fields
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_key() {
        let spec: DiskSpec = "a.img,socket=/run/a.sock,read-only,serial=disk-1,direct=off".parse().unwrap();
        assert_eq!(spec.file, Path::new("a.img"));
        assert_eq!(spec.socket, Some(SocketSpec::Path("/run/a.sock".into())));
        assert!(spec.read_only);
        assert_eq!(spec.serial.as_deref(), Some("disk-1"));
        assert_eq!(spec.direct, Some(DirectMode::Off));
        let spec: DiskSpec = "with,,comma.img,fd=3".parse().unwrap();
        assert_eq!(spec.file, Path::new("with,comma.img"));
        assert_eq!(spec.socket, Some(SocketSpec::Fd(3)));
    }

    #[test]
    fn every_mistake_names_the_file_and_the_key() {
        for (text, part) in [
            ("", "file name first"),
            (",socket=x", "file name first"),
            ("a,sokcet=x", "`sokcet` is not known"),
            ("a,socket=", "a path is needed"),
            ("a,socket=x,socket=y", "given twice"),
            ("a,socket=x,fd=3", "exclude each other"),
            ("a,fd=3,socket=x", "exclude each other"),
            ("a,fd=3,fd=3", "`fd` is given twice"),
            ("a,fd=-1", "descriptor number"),
            ("a,serial=", "1 to 20"),
            ("a,serial=123456789012345678901", "1 to 20"),
            ("a,serial=\u{e4}", "1 to 20"),
            ("a,format=qcow2", "qemu-img convert"),
            ("a,direct=maybe", "on, off or auto"),
            ("a,read-only=maybe", "on or off"),
        ] {
            let error = text.parse::<DiskSpec>().unwrap_err().to_string();
            assert!(error.contains(part), "{text}: {error}");
        }
    }

    #[test]
    fn the_default_socket_stands_beside_the_image() {
        assert_eq!(default_socket(Path::new("/a/b.img")), Path::new("/a/b.img.sock"));
    }
}
