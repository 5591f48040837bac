//! Addresses. A logical page, a physical page and a physical block are never mixed up by accident.

/// "None" in the compact tables.
pub const NONE: u32 = u32::MAX;

/// A logical page of the drive, counted from zero.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(transparent)]
pub struct Lpn(pub u32);

/// A physical page: block × pages a block + page.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(transparent)]
pub struct Ppn(pub u32);

/// A physical erase block.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(transparent)]
pub struct Block(pub u32);

impl Lpn {
    /// For indexing tables.
    #[inline]
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

impl Ppn {
    /// For indexing tables.
    #[inline]
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

impl Block {
    /// For indexing tables.
    #[inline]
    pub fn index(self) -> usize {
        self.0 as usize
    }
}
