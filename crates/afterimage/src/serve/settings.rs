//! Command line over configuration file over defaults, checked as a whole before anything is touched.

use std::collections::HashMap;
use std::fs::Metadata;
use std::net::{SocketAddr, ToSocketAddrs};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use afterimage_journal::group::JournalOptions;
use afterimage_journal::state_file::state_path;
use afterimage_order::{Contract, GroupOptions};
use afterimage_store::{absolute, log_of, DirectMode};

use super::args::{pick, place, Args};
use super::cache::CacheMode;
use super::config::{self, Config};
use super::disk_spec::{default_socket, DiskSpec, SocketSpec};
use super::journal;
use super::sockets;
use crate::failure::Failure;
use crate::sandbox::SandboxMode;
use crate::units::{parse_disk_size, parse_size};

/// Longest time that a queue may spin, in microseconds.
pub const SPIN_US_MAX: u32 = 1000;
/// Most queues that one disk may have: one thread each.
pub const QUEUES_MAX: u16 = 64;
/// Most writable disks that a redo log has places for.
const LOGGED_DISKS_MAX: usize = 16;

/// What `serve` does, complete and consistent.
#[derive(Debug, Clone)]
pub struct Settings {
    /// The disks, each with its socket and O_DIRECT decision.
    pub disks: Vec<DiskSettings>,
    /// What an acknowledged flush survives.
    pub contract: Contract,
    /// Whether guests see a write cache.
    pub write_cache: bool,
    /// Queues per disk.
    pub queues: u16,
    /// How long each queue spins before it sleeps, in microseconds.
    pub spin_us: u32,
    /// Bound of the redo log, in bytes.
    pub log_bytes_max: u64,
    /// Where the redo log stands; `None` means beside the first image.
    pub log: Option<PathBuf>,
    /// What becomes of the guest's journals.
    pub journal: JournalOptions,
    /// Whether file systems with iJournaling are recovered before anybody is served.
    pub recover_ijournal: bool,
    /// The control socket.
    pub control: Option<PathBuf>,
    /// The socket of the control disk.
    pub control_disk: Option<PathBuf>,
    /// Where metrics are served.
    pub metrics: Option<SocketAddr>,
    /// Where requests that reach storage are noted.
    pub trace: Option<PathBuf>,
    /// Whether to lock the process in.
    pub sandbox: SandboxMode,
    /// What is worth a warning at every start.
    pub warnings: Vec<String>,
}

/// One disk of [`Settings`].
#[derive(Debug, Clone)]
pub struct DiskSettings {
    /// The image.
    pub file: PathBuf,
    /// Where the guest connects.
    pub socket: SocketSpec,
    /// Writes are refused.
    pub read_only: bool,
    /// The guest's name for the disk.
    pub serial: Option<String>,
    /// O_DIRECT.
    pub direct: DirectMode,
    /// The content is raw, whatever it begins with.
    pub any_content: bool,
}

/// Which file it is: a file system's device and an inode, or the device that a node stands for.
pub(super) fn file_identity(found: &Metadata) -> (u64, u64, u64) {
    match found.rdev() {
        0 => (found.dev(), found.ino(), 0),
        device => (0, 0, device),
    }
}

