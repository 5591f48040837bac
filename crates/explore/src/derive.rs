//! One guest recording under another contract: the same requests through the real ordering layer.

use afterimage_order::Contract;
use afterimage_trace::Recording;

use crate::layers::{direct, replay, LayersOptions, Retain};
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
    let retain = retain.then(Retain::default);
    let parsed: Contract =
        contract.parse().map_err(|e| ExploreError::Usage(format!("{contract} is no contract: {e}")))?;
    let mut derived = match parsed {
        Contract::PowerWindow { window } => {
            let options =
                LayersOptions { window, log_area_bytes: log_bytes, seed, retain, ..LayersOptions::default() };
            replay(recording, &options)?
        }
        _ if retain.is_some() => {
            return Err(ExploreError::Usage(format!(
                "with a retained journal {contract} promises nothing for a power cut: use power-window"
            )))
        }
        other => direct(recording, other)?,
    };
    derived.about.insert("derived".to_owned(), true.into());
    Ok(derived)
}
