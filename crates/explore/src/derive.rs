//! One guest recording under another contract: the same requests through the real ordering layer.

use afterimage_order::Contract;
use afterimage_trace::Recording;

use crate::layers::{direct, hands_over, replay, LayersOptions, Retain, JOURNAL, RETAIN};
use crate::{ExploreError, Result};

/// A recording of both layers, as if it had been made under `contract`, with the guest's journal retained where `retain`.
/// `log_bytes` is the size of the redo log's record area, where there is one.
///
/// # Errors
/// The contract is none, or none that a retained journal goes with; the recording has no guest layer.
pub fn under(
    recording: &Recording,
    contract: &str,
    retain: bool,
    log_bytes: u64,
    seed: u64,
) -> Result<Recording> {
    let parsed: Contract =
        contract.parse().map_err(|e| ExploreError::Usage(format!("{contract} is no contract: {e}")))?;
    if hands_over(recording) && !retain {
        return Err(ExploreError::Usage(
            "the guest handed its commits over, and only a retained journal takes them: add --journal retain"
                .to_owned(),
        ));
    }
    let mut derived = match parsed {
        Contract::PowerWindow { window } => {
            let retain = retain.then(Retain::default);
            let options =
                LayersOptions { window, log_area_bytes: log_bytes, seed, retain, ..LayersOptions::default() };
            replay(recording, &options)?
        }
        Contract::Power if retain => {
            return Err(ExploreError::Usage(
                "a retained journal does not go with power: use power-window or guest-crash".to_owned(),
            ))
        }
        other => direct(recording, other)?,
    };
    // Whatever was done with them when it was recorded.
    if retain {
        derived.about.insert(JOURNAL.to_owned(), RETAIN.into());
    } else {
        derived.about.remove(JOURNAL);
    }
    derived.about.insert("derived".to_owned(), true.into());
    Ok(derived)
}
