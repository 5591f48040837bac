//! The storage streams of the contracts that pass requests through.

use std::collections::HashMap;
use std::sync::Arc;

use afterimage_order::Contract;
use afterimage_trace::{Event, EventKind, Layer, Op, Recording, Role, Target, TargetId};

use crate::{ExploreError, Result};

/// What reaches the images of a guest's requests under `power` or `guest-crash`: a write is a write, a flush a sync of the
/// image (`power`) or nothing, a write that completes as if flushed is followed by a sync before its completion
/// (`power`). Times and the guest's events stay as they are; storage is as fast as the source's was.
///
/// # Errors
/// Another contract; or a guest layer that is not the disks of one group.
pub fn direct(recording: &Recording, contract: Contract) -> Result<Recording> {
    let syncs = match contract {
        Contract::Power => true,
        Contract::GuestCrash => false,
        Contract::PowerWindow { .. } => {
            return Err(ExploreError::Usage(
                "power-window goes through the redo log: its storage stream comes from a replay".to_owned(),
            ))
        }
    };
    let disks = super::guest_disks(recording)?;
    let mut targets: Vec<Target> = disks.iter().map(|id| recording.targets[id.0 as usize].clone()).collect();
    for disk in 0..disks.len() {
        targets.push(Target {
            layer: Layer::Storage,
            role: Role::Disk(disk as u16),
            ..targets[disk].clone()
        });
    }
    let place: HashMap<TargetId, u16> = disks.iter().copied().zip(0..).collect();
    let mut next_id = ids_end(recording);
    let mut below: HashMap<u64, Below> = HashMap::new();
    let mut events = Vec::with_capacity(recording.events.len() * 2);
    for event in &recording.events {
        let at_ns = event.at_ns;
        let mut push = |kind| events.push(Event { at_ns, kind });
        match &event.kind {
            EventKind::Submit { target, id, op } => {
                let Some(&disk) = place.get(target) else { continue };
                push(EventKind::Submit { target: TargetId(disk), id: *id, op: op.clone() });
                let target = TargetId(disk + disks.len() as u16);
                let (op, flushed) = lowered(op);
                let sync = op == Op::Flush;
                if !sync || syncs {
                    push(EventKind::Submit { target, id: next_id, op });
                    below.insert(*id, Below { target, id: next_id, flushed: flushed && syncs });
                    next_id += 1;
                }
            }
            EventKind::Complete { target, id, ok } => {
                let Some(&disk) = place.get(target) else { continue };
                if let Some(Below { target, id, flushed }) = below.remove(id) {
                    push(EventKind::Complete { target, id, ok: *ok });
                    if flushed && *ok {
                        push(EventKind::Submit { target, id: next_id, op: Op::Flush });
                        push(EventKind::Complete { target, id: next_id, ok: true });
                        next_id += 1;
                    }
                }
                push(EventKind::Complete { target: TargetId(disk), id: *id, ok: *ok });
            }
            EventKind::Publish { target, slot, runs } => {
                let Some(&disk) = place.get(target) else { continue };
                push(EventKind::Publish { target: TargetId(disk), slot: *slot, runs: Arc::clone(runs) });
            }
            EventKind::Mark { text } => push(EventKind::Mark { text: Arc::clone(text) }),
        }
    }
    let mut about = recording.about.clone();
    about.insert("contract".to_owned(), contract.to_string().into());
    Ok(Recording { about, targets, events })
}

/// The request below a guest's request.
struct Below {
    target: TargetId,
    id: u64,
    /// A sync follows.
    flushed: bool,
}

/// The request without its flag, and the flag.
fn lowered(op: &Op) -> (Op, bool) {
    match op {
        Op::Write { offset, data, flushed } => {
            (Op::Write { offset: *offset, data: Arc::clone(data), flushed: false }, *flushed)
        }
        Op::Zero { offset, len, unmap, flushed } => {
            (Op::Zero { offset: *offset, len: *len, unmap: *unmap, flushed: false }, *flushed)
        }
        Op::Flush => (Op::Flush, false),
    }
}

/// The first number that no request of the recording has as its name, nor any after it.
pub(crate) fn ids_end(recording: &Recording) -> u64 {
    let ids = recording.events.iter().filter_map(|event| match event.kind {
        EventKind::Submit { id, .. } => Some(id),
        _ => None,
    });
    ids.max().map_or(0, |id| id + 1)
}
