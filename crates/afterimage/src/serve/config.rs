//! `--config FILE.toml`: the same settings as on the command line, strictly: an unknown key is refused with its
//! line and column. What is on the command line wins.

use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use serde::de::{Deserializer, Error as _};
use serde::Deserialize;

use super::disk_spec::{check_serial, DirectWord, DiskSpec, FormatWord, SocketSpec};

/// Largest configuration file that is read, in bytes: anything longer is not one.
const CONFIG_BYTES_MAX: u64 = 1 << 20;

/// The file as it stands.
#[derive(Clone, Debug, Default, Deserialize, PartialEq)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Config {
    /// `--survives`
    pub survives: Option<String>,
    /// `--cache`
    pub cache: Option<String>,
    /// `--queues`
    pub queues: Option<u16>,
    /// `--spin-us`
    pub spin_us: Option<u32>,
    /// `--log-max`
    pub log_max: Option<String>,
    /// `--log`
    #[serde(default, deserialize_with = "path")]
    pub log: Option<PathBuf>,
    /// `--journal`
    pub journal: Option<String>,
    /// `--retain-max`
    pub retain_max: Option<String>,
    /// `--arena`
    #[serde(default, deserialize_with = "path")]
    pub arena: Option<PathBuf>,
    /// `--accept-loss`
    #[serde(default)]
    pub accept_loss: bool,
    /// `--vflush-at-truncation`
    #[serde(default)]
    pub vflush_at_truncation: bool,
    /// `--recover-ijournal`
    #[serde(default)]
    pub recover_ijournal: bool,
    /// `--control`
    #[serde(default, deserialize_with = "path")]
    pub control: Option<PathBuf>,
    /// `--control-disk`
    #[serde(default, deserialize_with = "path")]
    pub control_disk: Option<PathBuf>,
    /// `--metrics`
    pub metrics: Option<String>,
    /// `--trace`
    #[serde(default, deserialize_with = "path")]
    pub trace: Option<PathBuf>,
    /// `--sandbox`
    pub sandbox: Option<String>,
    /// `--disk`, in order.
    #[serde(default)]
    pub disk: Vec<DiskTable>,
}

/// One `[[disk]]` table.
#[derive(Clone, Debug, Deserialize, PartialEq)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct DiskTable {
    /// The image.
    #[serde(deserialize_with = "path")]
    pub file: PathBuf,
    /// Where the guest connects.
    #[serde(default, deserialize_with = "path")]
    pub socket: Option<PathBuf>,
    /// Writes are refused.
    #[serde(default)]
    pub read_only: bool,
    /// What the guest sees as the disk's serial.
    pub serial: Option<String>,
    /// O_DIRECT.
    pub direct: Option<DirectWord>,
    /// Take the content as it is, whatever it begins with.
    pub format: Option<FormatWord>,
}

/// Why a configuration file was not accepted.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file cannot be read.
    #[error("cannot read the configuration file {path}: {source}", path = .path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// The operating system's error.
        source: std::io::Error,
    },
    /// The file is not a configuration.
    #[error("{place}: {message}")]
    Invalid {
        /// File, line and column.
        place: String,
        /// What is wrong there.
        message: String,
    },
}

/// A table where a list of tables belongs.
const ONE_DISK: &str = "`[disk]` is a single table: write `[[disk]]`, once for each disk";

/// Reads and parses a configuration file.
///
/// # Errors
/// It cannot be read, or as [`parse`].
pub fn load(path: &Path) -> Result<Config, ConfigError> {
    let unreadable = |source| ConfigError::Unreadable { path: path.to_owned(), source };
    let found = std::fs::metadata(path).map_err(unreadable)?;
    let invalid = |message| ConfigError::Invalid { place: path.display().to_string(), message };
    if !(found.is_file() || found.is_dir()) {
        // Reading it could wait for ever.
        return Err(invalid("a configuration is a regular file".to_owned()));
    }
    let length = found.len();
    if length > CONFIG_BYTES_MAX {
        return Err(invalid(format!(
            "{length} bytes are too many for a configuration file; at most 1 MiB is read"
        )));
    }
    let bytes = std::fs::read(path).map_err(unreadable)?;
    parse(&bytes, &path.display().to_string())
}

/// Parses a configuration. `name` is how the file is called in messages. Never panics, whatever the bytes.
///
/// # Errors
/// It is not TOML, or says what no configuration may.
pub fn parse(bytes: &[u8], name: &str) -> Result<Config, ConfigError> {
    let text = std::str::from_utf8(bytes).map_err(|e| {
        let (line, column) = line_and_column(bytes, e.valid_up_to());
        ConfigError::Invalid {
            place: format!("{name}:{line}:{column}"),
            message: "this is not UTF-8 text".to_owned(),
        }
    })?;
    let config: Config = toml::from_str(text).map_err(|e| {
        let (line, column) = line_and_column(bytes, e.span().map_or(0, |span| span.start));
        let message = match toml::from_str::<toml::Table>(text) {
            Ok(table) if table.get("disk").is_some_and(toml::Value::is_table) => ONE_DISK.to_owned(),
            _ => e.message().split_whitespace().collect::<Vec<_>>().join(" "),
        };
        ConfigError::Invalid { place: format!("{name}:{line}:{column}"), message }
    })?;
    for disk in &config.disk {
        if let Some(Err(message)) = disk.serial.as_deref().map(check_serial) {
            let place = format!("{name}, disk {}", disk.file.display());
            return Err(ConfigError::Invalid { place, message: message.to_owned() });
        }
    }
    Ok(config)
}

