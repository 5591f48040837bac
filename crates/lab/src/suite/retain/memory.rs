//! The arena's memory: bounded while the guest lives and when it is dead, given back when the next guest has replayed its journal.

use std::time::{Duration, Instant};

use super::format::Format;
use super::rig::{self, judge_end, End, Rig, Setup};
use crate::error::{LabError, Result};
use crate::evidence::Evidence;
use crate::guest::Vmm;

const RETAIN_MAX: &str = "12M";
const RETAIN_BYTES_MAX: u64 = 12 << 20;
/// Beside the content: tags, spare pages, and what is on its way.
const BESIDE_BYTES_MAX: u64 = 4 << 20;
/// What the guest logs: much more than the arena may hold.
const WRITTEN_BYTES: u64 = 160 << 20;
/// How soon the memory of an emptied journal must be back.
const GONE_WITHIN: Duration = Duration::from_secs(5);

/// Runs it.
pub(super) fn run(evidence: &Evidence, format: Format) -> Result<String> {
    // A journal that holds several times what the arena may.
    let format = Format { make: "-J size=64", ..format };
    let setup = Setup { image_bytes: 384 << 20, retain_max: Some(RETAIN_MAX), ..Setup::new(format) };
    rig::on(&setup, evidence, End::Any, |rig| watched(evidence, rig, format))
}

fn watched(evidence: &Evidence, rig: &Rig, format: Format) -> Result<String> {
    let script = format!(
        "set -e\n{}\n{}\nsync\n\"$AFTERIMAGE_AGENT\" say '{{\"suite\":\"go\"}}'\n\
         \"$AFTERIMAGE_AGENT\" stamp /mnt/big --bytes {WRITTEN_BYTES}\n\
         \"$AFTERIMAGE_AGENT\" stamp /mnt/last --bytes 4000000\n\
         \"$AFTERIMAGE_AGENT\" say '{{\"suite\":\"done\"}}'\nsleep 1000\n",
        format.mkfs(),
        format.mount()
    );
    let mut guest = rig.guest(Vmm::Uml).start(&script)?;
    let begun = guest.wait_report("suite", "go");
    if let Err(error) = begun {
        return judge_end(&mut guest).and(Err(error));
    }
    let (mut used_most, mut resident_most, mut file_most) = (0, 0, 0);
    while !guest.channel().lines().iter().any(|line| line.says("suite", "done")) {
        let arena = rig.arena()?;
        used_most = used_most.max(arena.used_bytes);
        resident_most = resident_most.max(arena.resident_bytes);
        file_most = file_most.max(rig.arena_file_bytes());
        if guest.out_of_time() || guest.channel().lines().iter().any(|line| line.says("guest", "exit")) {
            return judge_end(&mut guest).and(Err(LabError::Guest("the guest did not finish".to_owned())));
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    rig.expect_retained()?;
    let living = rig.arena()?;
    let file_living = rig.arena_file_bytes();
    evidence.text("living.json", &format!("{living:?}"));
    let told = format!(
        "{} MiB logged; at most {:.1} MiB of content of {} MiB allowed, {:.1} MiB resident, {:.1} MiB in the arena's file",
        WRITTEN_BYTES >> 20,
        mib(used_most),
        RETAIN_BYTES_MAX >> 20,
        mib(resident_most),
        mib(file_most)
    );
    let most = RETAIN_BYTES_MAX + BESIDE_BYTES_MAX;
    if used_most > RETAIN_BYTES_MAX || resident_most > most || file_most > most {
        return Err(LabError::Broken(format!("--retain-max is not kept: {told}")));
    }
    if living.used_bytes == 0 {
        return Err(LabError::Guest(format!("nothing is retained at the end: {living:?}")));
    }
    guest.kill();
    guest.wait()?;
    // Its log can be read until the next guest has replayed it.
    let dead = rig.arena()?;
    if dead.used_bytes > RETAIN_BYTES_MAX {
        return Err(LabError::Broken(format!("--retain-max is not kept behind a dead guest: {dead:?}")));
    }
    let mut next = rig.guest(Vmm::Uml).start(&format!("set -e\n{}\numount /mnt\n", format.mount()))?;
    judge_end(&mut next)?;
    let emptied = Instant::now();
    loop {
        let arena = rig.arena()?;
        let file = rig.arena_file_bytes();
        // The journal's superblock stays, and the spare pages of the daemon's tables.
        if arena.used_bytes <= 64 << 10 && file <= 1 << 20 {
            return Ok(format!(
                "{told}; dead, and replayed by the next: {:.1} MiB in the file became {:.2} MiB within {} ms",
                mib(file_living),
                mib(file),
                emptied.elapsed().as_millis()
            ));
        }
        if emptied.elapsed() > GONE_WITHIN {
            return Err(LabError::Broken(format!(
                "what an emptied journal took is still held after {} s: {arena:?}, {file} bytes in the arena's file",
                GONE_WITHIN.as_secs()
            )));
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}

fn mib(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1 << 20)
}
