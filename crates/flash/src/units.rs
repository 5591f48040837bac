//! Sizes as people write them.

use std::ops::RangeBounds;

/// `4096`, `64K`, `2M`, `32G`, `1T` (powers of 1024), in bytes. `None`: not a size, or too large.
pub fn parse_bytes(text: &str) -> Option<u64> {
    let text = text.trim();
    let digits_end = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (digits, unit) = text.split_at(digits_end);
    let shift = match unit.trim().to_ascii_lowercase().as_str() {
        "" | "b" => 0,
        "k" | "kb" | "kib" => 10,
        "m" | "mb" | "mib" => 20,
        "g" | "gb" | "gib" => 30,
        "t" | "tb" | "tib" => 40,
        _ => return None,
    };
    digits.parse::<u64>().ok()?.checked_mul(1 << shift)
}

/// A share: `0.03` or `3%`; must be at least 0 and below 1.
///
/// # Errors
/// It is none, in a sentence.
pub fn parse_share(text: &str) -> Result<f64, String> {
    share(text, 0.0..1.0)
}

/// A share of what may be had as a whole: as [`parse_share`], or 1.
///
/// # Errors
/// It is none, in a sentence.
pub fn parse_part(text: &str) -> Result<f64, String> {
    share(text, 0.0..=1.0)
}

fn share(text: &str, allowed: impl RangeBounds<f64>) -> Result<f64, String> {
    let text = text.trim();
    let value = match text.strip_suffix('%') {
        Some(percent) => percent.trim().parse::<f64>().map(|p| p / 100.0),
        None => text.parse::<f64>(),
    };
    match value {
        Ok(share) if allowed.contains(&share) => Ok(share),
        _ => Err(format!("'{text}' is not a share between 0 and 1; write 0.03 or 3%")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_and_shares() {
        assert_eq!(parse_bytes("64K"), Some(65536));
        assert_eq!(parse_bytes("x"), None);
        assert_eq!(parse_bytes("99999999999T"), None);
        assert_eq!(parse_share("3%"), Ok(0.03));
        assert!(parse_share("1").is_err() && parse_share("-0.1").is_err() && parse_share("NaN").is_err());
        assert_eq!((parse_part("1"), parse_part("100%")), (Ok(1.0), Ok(1.0)));
        assert!(parse_part("1.01").is_err() && parse_part("-0.1").is_err() && parse_part("NaN").is_err());
    }
}
