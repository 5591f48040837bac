//! The process locks itself in: what a hostile guest could reach through a bug is what it has already.
//!
//! ```text
//! sockets bound ─ images open ─► landlock (files, TCP, signals) ─ group, servers, threads ─► seccomp on all threads
//! ```
//!
//! Landlock binds a thread and its later children, so it comes before the first thread is made. Seccomp can be put on
//! all threads at once and comes last, when start-up's calls are over; threads made later (new queues) inherit both.

mod calls;
mod files;

use std::str::FromStr;

pub use afterimage_protocol::status::SandboxReport;
pub use calls::restrict_calls;
pub use files::{restrict_files, FileNeeds};

/// `--sandbox`
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SandboxMode {
    /// What the kernel offers.
    Auto,
    /// Nothing.
    Off,
    /// Everything, or refuse to start.
    Require,
}

/// Not one of the modes.
#[derive(Debug, thiserror::Error)]
#[error("`{0}` is not a sandbox mode: write auto, off or require")]
pub struct UnknownSandboxMode(String);

impl FromStr for SandboxMode {
    type Err = UnknownSandboxMode;

    fn from_str(text: &str) -> Result<Self, UnknownSandboxMode> {
        match text {
            "auto" => Ok(Self::Auto),
            "off" => Ok(Self::Off),
            "require" => Ok(Self::Require),
            other => Err(UnknownSandboxMode(other.to_owned())),
        }
    }
}
