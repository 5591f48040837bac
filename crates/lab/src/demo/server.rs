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
    /// `afterimage serve --survives guest-crash --journal retain`
    Retaining,
    /// The same, but what the guest writes to its journal is forgotten. For measurements; nobody is offered it.
    Forgetting,
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
            Kind::Retaining => format!("afterimage {}, --journal retain", Contract::GuestCrash.flag()),
            Kind::Forgetting => {
                format!("afterimage {}, --journal drop-for-bench", Contract::GuestCrash.flag())
            }
            Kind::PeerWriteback => "qemu-storage-daemon writeback".to_owned(),
            Kind::PeerNoFlush => "qemu-storage-daemon no-flush".to_owned(),
        }
    }

    /// What `--journal` is given, where it is.
    fn journal(self) -> Option<&'static str> {
        match self {
            Kind::Retaining => Some("retain"),
            Kind::Forgetting => Some("drop-for-bench"),
            _ => None,
        }
    }

    /// Starts it on an image; retained journals go to `arena`, which lies in memory.
    ///
    /// # Errors
    /// As [`Daemon::serve`].
    pub fn start(self, image: &Path, arena: &Path) -> Result<Daemon> {
        let ours = |contract: Contract| {
            let mut options = ServeOptions::new(&contract.flag(), &[image.to_path_buf()]);
            if let Some(journal) = self.journal() {
                let arena = arena.display().to_string();
                options.extra = ["--journal", journal, "--arena", &arena].map(str::to_owned).to_vec();
            }
            options
        };
        match self {
            Kind::Ours(contract) => Daemon::serve(&ours(contract)),
            Kind::Retaining | Kind::Forgetting => Daemon::serve(&ours(Contract::GuestCrash)),
            Kind::OursKept(contract) => Daemon::serve(&ServeOptions { keep: true, ..ours(contract) }),
            Kind::PeerWriteback => Daemon::peer(&PeerOptions::writeback(image)),
            Kind::PeerNoFlush => Daemon::peer(&PeerOptions::no_flush(image)),
        }
    }
}
