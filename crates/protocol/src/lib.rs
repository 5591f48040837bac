//! What Afterimage's programs tell each other in JSON, declared once: who says it and who reads it use the same types.
//!
//! ```text
//!   daemon ─ status ──► ctl, lab, benchmarks, metrics
//!   agent in a guest ─ report::Agent, report::Pool ──► lab, explorer, benchmarks
//!   benchmarks ─ cell::Cell ──► afterimage-virtual ─ cell::Outcome ──► benchmarks
//!   explorer ─ recording::Order ──► afterimage-virtual ─ recording::Recorded ──► explorer
//!   benchmarks ─ operations ──► agent in a guest
//!   anybody ─ lines ──► files of JSON lines that outlive a killed writer
//! ```
//!
//! A check that reads what is not there as nothing can not fail: a renamed member would be "0 violations" for ever. So every
//! member must be there, and none may be that is not known.
#![warn(missing_docs)]

pub mod cell;
pub mod lines;
pub mod operations;
pub mod recording;
pub mod report;
pub mod status;

use serde::{Deserialize, Deserializer};

/// A member that may be null, but not missing: serde takes a missing one for `None`.
pub(crate) fn required<'de, D: Deserializer<'de>, T: Deserialize<'de>>(
    from: D,
) -> Result<Option<T>, D::Error> {
    Option::deserialize(from)
}

#[cfg(test)]
mod tests {
    use serde::de::DeserializeOwned;
    use serde::Serialize;
    use serde_json::Value;

    /// That a value comes back as it went out, and that with any one member less, renamed or more, it does not come back at all.
    pub(crate) fn assert_exact<T: Serialize + DeserializeOwned + PartialEq + std::fmt::Debug>(value: &T) {
        let json = serde_json::to_value(value).unwrap();
        assert_eq!(&T::deserialize(&json).unwrap(), value);
        let mut places = Vec::new();
        objects(&json, String::new(), &mut places);
        for place in &places {
            let changed = |change: &dyn Fn(&mut serde_json::Map<String, Value>)| {
                let mut json = json.clone();
                change(json.pointer_mut(place).unwrap().as_object_mut().unwrap());
                T::deserialize(&json)
            };
            let members: Vec<String> =
                json.pointer(place).unwrap().as_object().unwrap().keys().cloned().collect();
            for name in members {
                let missing = changed(&|object| drop(object.remove(&name)));
                assert!(missing.is_err(), "{place}/{name} is missing: {missing:?}");
                let renamed = changed(&|object| {
                    let value = object.remove(&name).unwrap();
                    object.insert(format!("{name}_"), value);
                });
                assert!(renamed.is_err(), "{place}/{name} is renamed: {renamed:?}");
            }
            let more = changed(&|object| drop(object.insert("more".to_owned(), Value::Null)));
            assert!(more.is_err(), "{place} has a member more: {more:?}");
        }
    }

    fn objects(json: &Value, place: String, found: &mut Vec<String>) {
        match json {
            Value::Object(members) => {
                for (name, value) in members {
                    objects(value, format!("{place}/{name}"), found);
                }
                found.push(place);
            }
            Value::Array(items) => {
                for (at, value) in items.iter().enumerate() {
                    objects(value, format!("{place}/{at}"), found);
                }
            }
            _ => {}
        }
    }
}
