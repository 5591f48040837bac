//! Sizes and durations as people write them.

use std::time::Duration;

/// Why a size was not understood.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum UnitError {
    /// Not a number with a known unit.
    #[error("`{0}` is not a size: write a number with an optional unit k, M, G, T, P or E (powers of 1024; so are KiB, MiB, ...; KB, MB, ... are powers of 1000), as in 512M or 1.5GiB")]
    NotASize(String),
    /// More than a file can have.
    #[error("`{0}` is too large: a file has at most 2^63-1 bytes")]
    TooLarge(String),
    /// Not a whole number of sectors.
    #[error("{0} bytes are not a multiple of 512, the size of a sector")]
    NotSectors(u64),
    /// Zero where something is needed.
    #[error("a size of 0 is too small: give at least 512 bytes")]
    Zero,
    /// Not a number with a known unit of time.
    #[error("`{0}` is not a duration: write a number with an optional unit ms, s, m or h, as in 50ms or 30s; without a unit it means seconds")]
    NotADuration(String),
    /// More than [`parse_duration`] takes.
    #[error("`{0}` is too long: at most 10 years (87600h) are possible")]
    TooLong(String),
}

/// Parses a size with qemu-img's units: none or `b` for bytes, `k`/`K`, `M`, `G`, `T`, `P`, `E` in powers of 1024;
/// fractions are allowed (`1.5G`), and a part of a byte is dropped. `KiB`, `MiB` and so on are the same; `KB`, `MB` and so on are powers
/// of 1000, as coreutils have them.
///
/// # Errors
/// It is no size, or too large a one.
pub fn parse_size(text: &str) -> Result<u64, UnitError> {
    let not_a_size = || UnitError::NotASize(text.to_owned());
    let end = text.find(|c: char| !(c.is_ascii_digit() || c == '.')).unwrap_or(text.len());
    let (number, unit) = text.split_at(end);
    let unit = unit.to_ascii_lowercase();
    let (letter, base) = match unit.as_bytes() {
        [] | [b'b'] => (None, 1024),
        [letter] | [letter, b'i', b'b'] => (Some(*letter), 1024),
        [letter, b'b'] => (Some(*letter), 1000),
        _ => return Err(not_a_size()),
    };
    let power = match letter {
        None => 0,
        Some(letter) => 1 + b"kmgtpe".iter().position(|known| *known == letter).ok_or_else(not_a_size)?,
    };
    let unit_bytes = u128::pow(base, power as u32);
    let (whole, fraction) = number.split_once('.').map_or((number, None), |(w, f)| (w, Some(f)));
    let digits = |s: &str| !s.is_empty() && s.bytes().all(|b| b.is_ascii_digit());
    if !digits(whole) || !fraction.is_none_or(digits) {
        return Err(not_a_size());
    }
    let too_large = || UnitError::TooLarge(text.to_owned());
    let whole: u64 = whole.parse().map_err(|_| too_large())?;
    let mut bytes = u128::from(whole) * unit_bytes;
    if let Some(fraction) = fraction {
        // Eighteen decimal digits are more than 2^60 can resolve.
        let kept = &fraction[..fraction.len().min(18)];
        let value: u128 = kept.parse().map_err(|_| not_a_size())?;
        bytes += value * unit_bytes / 10u128.pow(kept.len() as u32);
    }
    if bytes > i64::MAX as u128 {
        return Err(too_large());
    }
    Ok(bytes as u64)
}

/// A size that a disk or a log can have: whole sectors, at least one.
///
/// # Errors
/// As [`parse_size`], or it is not of whole sectors.
pub fn parse_disk_size(text: &str) -> Result<u64, UnitError> {
    match parse_size(text)? {
        0 => Err(UnitError::Zero),
        bytes if bytes % 512 != 0 => Err(UnitError::NotSectors(bytes)),
        bytes => Ok(bytes),
    }
}

