//! Deliberately broken variants, for tests that have to notice them. A program that ships knows the first only.

/// What is done wrong.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(not(feature = "mutations"), allow(dead_code))]
pub enum Mistake {
    /// Nothing.
    #[default]
    None,
    /// The last run that is read counts, not the one with the largest sub-transaction id.
    OrderDropped,
    /// Directories' runs are left out.
    DirectorySkipped,
    /// Runs count whether or not they are whole.
    ChecksumIgnored,
    /// Block bitmaps stay as they were committed.
    BitmapsStale,
    /// What recovery changes is written home without being journaled first.
    JournalSkipped,
}
