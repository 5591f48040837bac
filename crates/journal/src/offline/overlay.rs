//! An image that is written to in memory only: what recovery would do is found out by doing it here.

use std::collections::BTreeMap;
use std::io;

use afterimage_block::Medium;
use parking_lot::Mutex;

/// Bytes of a piece that is kept in memory.
const PIECE: u64 = 4096;

/// See the module.
pub(super) struct Overlay<M> {
    below: M,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    pieces: BTreeMap<u64, Box<[u8]>>,
    written_bytes: u64,
}

impl<M: Medium> Overlay<M> {
    pub(super) fn new(below: M) -> Self {
        Self { below, state: Mutex::default() }
    }

    /// Bytes written so far, every write counted.
    pub(super) fn written_bytes(&self) -> u64 {
        self.state.lock().written_bytes
    }

    /// Splits a range at pieces: piece, offset within it, length.
    fn split(offset: u64, len: usize) -> impl Iterator<Item = (u64, usize, usize)> {
        let end = offset + len as u64;
        let mut at = offset;
        std::iter::from_fn(move || {
            let piece = at / PIECE;
            let here = end.min((piece + 1) * PIECE).checked_sub(at).filter(|n| *n > 0)?;
            let from = (at % PIECE) as usize;
            at += here;
            Some((piece, from, here as usize))
        })
    }

    fn check(&self, offset: u64, len: u64) -> io::Result<()> {
        match offset.checked_add(len) {
            Some(end) if end <= self.below.len() => Ok(()),
            _ => Err(io::ErrorKind::UnexpectedEof.into()),
        }
    }
}

impl<M: Medium> Medium for Overlay<M> {
    fn len(&self) -> u64 {
        self.below.len()
    }

    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        self.below.read_at(buf, offset)?;
        let state = self.state.lock();
        let mut done = 0;
        for (piece, from, len) in Self::split(offset, buf.len()) {
            if let Some(content) = state.pieces.get(&piece) {
                buf[done..done + len].copy_from_slice(&content[from..from + len]);
            }
            done += len;
        }
        Ok(())
    }

    fn write_at(&self, buf: &[u8], offset: u64) -> io::Result<()> {
        self.check(offset, buf.len() as u64)?;
        let mut state = self.state.lock();
        state.written_bytes += buf.len() as u64;
        let mut done = 0;
        for (piece, from, len) in Self::split(offset, buf.len()) {
            if let std::collections::btree_map::Entry::Vacant(entry) = state.pieces.entry(piece) {
                let start = piece * PIECE;
                let mut content = vec![0; PIECE.min(self.below.len() - start) as usize];
                self.below.read_at(&mut content, start)?;
                entry.insert(content.into());
            }
            if let Some(content) = state.pieces.get_mut(&piece) {
                content[from..from + len].copy_from_slice(&buf[done..done + len]);
            }
            done += len;
        }
        Ok(())
    }

    fn zero_at(&self, offset: u64, len: u64, _unmap: bool) -> io::Result<()> {
        self.check(offset, len)?;
        for (piece, from, len) in Self::split(offset, len as usize) {
            self.write_at(&vec![0; len], piece * PIECE + from as u64)?;
        }
        Ok(())
    }

    fn sync(&self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Bytes(Vec<u8>);

    impl Medium for Bytes {
        fn len(&self) -> u64 {
            self.0.len() as u64
        }

        fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
            let part = self.0.get(offset as usize..).and_then(|b| b.get(..buf.len()));
            buf.copy_from_slice(part.ok_or(io::ErrorKind::UnexpectedEof)?);
            Ok(())
        }

        fn write_at(&self, _: &[u8], _: u64) -> io::Result<()> {
            Err(io::ErrorKind::ReadOnlyFilesystem.into())
        }

        fn zero_at(&self, _: u64, _: u64, _: bool) -> io::Result<()> {
            Err(io::ErrorKind::ReadOnlyFilesystem.into())
        }

        fn sync(&self) -> io::Result<()> {
            Err(io::ErrorKind::ReadOnlyFilesystem.into())
        }
    }

    #[test]
    fn writes_are_seen_and_go_nowhere() {
        let mut expected: Vec<u8> = (0..10_000u32).map(|i| i as u8).collect();
        let overlay = Overlay::new(Bytes(expected.clone()));
        for (at, len, byte) in [(0, 1, 1), (4090, 20, 2), (9_000, 1_000, 3), (5_000, 0, 4), (4096, 4096, 5)] {
            overlay.write_at(&vec![byte; len], at as u64).unwrap();
            expected[at..at + len].fill(byte);
        }
        overlay.zero_at(8_000, 300, true).unwrap();
        expected[8_000..8_300].fill(0);
        let mut found = vec![0; expected.len()];
        overlay.read_at(&mut found, 0).unwrap();
        assert!(found == expected);
        assert_eq!(overlay.written_bytes(), 1 + 20 + 1_000 + 4096 + 300);
        assert!(overlay.write_at(&[1, 2], 9_999).is_err());
        assert!(overlay.zero_at(u64::MAX, 2, false).is_err());
        assert_ne!(overlay.below.0, expected);
    }
}
