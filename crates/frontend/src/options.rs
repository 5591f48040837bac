//! What may be chosen for one disk.

use std::sync::Arc;

use afterimage_block::Bell;

use crate::{FrontendError, FrontendStats, KeepHandle};

const QUEUES_MAX: u16 = 64;
pub(crate) const QUEUE_SIZE_MAX: u16 = 1024;

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
    /// Kept with each connection, for the next daemon to look at before it takes one over ([`KeepHandle::shown`]): what the
    /// guest was shown is the disk that it goes on with.
    pub shown: Vec<u8>,
    /// Rung each second while a queue cannot stop, because the disk holds requests back: who has it do so is to end that. A
    /// VMM's main loop stands meanwhile, or the next guest waits.
    pub hurry: Option<Arc<Bell>>,
}

impl Default for ServeOptions {
    fn default() -> Self {
        Self {
            queues: 1,
            queue_size_max: 1024,
            write_cache: true,
            spin_us: 0,
            keep: None,
            shown: Vec::new(),
            hurry: None,
        }
    }
}

impl ServeOptions {
    pub(crate) fn check(&self, name: &str, stats: &FrontendStats) -> Result<(), FrontendError> {
        let no = |reason: String| Err(FrontendError::Options(reason));
        if !(1..=QUEUES_MAX).contains(&self.queues) {
            return no(format!("{} queues: a disk has 1 to {QUEUES_MAX}", self.queues));
        }
        let size = self.queue_size_max;
        if !size.is_power_of_two() || !(16..=QUEUE_SIZE_MAX).contains(&size) {
            return no(format!(
                "a queue size of {size}: it must be a power of two from 16 to {QUEUE_SIZE_MAX}"
            ));
        }
        if stats.queues() < self.queues {
            return no(format!("counters for {} queues, and the disk has {}", stats.queues(), self.queues));
        }
        if name.is_empty() || name.contains('/') || name.len() > 128 {
            return no(format!("{name:?} cannot name a disk: 1 to 128 bytes without a slash"));
        }
        Ok(())
    }
}
