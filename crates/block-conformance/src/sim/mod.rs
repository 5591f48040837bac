//! Storage with a volatile cache, whose crash states can be enumerated.
//!
//! # Fault model
//! A [`SimWorld`] holds several media and *one* trace of what was done to them, in order. Reads see every write at
//! once (the page cache). At a power cut after any operation of the trace, each medium holds
//!
//! * everything before the last sync of *that medium* that completed before the cut, and
//! * of what came after, for each 512-byte sector, the state after any one of the writes to it since (or none): the
//!   cache keeps one version of a sector, writes it out at any time in any order, and never goes back to an
//!   older one than the device already has;
//! * with [`CrashOptions::torn`]: of the last write to a sector only a first part, in units of 8 bytes, or noise in the
//!   whole sector (what a drive whose power fails within a sector may leave), also where the write meant a part of it;
//! * zeroing (discard) behaves as a write of zeroes, sector by sector.
//!
//! A cut during a sync is a cut before it: the subset then may be anything up to everything. Media are independent:
//! one may have kept all, another nothing. Sizes never change.
//!
//! The death of the process ([`SimWorld::halt_after`]) leaves everything that was done; the operation in which it dies
//! may be done up to a page boundary. Faults: an operation can be made to fail ([`SimWorld::fail`]) with any error,
//! without effect. A failed sync makes nothing durable, and as on Linux most of the pages that it was to write stay as
//! they are in the cache, clean: reads show them, no later sync writes them, until they are written again.
//!
//! Not modelled: damage at rest, misdirected writes, lost writes that a sync had covered.

mod content;
mod crash;
mod world;

pub use crash::{CrashOptions, CrashStates};
pub use world::{Fault, SimMedium, SimWorld};
