//! The control socket: JSON lines, one request a line, one answer a line (`docs/control-protocol.md`).
//!
//! ```text
//! ctl ── client ── Unix socket ── server ─┬─ status, image, flush, wait, stop, resume   one answer
//!                                         ├─ pause, hold, track                         one answer; the connection owns it
//!                                         ├─ approach, changed                          one answer
//!                                         └─ events                                     answers until one side goes
//! ```
//!
//! A line comes from anybody who may open the socket, so it is bounded and parsed strictly by a pure function. What the
//! connections of a daemon may do to each other is decided in [`sessions`], whose pauses follow [`pauses`].

pub mod client;
mod connection;
mod flushes;
pub mod pauses;
pub mod protocol;
pub mod retained;
pub mod server;
pub mod sessions;

pub use protocol::{parse_request, Request, RequestError, LINE_BYTES_MAX};

/// What may be lost of commits that a guest publishes on the control disk, in one sentence.
pub fn published_promise() -> String {
    format!(
        "published commits (vext4 -o vma_exitless) survive guest and VMM; if VMM and daemon die together, at most \
         the last {} ms of them are lost",
        afterimage_control_disk::PUBLISHED_US_MAX / 1000
    )
}
