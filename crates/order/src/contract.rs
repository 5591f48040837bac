//! What an acknowledged guest flush survives.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use afterimage_format::mark::{CONTRACT_GUEST_CRASH, CONTRACT_POWER, CONTRACT_POWER_WINDOW};

/// The shortest window that is accepted: below it a syncer would never sleep.
pub const WINDOW_MIN: Duration = Duration::from_millis(1);
/// The longest window that is accepted.
pub const WINDOW_MAX: Duration = Duration::from_secs(60);

/// The value of `--survives`: what an acknowledged guest flush survives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Contract {
    /// Everything: the image is synced before a flush is acknowledged.
    Power,
    /// Death of guest, VMM and daemon; a power cut but for at most one window of acknowledgements, and what it
    /// leaves is a prefix of the guest's history.
    PowerWindow {
        /// The bound: [`WINDOW_MIN`] to [`WINDOW_MAX`].
        window: Duration,
    },
    /// Death of guest, VMM and daemon. After a power cut the disk is undefined.
    GuestCrash,
}

impl Contract {
    /// What a mark calls it.
    pub(crate) fn code(&self) -> u16 {
        match self {
            Self::Power => CONTRACT_POWER,
            Self::PowerWindow { .. } => CONTRACT_POWER_WINDOW,
            Self::GuestCrash => CONTRACT_GUEST_CRASH,
        }
    }

    /// The promise in force and its loss bound, in one sentence for a person.
    pub fn promise(&self) -> String {
        match self {
            Self::Power => "power: an acknowledged flush survives everything, power loss included; nothing \
                            acknowledged is lost."
                .to_owned(),
            Self::PowerWindow { window } => format!(
                "power-window={w}: an acknowledged flush survives the death of guest, VMM and daemon; a power cut \
                 loses at most the last {w} of acknowledgements and leaves an exact prefix of the guest's history.",
                w = Window(*window)
            ),
            Self::GuestCrash => "guest-crash: an acknowledged flush survives the death of guest, VMM and daemon; \
                                 after a power cut the disk is undefined."
                .to_owned(),
        }
    }
}

struct Window(Duration);

impl fmt::Display for Window {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let micros = self.0.as_micros();
        if micros % 1_000_000 == 0 {
            write!(f, "{}s", micros / 1_000_000)
        } else if micros % 1000 == 0 {
            write!(f, "{}ms", micros / 1000)
        } else {
            write!(f, "{micros}us")
        }
    }
}

impl fmt::Display for Contract {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Power => f.write_str("power"),
            Self::PowerWindow { window } => write!(f, "power-window={}", Window(*window)),
            Self::GuestCrash => f.write_str("guest-crash"),
        }
    }
}

/// A contract's name that is not understood.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{0}` is not a contract: use power, power-window=TIME (1ms to 60s, such as power-window=50ms) or guest-crash"
)]
pub struct ContractError(String);

impl FromStr for Contract {
    type Err = ContractError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let bad = || ContractError(text.to_owned());
        match text {
            "power" => return Ok(Self::Power),
            "guest-crash" => return Ok(Self::GuestCrash),
            _ => {}
        }
        let window = text.strip_prefix("power-window=").ok_or_else(bad)?;
        let unit_at = window.find(|c: char| !c.is_ascii_digit()).ok_or_else(bad)?;
        let (number, unit) = window.split_at(unit_at);
        let number: u64 = number.parse().map_err(|_| bad())?;
        let unit_us: u64 = match unit {
            "us" => 1,
            "ms" => 1000,
            "s" => 1_000_000,
            _ => return Err(bad()),
        };
        let window = Duration::from_micros(number.checked_mul(unit_us).ok_or_else(bad)?);
        if !(WINDOW_MIN..=WINDOW_MAX).contains(&window) {
            return Err(bad());
        }
        Ok(Self::PowerWindow { window })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_round_trip() {
        for name in ["power", "guest-crash", "power-window=50ms", "power-window=1s", "power-window=1500us"] {
            assert_eq!(name.parse::<Contract>().expect(name).to_string(), name);
        }
        assert_eq!("power-window=60000ms".parse::<Contract>().expect("60 s").to_string(), "power-window=60s");
    }

    #[test]
    fn nonsense_is_refused() {
        for name in [
            "",
            "Power",
            "power-window",
            "power-window=",
            "power-window=50",
            "power-window=0ms",
            "power-window=61s",
            "power-window=-1ms",
            "power-window=99999999999999999999s",
            "power-window=18446744073709551615s",
        ] {
            assert!(name.parse::<Contract>().is_err(), "{name}");
        }
    }
}
