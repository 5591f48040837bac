//! systemd's readiness protocol (sd_notify(3)): one datagram to the socket named in `NOTIFY_SOCKET`. The
//! crate `sd-notify` connects anew for each message, which the sandbox forbids.

use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::time::Duration;

/// Longer than a part of a start takes: a redo log of `--log-max` goes home within it, and a dead daemon's locks are waited for.
const PHASE: Duration = Duration::from_secs(15 * 60);

/// A connection to the service manager, if there is one. Made before the sandbox closes: sending needs no name.
#[derive(Debug, Default)]
pub struct Notifier(Option<UnixDatagram>);

impl Notifier {
    /// Connects where `NOTIFY_SOCKET` says; without it every message goes nowhere.
    pub fn from_environment() -> Self {
        let Some(name) = std::env::var_os("NOTIFY_SOCKET") else { return Self::default() };
        let address = match name.as_bytes().strip_prefix(b"@") {
            Some(name) => SocketAddr::from_abstract_name(name),
            None => SocketAddr::from_pathname(&name),
        };
        let connect = || {
            let socket = UnixDatagram::unbound()?;
            socket.connect_addr(&address?)?;
            Ok::<_, std::io::Error>(socket)
        };
        match connect() {
            Ok(socket) => Self(Some(socket)),
            Err(error) => {
                tracing::warn!(%error, "cannot reach the service manager at NOTIFY_SOCKET");
                Self(None)
            }
        }
    }

    /// The service goes on in another process, which will tell that it is ready.
    pub fn tell_reloading(&self) {
        let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
        let now_us = now.tv_sec * 1_000_000 + now.tv_nsec / 1000;
        self.tell(&format!("RELOADING=1\nMONOTONIC_USEC={now_us}"));
    }

    /// What begins may take longer than the service manager waits for a start: from here on it waits this long for the next word.
    pub fn tell_begun(&self, what: &str) {
        tracing::debug!("{what}");
        self.tell(&format!("STATUS={what}\nEXTEND_TIMEOUT_USEC={}", PHASE.as_micros()));
    }

    /// Sends one state, such as `READY=1`.
    pub fn tell(&self, state: &str) {
        if let Some(Err(error)) = self.0.as_ref().map(|socket| socket.send(state.as_bytes())) {
            tracing::warn!(%error, "cannot tell the service manager {state}");
        }
    }
}
