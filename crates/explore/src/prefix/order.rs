//! The order in which the redo log has numbered the guest's requests, read from the records that were written to it.

use std::collections::HashMap;

use afterimage_trace::{EventKind, Recording, TargetId};

use super::logged::{records, Logged};
use super::Step;

/// Puts the steps into the log's order, those that are not in it last. They stay in the order of submission where the
/// log's contradicts the guest's stream (a request numbered before another one that had completed before it was made),
/// so that a daemon that reorders is not its own witness.
pub(super) fn as_logged(steps: &mut Vec<Step<'_>>, recording: &Recording, log: TargetId) {
    let mut free: HashMap<(usize, u64, u64), Vec<usize>> = HashMap::new();
    for (index, step) in steps.iter().enumerate().rev() {
        free.entry((step.disk, step.offset, step.len)).or_default().push(index);
    }
    let mut order = Vec::with_capacity(steps.len());
    let mut placed = vec![false; steps.len()];
    for logged in records(recording, log) {
        let Some(free) = free.get_mut(&(logged.disk, logged.offset, logged.len)) else { continue };
        let fits = |index: &usize| steps[*index].submitted < logged.event && same(&steps[*index], &logged);
        let Some(at) = free.iter().rposition(fits) else { continue };
        let index = free.remove(at);
        placed[index] = true;
        order.push(index);
    }
    order.extend((0..steps.len()).filter(|index| !placed[*index]));
    if order.windows(2).all(|pair| pair[0] < pair[1]) {
        return;
    }
    let reordered: Vec<Step<'_>> = order.iter().map(|index| steps[*index]).collect();
    if allowed(&reordered, recording) {
        *steps = reordered;
    }
}

fn same(step: &Step<'_>, logged: &Logged) -> bool {
    match (step.data(), &logged.data) {
        (Some(data), Some(found)) => data == &found[..],
        _ => true,
    }
}

/// Whether no step stands before one that had completed before it was submitted.
fn allowed(steps: &[Step<'_>], recording: &Recording) -> bool {
    let completed: HashMap<u64, usize> = recording
        .events
        .iter()
        .enumerate()
        .filter_map(|(event, entry)| match entry.kind {
            EventKind::Complete { id, .. } => Some((id, event)),
            _ => None,
        })
        .collect();
    let mut newest = 0;
    steps.iter().all(|step| {
        let late = completed.get(&step.id).is_some_and(|completed| *completed < newest);
        newest = newest.max(step.submitted);
        !late
    })
}
