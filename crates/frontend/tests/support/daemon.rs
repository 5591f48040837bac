//! Servers in this process, as the daemon runs them.
#![allow(dead_code)]

use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use afterimage_block::Disk;
use afterimage_frontend::{Endpoint, FrontendStats, ServeOptions, Server};

/// One served disk on a socket of its own.
pub struct Served {
    pub server: Server,
    pub stats: Arc<FrontendStats>,
    pub socket: PathBuf,
    _directory: tempfile::TempDir,
}

pub fn serve(disk: Arc<dyn Disk>, options: ServeOptions) -> Served {
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("disk.sock");
    let stats = Arc::new(FrontendStats::new(options.queues));
    let server = start(&socket, disk, options, &stats);
    Served { server, stats, socket, _directory: directory }
}

pub fn start(
    socket: &Path,
    disk: Arc<dyn Disk>,
    options: ServeOptions,
    stats: &Arc<FrontendStats>,
) -> Server {
    let listener = UnixListener::bind(socket).unwrap();
    Server::start("vda", disk, Endpoint::Listen(listener), options, Arc::clone(stats)).unwrap()
}