impl Settings {
    /// Merges and checks.
    ///
    /// # Errors
    /// A setting is wrong, or does not go with another.
    pub fn build(args: &Args) -> Result<Self, Failure> {
        let config = match &args.config {
            // A file that is not a configuration is as much a wrong request as a wrong option.
            Some(path) => config::load(path).map_err(Failure::usage)?,
            None => Config::default(),
        };
        let place = |flag: &str, from_args: bool| place(args, flag, from_args);
        let cache = pick(&args.cache, &config.cache)
            .map(|(text, cli)| {
                text.parse::<CacheMode>()
                    .map_err(|e| Failure::usage(format!("{}: {e}", place("--cache", cli))))
            })
            .transpose()?;
        let survives = pick(&args.survives, &config.survives)
            .map(|(text, cli)| {
                text.parse::<Contract>()
                    .map_err(|e| Failure::usage(format!("{}: {e}", place("--survives", cli))))
            })
            .transpose()?;
        let meaning = cache.map(CacheMode::meaning);
        let contract = match (survives, &meaning) {
            (Some(contract), Some(meaning)) if contract != meaning.contract => {
                return Err(Failure::usage(format!(
                    "{} {} means `{}`, but {} asks for `{contract}`: leave one of the two out",
                    place("--cache", args.cache.is_some()),
                    cache.expect("it has a meaning"),
                    meaning.contract,
                    place("--survives", args.survives.is_some()),
                )));
            }
            (Some(contract), _) => contract,
            (None, Some(meaning)) => meaning.contract,
            (None, None) => Contract::Power,
        };
        let queues = args.queues.or(config.queues).unwrap_or(1);
        if !(1..=QUEUES_MAX).contains(&queues) {
            let place = place("--queues", args.queues.is_some());
            return Err(Failure::usage(format!("{place} {queues}: a disk has 1 to {QUEUES_MAX} queues")));
        }
        let log_bytes_max = log_bytes_max(args, &config, contract)?;
        let spin_us = args.spin_us.or(config.spin_us).unwrap_or(0);
        if spin_us > SPIN_US_MAX {
            let place = place("--spin-us", args.spin_us.is_some());
            return Err(Failure::usage(format!(
                "{place} {spin_us}: at most {SPIN_US_MAX} microseconds make sense"
            )));
        }
        let sandbox = pick(&args.sandbox, &config.sandbox)
            .map(|(text, cli)| {
                text.parse().map_err(|e| Failure::usage(format!("{}: {e}", place("--sandbox", cli))))
            })
            .transpose()?
            .unwrap_or(SandboxMode::Auto);
        let metrics = pick(&args.metrics, &config.metrics)
            .map(|(text, cli)| metrics_address(text, &place("--metrics", cli)))
            .transpose()?;
        let journal = journal::options(args, &config, contract)?;
        let mut warnings = Vec::new();
        if config.accept_loss {
            warnings.push(format!(
                "{} = true holds at every start, and may lose later journals too: take it out after this start, or \
                 write --accept-loss for one start",
                place("--accept-loss", false)
            ));
        }
        let log = args.log.clone().or(config.log);
        if let Some(log) = log.as_ref().filter(|log| !is_window(contract) && !log.exists()) {
            warnings.push(format!(
                "{} {} has no effect: `{contract}` keeps no redo log, and no earlier one is there",
                place("--log", args.log.is_some()),
                log.display()
            ));
        }
        let settings = Self {
            journal,
            warnings,
            disks: disks(args, config.disk, contract, meaning.map(|m| m.direct))?,
            contract,
            write_cache: meaning_write_cache(cache),
            queues,
            spin_us,
            log_bytes_max,
            log,
            control: args.control.clone().or(config.control),
            recover_ijournal: args.recover_ijournal || config.recover_ijournal,
            control_disk: args.control_disk.clone().or(config.control_disk),
            metrics,
            trace: args.trace.clone().or(config.trace),
            sandbox,
        };
        settings.check(&place("--trace", args.trace.is_some()))?;
        Ok(settings)
    }

    /// Everything that can be said without opening an image: what `keep` asks before a hand-over, too.
    fn check(&self, trace_place: &str) -> Result<(), Failure> {
        // One place may be spelled in several ways. A folder that is not there is the matter of whoever needs it.
        let place = |path: &Path| absolute(path).unwrap_or_else(|_| path.to_owned());
        let mut sockets: Vec<(PathBuf, String, Option<PathBuf>)> = Vec::new();
        let disk_sockets = self.disks.iter().filter_map(|d| match &d.socket {
            SocketSpec::Path(path) => {
                Some((path.as_path(), format!("disk {}", d.file.display()), Some(place(&d.file))))
            }
            SocketSpec::Fd(_) => None,
        });
        let control = self.control.iter().map(|path| (path.as_path(), "the control socket".to_owned(), None));
        let control_disk =
            self.control_disk.iter().map(|path| (path.as_path(), "the control disk".to_owned(), None));
        for (path, what, image) in disk_sockets.chain(control).chain(control_disk) {
            sockets::check_path(path, &what)?;
            let at = place(path);
            // An image that is named twice is refused as that.
            let clash = |(other, _, of): &&(PathBuf, String, Option<PathBuf>)| {
                *other == at && (image.is_none() || *of != image)
            };
            if let Some((_, other, _)) = sockets.iter().find(clash) {
                return Err(Failure::usage(format!(
                    "{} is the socket of {other} and of {what}: give each its own path",
                    path.display()
                )));
            }
            if let Some(disk) = self.disks.iter().find(|d| place(&d.file) == at) {
                return Err(Failure::usage(format!(
                    "{} is an image and cannot also be the socket of {what}",
                    disk.file.display()
                )));
            }
            sockets.push((at, what, image));
        }
        if let Some(trace) = &self.trace {
            self.check_trace(trace, trace_place)?;
        }
        let mut fds: Vec<i32> = self.disks.iter().filter_map(|d| d.socket.fd()).collect();
        fds.sort_unstable();
        if let Some(pair) = fds.windows(2).find(|pair| pair[0] == pair[1]) {
            return Err(Failure::usage(format!("descriptor {} is given to two disks", pair[0])));
        }
        let writable = self.disks.iter().filter(|disk| !disk.read_only).count();
        if is_window(self.contract) && writable > LOGGED_DISKS_MAX {
            return Err(Failure::usage(format!(
                "under {} a group has at most {LOGGED_DISKS_MAX} writable disks, not {writable}: serve them from several processes",
                self.contract
            )));
        }
        refuse_same_image(&self.disks)
    }

