//! What a group runs on.

use std::fmt::Debug;
use std::sync::Arc;

use crate::redo::Redo;
use crate::{Clock, SystemClock};

/// The clock, and who does what is done in the background.
pub trait Host: Send + Sync + Debug {
    /// Time.
    fn clock(&self) -> Arc<dyn Clock>;

    /// Whether the host does, step by step, what threads would do in the background.
    fn is_stepped(&self) -> bool;

    /// A redo log that is open. A host that steps takes turns of its schedule when they are due: [`crate::redo::Syncer::turn`] and
    /// [`Redo::turn_home`].
    fn take(&self, redo: &Arc<Redo>);
}

/// A machine with threads.
#[derive(Debug)]
pub struct Machine;

impl Host for Machine {
    fn clock(&self) -> Arc<dyn Clock> {
        Arc::new(SystemClock)
    }

    fn is_stepped(&self) -> bool {
        false
    }

    fn take(&self, _redo: &Arc<Redo>) {}
}