/// Parses a duration: `50ms`, `30s`, `5m`, `1h`, `0.5`; without a unit, seconds. At most 10 years.
///
/// # Errors
/// It is no duration, or too long a one.
pub fn parse_duration(text: &str) -> Result<Duration, UnitError> {
    let not_a_duration = || UnitError::NotADuration(text.to_owned());
    let split = text.find(|c: char| !(c.is_ascii_digit() || c == '.')).unwrap_or(text.len());
    let seconds_per_unit = match &text[split..] {
        "ms" => 0.001,
        "" | "s" => 1.0,
        "m" => 60.0,
        "h" => 3600.0,
        _ => return Err(not_a_duration()),
    };
    let number: f64 = text[..split].parse().map_err(|_| not_a_duration())?;
    let seconds = number * seconds_per_unit;
    if seconds > 315_360_000.0 {
        return Err(UnitError::TooLong(text.to_owned()));
    }
    Ok(Duration::from_secs_f64(seconds))
}

/// A size for people: the largest unit in which it has a short form.
pub fn show_bytes(bytes: u64) -> String {
    let mut value = bytes as f64;
    for unit in ["B", "KiB", "MiB", "GiB", "TiB", "PiB"] {
        if value < 1024.0 {
            return if value.fract() == 0.0 {
                format!("{value:.0} {unit}")
            } else {
                format!("{value:.1} {unit}")
            };
        }
        value /= 1024.0;
    }
    format!("{value:.1} EiB")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_as_qemu_img_reads_them() {
        assert_eq!(parse_size("1024"), Ok(1024));
        assert_eq!(parse_size("512b"), Ok(512));
        assert_eq!(parse_size("1k"), Ok(1024));
        assert_eq!(parse_size("512M"), Ok(512 << 20));
        assert_eq!(parse_size("1G"), Ok(1 << 30));
        assert_eq!(parse_size("1.5G"), Ok(3 << 29));
        assert_eq!(parse_size("7E"), Ok(7 << 60));
        assert_eq!(parse_size("1.5GiB"), Ok(3 << 29));
        assert_eq!(parse_size("10kib"), Ok(10 << 10));
        assert_eq!(parse_size("512MB"), Ok(512_000_000));
        assert_eq!(parse_size("0.5kB"), Ok(500));
        for bad in [
            "", "G", "-1", "1X", "1.", ".5G", "1GG", "0x10", "1 G", "٣", "1e3", "1Gi", "1iB", "1GiBi", "1BB",
            "1é",
        ] {
            assert!(matches!(parse_size(bad), Err(UnitError::NotASize(_))), "{bad}");
        }
        for large in ["8E", "99999999999999999999", "18446744073709551615E"] {
            assert!(matches!(parse_size(large), Err(UnitError::TooLarge(_))), "{large}");
        }
        assert_eq!(parse_disk_size("1000"), Err(UnitError::NotSectors(1000)));
        assert_eq!(parse_disk_size("0"), Err(UnitError::Zero));
    }

    #[test]
    fn durations() {
        assert_eq!(parse_duration("50ms"), Ok(Duration::from_millis(50)));
        assert_eq!(parse_duration("30"), Ok(Duration::from_secs(30)));
        assert_eq!(parse_duration("0.5s"), Ok(Duration::from_millis(500)));
        assert_eq!(parse_duration("2m"), Ok(Duration::from_secs(120)));
        for bad in ["", "ms", "1d", "-1", "1..2s", "inf", "nan"] {
            assert!(matches!(parse_duration(bad), Err(UnitError::NotADuration(_))), "{bad}");
        }
        assert_eq!(parse_duration("87600h"), Ok(Duration::from_secs(315_360_000)));
        for long in ["87601h".to_owned(), "9".repeat(400)] {
            assert!(matches!(parse_duration(&long), Err(UnitError::TooLong(_))), "{long}");
        }
    }

    #[test]
    fn sizes_for_people() {
        assert_eq!(show_bytes(0), "0 B");
        assert_eq!(show_bytes(1 << 30), "1 GiB");
        assert_eq!(show_bytes(1536), "1.5 KiB");
    }
}
