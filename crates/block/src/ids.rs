//! Newtypes for the numbers that must not be mixed up.

/// Bytes in a virtio-blk sector (virtio 1.2 § 5.2.6: the unit of `sector`, whatever the block size).
pub const SECTOR_BYTES: u64 = 512;

/// A position on a disk in units of [`SECTOR_BYTES`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Sector(pub u64);

/// The place of a write, discard or write-zeroes in the history of its consistency group.
///
/// Numbers start at 1 and never repeat; 0 means "nothing yet". A crash under an ordering contract leaves
/// exactly the requests up to some sequence number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SequenceNumber(pub u64);

impl SequenceNumber {
    /// The number after this one.
    pub fn next(self) -> Self {
        Self(self.0 + 1)
    }
}

/// Which disk of the consistency group, in the order of the command line.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DiskIndex(pub u16);
