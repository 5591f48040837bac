//! A journal's own figures.

use serde::{Deserialize, Serialize};

use crate::error::{BenchError, Result};

/// What jbd2 says of itself (`/proc/fs/jbd2/*/info`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Jbd2 {
    /// Transactions since the mount.
    pub transactions: u64,
    /// Blocks logged in each, on average.
    pub logged_blocks: f64,
}

impl Jbd2 {
    /// `1070 transactions (1065 requested), each up to 8192 blocks; … 20 logged blocks per transaction`, its lines and
    /// tabs made semicolons. A guest that mounted twice is not expected. `None` where nothing is said: there is no journal.
    ///
    /// # Errors
    /// It is something else.
    pub fn of_info(text: &str) -> Result<Option<Self>> {
        if text.trim().is_empty() {
            return Ok(None);
        }
        let before = |label: &str| -> Option<f64> {
            let (head, _) = text.split_once(label)?;
            head.rsplit([' ', ';']).find(|word| !word.is_empty())?.parse().ok()
        };
        let strange = |what| BenchError::Workload(format!("jbd2 counts no {what}: {text}"));
        let transactions = before(" transactions (").ok_or_else(|| strange("transactions"))?;
        // It says the averages only where there was a transaction.
        let logged_blocks = match before(" logged blocks per transaction") {
            Some(blocks) => blocks,
            None if transactions == 0.0 => 0.0,
            None => return Err(strange("logged blocks")),
        };
        Ok(Some(Self { transactions: transactions as u64, logged_blocks }))
    }

    /// Blocks that it has logged, as exactly as the average is.
    pub fn blocks(&self) -> f64 {
        self.transactions as f64 * self.logged_blocks
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_a_journal_there_are_no_figures_of_it() {
        assert_eq!(Jbd2::of_info("").unwrap(), None);
        assert!(Jbd2::of_info("3 transaktions (2 requested)").is_err());
        let info = "3 transactions (2 requested), each up to 8192 blocks;average: ;  41 blocks per transaction;  42 logged blocks per transaction;";
        assert_eq!(Jbd2::of_info(info).unwrap().unwrap().blocks(), 126.0);
    }
}
