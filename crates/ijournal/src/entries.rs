//! The entries of a directory's block (`Documentation/filesystems/ext4/directory.rst`).

use crate::bytes::{put16, put32, u16_at, u32_at};
use crate::error::{corrupt, Error};
use crate::image::Block;

/// Inode number, length of the record, of the name, type.
const HEAD: usize = 8;

/// An entry to be added.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Added {
    pub(crate) name: Vec<u8>,
    pub(crate) ino: u32,
    pub(crate) file_type: u8,
}

/// An entry of a block.
#[derive(Clone, Copy)]
pub(crate) struct Slot<'a> {
    pub(crate) at: usize,
    pub(crate) len: usize,
    pub(crate) ino: u32,
    pub(crate) name: &'a [u8],
    pub(crate) file_type: u8,
}

/// What an entry with a name of that length takes.
pub(crate) fn room(name: usize) -> usize {
    (HEAD + name).next_multiple_of(4)
}

/// A block's entries up to `end`.
pub(crate) fn slots(block: &Block, end: usize) -> Result<Vec<Slot<'_>>, Error> {
    let (mut slots, mut at) = (Vec::new(), 0);
    while at < end {
        let bytes = &block[at..end];
        if bytes.len() < HEAD {
            return corrupt("a directory's block is cut short");
        }
        let (ino, len, name) = (u32_at(bytes, 0), usize::from(u16_at(bytes, 4)), usize::from(bytes[6]));
        if len < room(1) || len % 4 != 0 || len > bytes.len() || HEAD + name > len {
            return corrupt(format!("a directory's entry has a length of {len}"));
        }
        slots.push(Slot { at, len, ino, name: &bytes[HEAD..HEAD + name], file_type: bytes[7] });
        at += len;
    }
    Ok(slots)
}

/// Puts an entry where there is room; whether there was.
pub(crate) fn insert(block: &mut Block, end: usize, added: &Added) -> Result<bool, Error> {
    let found = slots(block, end)?.iter().find_map(|slot| {
        let used = if slot.ino == 0 { 0 } else { room(slot.name.len()) };
        (slot.len >= used + room(added.name.len())).then_some((slot.at, used, slot.len))
    });
    let Some((at, used, len)) = found else { return Ok(false) };
    if used > 0 {
        put16(block, at + 4, used as u16);
    }
    put_entry(block, at + used, len - used, added);
    Ok(true)
}

/// Writes an entry of that length.
pub(crate) fn put_entry(block: &mut Block, at: usize, len: usize, added: &Added) {
    put32(block, at, added.ino);
    put16(block, at + 4, len as u16);
    block[at + 6] = added.name.len() as u8;
    block[at + 7] = added.file_type;
    block[at + HEAD..][..added.name.len()].copy_from_slice(&added.name);
}

/// A record that names nothing.
pub(crate) fn put_free(block: &mut Block, at: usize, len: usize) {
    block[at..at + len].fill(0);
    put16(block, at + 4, len as u16);
}
