//! Fig. 17: what the daemon retains over time, from its samples.

use serde::Serialize;
use serde_json::Value;

use crate::record::Sample;

/// One moment of one file system.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Moment {
    /// Since the work began, in seconds.
    pub at_s: f64,
    /// Journal information, in bytes.
    pub information_bytes: f64,
    /// Retained versions, in bytes.
    pub data_bytes: f64,
}

/// The `file_systems` of a status: of the process, or of its first disk that has them.
pub fn file_systems(status: &Value) -> Value {
    let own = &status["file_systems"];
    if own.is_array() {
        return own.clone();
    }
    let disks = status["disks"].as_array().into_iter().flatten();
    let mut found = disks.flat_map(|disk| {
        let nested = disk.as_object().into_iter().flat_map(|members| members.values());
        std::iter::once(disk).chain(nested).map(|value| &value["file_systems"])
    });
    found.find(|list| list.is_array()).cloned().unwrap_or(Value::Null)
}

/// A counter of the first file system.
pub fn counter(file_systems: &Value, name: &str) -> Option<u64> {
    file_systems.get(0)?.get(name)?.as_u64()
}

/// The samples as moments; those of a daemon that says nothing are left out.
pub fn moments(samples: &[Sample]) -> Vec<Moment> {
    let moment = |sample: &Sample| {
        Some(Moment {
            at_s: sample.at_ms as f64 / 1e3,
            information_bytes: counter(&sample.file_systems, "information_bytes")? as f64,
            data_bytes: counter(&sample.file_systems, "data_bytes")? as f64,
        })
    };
    samples.iter().filter_map(moment).collect()
}

/// The most of something.
pub fn peak(moments: &[Moment], value: impl Fn(&Moment) -> f64) -> f64 {
    moments.iter().map(value).fold(0.0, f64::max)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn file_systems_are_found_where_they_may_be() {
        let list = json!([{ "information_bytes": 7, "data_bytes": 4096 }]);
        for status in [
            json!({ "file_systems": list }),
            json!({ "disks": [{ "file_systems": list }] }),
            json!({ "disks": [{ "bytes": 3, "journal": { "file_systems": list } }] }),
        ] {
            assert_eq!(file_systems(&status), list);
        }
        assert_eq!(file_systems(&json!({ "disks": [{ "bytes": 3 }] })), Value::Null);
        let samples =
            [Sample { at_ms: 100, file_systems: list }, Sample { at_ms: 200, file_systems: Value::Null }];
        let all = moments(&samples);
        assert_eq!(all.len(), 1);
        assert_eq!((all[0].at_s, peak(&all, |m| m.data_bytes)), (0.1, 4096.0));
    }
}
