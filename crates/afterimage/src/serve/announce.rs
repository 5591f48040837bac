//! What a daemon says when it is ready: for people, or one line of JSON.

use std::path::{Path, PathBuf};

use serde::Serialize;

use super::settings::Settings;
use super::state::{show_socket, Daemon};
use crate::commands::{can_say_name, print_line};
use crate::control::published_promise;
use crate::failure::Failure;
use crate::sandbox::SandboxReport;

/// What the start-up line says, with `--json`.
#[derive(Serialize)]
struct Ready<'a> {
    event: &'static str,
    pid: u32,
    contract: String,
    promise: &'a str,
    journal: &'static str,
    disks: Vec<ReadyDisk>,
    control: Option<&'a Path>,
    control_disk: Option<&'a Path>,
    metrics: Option<String>,
    sandbox: &'a SandboxReport,
}

#[derive(Serialize)]
struct ReadyDisk {
    file: PathBuf,
    socket: String,
    bytes: u64,
    read_only: bool,
}

/// Whether the line can be written, before anything is opened: whoever waits for it would wait for ever.
///
/// # Errors
/// It cannot.
pub fn can_announce(settings: &Settings, json: bool) -> Result<(), Failure> {
    let disks = settings.disks.iter().flat_map(|disk| [Some(disk.file.as_path()), disk.socket.path()]);
    let others = [settings.control.as_deref(), settings.control_disk.as_deref()];
    disks.chain(others).flatten().try_for_each(|name| can_say_name(name, json))
}

/// Says what is promised and where it is served.
pub fn announce(
    daemon: &Daemon,
    control: Option<&Path>,
    metrics: Option<String>,
    json: bool,
) -> Result<(), Failure> {
    let promise = daemon.group.promise();
    if json {
        let ready = Ready {
            event: "ready",
            pid: std::process::id(),
            contract: daemon.group.status().contract.to_string(),
            promise: &promise,
            journal: daemon.group.journal(),
            disks: daemon
                .disks
                .iter()
                .map(|d| ReadyDisk {
                    file: d.settings.file.clone(),
                    socket: show_socket(&d.settings.socket),
                    bytes: d.disk.geometry().bytes(),
                    read_only: d.disk.geometry().read_only,
                })
                .collect(),
            control,
            control_disk: daemon.control_disk.as_ref().map(|disk| disk.socket.as_path()),
            metrics,
            sandbox: &daemon.sandbox,
        };
        let line =
            serde_json::to_string(&ready).map_err(|e| Failure::failed(format!("cannot write JSON: {e}")))?;
        return print_line(&line);
    }
    print_line(&promise)?;
    for disk in &daemon.disks {
        let geometry = disk.disk.geometry();
        print_line(&format!(
            "serving {} ({}{}) on {}",
            disk.settings.file.display(),
            crate::units::show_bytes(geometry.bytes()),
            if geometry.read_only { ", read-only" } else { "" },
            show_socket(&disk.settings.socket)
        ))?;
    }
    let what = if daemon.disks.len() == 1 { "this disk is" } else { "these disks are" };
    print_line(&format!(
        "{what} one consistency group; disks of other processes are not ordered against it"
    ))?;
    if let Some(disk) = &daemon.control_disk {
        print_line(&format!(
            "control disk: {}: its flushes survive a power cut under every contract",
            disk.socket.display()
        ))?;
        if !daemon.group.retained_disks().is_empty() {
            print_line(&published_promise())?;
        }
    }
    if let Some(path) = control {
        print_line(&format!("control: {}", path.display()))?;
    }
    if let Some(address) = metrics {
        print_line(&format!("metrics: http://{address}/metrics"))?;
    }
    Ok(())
}
