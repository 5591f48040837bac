//! A host's shutdown by systemd: the guest ends before its disks.
//!
//! ```text
//!   systemd as process 1 of a container, the host's root below an overlay
//!     another process holds the image ─► the daemon's start outlives TimeoutStartSec ─► the guest writes and syncs
//!     ─► systemctl poweroff ─► the guest unmounts ─► the daemon ends       as the journal has it
//! ```
//! The daemon's unit is the one in `contrib/systemd`. The guest's has libvirt's name and orders itself after nothing.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use serde_json::Value;

use super::{workload, Case, Evidence};
use crate::daemon::create_image;
use crate::error::{Context, LabError, Result};
use crate::locate;
use crate::process::{quote, run, Cleanup, Group, Workdir};

const LIMIT: Duration = Duration::from_secs(300);
const UNIT: &str = include_str!("../../../../contrib/systemd/afterimage@.service");
const USERS: &str = include_str!("../../../../contrib/systemd/afterimage.sysusers");
/// What nspawn's own filter lacks, and the daemon and User Mode Linux use.
const CALLS: &str =
    "io_uring_setup io_uring_enter io_uring_register landlock_create_ruleset landlock_add_rule \
     landlock_restrict_self seccomp ptrace";

const START_LIMIT_US: u64 = 2_000_000;
/// `accept-loss` is there for its warning.
const DISKS: &str = "survives = \"power-window=50ms\"\nlog-max = \"16M\"\naccept-loss = true\n\
     [[disk]]\nfile = \"/var/lib/afterimage/test/disk.raw\"\nsocket = \"/run/afterimage/test/disk.sock\"\n";
/// Longer than the limit above.
const HOLDER: &str = "[Unit]\nBefore=afterimage@test.service\n[Service]\nType=exec\n\
     ExecStart=flock /var/lib/afterimage/test/disk.raw sleep 6\n";
const GUEST: &str = "[Service]\nType=exec\nRuntimeDirectory=guest\nTimeoutStartSec=2min\n\
     ExecStartPre=sh -c 'until [ -S /run/afterimage/test/disk.sock ]; do sleep 0.1; done'\n\
     ExecStart=/usr/lib/afterimage/afterimage-lab run --vmm uml --disk /run/afterimage/test/disk.sock -- sh /etc/afterimage/guest.sh\n\
     ExecStop=sh -c 'touch /run/guest/stop; while kill -0 $MAINPID; do sleep 0.1; done'\n";
const GUEST_SCRIPT: &str = "set -e\nmkfs.ext4 -q -F /dev/vda\nmount /dev/vda /mnt\n\
     mkdir -p /tmp/host\nmount -t hostfs -o /run/guest none /tmp/host\ni=0\n\
     while [ ! -e /tmp/host/stop ]; do i=$((i+1)); echo $i > /mnt/r; sync /mnt/r; echo \"acknowledged $i\"; sleep 0.1; done\n\
     umount /mnt\necho clean\n";
const POWER_OFF: &str = "[Service]\n\
     ExecStart=sh -c 'until journalctl -q -u libvirt-guests | grep -q \"acknowledged 20$$\"; do sleep 1; done; systemctl poweroff'\n";
const TARGET: &str = "[Unit]\nRequires=basic.target\nAfter=basic.target\n\
     Wants=holder.service afterimage@test.service libvirt-guests.service power-off.service\n";

pub(super) fn cases() -> Vec<Case> {
    let canary = |evidence: &Evidence| {
        workload::canary(shut_down(evidence, false), "the order in the unit does not matter")
    };
    vec![
        Case {
            name: "host-shutdown".to_owned(),
            quick: true,
            run: Box::new(|evidence| shut_down(evidence, true)),
        },
        Case { name: "canary-host-shutdown-unordered".to_owned(), quick: true, run: Box::new(canary) },
    ]
}

/// A writable copy of the host's root, in memory, until it is dropped.
struct Root {
    cleanup: Option<Cleanup>,
    // Declared last: the folder goes when nothing is mounted in it.
    folder: Workdir,
}

