//! What a seed is: guests, contract, device, work, and what goes wrong when.

use std::time::Duration;

use afterimage_journal::group::JournalOptions;
use afterimage_lab::device::ModelName;
use afterimage_order::{Contract, GroupOptions};
use rand::{RngExt as _, SeedableRng as _};
use rand_chacha::ChaCha8Rng;

use super::vext4::{Mount, Vext4};
use crate::calendar::Ns;
use crate::volatile::Fails;

const MS: Ns = 1_000_000;

/// Something that goes wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// A daemon is killed. `again`: and the next one that long after it has begun.
    KillDaemon { guest: usize, down: Ns, again: Option<Ns> },
    /// A guest is killed.
    KillGuest { guest: usize, down: Ns },
    /// A guest's next interrupt is not delivered; the one after it is, or a late one.
    LoseCall { guest: usize, late: Ns },
    /// The device answers nothing for so long.
    Stall { long: Ns },
    /// The next operation of that kind fails, of the log or the image. Guest and daemon are started anew after that time.
    Fail { guest: usize, log: bool, fails: Fails, repair: Ns },
    /// The host's power fails.
    Cut { down: Ns },
}

impl Fault {
    /// Whom it hits, if it is one guest and its daemon.
    pub fn guest(self) -> Option<usize> {
        match self {
            Self::KillDaemon { guest, .. }
            | Self::KillGuest { guest, .. }
            | Self::LoseCall { guest, .. }
            | Self::Fail { guest, .. } => Some(guest),
            Self::Stall { .. } | Self::Cut { .. } => None,
        }
    }
}

/// A fault and its time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Planned {
    pub fault: Fault,
    /// How long after what went wrong before.
    pub gap: Ns,
    /// Only when the guest that it hits works, so far as that comes.
    pub awaits_work: bool,
}

/// See the module.
#[derive(Clone, Debug)]
pub struct Plan {
    pub seed: u64,
    pub guests: usize,
    pub contract: Contract,
    pub journal: JournalOptions,
    pub model: ModelName,
    /// Under `power`: with O_DIRECT.
    pub direct: bool,
    /// The host's memory that can be dirty, in bytes.
    pub host_bytes: u64,
    /// What a request costs the daemon.
    pub request_ns: Ns,
    /// The stock ext4's `data=`.
    pub data: &'static str,
    /// Guests have `vext4` instead.
    pub vext4: Option<Vext4>,
    /// Threads that write records, and a record's bytes.
    pub threads: u32,
    pub record_bytes: u32,
    /// How long a program that writes records or transactions pauses after each, in microseconds. Computing costs nothing in virtual time:
    /// without pauses a quick device has done all of a boot's work before most of what is to go wrong does.
    pub pause_us: u64,
    /// Each record in a file of its own, all in one directory, instead of one behind the other.
    pub a_file_each: bool,
    /// What goes wrong.
    pub faults: Vec<Planned>,
}

impl Plan {
    /// Draws it. `guests_max`: no more than so many. With `vext4` a seed is otherwise the same; commits are handed over where journals
    /// are retained, and nowhere else.
    pub fn draw(seed: u64, guests_max: usize, vext4: Option<Mount>) -> Self {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let guests = [1, 1, 1, 2, 2, 3][rng.random_range(0..6)].min(guests_max);
        let window = Duration::from_millis([20, 50, 100, 200][rng.random_range(0..4)]);
        let hands_over = vext4 == Some(Mount::Vma);
        let mut contract = [Contract::Power, Contract::GuestCrash, Contract::PowerWindow { window }]
            [rng.random_range(0..8).min(5) % 3];
        let mut retain = contract != Contract::Power && rng.random_ratio(1, 2);
        if hands_over {
            retain = true;
            if contract == Contract::Power {
                contract = Contract::GuestCrash;
            }
        }
        let retain_bytes_max = [1 << 20, 4 << 20, 64 << 20][rng.random_range(0..3)];
        let journal = JournalOptions { retain, retain_bytes_max, ..JournalOptions::passthrough() };
        let models = [
            ModelName::Hdd15k,
            ModelName::Hdd10k,
            ModelName::Hdd7200,
            ModelName::Ssd,
            ModelName::Nvme,
            ModelName::Emmc,
        ];
        let count = rng.random_range(4..12);
        // Those seeded apart take nothing from what else the seed draws.
        let mut awaits = ChaCha8Rng::seed_from_u64(seed ^ 0xa3a175);
        Self {
            seed,
            guests,
            contract,
            journal,
            model: models[rng.random_range(0..models.len())],
            direct: rng.random_ratio(2, 3),
            host_bytes: [64 << 20, 1 << 30][rng.random_range(0..2)],
            request_ns: [50_000, 500_000, 2 * MS][rng.random_range(0..3)],
            data: if rng.random_ratio(1, 2) { "ordered" } else { "journal" },
            vext4: vext4.map(|mount| Vext4::draw(seed, mount)),
            threads: rng.random_range(1..4),
            record_bytes: [512, 1024, 4096][rng.random_range(0..3)],
            pause_us: [0, 1_000, 10_000, 30_000][ChaCha8Rng::seed_from_u64(seed ^ 0xba5e).random_range(0..4)],
            a_file_each: ChaCha8Rng::seed_from_u64(seed ^ 0xf11e).random_ratio(1, 3),
            faults: (0..count)
                .map(|_| Planned {
                    gap: gap(&mut rng),
                    fault: fault(&mut rng, guests, contract),
                    awaits_work: awaits.random_ratio(3, 4),
                })
                .collect(),
        }
    }

