//! The control socket: one JSON object a line, one answer a line.
//!
//! | command | fields | does |
//! |---|---|---|
//! | `status` | | power, what is volatile, the last cut |
//! | `counters` | | per file and in sum, what reached storage |
//! | `reset-counters` | | |
//! | `cut` | `seed`, `kept_per_mille`?, `torn_per_mille`? | the power goes now |
//! | `arm` | `after_operations`? `after_ms`?, `seed`, `kept_per_mille`?, `torn_per_mille`? | it goes at that operation, or at that time; neither disarms |
//! | `restore` | | the power is back |
//! | `fault` | `write_errors`, `sync_errors`, `space_left_bytes`, `path_suffix` | replaces the faults in force |
//! | `settle` | | makes everything durable |
//! | `stop` | | unmounts and ends |
//!
//! An answer has `"ok": true`, or `"ok": false` and `"error"`.

use std::io::{self, BufRead, BufReader, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::mpsc::Sender;
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde::Deserialize;
use serde_json::{json, Value};

use super::client::{Counters, Status};
use super::core::Faults;
use super::counters::FileCounters;
use super::shared::Shared;

#[derive(Deserialize)]
#[serde(tag = "command", rename_all = "kebab-case", deny_unknown_fields)]
enum Command {
    Status,
    Counters,
    ResetCounters,
    Cut(Odds),
    Arm {
        #[serde(default)]
        after_operations: Option<u64>,
        #[serde(default)]
        after_ms: Option<u64>,
        #[serde(default)]
        seed: u64,
        #[serde(default)]
        kept_per_mille: Option<u64>,
        #[serde(default)]
        torn_per_mille: Option<u64>,
    },
    Restore,
    Fault(Faults),
    Settle,
    Stop,
}

#[derive(Deserialize)]
struct Odds {
    #[serde(default)]
    seed: Option<u64>,
    #[serde(default)]
    kept_per_mille: Option<u64>,
    #[serde(default)]
    torn_per_mille: Option<u64>,
}

/// Serves the socket until the process ends.
pub(super) fn serve(listener: UnixListener, shared: Arc<Shared>, stop: Sender<()>) -> io::Result<()> {
    std::thread::Builder::new().name("powerfs-control".to_owned()).spawn(move || {
        for stream in listener.incoming().flatten() {
            let (shared, stop) = (Arc::clone(&shared), stop.clone());
            let served = std::thread::Builder::new()
                .name("powerfs-control".to_owned())
                .spawn(move || converse(stream, &shared, &stop));
            if let Err(error) = served {
                tracing::warn!(%error, "no thread for a control connection");
            }
        }
    })?;
    Ok(())
}

fn converse(stream: UnixStream, shared: &Arc<Shared>, stop: &Sender<()>) {
    let Ok(mut writer) = stream.try_clone() else { return };
    for line in BufReader::new(stream).lines() {
        let Ok(line) = line else { return };
        let answer = match serde_json::from_str(&line) {
            Ok(command) => execute(command, shared, stop),
            Err(error) => Err(io::Error::new(io::ErrorKind::InvalidInput, error)),
        };
        let mut answer = answer.unwrap_or_else(|error| json!({ "ok": false, "error": error.to_string() }));
        if answer.get("ok").is_none() {
            answer["ok"] = Value::Bool(true);
        }
        if writer.write_all(format!("{answer}\n").as_bytes()).is_err() {
            return;
        }
    }
}

fn execute(command: Command, shared: &Arc<Shared>, stop: &Sender<()>) -> io::Result<Value> {
    let mut inside = shared.lock();
    match command {
        Command::Status => {
            let core = &inside.core;
            Ok(serde_json::to_value(Status {
                powered: core.powered(),
                operations: core.operations(),
                volatile_bytes: core.volatile_bytes(),
                volatile_names: core.volatile_names(),
                last_cut: inside.last_cut.clone(),
            })?)
        }
        Command::Counters => {
            let files = inside.core.counters();
            let mut total = FileCounters::default();
            files.values().for_each(|counters| total.add(counters));
            let directory_syncs = inside.core.directory_syncs();
            Ok(serde_json::to_value(Counters { files, total, directory_syncs })?)
        }
        Command::ResetCounters => {
            inside.core.reset_counters();
            Ok(json!({}))
        }
        Command::Cut(odds) => {
            let seed = odds.seed.unwrap_or(inside.next_seed);
            let torn = odds.torn_per_mille.unwrap_or(inside.torn_per_mille);
            let kept = odds.kept_per_mille.or(inside.kept_per_mille);
            inside.cut(seed, kept, torn)?;
            Ok(serde_json::to_value(&inside.last_cut)?)
        }
        Command::Arm { after_operations, after_ms, seed, kept_per_mille, torn_per_mille } => {
            inside.core.cut_after_operations(after_operations.filter(|n| *n > 0));
            inside.next_seed = seed;
            inside.kept_per_mille = kept_per_mille;
            inside.torn_per_mille = torn_per_mille.unwrap_or(inside.torn_per_mille);
            inside.arming += 1;
            if let Some(ms) = after_ms {
                let (arming, epoch) = (inside.arming, inside.core.epoch());
                drop(inside);
                shared.at(Instant::now() + Duration::from_millis(ms), epoch, move |inside| {
                    // A cut meanwhile, or another arming, has made this one void.
                    if let Ok(inside) = inside {
                        if inside.arming == arming {
                            let (seed, kept, torn) =
                                (inside.next_seed, inside.kept_per_mille, inside.torn_per_mille);
                            if let Err(error) = inside.cut(seed, kept, torn) {
                                tracing::error!(%error, "the armed cut failed");
                            }
                        }
                    }
                });
            }
            Ok(json!({}))
        }
        Command::Restore => inside.core.restore().map(|()| json!({})),
        Command::Fault(faults) => {
            inside.core.faults = faults;
            Ok(json!({}))
        }
        Command::Settle => inside.core.settle_everything().map(|()| json!({})),
        Command::Stop => {
            // The receiver is gone only when the end has begun already.
            let _ = stop.send(());
            Ok(json!({}))
        }
    }
}
