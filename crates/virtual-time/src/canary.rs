//! What is broken on purpose, so that it can be shown that somebody notices: a device that breaks its word, a slip of the world's, or (with the
//! feature `canaries`) one of the mistakes that the redo log and the retained journals know.

use std::fmt;
use std::str::FromStr;

use afterimage_journal::group::JournalOptions;
use afterimage_order::GroupOptions;
use clap::ValueEnum as _;

use crate::volatile::Breaks;

/// What goes wrong between daemons, guests and those who judge them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Slip {
    /// A daemon that goes on after another one's death does not look at what its guest has asked for.
    LostKick,
    /// A guest is told of an error, and nobody knows of one.
    UntoldError,
}

/// See the module.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Canary {
    /// The device; [`Breaks::Nothing`]: nothing is broken.
    Device(Breaks),
    /// A part that the guests' `vext4` does without.
    Guest(&'static str),
    /// What is between them.
    World(Slip),
    /// The redo log.
    #[cfg(feature = "canaries")]
    Order(afterimage_order::redo::Mutation),
    /// Retained journals.
    #[cfg(feature = "canaries")]
    Journal(afterimage_journal::Mutation),
}

/// What a build of `vext4` with faults can do without.
const PARTS: [&str; 11] = [
    "flush",
    "checksum",
    "home-rule",
    "revoke-rule",
    "switch-flush",
    "revoke",
    "swap-rule",
    "vma-rewrite",
    "vma-publish",
    "ijournal-directory",
    "ijournal-flush",
];

impl Default for Canary {
    fn default() -> Self {
        Self::Device(Breaks::Nothing)
    }
}

impl Canary {
    /// How the device is.
    pub fn device(self) -> Breaks {
        match self {
            Self::Device(breaks) => breaks,
            Self::Guest(_) | Self::World(_) => Breaks::Nothing,
            #[cfg(feature = "canaries")]
            Self::Order(_) | Self::Journal(_) => Breaks::Nothing,
        }
    }

    /// What `vjbd2.without` is in guests.
    pub fn guest(self) -> Option<&'static str> {
        match self {
            Self::Guest(part) => Some(part),
            _ => None,
        }
    }

    /// Plants a mistake of the layers'.
    #[cfg_attr(not(feature = "canaries"), allow(unused_variables))]
    pub fn plant(self, group: &mut GroupOptions, journal: &mut JournalOptions) {
        match self {
            Self::Device(_) | Self::Guest(_) | Self::World(_) => {}
            #[cfg(feature = "canaries")]
            Self::Order(mutation) => group.mutation = Some(mutation),
            #[cfg(feature = "canaries")]
            Self::Journal(mutation) => journal.mutation = Some(mutation),
        }
    }

    /// All that this program can break.
    pub fn all() -> Vec<Self> {
        let devices = Breaks::value_variants().iter().copied().map(Self::Device);
        let devices = devices.chain(PARTS.map(Self::Guest));
        let devices = devices.chain([Slip::LostKick, Slip::UntoldError].map(Self::World));
        #[cfg(feature = "canaries")]
        {
            use afterimage_journal::Mutation;
            let order = afterimage_order::redo::Mutation::ALL.map(Self::Order);
            let journal = Mutation::ALL.into_iter().chain(Mutation::CONCURRENT).chain([
                Mutation::DropUnsound,
                Mutation::ReleaseHome,
                Mutation::ForgetSave,
            ]);
            devices.chain(order).chain(journal.map(Self::Journal)).collect()
        }
        #[cfg(not(feature = "canaries"))]
        devices.collect()
    }
}

/// As the command line spells it: a mistake's layer, and its name in small letters.
impl fmt::Display for Canary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (layer, name) = match self {
            Self::Device(breaks) => ("", format!("{breaks:?}")),
            Self::Guest(part) => ("vext4-", (*part).to_owned()),
            Self::World(slip) => ("", format!("{slip:?}")),
            #[cfg(feature = "canaries")]
            Self::Order(mutation) => ("order-", format!("{mutation:?}")),
            #[cfg(feature = "canaries")]
            Self::Journal(mutation) => ("journal-", format!("{mutation:?}")),
        };
        f.write_str(layer)?;
        for (at, letter) in name.char_indices() {
            if letter.is_ascii_uppercase() && at > 0 {
                f.write_str("-")?;
            }
            write!(f, "{}", letter.to_ascii_lowercase())?;
        }
        Ok(())
    }
}

impl FromStr for Canary {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        Self::all().into_iter().find(|canary| canary.to_string() == text).ok_or_else(|| {
            let known: Vec<String> = Self::all().iter().map(Self::to_string).collect();
            format!("{text} is none of {}", known.join(", "))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_canary_is_read_as_it_is_spelt() {
        for canary in Canary::all() {
            assert_eq!(canary.to_string().parse(), Ok(canary));
        }
        assert_eq!("synced-page".parse(), Ok(Canary::Device(Breaks::SyncedPage)));
        assert_eq!("vext4-home-rule".parse(), Ok(Canary::Guest("home-rule")));
        assert_eq!(Canary::default().to_string(), "nothing");
        let error = "seagull".parse::<Canary>().unwrap_err();
        assert!(error.contains("last-writes"), "{error}");
    }
}
