//! QEMU's five cache modes, translated honestly: what QEMU's name promises is kept or exceeded, never weakened.

use std::str::FromStr;

use afterimage_order::Contract;
use afterimage_store::DirectMode;

/// QEMU's names (its `cache=` drive option).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CacheMode {
    /// A write cache; the host's page cache is used.
    Writeback,
    /// A write cache; O_DIRECT.
    None,
    /// No write cache; the host's page cache is used.
    Writethrough,
    /// No write cache; O_DIRECT.
    Directsync,
    /// Flushes are ignored.
    Unsafe,
}

/// What a mode means here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CacheMeaning {
    /// The contract that keeps the mode's promise.
    pub contract: Contract,
    /// Whether the guest sees a write cache, so that a write completes before it is flushed.
    pub write_cache: bool,
    /// Whether the page cache is used.
    pub direct: DirectMode,
}

/// Not one of QEMU's names.
#[derive(Debug, thiserror::Error)]
#[error("`{0}` is not a cache mode: use writeback, none, writethrough, directsync or unsafe, or choose a contract \
  with --survives")]
pub struct UnknownCacheMode(String);

impl FromStr for CacheMode {
    type Err = UnknownCacheMode;

    fn from_str(text: &str) -> Result<Self, UnknownCacheMode> {
        Ok(match text {
            "writeback" => Self::Writeback,
            "none" => Self::None,
            "writethrough" => Self::Writethrough,
            "directsync" => Self::Directsync,
            "unsafe" => Self::Unsafe,
            other => return Err(UnknownCacheMode(other.to_owned())),
        })
    }
}

impl std::fmt::Display for CacheMode {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Writeback => "writeback",
            Self::None => "none",
            Self::Writethrough => "writethrough",
            Self::Directsync => "directsync",
            Self::Unsafe => "unsafe",
        })
    }
}

impl CacheMode {
    /// The translation.
    pub fn meaning(self) -> CacheMeaning {
        let (contract, write_cache, direct) = match self {
            Self::Writeback => (Contract::Power, true, DirectMode::Off),
            Self::None => (Contract::Power, true, DirectMode::On),
            Self::Writethrough => (Contract::Power, false, DirectMode::Off),
            Self::Directsync => (Contract::Power, false, DirectMode::On),
            Self::Unsafe => (Contract::GuestCrash, true, DirectMode::Off),
        };
        CacheMeaning { contract, write_cache, direct }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_round_trip_and_keep_their_promise() {
        for name in ["writeback", "none", "writethrough", "directsync", "unsafe"] {
            let mode: CacheMode = name.parse().unwrap();
            assert_eq!(mode.to_string(), name);
            assert_eq!(mode.meaning().contract == Contract::Power, name != "unsafe");
            assert_eq!(mode.meaning().write_cache, !matches!(name, "writethrough" | "directsync"));
        }
        assert!("writeBack".parse::<CacheMode>().unwrap_err().to_string().contains("--survives"));
    }
}
