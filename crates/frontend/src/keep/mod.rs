//! `afterimage keep`: what must outlive the daemon is held by a tiny process.
//!
//! ```text
//! guest ── vhost-user socket ──┐ (same description in both)
//!                           daemon ── put/delete, acknowledged ──► keeper
//! new daemon ◄── everything put so far, with descriptors ─────────┘
//! ```
//!
//! User Mode Linux breaks its device for good when the backend's socket closes. The keeper holds a duplicate of
//! that socket, of the listening sockets, of the last of each state-setting vhost-user message that was accepted, with
//! its descriptors, and of the in-flight region, under keys, and no more of one disk than its bounds. A daemon that
//! starts finds them and goes on where the dead one stopped: it replays the messages through its own handler and
//! resubmits what the in-flight region holds. The keeper supervises nothing and understands nothing: it is a store of
//! (key → bytes, descriptors).
//!
//! Outcomes of a daemon's death: a put that was acknowledged is found by the next daemon, and a message that was answered
//! was put before. One that the daemon had read from the guest's socket and not yet put is lost; that window is open only
//! while a guest sets its device up or tears it down. A message that the daemon refused is not kept, nor anything of a
//! connection that ended: its successor would refuse it as well, and the guest with it.

mod client;
mod server;
pub mod wire;

/// What follows a disk's name in the key of its guest's connection.
const CONNECTION: &str = "/session/socket";

pub use client::KeepHandle;
pub use server::{Handled, Keeper};
pub use wire::{Entry, KeepError};
