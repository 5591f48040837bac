//! Mistakes as changes of a storage stream.

use std::collections::HashSet;
use std::time::Duration;

use afterimage_format::log::{RecordHeader, RECORDS_OFFSET};
use afterimage_trace::{Event, EventKind, Layer, Op, Recording, Role, TargetId};
use rand::{RngExt as _, SeedableRng as _};
use rand_chacha::ChaCha8Rng;

use super::nothing_to_act_on;
use crate::layers::ids_end;
use crate::marks::{bounds, marks};
use crate::Result;

/// Whose syncs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Which {
    Log,
    Images,
}

fn targets(recording: &Recording, which: Which) -> HashSet<TargetId> {
    recording
        .of_layer(Layer::Storage)
        .filter(|(_, target)| (target.role == Role::Log) == (which == Which::Log))
        .map(|(id, _)| id)
        .collect()
}

fn is_sync(event: &Event, of: &HashSet<TargetId>) -> Option<u64> {
    match event.kind {
        EventKind::Submit { target, id, op: Op::Flush } if of.contains(&target) => Some(id),
        _ => None,
    }
}

fn remove(recording: &mut Recording, ids: &HashSet<u64>) {
    recording.events.retain(|event| match &event.kind {
        EventKind::Submit { id, .. } | EventKind::Complete { id, .. } => !ids.contains(id),
        EventKind::Publish { .. } | EventKind::Mark { .. } => true,
    });
}

/// No sync reaches them.
pub(super) fn drop_syncs(recording: &mut Recording, which: Which) {
    let of = targets(recording, which);
    let ids = recording.events.iter().filter_map(|event| is_sync(event, &of)).collect();
    remove(recording, &ids);
}

/// The images are synced before the mark `begin`, and from then on so often that nothing stays volatile for a window.
pub(super) fn sync_each_window(recording: &mut Recording, window: Duration) -> Result<()> {
    let mut images: Vec<TargetId> = targets(recording, Which::Images).into_iter().collect();
    images.sort_unstable();
    let (begin, _) = bounds(&marks(recording)?, recording.events.len());
    let mut next_id = ids_end(recording);
    let half_ns = window.as_nanos() as u64 / 2;
    let mut due_ns = 0;
    let mut events = Vec::with_capacity(recording.events.len());
    for (index, event) in std::mem::take(&mut recording.events).into_iter().enumerate() {
        if index == begin || event.at_ns >= due_ns {
            let at_ns = due_ns.min(event.at_ns);
            for &target in &images {
                let id = next_id;
                events.push(Event { at_ns, kind: EventKind::Submit { target, id, op: Op::Flush } });
                events.push(Event { at_ns, kind: EventKind::Complete { target, id, ok: true } });
                next_id += 1;
            }
            due_ns = event.at_ns + half_ns;
        }
        events.push(event);
    }
    recording.events = events;
    Ok(())
}

/// One sync between the marks `begin` and `end`, drawn among those that something depends on: of an image, where it makes a
/// write durable; of the log, where it makes records durable and the next thing written is a record.
pub(super) fn skip_one_sync(recording: &mut Recording, which: Which, seed: u64) -> Result<()> {
    let of = targets(recording, which);
    let (begin, end) = bounds(&marks(recording)?, recording.events.len());
    let storage: HashSet<TargetId> = recording.of_layer(Layer::Storage).map(|(id, _)| id).collect();
    let mut written: HashSet<TargetId> = HashSet::new();
    // The newest sync that makes something durable, and whether it has ended.
    let mut newest: Option<(u64, bool)> = None;
    let mut header = false;
    let mut syncs = Vec::new();
    for (index, event) in recording.events.iter().enumerate().take(end) {
        match &event.kind {
            EventKind::Submit { target, id, op: Op::Flush } if of.contains(target) => {
                // The header's sync is no promise about records.
                let makes_durable = written.remove(target) && !std::mem::take(&mut header) && index > begin;
                newest = makes_durable.then_some((*id, false));
                if which == Which::Images {
                    syncs.extend(newest.map(|(id, _)| id));
                }
            }
            EventKind::Submit { target, op, .. } if storage.contains(target) && *op != Op::Flush => {
                if which == Which::Log {
                    // The next record says that those before it are durable; a checkpoint would sync the log again.
                    let record = of.contains(target) && !is_header(op, which);
                    match newest {
                        Some((id, true)) if record => syncs.push(id),
                        _ => {}
                    }
                    newest = newest.filter(|(_, ended)| !ended);
                }
                if of.contains(target) {
                    header |= is_header(op, which);
                    written.insert(*target);
                }
            }
            EventKind::Complete { id, .. } => {
                newest = newest.map(|(sync, ended)| (sync, ended || sync == *id));
            }
            _ => {}
        }
    }
    if which == Which::Images {
        // A guest's journal survives the loss of some syncs: of those on which somebody relied, the mark tells.
        let relied_on = relied_on(recording, &of);
        syncs.retain(|sync| relied_on.contains(sync));
    }
    if syncs.is_empty() {
        return Err(nothing_to_act_on("no sync between its marks begin and end that anything depends on"));
    }
    let chosen = syncs[ChaCha8Rng::seed_from_u64(seed).random_range(0..syncs.len())];
    remove(recording, &HashSet::from([chosen]));
    Ok(())
}

