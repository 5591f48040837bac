//! The recorder in virtual time is a program of its own, because it links the layers with the front end's test kit.

use std::fs::{self, File};
use std::io::Write as _;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use afterimage_lab::locate;
use afterimage_lab::process::{quote, Group, Workdir};
use afterimage_lab::LabError;
use afterimage_protocol::recording::{End, Order, Passed, Recorded};
use afterimage_trace::{Finished, LayerTally, Tally, Written};

use super::{script, ModelledHost, RecordOptions, Summary, LOOK};
use crate::{ExploreError, Result};

/// How long it may go on after its own limit, or after it was asked to end.
const GRACE: Duration = Duration::from_secs(60);

/// The guests' kernel, for [`RecordOptions::about`].
pub(super) fn kernel() -> Result<String> {
    let linux = locate::virtual_kernel()?.join("linux");
    let said = Command::new(&linux).arg("--version").output();
    let said = said.map_err(ExploreError::io(format!("running {} --version", linux.display())))?;
    Ok(format!("virtual time, {}", String::from_utf8_lossy(&said.stdout).trim()))
}

/// Records.
pub(super) fn record(
    options: &RecordOptions,
    host: &ModelledHost,
    interrupt: &AtomicBool,
) -> Result<Summary> {
    let began = Instant::now();
    let kernel = locate::virtual_kernel()?;
    let folder = Workdir::new_in(Path::new("/dev/shm"), "order")?;
    let answered = folder.join("answer");
    let make = |e| ExploreError::io(format!("writing to {}", folder.path().display()))(e);
    let (asked, mut asks) = UnixStream::pair().map_err(ExploreError::io("making a pair of sockets"))?;
    let mut command = Command::new(locate::own_program("afterimage-virtual")?);
    command.arg("record").arg("--kernel").arg(&kernel);
    // Identities of arenas and logs are random, and guests see some of them.
    command.env("LD_PRELOAD", kernel.join("pin.so")).env("AFTERIMAGE_GUEST_SEED", options.seed.to_string());
    command.stdin(Stdio::from(OwnedFd::from(asked))).stdout(File::create(&answered).map_err(make)?);
    let mut process = Group::spawn("afterimage-virtual", &mut command, Vec::new(), "")?;
    drop(command);
    let mut order = serde_json::to_vec(&order(options, host)?).map_err(|e| make(e.into()))?;
    order.push(b'\n');
    // One that has died at once says so by its status.
    let _ = asks.write_all(&order);
    let mut asks = Some(asks);
    let mut end = began + options.limit + GRACE;
    let status = loop {
        if let Some(status) = process.wait_for(LOOK)? {
            break Some(status);
        }
        if interrupt.load(Ordering::SeqCst) && asks.take().is_some() {
            end = Instant::now() + GRACE;
        }
        if Instant::now() > end {
            break None;
        }
    };
    if !status.is_some_and(|status| status.success()) {
        let status = status.map_or_else(|| "it did not end".to_owned(), |status| status.to_string());
        return Err(LabError::Peer(format!("afterimage-virtual failed ({status})")).into());
    }
    let answer = fs::read(&answered).map_err(ExploreError::io("reading what was recorded"))?;
    let answer: Recorded = serde_json::from_slice(&answer)
        .map_err(|e| LabError::Peer(format!("afterimage-virtual answered what cannot be read: {e}")))?;
    super::judge(options, answer.end, &answer.output, &answer.last_words)?;
    let interrupted = answer.end == End::Interrupted;
    let finished = finished(&answer);
    Ok(Summary::new(options, &finished, answer.states, began.elapsed(), interrupted))
}

fn finished(answer: &Recorded) -> Finished {
    let layer = |passed: Passed| LayerTally {
        writes: passed.writes,
        write_bytes: passed.write_bytes,
        zeroes: passed.zeroes,
        flushes: passed.flushes,
    };
    let (guest, storage) = (layer(answer.guest), layer(answer.storage));
    Finished {
        tally: Tally {
            events: answer.events,
            guest,
            storage,
            marks: answer.marks,
            published: answer.published,
        },
        written: Written { raw_bytes: answer.raw_bytes, file_bytes: answer.file_bytes },
    }
}

fn order(options: &RecordOptions, host: &ModelledHost) -> Result<Order> {
    let absolute = |path: &Path| -> Result<PathBuf> {
        std::path::absolute(path).map_err(ExploreError::io(format!("naming {}", path.display())))
    };
    let mut text = String::new();
    for (name, value) in script::environment(options)? {
        text.push_str(&format!("export {name}={}\n", quote(&value)));
    }
    let agent = locate::own_program("afterimage-agent")?;
    text.push_str(&format!(
        "export AFTERIMAGE_AGENT={} AFTERIMAGE_REPORT=/dev/ttyS0\nstty -F $AFTERIMAGE_REPORT raw -echo\ncd /\n",
        quote(&agent.to_string_lossy())
    ));
    text.push_str(&script::script(options, WAIT));
    Ok(Order {
        out: absolute(&options.out)?,
        about: options.about()?,
        script: text,
        contract: options.contract.to_string(),
        retain: options.retain,
        control_disk: options.control_disk,
        disk_bytes: options.disk_bytes,
        log_bytes: options.log_bytes_max,
        model: host.device.clone(),
        host_fs: host.file_system.clone(),
        memory_mib: options.memory_mib,
        seed: options.seed,
        settle_ns: options.settle().as_nanos() as u64,
        limit_s: options.limit.as_secs().max(1),
    })
}

/// Until everything is home; `read` finds no end of a line, which is no failure.
const WAIT: &str =
    "while read -r may < /sys/block/vda/serial || :; [ \"$may\" != go ]; do sleep 0.01; done\n";