/// A path is not empty: to listen on such a one, for example, would be to listen under a name of the kernel's choice, with which
/// everybody may connect. Nor has it a zero byte, at which it would end for the system.
fn path<'de, D: Deserializer<'de>, P: From<PathBuf>>(from: D) -> Result<P, D::Error> {
    let path = PathBuf::deserialize(from)?;
    if path.as_os_str().is_empty() {
        return Err(D::Error::custom("an empty path: name a file, or leave it out"));
    }
    if path.as_os_str().as_bytes().contains(&0) {
        return Err(D::Error::custom("a path with a zero byte, which no file has"));
    }
    Ok(path.into())
}

/// Line and column, both from 1, of a byte offset. Columns count bytes.
fn line_and_column(bytes: &[u8], offset: usize) -> (usize, usize) {
    let before = &bytes[..offset.min(bytes.len())];
    let line = before.iter().filter(|b| **b == b'\n').count() + 1;
    let column = before.iter().rev().take_while(|b| **b != b'\n').count() + 1;
    (line, column)
}

impl From<DiskTable> for DiskSpec {
    fn from(table: DiskTable) -> Self {
        DiskSpec {
            file: table.file,
            socket: table.socket.map(SocketSpec::Path),
            read_only: table.read_only,
            serial: table.serial,
            direct: table.direct.map(Into::into),
            any_content: table.format.is_some(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_table_is_said_to_be_no_list() {
        for text in ["[disk]\nfile = \"a\"\n", "disk = { file = \"a\" }\n"] {
            let error = parse(text.as_bytes(), "x.toml").unwrap_err().to_string();
            assert!(error.starts_with("x.toml:1:") && error.contains(ONE_DISK), "{error}");
        }
    }

    #[test]
    fn a_full_configuration() {
        let config = parse(
            br#"
survives = "power-window=50ms"
queues = 2
log-max = "1G"
journal = "retain"
retain-max = "1G"
arena = "/tmp"
accept-loss = true
vflush-at-truncation = true
control = "/run/c.sock"
control-disk = "/run/cd.sock"
[[disk]]
file = "/a.img"
socket = "/run/a.sock"
[[disk]]
file = "/b.img"
read-only = true
serial = "b"
direct = "off"
"#,
            "x.toml",
        )
        .unwrap();
        assert_eq!(config.survives.as_deref(), Some("power-window=50ms"));
        assert_eq!(config.journal.as_deref(), Some("retain"));
        assert_eq!(config.retain_max.as_deref(), Some("1G"));
        assert_eq!(config.arena.as_deref(), Some(Path::new("/tmp")));
        assert!(config.accept_loss && config.vflush_at_truncation);
        assert_eq!(config.control_disk.as_deref(), Some(Path::new("/run/cd.sock")));
        assert_eq!(config.disk.len(), 2);
        let spec = DiskSpec::from(config.disk[1].clone());
        assert!(spec.read_only);
        assert_eq!(spec.direct, Some(afterimage_store::DirectMode::Off));
    }

    #[test]
    fn mistakes_have_a_place() {
        for (text, place) in [
            (&b"survive = \"power\"\n"[..], "x.toml:1:1: unknown field `survive`"),
            (b"\n\nqueues = \"two\"\n", "x.toml:3:10: invalid type"),
            (b"[[disk]]\nfile = \"a\"\nspeed = 1\n", "x.toml:3:1: unknown field `speed`"),
            (b"[[disk]]\nsocket = \"a\"\n", "x.toml:1:1: missing field `file`"),
            (b"queues = \n", "x.toml:1:"),
            (b"queues = 1\nqueues = 2\n", "x.toml:2:1: duplicate key"),
            (b"a = \xff\n", "x.toml:1:5: this is not UTF-8"),
            (b"[[disk]]\nfile = \"a\"\nserial = \"\"\n", "1 to 20 printable"),
            (b"[[disk]]\nfile = \"\"\n", "x.toml:2:8: an empty path"),
            (b"[[disk]]\nfile = \"a\"\nsocket = \"\"\n", "x.toml:3:10: an empty path"),
            (b"control = \"\"\n", "x.toml:1:11: an empty path"),
            (b"control-disk = \"\"\n", "x.toml:1:16: an empty path"),
            (b"log = \"\"\n", "x.toml:1:7: an empty path"),
            (b"arena = \"\"\n", "x.toml:1:9: an empty path"),
            (b"trace = \"\"\n", "x.toml:1:9: an empty path"),
            (b"control = \"a\\u0000\"\n", "x.toml:1:11: a path with a zero byte"),
            (b"[[disk]]\nfile = \"a\\u0000b\"\n", "x.toml:2:8: a path with a zero byte"),
        ] {
            let error = parse(text, "x.toml").unwrap_err().to_string();
            assert!(error.contains(place), "{error}");
            assert!(!error.contains('\n'), "{error}");
        }
    }
}
