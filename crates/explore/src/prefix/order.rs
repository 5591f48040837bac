//! The order in which the redo log has numbered the guest's requests, read from the records that were written to it.

use std::collections::HashMap;

use afterimage_trace::{EventKind, Recording, TargetId};

use super::logged::{records, Logged};
use super::Step;
use crate::retained::Journals;

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

/// Puts the steps of a guest whose journals were retained into the order in which they counted. A write that the log took after the
/// guest had asked for something else counts from its record on, and so does what was asked for before that and is in the log
/// behind it. A write to a journal with which a set went home was open then, and counts from there on; one that was not
/// answered before a late write had waited for that one.
pub(crate) fn as_taken(steps: &mut [Step<'_>], recording: &Recording, disks: &[TargetId], log: TargetId) {
    let journals = Journals::of(recording, disks);
    let completed = completions(recording);
    let is_open = |step: &Step<'_>, event: usize| {
        step.submitted < event && completed.get(&step.id).is_none_or(|completed| event < *completed)
    };
    let asked: Vec<usize> = steps.iter().map(|step| step.submitted).collect();
    let (mut open, mut seen): (Vec<usize>, usize) = (Vec::new(), 0);
    // Positions in the log: an event, and a number.
    let mut late: Vec<((u64, u64), (usize, u64))> = Vec::new();
    let mut sets: Vec<(usize, (usize, u64))> = Vec::new();
    let mut within_set = false;
    for logged in records(recording, log) {
        let position = (logged.event, logged.sequence);
        let before = asked.partition_point(|asked| *asked < logged.event);
        open.extend(seen.min(before)..before);
        seen = seen.max(before);
        open.retain(|index| is_open(&steps[*index], logged.event));
        let first_of_set = !within_set;
        let part_of_set = within_set || logged.more;
        within_set = logged.more;
        let found = open.iter().map(|index| &steps[*index]).find(|step| {
            (step.disk, step.offset, step.len) == (logged.disk, logged.offset, logged.len)
                && same(step, &logged)
                && !late.iter().any(|(part, _)| *part == (step.id, step.offset))
        });
        match found.filter(|_| !part_of_set) {
            Some(step) => {
                // In the log before the guest asked for anything else: it was not late.
                let asked_since = asked.partition_point(|asked| *asked <= step.submitted) < before;
                if asked_since || late.last().is_some_and(|(_, (event, _))| step.submitted < *event) {
                    late.push(((step.id, step.offset), position));
                }
            }
            None if first_of_set => sets.push((logged.disk, position)),
            None => {}
        }
    }
    for step in steps.iter_mut() {
        let bytes = step.offset..step.offset + step.len;
        if let Some((_, position)) = late.iter().find(|((id, _), _)| *id == step.id) {
            step.taken = *position;
        } else if journals[step.disk].in_log(&bytes) {
            let home = sets.iter().filter(|(disk, (event, _))| *disk == step.disk && is_open(step, *event));
            let waited = late.iter().filter(|(_, (event, _))| is_open(step, *event));
            let home = home.map(|(_, position)| *position).max();
            step.taken =
                home.or(waited.map(|(_, (event, _))| (event + 1, 0)).max()).unwrap_or((step.submitted, 0));
        }
    }
    steps.sort_by_key(|step| (step.taken, step.submitted));
}

fn same(step: &Step<'_>, logged: &Logged) -> bool {
    match (step.data(), &logged.data) {
        (Some(data), Some(found)) => data == &found[..],
        _ => true,
    }
}

/// The events with which requests completed.
fn completions(recording: &Recording) -> HashMap<u64, usize> {
    let completion = |(event, kind): (usize, &EventKind)| match kind {
        EventKind::Complete { id, .. } => Some((*id, event)),
        _ => None,
    };
    recording.events.iter().map(|entry| &entry.kind).enumerate().filter_map(completion).collect()
}

/// Whether no step stands before one that had completed before it was submitted.
fn allowed(steps: &[Step<'_>], recording: &Recording) -> bool {
    let completed = completions(recording);
    let mut newest = 0;
    steps.iter().all(|step| {
        let late = completed.get(&step.id).is_some_and(|completed| *completed < newest);
        newest = newest.max(step.submitted);
        !late
    })
}
