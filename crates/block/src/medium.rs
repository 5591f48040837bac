//! Positional, synchronous storage: all the I/O that is not on a guest's behalf goes through this trait, so
//! that one crash model and one set of counters see it.

use std::io;

/// A file-like object of fixed size whose writes are volatile until synced.
///
/// After a crash a medium holds everything before the last sync that returned, and any subset, at 512-byte
/// granularity and with torn sectors, of what came after.
pub trait Medium: Send + Sync {
    /// Its size in bytes.
    fn len(&self) -> u64;

    /// Whether it holds no byte.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Fills `buf` from `offset`. Reading past the end is an error.
    ///
    /// # Errors
    /// The range is not on the medium, or cannot be read: `buf` may be filled in part.
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()>;

    /// How many bytes from `offset` on are known to read as zeroes, without looking at them; 0 where nothing is known.
    fn zeroes_from(&self, _offset: u64) -> u64 {
        0
    }

    /// Stores `buf` at `offset`. Writing past the end is an error. Several calls may run at once.
    ///
    /// # Errors
    /// The range is not on the medium, or cannot be written: it may hold any part of `buf`.
    fn write_at(&self, buf: &[u8], offset: u64) -> io::Result<()>;

    /// Makes a range read as zeroes; with `unmap` its space may be given back.
    ///
    /// # Errors
    /// As [`Medium::write_at`].
    fn zero_at(&self, offset: u64, len: u64, unmap: bool) -> io::Result<()>;

    /// Makes what reads show durable, for whoever finds a medium that an earlier process has written, before anybody else uses it.
    /// More than a sync where it is known that one failed: a page whose write-back failed stays in the cache as if it had been
    /// written, and no sync says so any more. Nothing is written because cache and storage differ.
    ///
    /// # Errors
    /// As [`Medium::sync`]; or it cannot be known what is right.
    fn settle(&self) -> io::Result<()> {
        self.sync()
    }

    /// Returns when everything that was written before the call is durable. After an error every later call is one, too:
    /// what was written since the last good sync may be lost, whatever the kernel answers another time.
    ///
    /// # Errors
    /// Something could not be made durable, now or at an earlier sync.
    fn sync(&self) -> io::Result<()>;
}
