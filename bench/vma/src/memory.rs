//! Fig. 17: what the daemon retains over time, from its samples.

use serde::Serialize;

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

/// The samples as moments; those before the daemon had found a file system are left out.
pub fn moments(samples: &[Sample]) -> Vec<Moment> {
    let moment = |sample: &Sample| {
        let found = sample.file_systems.first()?;
        Some(Moment {
            at_s: sample.at_ms as f64 / 1e3,
            information_bytes: found.information_bytes as f64,
            data_bytes: found.data_bytes as f64,
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
    use afterimage_protocol::status::FileSystemStatus;

    #[test]
    fn a_daemon_that_retains_nothing_has_no_moments() {
        let found = FileSystemStatus { information_bytes: 7, data_bytes: 4096, ..Default::default() };
        let samples = [
            Sample { at_ms: 100, file_systems: vec![found] },
            Sample { at_ms: 200, file_systems: Vec::new() },
        ];
        let all = moments(&samples);
        assert_eq!(all.len(), 1);
        assert_eq!((all[0].at_s, peak(&all, |m| m.data_bytes)), (0.1, 4096.0));
    }
}
