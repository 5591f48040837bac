//! A recovery that loses the log's tail and does not tell.

use std::sync::Arc;

use afterimage_block::Medium;
use afterimage_format::log::{RecordKind, RECORDS_OFFSET};
use afterimage_order::redo::{scan, Placed};

use crate::state::Scratch;

/// Takes the newest `records` complete records (more, where that would cut a set) out of a log: zeroes from there on, and a header that claims no more than
/// what is left.
///
/// # Errors
/// The log was unreadable before.
pub(crate) fn lose_tail(log: &Arc<Scratch>, records: usize) -> Result<(), String> {
    let medium = Arc::clone(log) as Arc<dyn Medium>;
    let found = scan(&medium).map_err(|e| e.to_string())?;
    let mine: Vec<&Placed> = found.records.iter().filter(|r| r.kind != RecordKind::Incarnation).collect();
    let Some(mut kept) = mine.len().checked_sub(records.max(1)) else { return Ok(()) };
    // A set goes as a whole: what ends within one is no log that a recovery could have left.
    while kept > 0 && mine[kept - 1].more {
        kept -= 1;
    }
    let first = mine[kept];
    let area = found.header.area_bytes.get();
    let tail = found.header.tail_position.get();
    let erase = |from: u64, to: u64| log.zero_at(RECORDS_OFFSET + from, to - from, false);
    let (from, to) = (first.position.0 % area, tail % area);
    let erased = if from < to || (from == to && first.position.0 > tail) {
        erase(from, to)
    } else {
        erase(from, area).and_then(|()| erase(0, to))
    };
    let mut header = found.header;
    header.durable_sequence = header.durable_sequence.get().min(first.sequence.0 - 1).into();
    erased.and_then(|()| log.write_at(&header.seal(), header.slot_offset())).map_err(|e| e.to_string())
}
