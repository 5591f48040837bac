//! Extended attributes of one node.
//!
//! A change is durable once an fsync of the node that was issued after it has returned; fdatasync need not cover it. A
//! cut keeps any subset of the changes since, in their order.

use std::collections::BTreeMap;

use super::dice::Dice;

/// Values by name.
pub type Values = BTreeMap<String, Vec<u8>>;

/// A change, volatile for now. Without a value the name goes.
#[derive(Debug)]
struct Change {
    sequence: u64,
    name: String,
    value: Option<Vec<u8>>,
}

/// The attributes now, and what is sure to be there after a cut.
#[derive(Debug, Default)]
pub struct Extended {
    live: Values,
    durable: Values,
    volatile: Vec<Change>,
}

fn apply(values: &mut Values, name: &str, value: Option<&[u8]>) {
    match value {
        Some(value) => drop(values.insert(name.to_owned(), value.to_owned())),
        None => drop(values.remove(name)),
    }
}

impl Extended {
    /// As a fresh mount finds them.
    pub fn new(durable: Values) -> Extended {
        Extended { live: durable.clone(), durable, volatile: Vec::new() }
    }

    /// The attributes now.
    pub fn live(&self) -> &Values {
        &self.live
    }

    /// Those that a cut can not take.
    pub fn durable(&self) -> &Values {
        &self.durable
    }

    /// Sets an attribute, or takes it away.
    pub fn change(&mut self, sequence: u64, name: &str, value: Option<&[u8]>) {
        apply(&mut self.live, name, value);
        self.volatile.push(Change { sequence, name: name.to_owned(), value: value.map(<[u8]>::to_vec) });
    }

    /// Makes every change up to `sequence` durable. Returns whether there was one.
    pub fn settle(&mut self, sequence: u64) -> bool {
        let covered = self.volatile.iter().take_while(|change| change.sequence <= sequence).count();
        for change in self.volatile.drain(..covered) {
            apply(&mut self.durable, &change.name, change.value.as_deref());
        }
        covered > 0
    }

    /// The power goes.
    pub fn cut(&mut self, kept_per_mille: u64, dice: &mut Dice) {
        for change in std::mem::take(&mut self.volatile) {
            if dice.chance(kept_per_mille) {
                apply(&mut self.durable, &change.name, change.value.as_deref());
            }
        }
        self.live = self.durable.clone();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_a_sync_covers_is_sure() {
        let mut seen = std::collections::BTreeSet::new();
        for seed in 0..40 {
            let mut extended = Extended::default();
            extended.change(1, "a", Some(b"1"));
            assert!(extended.settle(1) && !extended.settle(1));
            extended.change(2, "a", None);
            extended.change(3, "a", Some(b"2"));
            assert_eq!(extended.live()["a"], b"2");
            assert_eq!(extended.durable()["a"], b"1");
            extended.cut(500, &mut Dice::new(seed));
            assert_eq!(extended.live(), extended.durable());
            seen.insert(extended.live().get("a").cloned());
        }
        assert_eq!(seen.len(), 3, "gone, the old and the new value: {seen:?}");
    }
}
