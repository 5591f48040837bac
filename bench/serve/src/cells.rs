//! What is measured, and where.

use std::io::{self, Write};
use std::path::{Path, PathBuf};

use crate::driver::Load;

/// Where the image lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Place {
    /// tmpfs.
    Memory,
    /// A file system on a device, with O_DIRECT.
    Disk,
}

/// One comparison.
#[derive(Clone, Debug)]
pub struct Cell {
    /// Where the image lies.
    pub place: Place,
    /// What is asked.
    pub load: Load,
    /// What the median ratio should at least be.
    pub target: f64,
}

impl Cell {
    /// Such as "disk 4 KiB random write, depth 32, 2 queues".
    pub fn name(&self) -> String {
        let Load { write, random, bytes, depth, queues } = self.load;
        format!(
            "{} {} KiB {} {}, depth {depth}, {queues} queue{}",
            match self.place {
                Place::Memory => "tmpfs",
                Place::Disk => "disk",
            },
            bytes >> 10,
            if random { "random" } else { "sequential" },
            if write { "write" } else { "read" },
            if queues == 1 { "" } else { "s" }
        )
    }
}

/// All cells, in the order of the table.
pub fn all() -> Vec<Cell> {
    let mut cells = Vec::new();
    for place in [Place::Memory, Place::Disk] {
        for depth in [1, 32] {
            for queues in [1, 2] {
                for write in [false, true] {
                    let load = Load { write, random: true, bytes: 4096, depth, queues };
                    let target = if (place, depth) == (Place::Memory, 32) { 1.5 } else { 1.0 };
                    cells.push(Cell { place, load, target });
                }
            }
        }
        for write in [false, true] {
            let load = Load { write, random: false, bytes: 1 << 20, depth: 4, queues: 1 };
            cells.push(Cell { place, load, target: 1.0 });
        }
    }
    cells
}

/// An image whose every block has been written, so that no server is measured while it allocates.
pub fn image(directory: &Path, name: &str, mib: u64) -> io::Result<PathBuf> {
    let path = directory.join(name);
    let _ = std::fs::remove_file(&path);
    let mut file = std::fs::File::create(&path)?;
    let mut chunk = vec![0u8; 1 << 20];
    for (n, byte) in chunk.iter_mut().enumerate() {
        *byte = (n * 31 % 251) as u8;
    }
    for _ in 0..mib {
        file.write_all(&chunk)?;
    }
    file.sync_all()?;
    Ok(path)
}
