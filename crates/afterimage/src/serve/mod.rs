//! `afterimage serve`: one process, one guest, one consistency group.

pub(crate) mod announce;
pub mod args;
pub mod cache;
pub mod config;
pub mod daemon;
pub mod descriptors;
pub mod disk_spec;
mod doors;
mod ends;
mod http;
mod journal;
mod kept;
pub mod memory;
pub mod metrics;
pub mod notify;
pub mod settings;
pub mod sockets;
pub mod state;
pub mod trace;

/// Names the inherited descriptor of `afterimage keep`'s socket.
pub const KEEP_FD_VARIABLE: &str = "AFTERIMAGE_KEEP_FD";
