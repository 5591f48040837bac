//! Deliberately broken variants of the ordering code: the crash suite must catch every one of them, or it proves
//! nothing. They exist only with the cargo feature `mutations`, which no program enables.

/// The mistake that is to be made; in a program there is none to make.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Mistake(#[cfg(feature = "mutations")] pub(crate) Option<Mutation>);

impl Mistake {
    #[cfg(feature = "mutations")]
    pub(crate) fn is(self, mutation: Mutation) -> bool {
        self.0 == Some(mutation)
    }

    #[cfg(not(feature = "mutations"))]
    #[inline(always)]
    pub(crate) fn is(self, _mutation: Mutation) -> bool {
        false
    }
}

/// One mistake.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mutation {
    /// A write completes when it is staged, before it is in the log.
    AckBeforeAppend,
    /// The log is declared durable without a sync.
    DropLogSync,
    /// Log space is given up without a sync of the images.
    DropHomeSync,
    /// Records go home before the log is durable.
    HomeBeforeDurable,
    /// Log space is reused before the header that says so is synced.
    ReuseBeforeHeaderSync,
    /// The header is written before the images are synced.
    HeaderBeforeHomeSync,
    /// A sync leaves the head's page open: later records are written into a page that is already durable.
    OpenPageAfterSync,
    /// An overwrite is merged into the durable record in place.
    MergeInPlace,
    /// A new process goes on in the old one's incarnation.
    SkipIncarnation,
    /// A discard punches its hole at once.
    DiscardEarly,
    /// Payload checksums are not looked at.
    SkipPayloadChecksum,
    /// Flushes are never held back.
    IgnoreWindow,
    /// Going home writes the oldest version of a sector.
    OldestVersion,
    /// Index entries go before the home write.
    DropIndexEarly,
    /// Going home drops newer versions from the index, too.
    DropNewerIndex,
    /// Opening believes that everything it found in the page cache is durable.
    SkipOpenSync,
    /// Opening forgets that a sync of an earlier process failed.
    TrustCache,
    /// A sync declares what was appended while it ran to be durable, too.
    CountAfterSync,
    /// The schedule finishes a sync when it has begun, before it has run.
    FinishEarly,
    /// The space check forgets the tail.
    OverrunTail,
    /// The records of a set do not say that they belong together.
    SetUnmarked,
    /// The header does not say that there are sets.
    SetUnannounced,
    /// A scan takes what there is of an incomplete set.
    KeepBrokenSet,
    /// A scan does not look for what a later process has begun behind an incomplete set.
    ForgetBehindSet,
}

impl Mutation {
    /// All of them.
    pub const ALL: [Self; 24] = [
        Self::AckBeforeAppend,
        Self::DropLogSync,
        Self::DropHomeSync,
        Self::HomeBeforeDurable,
        Self::ReuseBeforeHeaderSync,
        Self::HeaderBeforeHomeSync,
        Self::OpenPageAfterSync,
        Self::MergeInPlace,
        Self::SkipIncarnation,
        Self::DiscardEarly,
        Self::SkipPayloadChecksum,
        Self::IgnoreWindow,
        Self::OldestVersion,
        Self::DropIndexEarly,
        Self::DropNewerIndex,
        Self::SkipOpenSync,
        Self::TrustCache,
        Self::CountAfterSync,
        Self::FinishEarly,
        Self::OverrunTail,
        Self::SetUnmarked,
        Self::SetUnannounced,
        Self::KeepBrokenSet,
        Self::ForgetBehindSet,
    ];
}
