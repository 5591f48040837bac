//! What several rounds of one measurement say together.

use serde::{Deserialize, Serialize};

use crate::NONE;

/// A number with its spread over the rounds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Spread {
    /// The middle one; of an even number the mean of the two in the middle.
    pub median: f64,
    /// Least.
    pub min: f64,
    /// Most.
    pub max: f64,
    /// How many there were; not kept in raw results, which hold every round besides.
    #[serde(skip)]
    pub rounds: usize,
}

impl Spread {
    /// Of all numbers that are finite; `None` if there is none.
    pub fn of(values: impl IntoIterator<Item = f64>) -> Option<Spread> {
        let mut values: Vec<f64> = values.into_iter().filter(|value| value.is_finite()).collect();
        values.sort_by(f64::total_cmp);
        let (min, max) = (*values.first()?, *values.last()?);
        let middle = values.len() / 2;
        let median =
            if values.len() % 2 == 1 { values[middle] } else { (values[middle - 1] + values[middle]) / 2.0 };
        Some(Spread { median, min, max, rounds: values.len() })
    }

    /// Of one number a round that is formed of two in the same round, such as a ratio: what slows a machine down for a while
    /// meets both.
    pub fn of_pairs<'a, T: 'a>(
        ours: impl IntoIterator<Item = &'a T>,
        theirs: impl IntoIterator<Item = &'a T>,
        number: impl Fn(&T, &T) -> f64,
    ) -> Option<Spread> {
        Spread::of(ours.into_iter().zip(theirs).map(|(ours, theirs)| number(ours, theirs)))
    }

    /// `a (b–c)`: the median and the spread; of one round only the number.
    pub fn show(&self, number: impl Fn(f64) -> String) -> String {
        if self.rounds == 1 {
            return number(self.median);
        }
        format!("{} ({}–{})", number(self.median), number(self.min), number(self.max))
    }
}

/// What there is in words, or a dash.
pub fn or_dash<T>(value: Option<T>, show: impl FnOnce(T) -> String) -> String {
    value.map_or_else(|| NONE.to_owned(), show)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_spread_keeps_its_ends() {
        assert_eq!(Spread::of([3.0, 1.0, 2.0]), Some(Spread { median: 2.0, min: 1.0, max: 3.0, rounds: 3 }));
        assert_eq!(Spread::of([4.0, 1.0, 2.0, 3.0]).unwrap().median, 2.5);
        assert_eq!(Spread::of([f64::NAN]), None);
        let ratio = Spread::of_pairs(&[2.0, 9.0], &[1.0, 3.0], |a, b| a / b).unwrap();
        assert_eq!((ratio.min, ratio.max), (2.0, 3.0));
    }

    #[test]
    fn it_is_shown_short() {
        let spread = Spread { median: 1.0, min: 0.5, max: 2.0, rounds: 3 };
        let two = |value: f64| format!("{value:.2}");
        assert_eq!(spread.show(two), "1.00 (0.50–2.00)");
        assert_eq!(Spread { rounds: 1, ..spread }.show(two), "1.00");
        assert_eq!(or_dash(None::<Spread>, |s| s.show(two)), "–");
    }

    #[test]
    fn raw_results_hold_what_they_always_held() {
        let text = r#"{"median":1.0,"min":0.5,"max":2.0}"#;
        let spread: Spread = serde_json::from_str(text).unwrap();
        assert_eq!(serde_json::to_string(&spread).unwrap(), text);
        assert_eq!(spread.show(|value| value.to_string()), "1 (0.5–2)");
    }
}
