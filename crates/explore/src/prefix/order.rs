//! The order in which the redo log has numbered the guest's requests, read from the records that were written to it.

use std::collections::HashMap;
use std::sync::Arc;

use afterimage_format::log::{RecordHeader, RecordKind, RECORDS_OFFSET, RECORD_ALIGN};
use afterimage_trace::{EventKind, Op, Recording, TargetId};

use super::Step;
use crate::state::SECTOR_BYTES;

/// A record that was appended.
struct Logged {
    disk: usize,
    offset: u64,
    len: u64,
    /// The payload, where it was not split at the end of the area.
    data: Option<(Arc<[u8]>, usize)>,
    /// The event of the log's write.
    event: usize,
}

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
    match (step.op, &logged.data) {
        (Op::Write { offset, data, .. }, Some((found, at))) => {
            let from = (step.offset - offset) as usize;
            data[from..from + step.len as usize] == found[*at..*at + step.len as usize]
        }
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

/// Every record that was written to the log, in that order.
fn records(recording: &Recording, log: TargetId) -> Vec<Logged> {
    let mut found = Vec::new();
    // Bytes of a payload that go on at the begin of the area.
    let mut rest = 0;
    for (event, entry) in recording.events.iter().enumerate() {
        let EventKind::Submit { target, op: Op::Write { offset, data, .. }, .. } = &entry.kind else {
            continue;
        };
        if *target != log || *offset < RECORDS_OFFSET {
            continue;
        }
        let mut at = if *offset == RECORDS_OFFSET { std::mem::take(&mut rest) } else { 0 };
        while let Some(header) = data.get(at..).and_then(RecordHeader::parse) {
            let payload = header.payload_bytes().unwrap_or(0) as usize;
            let start = at + RECORD_ALIGN as usize;
            if let Some(RecordKind::Write | RecordKind::Discard | RecordKind::Zero) = header.kind() {
                let whole = payload > 0 && start + payload <= data.len();
                found.push(Logged {
                    disk: usize::from(header.disk.get()),
                    offset: header.sector.get() * SECTOR_BYTES as u64,
                    len: header.sectors.get() * SECTOR_BYTES as u64,
                    data: whole.then(|| (Arc::clone(data), start)),
                    event,
                });
            }
            at = start + payload;
        }
        rest = at.saturating_sub(data.len());
    }
    found
}
