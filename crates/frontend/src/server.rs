//! One disk on one socket.

use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::Arc;

use afterimage_block::Disk;

use crate::keep::KeepHandle;
use crate::{FrontendError, FrontendStats};

/// Where the guest comes from.
#[derive(Debug)]
pub enum Endpoint {
    /// Guests connect, one at a time, again and again.
    Listen(UnixListener),
    /// The guest is already connected; when it leaves, the server is finished.
    Connected(UnixStream),
}

/// How a disk is shown to its guest.
#[derive(Clone, Debug)]
pub struct ServeOptions {
    /// Virtqueues offered, 1 to 64. Each has a thread and a lane of its own.
    pub queues: u16,
    /// Largest queue size accepted, a power of two from 16 to 1024.
    pub queue_size_max: u16,
    /// Whether the guest sees a write cache at first; it may switch (VIRTIO_BLK_F_CONFIG_WCE).
    pub write_cache: bool,
    /// Spin for this long before sleeping, in microseconds; 0, the default, never spins. Helps only with spare cores.
    pub spin_us: u32,
    /// Where sockets and in-flight requests outlive this process.
    pub keep: Option<KeepHandle>,
}

impl Default for ServeOptions {
    fn default() -> Self {
        Self { queues: 1, queue_size_max: 1024, write_cache: true, spin_us: 0, keep: None }
    }
}

/// A disk being served.
#[derive(Debug)]
pub struct Server {}

impl Server {
    /// Opens one lane per queue and starts serving in threads of its own.
    ///
    /// `name` names the disk in logs and in the keeper. `stats` must count `options.queues` queues.
    pub fn start(
        _name: &str,
        _disk: Arc<dyn Disk>,
        _endpoint: Endpoint,
        _options: ServeOptions,
        _stats: Arc<FrontendStats>,
    ) -> Result<Server, FrontendError> {
        Err(FrontendError::Options("not ready".into()))
    }

    /// Quiesces all queues, closes the connection and returns when no request is in flight.
    pub fn stop(&self) {}

    /// Whether a guest is connected.
    pub fn attached(&self) -> bool {
        false
    }

    /// Whether the server has ended: after [`Server::stop`], or when a [`Endpoint::Connected`] guest has left.
    pub fn finished(&self) -> bool {
        true
    }

    /// Waits for the end.
    pub fn join(self) {}
}
