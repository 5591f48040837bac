//! Sizes as people write them.

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
pub fn parse_share(text: &str) -> Result<f64, String> {
    let text = text.trim();
    let value = match text.strip_suffix('%') {
        Some(percent) => percent.trim().parse::<f64>().map(|p| p / 100.0),
        None => text.parse::<f64>(),
    };
    match value {
        Ok(share) if (0.0..1.0).contains(&share) => Ok(share),
        _ => Err(format!("'{text}' is not a share between 0 and 1; write 0.03 or 3%")),
    }
}

/// Bytes for people, three digits, powers of 1024.
pub fn show_bytes(bytes: u64) -> String {
    const UNITS: [&str; 6] = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
    let mut value = bytes as f64;
    let mut unit = 0;
    while value >= 1024.0 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    match unit {
        0 => format!("{bytes} B"),
        _ if value < 10.0 => format!("{value:.2} {}", UNITS[unit]),
        _ if value < 100.0 => format!("{value:.1} {}", UNITS[unit]),
        _ => format!("{value:.0} {}", UNITS[unit]),
    }
}

/// Nanoseconds for people.
pub fn show_ns(ns: u64) -> String {
    let value = ns as f64;
    match ns {
        0 => "0".to_owned(),
        1..=999 => format!("{ns} ns"),
        1_000..=999_999 => format!("{:.0} us", value / 1e3),
        1_000_000..=999_999_999 => format!("{:.2} ms", value / 1e6),
        _ => format!("{:.2} s", value / 1e9),
    }
}

/// A count with thousands separated.
pub fn show_count(count: u64) -> String {
    let digits = count.to_string();
    let mut out = String::with_capacity(digits.len() + digits.len() / 3);
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i) % 3 == 0 {
            out.push(',');
        }
        out.push(digit);
    }
    out
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
        assert_eq!(show_count(1_234_567), "1,234,567");
        assert_eq!(show_bytes(1536), "1.50 KiB");
    }
}
