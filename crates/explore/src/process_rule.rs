//! The process rule: when guest, VMM and daemon die, everything that had completed is there, under every contract.

use std::collections::HashMap;
use std::ops::RangeInclusive;
use std::sync::Arc;

use afterimage_trace::{EventKind, Layer, Op, Recording};

use crate::log_recovery::LogRecovery;
use crate::own::{OwnRecovery, Recovered};
use crate::prefix::Prefixes;
use crate::state::Image;

/// The daemon's recovery of a redo log after the death of a process: no window, nothing that completed may be missing.
pub struct ProcessRule {
    recovery: LogRecovery,
    prefixes: Arc<Prefixes>,
    /// The guest's requests that change something: events of submission and completion.
    completed: HashMap<usize, usize>,
}

impl ProcessRule {
    /// For a recording.
    pub fn new(recording: &Recording, prefixes: Arc<Prefixes>, recovery: LogRecovery) -> Self {
        let guest: Vec<_> = recording.of_layer(Layer::Guest).map(|(id, _)| id).collect();
        let mut open = HashMap::new();
        let mut completed = HashMap::new();
        for (event, entry) in recording.events.iter().enumerate() {
            match &entry.kind {
                EventKind::Submit { target, id, op } if guest.contains(target) && *op != Op::Flush => {
                    open.insert(*id, event);
                }
                EventKind::Complete { target, id, ok: true } if guest.contains(target) => {
                    completed.extend(open.remove(id).map(|submitted| (submitted, event)));
                }
                _ => {}
            }
        }
        Self { recovery, prefixes, completed }
    }
}

impl OwnRecovery for ProcessRule {
    fn recover(&self, media: Vec<Image>) -> Result<Recovered, String> {
        self.recovery.recover(media)
    }

    fn promised(&self, prefix: u64, crash: RangeInclusive<usize>) -> Result<usize, String> {
        let digest = self.prefixes.prefix(prefix as usize).digest;
        // The longest history with this content that was possible: nobody can tell them apart.
        let k =
            self.prefixes.longest(self.prefixes.find(digest), crash.clone()).map_err(|e| e.to_string())?;
        let crash = *crash.end();
        let lacking = self.prefixes.lacking(k).iter();
        let mut completed = lacking.filter_map(|submitted| Some((submitted, self.completed.get(submitted)?)));
        match completed.find(|(_, completed)| **completed < crash) {
            None => Ok(crash),
            Some((submitted, completed)) => Err(format!(
                "the disks hold the first {k} requests; the one submitted at event {submitted} had completed at event \
                 {completed}, before the process died, and is not there"
            )),
        }
    }
}
