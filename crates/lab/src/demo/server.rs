//! Which server a scenario runs on.

use std::path::Path;

use super::plan::Contract;
use crate::daemon::{Daemon, PeerOptions, ServeOptions};
use crate::error::Result;

/// Which server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// `afterimage serve`
    Ours(Contract),
    /// `afterimage keep --restart -- serve`
    OursKept(Contract),
    /// qemu-storage-daemon with cache.no-flush=off: what QEMU calls writeback.
    PeerWriteback,
    /// qemu-storage-daemon with cache.no-flush=on: what QEMU calls unsafe.
    PeerNoFlush,
}

impl Kind {
    /// The name in tables.
    pub fn title(self) -> String {
        match self {
            Kind::Ours(contract) => format!("afterimage {}", contract.flag()),
            Kind::OursKept(contract) => format!("afterimage keep, {}", contract.flag()),
            Kind::PeerWriteback => "qemu-storage-daemon writeback".to_owned(),
            Kind::PeerNoFlush => "qemu-storage-daemon no-flush".to_owned(),
        }
    }

    /// Starts it on an image.
    ///
    /// # Errors
    /// As [`Daemon::serve`].
    pub fn start(self, image: &Path) -> Result<Daemon> {
        let ours = |contract: Contract| ServeOptions::new(&contract.flag(), &[image.to_path_buf()]);
        match self {
            Kind::Ours(contract) => Daemon::serve(&ours(contract)),
            Kind::OursKept(contract) => Daemon::serve(&ServeOptions { keep: true, ..ours(contract) }),
            Kind::PeerWriteback => Daemon::peer(&PeerOptions::writeback(image)),
            Kind::PeerNoFlush => Daemon::peer(&PeerOptions::no_flush(image)),
        }
    }
}
