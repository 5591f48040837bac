//! Serves a disk in memory, or a plain file without any ordering, on a vhost-user socket: for trying a guest on the
//! frontend alone and for measuring it.
//!
//! `serve_memory SOCKET MIB [QUEUES [FILE]]`

use std::os::unix::net::UnixListener;
use std::sync::Arc;

use afterimage_block::{Disk, MediumDisk};
use afterimage_frontend::{Endpoint, FrontendStats, ServeOptions, Server};

#[path = "../tests/support/memory_disk.rs"]
mod memory_disk;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    tracing_subscriber::fmt().with_env_filter(tracing_subscriber::EnvFilter::from_default_env()).init();
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [socket, mib, rest @ ..] = args.as_slice() else {
        return Err("usage: serve_memory SOCKET MIB [QUEUES [FILE]]".into());
    };
    let queues = rest.first().map_or(Ok(1), |q| q.parse())?;
    let disk: Arc<dyn Disk> = match rest.get(1) {
        Some(file) => {
            let medium = afterimage_store::FileMedium::open(file.as_ref(), false)?;
            Arc::new(MediumDisk::new(Arc::new(medium)))
        }
        None => Arc::new(memory_disk::MemoryDisk::new(mib.parse::<u64>()? << 20, false)),
    };
    let listener = UnixListener::bind(socket)?;
    let stats = Arc::new(FrontendStats::new(queues));
    let spin_us = std::env::var("SPIN_US").map_or(Ok(0), |us| us.parse())?;
    let options = ServeOptions { queues, spin_us, ..ServeOptions::default() };
    let server = Server::start("memory", disk, Endpoint::Listen(listener), options, Arc::clone(&stats))?;
    server.join();
    Ok(())
}
