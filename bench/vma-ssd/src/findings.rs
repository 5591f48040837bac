//! What is finished, and what is formed of it.

use std::collections::BTreeMap;

use afterimage_bench_vma::catalog::{Device, Workload};
use afterimage_bench_vma::scale::Scale;
use afterimage_flash::FtlKind;
use serde::{Deserialize, Serialize};

use crate::record::{Age, Simulated, SimulationKey, Store};
use crate::simulate::Drives;
use crate::study::{Family, Variant};
use afterimage_bench_kit::Result;

/// How traces came about.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Setting {
    /// Sizes.
    pub scale: Scale,
    /// At once.
    pub guests: u32,
    /// Below the daemons.
    pub device: Device,
    /// Of everything random in the guests.
    pub seed: u32,
}

/// Every finished simulation of a store.
#[derive(Debug)]
pub struct Findings {
    /// Of their traces.
    pub setting: Setting,
    /// FTLs that were asked for.
    pub ftls: Vec<FtlKind>,
    results: BTreeMap<(Workload, Variant, FtlKind, Age), Simulated>,
}

/// Two numbers as how much less the first one is, in percent.
pub fn less(value: f64, base: f64) -> Option<f64> {
    (base > 0.0).then(|| (1.0 - value / base) * 100.0)
}

impl Findings {
    /// Those of these drives that are there.
    ///
    /// # Errors
    /// One cannot be read.
    pub fn read(store: &Store, setting: Setting, ftls: &[FtlKind], drives: &[Drives]) -> Result<Self> {
        let mut results = BTreeMap::new();
        for drive in drives {
            for key in drive.keys() {
                if let Some(found) = store.simulated(&key, &drive.traces)? {
                    results.insert((key.workload, key.variant, key.ftl, key.age), found);
                }
            }
        }
        Ok(Self { setting, ftls: ftls.to_vec(), results })
    }

    /// Of results that were read elsewhere.
    pub fn of(setting: Setting, ftls: &[FtlKind], simulated: Vec<Simulated>) -> Self {
        let key = |found: &Simulated| (found.key.workload, found.key.variant, found.key.ftl, found.key.age);
        let results = simulated.into_iter().map(|found| (key(&found), found)).collect();
        Self { setting, ftls: ftls.to_vec(), results }
    }

    /// One.
    pub fn get(&self, workload: Workload, variant: Variant, ftl: FtlKind, age: Age) -> Option<&Simulated> {
        self.results.get(&(workload, variant, ftl, age))
    }

    /// Any of a workload in a mode: what is not the drive's is the same in all.
    pub fn any(&self, workload: Workload, variant: Variant) -> Option<&Simulated> {
        self.results.iter().find(|((w, v, _, _), _)| (*w, *v) == (workload, variant)).map(|(_, found)| found)
    }

    /// Ages that there is something of.
    pub fn ages(&self) -> Vec<Age> {
        Age::ALL.into_iter().filter(|age| self.results.keys().any(|(_, _, _, a)| a == age)).collect()
    }

    /// All results.
    pub fn results(&self) -> impl Iterator<Item = &Simulated> {
        self.results.values()
    }

    /// A number of a variant against the journal mode's on the same drive, in percent less; `None` where either wrote little
    /// more than the spare space ([`Simulated::outgrows_spare`]).
    pub fn less_than_journal(&self, key: &SimulationKey, value: impl Fn(&Simulated) -> f64) -> Option<f64> {
        let own = self.get(key.workload, key.variant, key.ftl, key.age)?;
        let journal = self.get(key.workload, Variant::Journal, key.ftl, key.age)?;
        [own, journal]
            .iter()
            .all(|found| found.outgrows_spare())
            .then(|| less(value(own), value(journal)))
            .flatten()
    }

    /// From the least to the most of retention's reductions over the workloads of a kind, each with its workload.
    pub fn reductions(
        &self,
        family: Option<Family>,
        ftl: FtlKind,
        age: Age,
        value: impl Fn(&Simulated) -> f64 + Copy,
    ) -> Vec<(f64, Workload)> {
        let mut found: Vec<(f64, Workload)> = Workload::ALL
            .into_iter()
            .filter(|workload| match family {
                Some(family) => crate::study::family(*workload) == family,
                None => crate::study::family(*workload) != Family::Other,
            })
            .filter_map(|workload| {
                let key = SimulationKey { workload, variant: Variant::Retain, ftl, age };
                Some((self.less_than_journal(&key, value)?, workload))
            })
            .collect();
        found.sort_by(|a, b| a.0.total_cmp(&b.0));
        found
    }
}

/// Erases.
pub fn erases(simulated: &Simulated) -> f64 {
    simulated.erases as f64
}

/// GC overhead.
pub fn collection(simulated: &Simulated) -> f64 {
    simulated.collection_ns as f64
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::VERSION;

    /// On a drive of 100 logical and 10 spare blocks of 128 KiB.
    fn found(variant: Variant, written_blocks: u64, erases: u64) -> Simulated {
        Simulated {
            version: VERSION,
            traces: Vec::new(),
            key: SimulationKey { workload: Workload::RndWrite, variant, ftl: FtlKind::Dftl, age: Age::Drive },
            blocks: 110,
            logical_pages: 6400,
            requests: 1,
            traffic_bytes: written_blocks << 17,
            write_bytes: written_blocks << 17,
            erases,
            erases_max: 1,
            collection_ns: erases,
            collection_share: 0.1,
            write_amplification: Some(1.0),
            response_ns: 1.0,
        }
    }

    #[test]
    fn what_the_spare_space_took_in_is_no_merit_of_a_mode() {
        let setting = Setting { scale: Scale::full(), guests: 8, device: Device::Hdd15k, seed: 1 };
        for (written, reduction) in [(12, None), (19, None), (20, Some(75.0))] {
            let simulated = vec![found(Variant::Journal, 24, 16), found(Variant::Retain, written, 4)];
            let findings = Findings::of(setting.clone(), &[FtlKind::Dftl], simulated);
            let key = found(Variant::Retain, 0, 0).key;
            assert_eq!(findings.less_than_journal(&key, erases), reduction, "{written} blocks");
            let said = crate::tables::all(&findings).contains("75.0 %");
            assert_eq!(said, reduction.is_some(), "{written} blocks");
        }
    }
}
