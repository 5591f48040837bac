//! The pool with real guests.

use std::os::unix::net::UnixListener;
use std::sync::Arc;

use afterimage_frontend::{Endpoint, FrontendStats, ServeOptions, Server};
use afterimage_lab::guest::{run_script, Guest, Vmm};
use afterimage_lab::process::Workdir;
use afterimage_trace::Sparse;

use crate::check::apps::{self, App, JournalMode, Saving, Synchronous};
use crate::check::pool::{Pool, PoolOptions, SwapMedium};
use crate::check::{Checker, Observation};
use crate::state::{Image, Scratch};

#[test]
#[ignore = "boots guests: part of the guests' suite"]
fn the_pool_tells_good_from_bad() {
    let done = crate::check::selftest().unwrap();
    assert!(done.states > 10, "{done:?}");
}

/// Runs applications in a guest; what is on its disk then, and the marks it sent.
fn run_apps(apps: &[App]) -> (Arc<Scratch>, Vec<String>) {
    let folder = Workdir::new("apps").unwrap();
    let socket = folder.join("disk");
    let disk = SwapMedium::new(64 << 20);
    let content = Arc::new(Scratch::new(Image::digested(0, Arc::new(Sparse::new(64 << 20)))));
    disk.swap(Some(Arc::clone(&content)));
    let endpoint = Endpoint::Listen(UnixListener::bind(&socket).unwrap());
    let stats = Arc::new(FrontendStats::new(1));
    let server =
        Server::start("apps", Arc::new(disk.disk("apps")), endpoint, ServeOptions::default(), stats).unwrap();
    let mut script = "set -e\nmkfs.ext4 -q -F -b 4096 /dev/vda\nmount -t ext4 /dev/vda /mnt\n".to_owned();
    apps.iter().for_each(|app| script.push_str(&app.setup));
    script.push_str("sync\n");
    apps.iter().for_each(|app| script.push_str(&app.command));
    script.push_str("umount /mnt\n");
    let builder = Guest::builder(Vmm::Uml).memory_mib(256).disk(socket);
    let guest = run_script(builder, &script).unwrap();
    let marks = guest.channel().lines().into_iter().map(|line| line.line).collect();
    drop(guest);
    server.stop();
    (content, marks)
}

fn look(app: &App, content: &Arc<Scratch>) -> Observation {
    let mut options = PoolOptions::new(app.check.clone());
    options.guests = 1;
    Pool::new(options).checker().check(&[Arc::clone(content)]).unwrap()
}

/// Every application does in a guest what its check then finds.
#[test]
#[ignore = "boots guests: part of the guests' suite"]
fn applications_end_in_their_last_state() {
    let bank = apps::sqlite_workload(JournalMode::Wal, Synchronous::Full, 6);
    let editor = apps::editor_workload(4, Saving { fsync: true, fsync_folder: true });
    let records = apps::integrity_workload(11, 16384, 4);
    let (content, marks) = run_apps(&[bank.clone(), editor.clone(), records.clone()]);
    for mark in ["{\"mark\":\"t6\"}", "{\"mark\":\"v0\"}", "{\"mark\":\"v4\"}"] {
        assert!(marks.iter().any(|line| line == mark), "{mark} is not among {marks:?}");
    }
    assert_eq!(look(&bank, &content), Observation::Named { state: "t6".to_owned() });
    assert_eq!(look(&editor, &content), Observation::Named { state: "v4".to_owned() });
    let found = Observation::Records { present: vec![(8, 11)], torn: Vec::new() };
    assert_eq!(look(&records, &content), found);
}