impl Root {
    fn mount() -> Result<Root> {
        let folder = Workdir::new("host")?;
        let (memory, merged) = (folder.join("memory"), folder.join("merged"));
        for path in [&memory, &merged] {
            fs::create_dir(path).context(|| format!("make {}", path.display()))?;
        }
        let undo = [&merged, &memory].map(|path| format!("umount -l {}", quote(&path.to_string_lossy())));
        let root = Root { cleanup: Some(Cleanup::arm(&undo.join("\n"))?), folder };
        run(Command::new("mount").args(["-t", "tmpfs", "tmpfs"]).arg(&memory))?;
        let (upper, work) = (memory.join("upper"), memory.join("work"));
        for path in [&upper, &work] {
            fs::create_dir(path).context(|| format!("make {}", path.display()))?;
        }
        let options = format!("lowerdir=/,upperdir={},workdir={}", upper.display(), work.display());
        run(Command::new("mount").args(["-t", "overlay", "-o", &options, "overlay"]).arg(&merged))?;
        Ok(root)
    }

    fn join(&self, path: &str) -> PathBuf {
        self.folder.join("merged").join(path)
    }

    fn put(&self, path: &str, text: &str) -> Result<()> {
        let path = self.join(path);
        fs::create_dir_all(path.parent().unwrap_or(&path))
            .and_then(|()| fs::write(&path, text))
            .context(|| format!("write {}", path.display()))
    }

    fn copy(&self, program: &Path, to: &str) -> Result<()> {
        self.put(to, "")?;
        fs::copy(program, self.join(to)).map(drop).context(|| format!("copy {}", program.display()))
    }
}

impl Drop for Root {
    fn drop(&mut self) {
        for path in ["merged", "memory"] {
            let _ =
                Command::new("umount").arg("-l").arg(self.folder.join(path)).stderr(Stdio::null()).status();
        }
        if let Some(cleanup) = self.cleanup.take() {
            cleanup.dismiss();
        }
    }
}

fn shut_down(evidence: &Evidence, ordered: bool) -> Result<String> {
    let nspawn = locate::system_program("systemd-nspawn", "systemd-container")?;
    let root = Root::mount()?;
    let unit: String = UNIT
        .lines()
        .filter(|line| ordered || !line.starts_with("Before="))
        .map(|line| format!("{line}\n"))
        .collect();
    let users: String = USERS.lines().filter(|line| line.starts_with('u')).collect();
    let systemd = "etc/systemd/system";
    root.put(&format!("{systemd}/afterimage@.service"), &unit)?;
    root.put(
        &format!("{systemd}/afterimage@test.service.d/short.conf"),
        &format!("[Service]\nTimeoutStartSec={START_LIMIT_US}us\n"),
    )?;
    for (name, text) in [
        ("holder.service", HOLDER),
        ("libvirt-guests.service", GUEST),
        ("power-off.service", POWER_OFF),
        ("shutdown-test.target", TARGET),
    ] {
        root.put(&format!("{systemd}/{name}"), text)?;
    }
    root.put("etc/sysusers.d/afterimage-test.conf", &format!("{}\n", users.replace("NAME", "test")))?;
    root.put("etc/afterimage/test.toml", DISKS)?;
    root.put("etc/afterimage/guest.sh", GUEST_SCRIPT)?;
    root.copy(&locate::product()?, "usr/bin/afterimage")?;
    for name in ["afterimage-lab", "afterimage-agent"] {
        root.copy(&locate::own_program(name)?, &format!("usr/lib/afterimage/{name}"))?;
    }
    let journal = root.join("var/log/journal");
    for path in [&journal, &root.join("var/lib/afterimage/test")] {
        fs::create_dir_all(path).context(|| format!("make {}", path.display()))?;
    }
    create_image(&root.join("var/lib/afterimage/test/disk.raw"), 64 << 20)?;

    let console = root.folder.join("console.log");
    let log = File::create(&console).context(|| format!("create {}", console.display()))?;
    let mut command = Command::new(nspawn);
    command
        .args(["--quiet", "--boot", "--register=no", "--keep-unit", "--private-network", "--link-journal=no"])
        .arg(format!("--system-call-filter={CALLS}"))
        .arg("--directory")
        .arg(root.join(""))
        .args(["--", "systemd.unit=shutdown-test.target"])
        .stdin(Stdio::null())
        .stdout(log.try_clone().context(|| "duplicate a descriptor".to_owned())?)
        .stderr(log);
    let ended = Group::spawn("systemd-nspawn", &mut command, Vec::new(), "")?.wait_for(LIMIT)?;
    evidence.files(&[console], "");
    let told = run(Command::new("journalctl")
        .args(["-q", "-o", "json", "-u", "afterimage@test", "-u", "libvirt-guests", "-D"])
        .arg(&journal))?;
    evidence.text("journal.jsonl", &told);
    if !ended.is_some_and(|status| status.success()) {
        return Err(LabError::Guest(format!("the host did not shut down by itself: {ended:?}")));
    }
    judge(&told)
}

