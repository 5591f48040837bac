//! Reading a log's header.

use afterimage_block::Medium;
use afterimage_format::log::{LogHeader, PAGE_BYTES, RECORDS_OFFSET};
use afterimage_format::FormatError;

use super::error::LogReadError;

/// The header in force: the valid slot with the larger generation.
///
/// # Errors
/// See [`LogReadError`].
pub fn read_header(log: &dyn Medium) -> Result<LogHeader, LogReadError> {
    if log.len() < RECORDS_OFFSET {
        return Err(FormatError::Magic { what: "a redo log" }.into());
    }
    let mut slots = Vec::with_capacity(2);
    for slot in 0..2 {
        let mut bytes = [0; PAGE_BYTES as usize];
        log.read_at(&mut bytes, slot * PAGE_BYTES)?;
        slots.push(LogHeader::parse(&bytes));
    }
    // A slot that another version of the program wrote counts even where the other one is ours and valid.
    for slot in &slots {
        if let Err(e @ (FormatError::Version { .. } | FormatError::Old { .. } | FormatError::Features(_))) =
            slot
        {
            return Err(e.clone().into());
        }
    }
    let mut errors = Vec::new();
    let mut newest: Option<LogHeader> = None;
    for slot in slots {
        match slot {
            Ok(h) if newest.is_none_or(|n| h.generation.get() > n.generation.get()) => newest = Some(h),
            Ok(_) => {}
            Err(e) => errors.push(e),
        }
    }
    let Some(header) = newest else {
        let corrupt = errors.iter().find(|e| matches!(e, FormatError::Corrupt(_)));
        return Err(corrupt.or(errors.first()).cloned().unwrap_or(FormatError::Corrupt("no header")).into());
    };
    if Some(log.len()) != RECORDS_OFFSET.checked_add(header.area_bytes.get()) {
        return Err(LogReadError::Corrupt(format!(
            "its size is {} bytes, and its header asks for {}",
            log.len(),
            RECORDS_OFFSET + header.area_bytes.get()
        )));
    }
    Ok(header)
}
