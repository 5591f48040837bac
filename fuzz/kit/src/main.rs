//! Writes the seeds that are made by programs into a folder of corpora: a redo log with records of every kind, a recording, as a file and as what it decodes
//! to, commands of the control disk, disks with an ext4 and its journal, block traces in every format, and guest memories whose ring offers every
//! virtio-blk request, direct and indirect.
//! `./x fuzz` runs it from the root, and adds those that were made by hand (`fuzz/seeds`).

use std::error::Error;
use std::fs;
use std::path::Path;
use std::process::ExitCode;

use afterimage_format::control_disk::{Answer, Command, OPERATION_VFLUSH, OPERATION_VORDER, OPERATION_WAIT};
use afterimage_fuzz_kit::recording::{sample_recording, sample_records};
use afterimage_fuzz_kit::redo_log::sample_log;
use afterimage_fuzz_kit::traces;
use zerocopy::{FromZeros as _, IntoBytes as _};

type Outcome<T> = Result<T, Box<dyn Error>>;

const PAGE: usize = 4096;

/// Descriptor flags (virtio 1.2 § 2.7.5).
const NEXT: u16 = 1;
const WRITE: u16 = 2;
const INDIRECT: u16 = 4;

/// A memory image as `afterimage_frontend::fuzz::chains` lays it out: descriptors at 0, available ring at 0x400,
/// used ring at 0x800, buffers from 0x1000 on.
struct Image {
    bytes: Vec<u8>,
    descriptors: usize,
    heads: Vec<u16>,
}

impl Image {
    fn new() -> Self {
        Self { bytes: vec![0; 4 * PAGE], descriptors: 0, heads: Vec::new() }
    }

    fn descriptor(&mut self, table: usize, index: usize, address: u64, len: u32, flags: u16, next: u16) {
        let at = table + index * 16;
        self.bytes[at..at + 8].copy_from_slice(&address.to_le_bytes());
        self.bytes[at + 8..at + 12].copy_from_slice(&len.to_le_bytes());
        self.bytes[at + 12..at + 14].copy_from_slice(&flags.to_le_bytes());
        self.bytes[at + 14..at + 16].copy_from_slice(&next.to_le_bytes());
    }

    /// One request: header, data of `data_len` bytes, status.
    fn request(&mut self, kind: u32, sector: u64, data_len: u32, indirect: bool) {
        let slot = self.heads.len();
        let header = 0x1000 + slot * 32;
        self.bytes[header..header + 4].copy_from_slice(&kind.to_le_bytes());
        self.bytes[header + 8..header + 16].copy_from_slice(&sector.to_le_bytes());
        let (data, status) = (0x1400, (0x1000 + slot * 32 + 24) as u64);
        if kind == 11 || kind == 13 {
            self.bytes[data + 8] = 4;
        }
        let data_flags = if kind == 0 || kind == 8 { WRITE } else { 0 };
        let (table, first) = if indirect { (0xc00 + slot * 64, 0) } else { (0, self.descriptors) };
        let mut parts = vec![(header as u64, 16, 0)];
        if data_len > 0 {
            parts.push((data as u64, data_len, data_flags));
        }
        parts.push((status, 1, WRITE));
        let last = parts.len() - 1;
        for (i, (address, len, flags)) in parts.into_iter().enumerate() {
            let (flags, next) = if i < last { (flags | NEXT, (first + i + 1) as u16) } else { (flags, 0) };
            self.descriptor(table, first + i, address, len, flags, next);
        }
        let head = self.descriptors;
        if indirect {
            self.descriptor(0, head, table as u64, ((last + 1) * 16) as u32, INDIRECT, 0);
            self.descriptors += 1;
        } else {
            self.descriptors += last + 1;
        }
        self.heads.push(head as u16);
    }

    fn seal(mut self) -> Vec<u8> {
        self.bytes[0x402..0x404].copy_from_slice(&(self.heads.len() as u16).to_le_bytes());
        for (i, head) in self.heads.iter().enumerate() {
            self.bytes[0x404 + i * 2..0x406 + i * 2].copy_from_slice(&head.to_le_bytes());
        }
        self.bytes
    }
}