/// One line of the journal.
struct Line {
    at_us: u64,
    unit: String,
    message: String,
    priority: String,
}

fn lines(journal: &str) -> Result<Vec<Line>> {
    let line = |text: &str| {
        let line: Value = serde_json::from_str(text)
            .map_err(|error| LabError::Peer(format!("journalctl said {text:?}: {error}")))?;
        let missing = |name: &str| LabError::Peer(format!("a line of the journal has no {name}: {text:?}"));
        let field = |name: &str| line[name].as_str().map(str::to_owned).ok_or_else(|| missing(name));
        // What systemd says of a unit carries the unit's name apart from its own.
        let unit = match line["UNIT"].as_str() {
            Some(of) => format!("systemd of {of}"),
            None => field("_SYSTEMD_UNIT")?,
        };
        const TIME: &str = "__MONOTONIC_TIMESTAMP";
        let at_us = field(TIME)?.parse().map_err(|_| missing(TIME))?;
        Ok(Line { at_us, unit, message: field("MESSAGE")?, priority: field("PRIORITY")? })
    };
    journal.lines().map(line).collect()
}

fn judge(journal: &str) -> Result<String> {
    const DAEMON: &str = "afterimage@test.service";
    const GUEST: &str = "libvirt-guests.service";
    let lines = lines(journal)?;
    let first = |unit: &str, start: &str| {
        let found = lines.iter().position(|line| line.unit == unit && line.message.starts_with(start));
        found.ok_or_else(|| LabError::Broken(format!("the journal has no line {start:?} of {unit}")))
    };
    let of_systemd = format!("systemd of {DAEMON}");
    let took_us = lines[first(&of_systemd, "Started")?].at_us - lines[first(&of_systemd, "Starting")?].at_us;
    if took_us <= START_LIMIT_US {
        return Err(LabError::Guest(format!("the daemon's start took only {took_us} µs")));
    }
    let (clean, end) = (first(GUEST, "clean")?, first(DAEMON, "told to end")?);
    let acknowledged = |line: &&Line| line.unit == GUEST && line.message.starts_with("acknowledged");
    let late = lines[end..].iter().filter(acknowledged).count();
    if end < clean || late > 0 {
        return Err(LabError::Broken(format!(
            "the daemon ended before its guest, {late} acknowledgements early"
        )));
    }
    let warned = lines.iter().any(|line| line.unit == DAEMON && line.priority == "4");
    if !warned || lines.iter().any(|line| line.unit == DAEMON && line.message.starts_with('<')) {
        return Err(LabError::Broken("the daemon's warning is none in the journal".to_owned()));
    }
    Ok(format!(
        "a start of {:.1} s within TimeoutStartSec={} s; {} acknowledged, then unmounted, {:.0} ms before the daemon was told to end",
        took_us as f64 / 1e6,
        START_LIMIT_US / 1_000_000,
        lines[..clean].iter().filter(acknowledged).count(),
        (lines[end].at_us - lines[clean].at_us) as f64 / 1e3
    ))
}
