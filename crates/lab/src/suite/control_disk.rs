//! What a program in a stock guest flushed through the control disk is there after a power cut, under a window that would forgive its loss.

use std::fmt::Write as _;

use super::cut::{serve_after_cut, torn_per_mille};
use super::workload::{self, FileSystem, IMAGE_BYTES};
use super::{Case, Evidence};
use crate::daemon::{self, Daemon, ServeOptions};
use crate::error::{LabError, Result};
use crate::guest::{Ended, Guest, Vmm};
use crate::locate;
use crate::powerfs::{ModelName, MountOptions, PowerMount};
use crate::process::{quote, Workdir};

/// So long that a cut in a short life may lose all that was only ordered.
const CONTRACT: &str = "power-window=60s";
const FILE_SYSTEM: FileSystem = FileSystem::Ext4Ordered;
/// What the guest prints behind each record.
const FLUSHED: &str = "flushed";

pub(super) fn cases(seed: u64) -> Vec<Case> {
    let case = |name: &str, quick: bool, vmm, tool: bool, records: usize| Case {
        name: name.to_owned(),
        quick,
        run: Box::new(move |evidence: &Evidence| run(evidence, vmm, seed, tool, records)),
    };
    let restart = Case { name: "control-disk-restart-qemu".to_owned(), quick: true, run: Box::new(restart) };
    let canary = case("", true, Vmm::Uml, false, 100).run;
    let survived = "what was only ordered survived a cut within its window";
    vec![
        restart,
        case("control-disk-cut-qemu", true, Vmm::Qemu, true, 25),
        case("control-disk-cut-uml", false, Vmm::Uml, true, 100),
        Case {
            name: "canary-control-disk-fsync".to_owned(),
            quick: true,
            run: Box::new(move |evidence| workload::canary(canary(evidence), survived)),
        },
    ]
}

/// Asks for everything once, then writes records for ever, and says of each that it is flushed. `tool`: by the control disk, else by fsync.
fn writing(program: &str, tool: bool) -> String {
    let flush = if tool { "$G flush" } else { "sync" };
    format!(
        "set -e\nG={program}\n{make}\n{mount}\nsync\n\
         [ \"$(cat /sys/block/vdb/serial)\" = afterimage-control ]\n\
         $G show\npoint=$($G order)\n$G wait -t 60 $($G flush)\n$G wait -t 60 \"$point\"\n\
         echo x > /mnt/x\nsync /mnt/x\npoint=$($G order /mnt/x)\n$G flush > /dev/null\n$G wait -t 0 \"$point\"\n\
         ! dd if=/dev/urandom of=/dev/vdb bs=4096 count=1 seek=512 oflag=direct 2> /dev/null\n\
         {records}",
        make = FILE_SYSTEM.make(),
        mount = FILE_SYSTEM.mount(),
        records = records(flush),
    )
}

/// Writes records, up to number `$END` where there is such.
fn records(flush: &str) -> String {
    format!(
        "i=0\nwhile :; do i=$((i+1)); echo record $i > /mnt/r$i; {flush} /mnt/r$i > /dev/null; \
         echo {FLUSHED} $i; [ $i != \"${{END:-}}\" ] || break; done\n"
    )
}

/// Mounts, looks for the records, and checks.
fn checking(records: usize) -> String {
    let mut script = format!("{} || exit 61\n", FILE_SYSTEM.mount());
    let _ = write!(
        script,
        "for i in $(seq {records}); do [ \"$(cat /mnt/r$i)\" = \"record $i\" ] || \
         {{ echo \"record $i of {records} is gone\"; exit 62; }}; done\n\
         umount /mnt || exit 63\n{} || exit 64\n",
        FILE_SYSTEM.check()
    );
    script
}

/// The daemon is killed this often under the running guest, each time after so many records more.
const KILLS: usize = 3;
const RECORDS_BETWEEN: usize = 8;

fn wait_flushed(guest: &Guest, number: usize) -> Result<()> {
    let last = format!("{FLUSHED} {number}");
    guest.wait_printed(&last, |said| (said == last).then_some(()))
}