    fn check_trace(&self, trace: &Path, place: &str) -> Result<(), Failure> {
        let refuse = |why: &str| Err(Failure::usage(format!("{place} {}: {why}", trace.display())));
        if trace.extension().is_some_and(|e| e == "gz") {
            return refuse("a trace is written plain, or compressed as FILE.zst; gzip is not written");
        }
        if trace.file_name().is_none() {
            return refuse("this is not the name of a file");
        }
        // By whatever name. What is not there yet would be taken for what it is not, or the trace for it.
        let place = |path: &Path| absolute(path).unwrap_or_else(|_| path.to_owned());
        let identity = |path: &Path| std::fs::metadata(path).ok().map(|found| file_identity(&found));
        let disks = self.disks.iter().flat_map(|disk| {
            let socket = match &disk.socket {
                SocketSpec::Path(path) => Some(path.clone()),
                SocketSpec::Fd(_) => None,
            };
            let log = log_of(None, &disk.file).ok();
            [Some(disk.file.clone()), log, state_path(&disk.file).ok(), socket].into_iter().flatten()
        });
        let others = self.control.iter().chain(&self.control_disk).chain(&self.log).cloned();
        let own = |path: PathBuf| {
            place(&path) == place(trace)
                || identity(trace).is_some_and(|found| Some(found) == identity(&path))
        };
        if disks.chain(others).any(own) {
            return refuse(
                "the daemon already uses this path for an image, a log or a socket: name another file",
            );
        }
        Ok(())
    }
}

/// Two disks on one file would corrupt each other; locks alone would call our own process the other one.
fn refuse_same_image(disks: &[DiskSettings]) -> Result<(), Failure> {
    let mut seen: HashMap<(u64, u64, u64), &Path> = HashMap::new();
    for disk in disks {
        // A file that is not there is reported when it is opened.
        let Ok(found) = std::fs::metadata(&disk.file) else { continue };
        if let Some(other) = seen.insert(file_identity(&found), &disk.file) {
            return Err(Failure::usage(format!(
                "{} and {} are the same image: each disk of a guest needs its own",
                other.display(),
                disk.file.display()
            )));
        }
    }
    Ok(())
}

impl SocketSpec {
    /// Where it stands, if it is at a path.
    pub fn path(&self) -> Option<&Path> {
        match self {
            Self::Fd(_) => None,
            Self::Path(path) => Some(path),
        }
    }

    /// The inherited descriptor, if it is one.
    pub fn fd(&self) -> Option<i32> {
        match self {
            Self::Fd(fd) => Some(*fd),
            Self::Path(_) => None,
        }
    }
}

fn meaning_write_cache(cache: Option<CacheMode>) -> bool {
    cache.is_none_or(|mode| mode.meaning().write_cache)
}

fn is_window(contract: Contract) -> bool {
    matches!(contract, Contract::PowerWindow { .. })
}