/// Syncs after which the guest said something before the next one began.
fn relied_on(recording: &Recording, of: &HashSet<TargetId>) -> HashSet<u64> {
    let mut newest = None;
    let mut found = HashSet::new();
    for event in &recording.events {
        match event.kind {
            EventKind::Mark { .. } => found.extend(newest),
            _ => newest = is_sync(event, of).or(newest),
        }
    }
    found
}

fn is_header(op: &Op, which: Which) -> bool {
    which == Which::Log && matches!(op, Op::Write { offset, .. } if *offset < RECORDS_OFFSET)
}

/// The sync of an image ends only when the next one begins; the guest's flush is answered as before.
pub(super) fn end_syncs_late(recording: &mut Recording) {
    let of = targets(recording, Which::Images);
    let syncs: HashSet<u64> = recording.events.iter().filter_map(|event| is_sync(event, &of)).collect();
    let mut late: Vec<(TargetId, Event)> = Vec::new();
    let mut events = Vec::with_capacity(recording.events.len());
    for event in std::mem::take(&mut recording.events) {
        match event.kind {
            EventKind::Submit { target, ref op, .. } if of.contains(&target) && *op == Op::Flush => {
                let (ended, open) = late.into_iter().partition(|(t, _)| *t == target);
                late = open;
                let at_ns = event.at_ns;
                events.push(event);
                events.extend(Vec::into_iter(ended).map(|(_, e)| Event { at_ns, ..e }));
            }
            EventKind::Complete { target, id, .. } if syncs.contains(&id) => late.push((target, event)),
            _ => events.push(event),
        }
    }
    recording.events = events;
}

/// What goes home does so before the sync of the log that precedes it, in the same order.
pub(super) fn home_before_log(recording: &mut Recording) -> Result<()> {
    let (log, images) = (targets(recording, Which::Log), targets(recording, Which::Images));
    // The sync of the log that made durable what goes home, not the header's: the newest one with log writes before it
    // that are no header.
    let mut events: Vec<Event> = Vec::with_capacity(recording.events.len());
    let (mut records, mut place, mut moved) = (false, None, false);
    for event in std::mem::take(&mut recording.events) {
        match &event.kind {
            EventKind::Submit { target, op: Op::Write { offset, .. }, .. } if log.contains(target) => {
                records |= *offset >= RECORDS_OFFSET;
                events.push(event);
            }
            EventKind::Submit { target, op: Op::Flush, .. } if log.contains(target) => {
                if std::mem::take(&mut records) {
                    place = Some(events.len());
                }
                events.push(event);
            }
            EventKind::Submit { target, .. } | EventKind::Complete { target, .. }
                if images.contains(target) =>
            {
                match &mut place {
                    Some(at) => {
                        let at_ns = events[*at].at_ns;
                        events.insert(*at, Event { at_ns, ..event });
                        *at += 1;
                        moved = true;
                    }
                    None => events.push(event),
                }
            }
            _ => events.push(event),
        }
    }
    recording.events = events;
    if moved {
        Ok(())
    } else {
        Err(nothing_to_act_on("no checkpoint: use a smaller log"))
    }
}

/// A set of home writes reaches the log before the guest's flush that precedes its commit block: where that was the last
/// thing the guest asked for, and nothing else was logged in between.
pub(super) fn sets_before_commit(recording: &mut Recording) -> Result<()> {
    let log = targets(recording, Which::Log);
    let guest: HashSet<TargetId> = recording.of_layer(Layer::Guest).map(|(id, _)| id).collect();
    let mut events: Vec<Event> = Vec::with_capacity(recording.events.len());
    // Where the guest's newest flush is, and how often it has asked for anything since.
    let (mut place, mut asked, mut moved) = (None, 0, HashSet::new());
    for event in std::mem::take(&mut recording.events) {
        match &event.kind {
            EventKind::Submit { target, op, .. } if guest.contains(target) => {
                if *op == Op::Flush {
                    (place, asked) = (Some(events.len()), 0);
                } else {
                    asked += 1;
                }
            }
            EventKind::Submit { target, id, op: Op::Write { offset, data, .. } }
                if log.contains(target) && *offset >= RECORDS_OFFSET =>
            {
                let is_set = RecordHeader::parse(data).is_some_and(|header| header.more());
                match place.take() {
                    Some(at) if is_set && asked == 1 => {
                        moved.insert(*id);
                        let at_ns = events.get(at).map_or(event.at_ns, |flush: &Event| flush.at_ns);
                        events.insert(at, Event { at_ns, ..event });
                        place = Some(at + 1);
                        continue;
                    }
                    _ => {}
                }
            }
            EventKind::Complete { id, .. } if moved.contains(id) => {
                if let Some(at) = place.take() {
                    let at_ns = events.get(at).map_or(event.at_ns, |flush: &Event| flush.at_ns);
                    events.insert(at, Event { at_ns, ..event });
                    continue;
                }
            }
            _ => {}
        }
        events.push(event);
    }
    recording.events = events;
    if moved.is_empty() {
        return Err(nothing_to_act_on("no transaction whose commit follows a flush"));
    }
    Ok(())
}
