//! vhost-user-blk: the way between a guest's virtqueues and a [`Disk`](afterimage_block::Disk).
//!
//! ```text
//!            session thread (one per disk)
//! socket ──► wire ──► (keep) ──► device ──► start/stop, ring addresses, memory
//!                                              │
//!            queue threads (one per virtqueue) ▼
//! kick ──► ring ──► chain ──► request ──► lane.submit … dispatch … reap
//!            ▲        guest addresses become iovecs; nothing is copied here
//!            └── in-flight region ◄── one used index and at most one interrupt per batch
//! ```
//!
//! Outcomes of a crash of this process: the in-flight region (shared with the VMM or held by the keeper) names
//! exactly the requests that were fetched and whose completion the guest cannot have seen; a new process submits
//! them again in the order in which they were fetched. A request may so be executed twice, never not at all.
//!
//! Everything that comes from the peer is hostile until checked: ring contents, chains, the in-flight region,
//! messages, and the memory itself, which may vanish (see `sigbus`).
#![warn(missing_docs)]

mod chain;
#[cfg(test)]
mod chain_tests;
mod config;
mod device;
mod error;
#[cfg(any(test, feature = "testkit"))]
#[path = "../testkit/fuzz.rs"]
pub mod fuzz;
mod handler;
#[cfg(feature = "testkit")]
#[path = "../testkit/inband.rs"]
pub mod inband;
mod inflight;
pub mod keep;
mod memory;
mod notify;
mod options;
mod peer;
mod queue;
mod request;
mod ring;
mod server;
mod session;
mod sigbus;
mod stats;
#[cfg(feature = "testkit")]
#[path = "../testkit/stepped.rs"]
pub mod stepped;
mod unheard;
mod wire;
mod worker;
mod write_cache;

pub use error::FrontendError;
pub use keep::KeepHandle;
pub use options::ServeOptions;
pub use queue::BYTES_MAX as QUEUE_BYTES_MAX;
pub use server::{Endpoint, Server};
pub use stats::{
    FrontendSnapshot, FrontendStats, OperationSnapshot, QueueSnapshot, QueueStats, RequestKind,
    LATENCY_BOUNDS_US,
};
