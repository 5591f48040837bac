//! Numbers for people.

/// Bytes of a mebibyte.
pub const MIB: f64 = (1 << 20) as f64;

/// Three significant digits, at most two of them behind the point, without exponents.
pub fn number(value: f64) -> String {
    let digits = match value.abs() {
        v if v >= 100.0 || v == 0.0 => 0,
        v if v >= 10.0 => 1,
        _ => 2,
    };
    format!("{value:.digits$}")
}

/// `1234567` as `1 234 567`.
pub fn thousands(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::with_capacity(digits.len() + digits.len() / 3);
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at) % 3 == 0 {
            text.push(' ');
        }
        text.push(digit);
    }
    text
}

/// A number that may be anything between one and billions: `234`, `15.2 k`, `2.80 M`.
pub fn scaled(value: f64) -> String {
    match value.abs() {
        v if v >= 1e9 => format!("{:.2} G", value / 1e9),
        v if v >= 1e6 => format!("{:.2} M", value / 1e6),
        v if v >= 1e3 => format!("{:.1} k", value / 1e3),
        _ => number(value),
    }
}

/// Bytes, three digits, powers of 1024.
pub fn show_bytes(bytes: u64) -> String {
    const UNITS: [&str; 6] = ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    if bytes < 1024 {
        return format!("{bytes} B");
    }
    let mut value = bytes as f64 / 1024.0;
    let mut units = UNITS.iter();
    let mut unit = units.next();
    while value >= 1024.0 {
        value /= 1024.0;
        unit = units.next();
    }
    format!("{} {}", number(value), unit.unwrap_or(&"EiB"))
}

/// Nanoseconds.
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

/// How long something will still take, roughly.
pub fn about(time: std::time::Duration) -> String {
    match time.as_secs() {
        s if s < 90 => format!("{s} s"),
        s if s < 5400 => format!("{} min", s.div_ceil(60)),
        s => format!("{:.1} h", s as f64 / 3600.0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_short() {
        assert_eq!(
            [number(1234.5), number(12.34), number(1.234), number(0.1234), number(0.0)],
            ["1234", "12.3", "1.23", "0.12", "0"]
        );
        assert_eq!([thousands(7), thousands(1234), thousands(1_234_567)], ["7", "1 234", "1 234 567"]);
        assert_eq!(
            [scaled(152.0), scaled(15_200.0), scaled(2.8e6), scaled(0.0)],
            ["152", "15.2 k", "2.80 M", "0"]
        );
        assert_eq!([show_bytes(7), show_bytes(1536), show_bytes(100 << 20)], ["7 B", "1.50 KiB", "100 MiB"]);
        assert_eq!(show_bytes(u64::MAX), "16.0 EiB");
        assert_eq!([show_ns(0), show_ns(88_000), show_ns(2_000_000)], ["0", "88 us", "2.00 ms"]);
    }
}