/// How large the redo log may become.
fn log_bytes_max(args: &Args, config: &Config, contract: Contract) -> Result<u64, Failure> {
    let Some((text, from_args)) = pick(&args.log_max, &config.log_max) else {
        return Ok(GroupOptions::LOG_DEFAULT_BYTES);
    };
    let place = place(args, "--log-max", from_args);
    let wrong = |e| Failure::usage(format!("{place}: {e}"));
    // Before it is looked at as sectors: whoever asks for a byte is to learn the least size at once.
    if parse_size(text).map_err(wrong)? < GroupOptions::LOG_MIN_BYTES {
        return Err(Failure::usage(format!(
            "{place} {text}: the log needs at least {} bytes",
            GroupOptions::LOG_MIN_BYTES
        )));
    }
    let bytes = parse_disk_size(text).map_err(wrong)?;
    // A file is at odds with itself only where the contract is its own, too: the command line may choose another one.
    let at_odds = from_args || args.survives.is_none();
    if at_odds && !is_window(contract) {
        return Err(Failure::usage(format!(
            "{place} is for power-window's redo log, and `{contract}` has none: add --survives power-window=50ms, \
             or leave it out"
        )));
    }
    Ok(bytes)
}

fn metrics_address(text: &str, place: &str) -> Result<SocketAddr, Failure> {
    let advice = "give an address and a port, as in 127.0.0.1:9150";
    text.to_socket_addrs().ok().and_then(|mut all| all.next()).ok_or_else(|| {
        Failure::usage(format!("{place} {text}: this is not an address to listen on; {advice}"))
    })
}

/// The disks of the command line, or else of the file; QEMU's single-disk options make one more spelling.
fn disks(
    args: &Args,
    tables: Vec<config::DiskTable>,
    contract: Contract,
    cache_direct: Option<DirectMode>,
) -> Result<Vec<DiskSettings>, Failure> {
    let single = args.blk_file.is_some() || args.socket_path.is_some() || args.fd.is_some();
    let mut specs = if let Some(file) = &args.blk_file {
        if !args.disk.is_empty() {
            return Err(Failure::usage("--blk-file and --disk both name disks: use --disk for several"));
        }
        vec![DiskSpec::new(file)]
    } else if !args.disk.is_empty() {
        args.disk.clone()
    } else {
        tables.into_iter().map(Into::into).collect()
    };
    if specs.is_empty() {
        return Err(Failure::usage(
            "no disk to serve: name one with --disk FILE (or --blk-file FILE, or [[disk]] in the --config file)",
        ));
    }
    if single && args.blk_file.is_none() && specs.len() > 1 {
        return Err(Failure::usage(
            "--socket-path and --fd are for one disk: with several, write --disk FILE,socket=PATH for each",
        ));
    }
    let socket = args.socket_path.clone().map(SocketSpec::Path).or(args.fd.map(SocketSpec::Fd));
    if let Some(socket) = socket {
        // A file's socket is overridden; two on one command line are a mistake.
        if !args.disk.is_empty() && specs[0].socket.is_some() {
            return Err(Failure::usage(format!(
                "--disk {} has its own socket, and --socket-path or --fd names another: leave one of the two out",
                specs[0].file.display()
            )));
        }
        specs[0].socket = Some(socket);
    }
    if specs.len() > usize::from(u16::MAX) {
        return Err(Failure::usage("a group has at most 65535 disks"));
    }
    // The process rule: without a sync on the flush path, data must be in the page cache before a write completes.
    let through_page_cache = contract != Contract::Power;
    if through_page_cache {
        if let Some(spec) = specs.iter().find(|spec| spec.direct == Some(DirectMode::On)) {
            let disk = place(args, "--disk", !args.disk.is_empty());
            return Err(Failure::usage(format!(
                "{disk} {}: direct=on does not go with `{contract}`, which uses the page cache: leave it out",
                spec.file.display()
            )));
        }
    }
    let direct_default =
        if through_page_cache { DirectMode::Off } else { cache_direct.unwrap_or(DirectMode::Auto) };
    Ok(specs
        .into_iter()
        .map(|spec| DiskSettings {
            socket: spec.socket.unwrap_or_else(|| SocketSpec::Path(default_socket(&spec.file))),
            file: spec.file,
            read_only: spec.read_only || args.read_only,
            serial: spec.serial,
            direct: if through_page_cache { DirectMode::Off } else { spec.direct.unwrap_or(direct_default) },
            any_content: spec.any_content,
        })
        .collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn as_many_disks_are_logged_as_the_log_has_places_for() {
        assert_eq!(LOGGED_DISKS_MAX, afterimage_format::log::IMAGES_MAX);
    }
}
