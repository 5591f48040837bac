//! The guest's driver: chains in a virtqueue (virtio 1.2 § 2.7, 5.2.6), four descriptors each: header, two halves of the data, status.

use afterimage_frontend::stepped::{Guest, Place};

pub const QUEUES: usize = 2;
const SIZE: u16 = 64;
const CHAIN: usize = 4;
const SLOTS: usize = SIZE as usize / CHAIN;
/// The largest request.
pub const DATA_BYTES: usize = 16 << 10;

const AVAILABLE: usize = 0x400;
const USED: usize = 0x800;
const HEADERS: usize = 0x1000;
const HEADER_BYTES: usize = 32;
const DATA: usize = 0x2000;
const QUEUE_BYTES: usize = DATA + SLOTS * DATA_BYTES;

const F_NEXT: u16 = 1;
const F_WRITE: u16 = 2;

/// What a guest asks for.
#[derive(Clone, Copy, Debug)]
pub enum Ask<'a> {
    Read { sector: u64, bytes: usize },
    Write { sector: u64, bytes: &'a [u8] },
    Flush,
    Discard { sector: u64, sectors: u32 },
    WriteZeroes { sector: u64, sectors: u32, unmap: bool },
}

/// A request of the driver's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Ticket {
    pub queue: usize,
    slot: usize,
}

#[derive(Clone, Copy, Default)]
struct Ring {
    available: u16,
    used: u16,
    /// By slot: bytes to read back; `None` where it is free.
    busy: [Option<usize>; SLOTS],
}

pub struct Driver {
    pub guest: Guest,
    rings: [Ring; QUEUES],
}

/// An answer: whether it is a success, and what was read.
pub struct Answer {
    pub ticket: Ticket,
    pub good: bool,
    pub data: Vec<u8>,
}

impl Driver {
    pub fn new() -> Self {
        let guest = Guest::new(QUEUES * QUEUE_BYTES, QUEUES as u16, SIZE);
        Self { guest, rings: Default::default() }
    }

    /// Another guest, which knows of nothing.
    pub fn reset(&mut self) {
        self.guest.reset();
        self.rings = Default::default();
    }

    pub fn place(queue: usize) -> Place {
        let base = (queue * QUEUE_BYTES) as u64;
        Place {
            index: queue as u16,
            size: SIZE,
            descriptors: base,
            available: base + AVAILABLE as u64,
            used: base + USED as u64,
        }
    }

    /// Makes a request available; `None` where the queue is full.
    pub fn submit(&mut self, queue: usize, ask: Ask<'_>) -> Option<Ticket> {
        let ring = &mut self.rings[queue];
        let slot = ring.busy.iter().position(Option::is_none)?;
        let base = queue * QUEUE_BYTES;
        let (header, data) = (base + HEADERS + slot * HEADER_BYTES, base + DATA + slot * DATA_BYTES);
        let range = |sector: u64, sectors: u32, flags: u32| {
            let mut range = [0; 16];
            range[..8].copy_from_slice(&sector.to_le_bytes());
            range[8..12].copy_from_slice(&sectors.to_le_bytes());
            range[12..].copy_from_slice(&flags.to_le_bytes());
            range.to_vec()
        };
        let (kind, sector, out, back) = match ask {
            Ask::Read { sector, bytes } => (0u32, sector, Vec::new(), bytes),
            Ask::Write { sector, bytes } => (1, sector, bytes.to_vec(), 0),
            Ask::Flush => (4, 0, Vec::new(), 0),
            Ask::Discard { sector, sectors } => (11, 0, range(sector, sectors, 0), 0),
            Ask::WriteZeroes { sector, sectors, unmap } => {
                (13, 0, range(sector, sectors, u32::from(unmap)), 0)
            }
        };
        ring.busy[slot] = Some(back);
        let mut head = [0; 16];
        head[..4].copy_from_slice(&kind.to_le_bytes());
        head[8..].copy_from_slice(&sector.to_le_bytes());
        self.guest.write(header, &head);
        self.guest.write(header + 16, &[0xff]);
        self.guest.write(data, &out);
        let len = out.len().max(back);
        let half = len / 2 / 512 * 512;
        let writable = if back > 0 { F_WRITE } else { 0 };
        let all = [
            (header, 16, 0),
            (data, half, writable),
            (data + half, len - half, writable),
            (header + 16, 1, F_WRITE),
        ];
        let used: Vec<_> = all.into_iter().filter(|(_, len, _)| *len > 0).collect();
        for (i, (address, len, flags)) in used.iter().enumerate() {
            let index = slot * CHAIN + i;
            let next = if i + 1 < used.len() { F_NEXT } else { 0 };
            let mut descriptor = [0; 16];
            descriptor[..8].copy_from_slice(&(*address as u64).to_le_bytes());
            descriptor[8..12].copy_from_slice(&(*len as u32).to_le_bytes());
            descriptor[12..14].copy_from_slice(&(flags | next).to_le_bytes());
            descriptor[14..].copy_from_slice(&(index as u16 + 1).to_le_bytes());
            self.guest.write(base + index * 16, &descriptor);
        }
        let at = base + AVAILABLE + 4 + 2 * usize::from(ring.available % SIZE);
        self.guest.write(at, &((slot * CHAIN) as u16).to_le_bytes());
        ring.available = ring.available.wrapping_add(1);
        self.guest.write(base + AVAILABLE + 2, &ring.available.to_le_bytes());
        Some(Ticket { queue, slot })
    }

    /// What the device has answered since.
    ///
    /// # Errors
    /// The device answers what was not asked.
    pub fn poll(&mut self, queue: usize) -> Result<Vec<Answer>, String> {
        let base = queue * QUEUE_BYTES;
        let ring = &mut self.rings[queue];
        let index = self.guest.index(base + USED + 2);
        let mut answers = Vec::new();
        while ring.used != index {
            let element: [u8; 8] = self.guest.read(base + USED + 4 + 8 * usize::from(ring.used % SIZE));
            ring.used = ring.used.wrapping_add(1);
            let head = u32::from_le_bytes([element[0], element[1], element[2], element[3]]) as usize;
            let slot = head / CHAIN;
            let back = ring.busy[slot].take().filter(|_| head % CHAIN == 0);
            let back =
                back.ok_or_else(|| format!("queue {queue} answers head {head}, which nobody asked for"))?;
            let status: [u8; 1] = self.guest.read(base + HEADERS + slot * HEADER_BYTES + 16);
            let at = base + DATA + slot * DATA_BYTES;
            let data = (0..back / 512).flat_map(|i| self.guest.read::<512>(at + i * 512)).collect();
            answers.push(Answer { ticket: Ticket { queue, slot }, good: status[0] == 0, data });
        }
        Ok(answers)
    }
}