/// What was in flight is asked again by QEMU, answers that went with a daemon by the program: it notices nothing.
fn restart(evidence: &Evidence) -> Result<String> {
    let program = locate::own_program("afterimage-guest")?;
    let folder = Workdir::new("control-disk")?;
    let image = folder.join("disk.raw");
    daemon::create_image(&image, IMAGE_BYTES)?;
    let options =
        ServeOptions { control_disk: true, ..ServeOptions::new(CONTRACT, std::slice::from_ref(&image)) };
    let mut daemon = Daemon::serve(&options)?;
    let end = (KILLS + 1) * RECORDS_BETWEEN;
    let script = format!(
        "set -e\nG={}\nEND={end}\n{}\n{mount}\npoint=$($G order)\n{}$G wait \"$point\"\n\
         umount /mnt\n\"$AFTERIMAGE_AGENT\" drop-caches\n{}",
        quote(&program.to_string_lossy()),
        FILE_SYSTEM.make(),
        records("$G flush"),
        checking(end),
        mount = FILE_SYSTEM.mount(),
    );
    let mut guest = workload::guest(Vmm::Qemu, &daemon).reconnect_s(1).start(&script)?;
    let killed = (1..=KILLS).try_for_each(|turn| {
        wait_flushed(&guest, turn * RECORDS_BETWEEN)?;
        daemon.kill()?;
        daemon.restart()
    });
    let ended = killed.and_then(|()| guest.wait_success());
    evidence.guest(&guest, "guest");
    evidence.daemon(&daemon, "daemon");
    ended?;
    drop(guest);
    daemon.stop()?;
    Ok(format!("{end} records flushed, the daemon killed {KILLS} times"))
}

fn flushed(guest: &Guest) -> usize {
    guest.output().lines().filter(|line| line.starts_with(FLUSHED)).count()
}

fn run(evidence: &Evidence, vmm: Vmm, seed: u64, tool: bool, records: usize) -> Result<String> {
    let program = locate::own_program("afterimage-guest")?;
    let mount = PowerMount::mount(&MountOptions { model: ModelName::Ssd, seed, ..MountOptions::default() })?;
    let image = mount.join("disk0.raw");
    daemon::create_image(&image, IMAGE_BYTES)?;
    mount.request(&serde_json::json!({ "command": "settle" }))?;
    let options =
        ServeOptions { control_disk: true, ..ServeOptions::new(CONTRACT, std::slice::from_ref(&image)) };
    let mut daemon = Daemon::serve(&options)?;
    let script = writing(&quote(&program.to_string_lossy()), tool);
    let mut guest = workload::guest(vmm, &daemon).start(&script)?;
    let reached = wait_flushed(&guest, records);
    let told = daemon.status()?.control_disk;
    let cut = reached.and_then(|()| mount.cut_keeping(seed, 0, torn_per_mille(CONTRACT)));
    guest.kill();
    daemon.kill()?;
    guest.wait()?;
    evidence.guest(&guest, "first");
    evidence.daemon(&daemon, "first");
    cut?;
    let promised = flushed(&guest);
    drop((guest, daemon));
    mount.restore()?;

    let daemon = serve_after_cut(&options)?;
    let mut guest = workload::guest(Vmm::Uml, &daemon).start(&checking(promised))?;
    let ended = guest.wait();
    evidence.guest(&guest, "second");
    evidence.daemon(&daemon, "second");
    match ended? {
        Ended::Exited(0) => {}
        Ended::Exited(61..=64) => return Err(LabError::Broken(guest.output().trim().to_owned())),
        other => return Err(LabError::Guest(format!("the second guest: {other:?}{}", guest.last_words()))),
    }
    drop(guest);
    daemon.stop()?;
    let told = told.ok_or_else(|| LabError::Peer("the status names no control disk".to_owned()))?;
    if tool && (told.vflushes < records as u64 || told.refused != 1 || told.failed > 0) {
        return Err(LabError::Broken(format!("the control disk counted {told:?}")));
    }
    Ok(format!("{promised} records flushed, 0 lost; {} flushes, {} waits", told.vflushes, told.waits))
}
