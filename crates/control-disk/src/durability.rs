//! What the control disk asks of the disks beside it.

use std::sync::Arc;

use afterimage_block::SequenceNumber;
use afterimage_journal::group::RetainGroup;
use afterimage_journal::RetainDisk;
use afterimage_order::Subscription;

use crate::desk::Reached;

/// What the control disk asks of its group.
pub trait Durability: Send + Sync {
    /// How far it has got. Does not wait for storage.
    fn reached(&self) -> Reached;

    /// Whether nothing may be acknowledged now that is not durable; see [`RetainGroup::holds_flushes`].
    fn holds_flushes(&self) -> bool {
        false
    }

    /// Makes everything that had completed before the call durable; see [`RetainGroup::flush`].
    ///
    /// # Errors
    /// The group has failed, in one sentence.
    fn flush(&self) -> Result<SequenceNumber, String>;

    /// `wake` is called whenever [`Durability::reached`] has changed without a request, from any thread, and does not wait.
    fn subscribe(&self, wake: Box<dyn Fn() + Send + Sync>) -> Option<Subscription>;

    /// Those for which commits may be handed over: always the same.
    fn retained_disks(&self) -> Vec<Arc<RetainDisk>>;
}

impl Durability for RetainGroup {
    fn reached(&self) -> Reached {
        // In this order: what is durable had been acknowledged.
        let durable = self.durable();
        let failure = self.disks().iter().find_map(|disk| disk.health().failure());
        Reached { acknowledged: self.sequence().acknowledged.get(), durable, failure }
    }

    fn holds_flushes(&self) -> bool {
        RetainGroup::holds_flushes(self)
    }

    fn flush(&self) -> Result<SequenceNumber, String> {
        RetainGroup::flush(self).map_err(|error| error.to_string())
    }

    fn subscribe(&self, wake: Box<dyn Fn() + Send + Sync>) -> Option<Subscription> {
        Some(RetainGroup::subscribe(self, wake))
    }

    fn retained_disks(&self) -> Vec<Arc<RetainDisk>> {
        RetainGroup::retained_disks(self)
    }
}