    /// Size of the log in bytes.
    pub fn log_bytes(&self) -> u64 {
        GroupOptions::LOG_MIN_BYTES
    }

    /// In one line.
    pub fn describe(&self) -> String {
        let journal = match self.journal.retain {
            true => format!("retain ({} MiB)", self.journal.retain_bytes_max >> 20),
            false => "passthrough".to_owned(),
        };
        let direct = if self.direct && self.contract == Contract::Power { ", direct" } else { "" };
        let data = format!("data={}", self.data);
        let data = self.vext4.as_ref().map_or(data, Vext4::describe);
        format!(
            "{} guests, {}, {journal}, {}{direct}, {data}, {} threads of {} bytes{} every {} us, {} us a request, {} faults",
            self.guests,
            self.contract,
            self.model.as_str(),
            self.threads,
            self.record_bytes,
            if self.a_file_each { " in a file each" } else { "" },
            self.pause_us,
            self.request_ns / 1000,
            self.faults.len(),
        )
    }
}

/// From a millisecond to 4 s, each size as often as any other: longer, and guests have done their work, and it is durable.
fn gap(rng: &mut ChaCha8Rng) -> Ns {
    let size = rng.random_range(0..12);
    rng.random_range(MS << size..MS << (size + 1))
}

/// From 0.1 ms to a second.
fn short(rng: &mut ChaCha8Rng) -> Ns {
    let size = rng.random_range(0..13);
    rng.random_range((MS / 10) << size..(MS / 10) << (size + 1))
}

fn fault(rng: &mut ChaCha8Rng, guests: usize, contract: Contract) -> Fault {
    let guest = rng.random_range(0..guests);
    match rng.random_range(0..100) {
        0..28 => {
            let again = rng.random_ratio(1, 3).then(|| short(rng) / 4);
            Fault::KillDaemon { guest, down: short(rng), again }
        }
        28..44 => Fault::KillGuest { guest, down: short(rng) },
        44..56 => Fault::LoseCall { guest, late: short(rng) },
        56..66 => Fault::Stall { long: gap(rng) / 2 },
        66..76 => {
            let fails = [Fails::Read, Fails::Write, Fails::Sync][rng.random_range(0..3)];
            Fault::Fail { guest, log: rng.random(), fails, repair: MS * rng.random_range(1..3000) }
        }
        // What is promised of a power cut, is not under guest-crash.
        _ if contract == Contract::GuestCrash => Fault::KillDaemon { guest, down: short(rng), again: None },
        _ => Fault::Cut { down: short(rng) },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_is_a_plan_and_another_one_is_another() {
        let text = |seed| format!("{:?}", Plan::draw(seed, 3, None));
        assert_eq!(text(7), text(7));
        assert_ne!(text(7), text(8));
    }

    #[test]
    fn everything_is_drawn_and_nothing_that_is_not_promised() {
        let plans: Vec<Plan> = (0..500).map(|seed| Plan::draw(seed, 3, None)).collect();
        let any = |is: &dyn Fn(&Plan) -> bool| plans.iter().any(is);
        let has = |is: &dyn Fn(&Fault) -> bool| {
            plans.iter().any(|p| p.faults.iter().any(|planned| is(&planned.fault)))
        };
        for guests in 1..4 {
            assert!(any(&|plan| plan.guests == guests));
        }
        for retain in [false, true] {
            assert!(any(&|p| p.contract == Contract::GuestCrash && p.journal.retain == retain));
            assert!(any(
                &|p| matches!(p.contract, Contract::PowerWindow { .. }) && p.journal.retain == retain
            ));
        }
        assert!(any(&|p| p.contract == Contract::Power));
        assert!(plans.iter().all(|p| p.contract != Contract::Power || !p.journal.retain));
        assert!(has(&|f| matches!(f, Fault::KillDaemon { again: Some(_), .. })));
        assert!(has(&|f| matches!(f, Fault::KillGuest { .. })) && has(&|f| matches!(f, Fault::Cut { .. })));
        assert!(has(&|f| matches!(f, Fault::LoseCall { .. })) && has(&|f| matches!(f, Fault::Stall { .. })));
        assert!(has(&|f| matches!(f, Fault::Fail { log: true, fails: Fails::Sync, .. })));
        let cut = |p: &Plan| p.faults.iter().any(|planned| matches!(planned.fault, Fault::Cut { .. }));
        assert!(plans.iter().all(|p| p.contract != Contract::GuestCrash || !cut(p)));
        assert!(plans.iter().all(|p| p.faults.iter().all(|planned| planned.gap < 5_000 * MS)));
        assert_eq!(Plan::draw(5, 1, None).guests, 1);
        let (stock, ours) = (Plan::draw(5, 3, None), Plan::draw(5, 3, Some(Mount::Own)));
        assert!(ours.vext4.is_some() && stock.vext4.is_none() && ours.faults == stock.faults);
        let vma: Vec<Plan> = (0..100).map(|seed| Plan::draw(seed, 3, Some(Mount::Vma))).collect();
        assert!(vma.iter().all(|p| p.journal.retain && p.contract != Contract::Power));
        assert!(vma.iter().any(|p| p.contract == Contract::GuestCrash));
        assert!(vma.iter().any(cut) && vma.iter().all(|p| p.contract != Contract::GuestCrash || !cut(p)));
    }
}
