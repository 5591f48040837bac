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

use serde::{Deserialize, Serialize};

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

/// What is in force, in words.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SandboxReport {
    /// File access: `full`, `partial`, `off`, or why not.
    pub landlock: String,
    /// System calls: `on`, `off`, or why not.
    pub seccomp: String,
}

impl SandboxReport {
    /// Nothing in force because the user said so.
    pub fn off() -> Self {
        Self { landlock: "off".to_owned(), seccomp: "off".to_owned() }
    }
}
