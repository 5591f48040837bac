//! What several rounds of one measurement say together.

use serde::Serialize;

/// A number with its spread over the rounds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Spread {
    /// Median.
    pub median: f64,
    /// Least.
    pub min: f64,
    /// Most.
    pub max: f64,
    /// Rounds.
    pub rounds: usize,
}

impl Spread {
    /// Of at least one number.
    pub fn of(mut values: Vec<f64>) -> Option<Spread> {
        values.retain(|value| value.is_finite());
        values.sort_by(f64::total_cmp);
        let (min, max) = (*values.first()?, *values.last()?);
        let middle = values.len() / 2;
        let median =
            if values.len() % 2 == 1 { values[middle] } else { (values[middle - 1] + values[middle]) / 2.0 };
        Some(Spread { median, min, max, rounds: values.len() })
    }
}