fn main() -> Outcome<ExitCode> {
    let folder = std::env::args_os().nth(1).filter(|folder| !folder.as_encoded_bytes().starts_with(b"-"));
    let Some(folder) = folder else {
        eprintln!("afterimage-fuzz-seeds: name the folder of the corpora");
        return Ok(ExitCode::from(2));
    };
    make(Path::new(&folder))?;
    Ok(ExitCode::SUCCESS)
}

fn make(corpus: &Path) -> Outcome<()> {
    let put = |target: &str, name: &str, bytes: &[u8]| -> Outcome<()> {
        let folder = corpus.join(target);
        fs::create_dir_all(&folder)?;
        Ok(fs::write(folder.join(name), bytes)?)
    };
    put("fuzz_log", "seed-log", &sample_log())?;
    put("fuzz_recording", "seed-file", &sample_recording().to_bytes()?)?;
    put("fuzz_recording", "seed-records", &sample_records())?;
    for operation in [OPERATION_VORDER, OPERATION_VFLUSH, OPERATION_WAIT] {
        let mut command = Command::new(operation, 7);
        if operation == OPERATION_WAIT {
            (command.instance, command.sequence, command.timeout_ms) = (1.into(), 2.into(), 3.into());
        }
        put("fuzz_control_disk", &format!("seed-{operation}"), command.seal().as_bytes())?;
    }
    put("fuzz_control_disk", "seed-answer", Answer::new_zeroed().seal("power: all").as_bytes())?;
    for (number, disk) in afterimage_journal::layout::fuzz::samples().iter().enumerate() {
        put("fuzz_layout", &format!("seed-{number}"), disk)?;
    }
    for (number, guest) in afterimage_journal::ext4::fuzz::samples().iter().enumerate() {
        put("fuzz_retain", &format!("seed-{number}"), guest)?;
    }
    for (number, log) in afterimage_journal::log::fuzz::samples().iter().enumerate() {
        put("fuzz_jbd2", &format!("seed-{number}"), log)?;
    }
    for (name, bytes) in traces::seeds()? {
        put("fuzz_trace", &format!("seed-{name}"), &bytes)?;
    }
    // Read, write, flush, get-id, discard, write-zeroes (virtio 1.2 § 5.2.6).
    for (kind, len) in [(0, 1024), (1, 1024), (4, 0), (8, 20), (11, 16), (13, 16)] {
        for indirect in [false, true] {
            let mut image = Image::new();
            image.request(kind, 8, len, indirect);
            put("fuzz_chains", &format!("seed-{kind}-{indirect}"), &image.seal())?;
        }
    }
    let mut mixed = Image::new();
    mixed.request(1, 0, 512, true);
    mixed.request(0, 0, 512, false);
    mixed.request(4, 0, 0, false);
    put("fuzz_chains", "seed-mixed", &mixed.seal())?;
    let mut region = vec![0u8; 2 * PAGE];
    region[8] = 1;
    region[10] = 16;
    put("fuzz_inflight", "seed-version-1", &region)?;
    // Set both queues up and offer requests; the same with memory that shrinks, a table's message too many, and a reset.
    let served = [0, 0, 0, 1, 3, 0, 1, 3, 3, 1, 0, 5, 3, 0, 2, 0, 3, 1, 5, 1, 8, 250, 5, 0];
    let disturbed =
        [0, 0, 3, 0, 1, 3, 6, 0, 3, 3, 0, 0, 5, 2, 0, 4, 32, 7, 5, 3, 0, 0, 1, 8, 250, 9, 2, 0, 0, 9, 0];
    put("fuzz_session", "seed-served", &served)?;
    put("fuzz_session", "seed-disturbed", &disturbed)?;
    // Reads whose data, then whose status, reach over the end of the memory.
    put(
        "fuzz_session",
        "seed-over-the-end",
        &[0, 0, 3, 0, 132, 3, 8, 250, 3, 0, 192, 3, 8, 250, 8, 250, 5, 0],
    )?;
    // As many entries as the first byte says: a whole set-up, an in-flight region, a message of any content.
    put("fuzz_takeover", "seed-served", &[&[1, 0, 0][..], &served[4..]].concat())?;
    put(
        "fuzz_takeover",
        "seed-mixed",
        &[&[3, 0, 0, 3, 1, 16, 64, 2, 1, 0, 8, 0, 8, 1, 0, 0, 0][..], &disturbed].concat(),
    )?;
    Ok(())
}
