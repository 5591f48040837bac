//! What is finished, and what is formed of it.

use std::collections::BTreeMap;

use afterimage_bench_vma::catalog::{Device, Workload};
use afterimage_bench_vma::scale::Scale;
use afterimage_flash::FtlKind;
use afterimage_report::Spread;
use serde::{Deserialize, Serialize};

use crate::record::{Age, Simulated, SimulationKey};
use crate::study::{Family, Variant};

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
}

/// Finished simulations, those of all seeds together.
#[derive(Debug)]
pub struct Findings {
    /// Of their traces.
    pub setting: Setting,
    /// FTLs that were asked for.
    pub ftls: Vec<FtlKind>,
    results: BTreeMap<SimulationKey, BTreeMap<u32, Simulated>>,
}

/// Two numbers as how much less the first one is, in percent.
fn less(value: f64, base: f64) -> Option<f64> {
    (base > 0.0).then(|| (1.0 - value / base) * 100.0)
}

impl Findings {
    /// Of these.
    pub fn of(setting: Setting, ftls: &[FtlKind], simulated: Vec<Simulated>) -> Self {
        let mut results: BTreeMap<SimulationKey, BTreeMap<u32, Simulated>> = BTreeMap::new();
        for found in simulated {
            results.entry(found.key.clone()).or_default().insert(found.seed, found);
        }
        Self { setting, ftls: ftls.to_vec(), results }
    }

    /// One, of each seed.
    pub fn get(&self, key: &SimulationKey) -> impl Iterator<Item = &Simulated> + Clone {
        self.results.get(key).into_iter().flat_map(BTreeMap::values)
    }

    /// Any drive of a workload in a mode: what is not the drive's is the same in all.
    pub fn any(&self, workload: Workload, variant: Variant) -> Option<&SimulationKey> {
        self.results.keys().find(|key| (key.workload, key.variant) == (workload, variant))
    }

    /// Ages that there is something of.
    pub fn ages(&self) -> Vec<Age> {
        Age::ALL.into_iter().filter(|age| self.results.keys().any(|key| key.age == *age)).collect()
    }

    /// How many seeds there are, of the drives that have most.
    pub fn seeds(&self) -> usize {
        self.results.values().map(BTreeMap::len).max().unwrap_or(0)
    }

    /// All results.
    pub fn results(&self) -> impl Iterator<Item = &Simulated> {
        self.results.values().flat_map(BTreeMap::values)
    }

    /// A number over the seeds.
    pub fn spread(&self, key: &SimulationKey, value: impl Fn(&Simulated) -> f64) -> Option<Spread> {
        Spread::of(self.get(key).map(value))
    }

    /// A number of a variant against the journal mode's on the same drive and of the same seed, in percent less; of the journal
    /// mode itself, nothing.
    pub fn less_than_journal(
        &self,
        key: &SimulationKey,
        value: impl Fn(&Simulated) -> f64,
    ) -> Option<Spread> {
        if key.variant == Variant::Journal {
            return None;
        }
        let (own, journal) = (self.results.get(key)?, self.results.get(&key.of_journal())?);
        let pair = |(seed, own): (&u32, &Simulated)| less(value(own), value(journal.get(seed)?));
        Spread::of(own.iter().filter_map(pair))
    }

    /// The same of what the drive counts; `None` where, with any seed, either wrote little more than the spare space
    /// ([`Simulated::outgrows_spare`]).
    pub fn less_on_drive(&self, key: &SimulationKey, value: impl Fn(&Simulated) -> f64) -> Option<Spread> {
        let outgrown = self.get(key).chain(self.get(&key.of_journal())).all(Simulated::outgrows_spare);
        self.less_than_journal(key, value).filter(|_| outgrown)
    }

    /// From the least to the most of retention's reductions over the workloads of a kind (medians over the seeds), each with its
    /// workload.
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
                Some((self.less_on_drive(&key, value)?.median, workload))
            })
            .collect();
        found.sort_by(|a, b| a.0.total_cmp(&b.0));
        found
    }
}

/// Requests.
pub fn requests(simulated: &Simulated) -> f64 {
    simulated.requests as f64
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
            seed: 1,
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

    fn of(simulated: Vec<Simulated>) -> Findings {
        let setting = Setting { scale: Scale::full(), guests: 8, device: Device::Hdd15k };
        Findings::of(setting, &[FtlKind::Dftl], simulated)
    }

    #[test]
    fn what_the_spare_space_took_in_is_no_merit_of_a_mode() {
        for (written, reduction) in [(12, None), (19, None), (20, Some(75.0))] {
            let findings = of(vec![found(Variant::Journal, 24, 16), found(Variant::Retain, written, 4)]);
            let key = found(Variant::Retain, 0, 0).key;
            let less = findings.less_on_drive(&key, erases).map(|less| less.median);
            assert_eq!(less, reduction, "{written} blocks");
            let said = crate::tables::all(&findings).contains("75.0 %");
            assert_eq!(said, reduction.is_some(), "{written} blocks");
        }
    }

    #[test]
    fn a_reduction_is_one_of_a_seed() {
        let seeded = |seed, found: Simulated| Simulated { seed, ..found };
        let mut simulated = vec![
            seeded(1, found(Variant::Journal, 24, 10)),
            seeded(1, found(Variant::Retain, 24, 5)),
            seeded(2, found(Variant::Retain, 24, 30)),
            seeded(2, found(Variant::Journal, 24, 100)),
            seeded(3, found(Variant::Journal, 24, 7)),
        ];
        let key = found(Variant::Retain, 0, 0).key;
        let less = of(simulated.clone()).less_on_drive(&key, erases).unwrap();
        assert_eq!((less.min, less.max, less.rounds), (50.0, 70.0, 2));
        simulated[2].write_bytes = 0;
        assert_eq!(of(simulated).less_on_drive(&key, erases), None);
    }
}
