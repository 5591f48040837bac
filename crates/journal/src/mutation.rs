//! Deliberately broken variants of retention: the explorer must find every one that can show, or it proves nothing. They
//! exist only with the cargo feature `mutations`, which no program enables.

/// One mistake.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mutation {
    /// Revoked versions stay.
    IgnoreRevokes,
    /// Whatever is written to a block counts as its committed version.
    MatchAnything,
    /// A transaction is given up while one of its versions is not home, and the guest's own tail has not passed it.
    ReleaseEarly,
    /// The journal on the disk is not marked empty before it is absorbed.
    SkipMarkEmpty,
    /// Escaped blocks go home as the log has them.
    ForgetEscape,
    /// Blocks of the log go to the disk under a superblock that could take them for its own.
    SkipDisown,
    /// A version that is replaced by a newer one stays.
    KeepOldest,
    /// What is retained is dropped where its file system is not sound at a restart. The hostile guests' tests find it, too.
    DropUnsound,
    /// A transaction that is home is given up before the guest's own tail has passed it. Caches below a file system find it.
    ReleaseHome,
    /// What is served from home is not saved before that is written. Caches below a file system find it.
    ForgetSave,
    /// A commit under `power-window` does not wait for what is being written home.
    CommitOverFlight,
    /// What was committed while an older content was in flight never goes home by itself, and the guest's tail passes it.
    ForgetFlight,
}

impl Mutation {
    /// Those that need a guest that goes on while the daemon works: the hostile guests of this crate's own tests find them.
    pub const CONCURRENT: [Self; 2] = [Self::CommitOverFlight, Self::ForgetFlight];

    /// Those that a recorded stream can show.
    pub const ALL: [Self; 7] = [
        Self::IgnoreRevokes,
        Self::MatchAnything,
        Self::ReleaseEarly,
        Self::SkipMarkEmpty,
        Self::ForgetEscape,
        Self::SkipDisown,
        Self::KeepOldest,
    ];
}

/// Which mistake is made here; never one in a program.
#[derive(Clone, Copy, Debug, Default)]
pub struct Mistake {
    #[cfg(feature = "mutations")]
    mutation: Option<Mutation>,
}

impl Mistake {
    /// This one.
    #[cfg(feature = "mutations")]
    pub fn of(mutation: Mutation) -> Self {
        Self { mutation: Some(mutation) }
    }

    #[cfg(feature = "mutations")]
    pub(crate) fn is(self, mutation: Mutation) -> bool {
        self.mutation == Some(mutation)
    }

    #[cfg(not(feature = "mutations"))]
    #[inline(always)]
    pub(crate) fn is(self, _mutation: Mutation) -> bool {
        false
    }
}
