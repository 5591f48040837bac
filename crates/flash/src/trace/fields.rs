//! Numbers out of bytes, exactly and without allocation.

use super::parser::Reason;

/// An unsigned decimal number.
#[inline]
pub fn number(text: &[u8], field: &'static str) -> Result<u64, Reason> {
    if text.is_empty() || text.len() > 20 {
        return Err(Reason::NotANumber(field));
    }
    let mut value = 0_u64;
    for byte in text {
        let digit = byte.wrapping_sub(b'0');
        if digit > 9 {
            return Err(Reason::NotANumber(field));
        }
        value = value
            .checked_mul(10)
            .and_then(|v| v.checked_add(u64::from(digit)))
            .ok_or(Reason::NotANumber(field))?;
    }
    Ok(value)
}

/// A decimal number such as `12.034`, in units of `unit_ns`, as nanoseconds; digits below a nanosecond are dropped.
/// An exponent (`1e-05`, as some generators write) is read through floating point.
#[inline]
pub fn time(text: &[u8], unit_ns: u64) -> Result<u64, Reason> {
    let bad = Reason::NotANumber("time");
    let point = text.iter().position(|b| *b == b'.');
    let whole = &text[..point.unwrap_or(text.len())];
    let fraction = point.map_or(&[][..], |at| &text[at + 1..]);
    let digits = |part: &[u8]| part.iter().all(u8::is_ascii_digit);
    if !digits(whole) || !digits(fraction) || text.len() <= usize::from(point.is_some()) {
        let value: f64 = std::str::from_utf8(text).ok().and_then(|t| t.parse().ok()).ok_or(bad)?;
        let ns = value * unit_ns as f64;
        return if (0.0..9.2e18).contains(&ns) { Ok(ns as u64) } else { Err(bad) };
    }
    let whole = if whole.is_empty() { 0 } else { number(whole, "time")? };
    let mut ns = whole.checked_mul(unit_ns).ok_or(bad)?;
    let mut unit = unit_ns;
    for digit in fraction {
        unit /= 10;
        ns = ns.checked_add(u64::from(digit - b'0') * unit).ok_or(bad)?;
        if unit == 0 {
            break;
        }
    }
    Ok(ns)
}

/// The next comma-separated field, blanks around it cut off.
#[inline]
pub fn comma<'a>(rest: &mut &'a [u8]) -> Option<&'a [u8]> {
    if rest.is_empty() {
        return None;
    }
    let end = memchr::memchr(b',', rest);
    let field = &rest[..end.unwrap_or(rest.len())];
    *rest = end.map_or(&[], |at| &rest[at + 1..]);
    Some(field.trim_ascii())
}

/// The next field between blanks.
#[inline]
pub fn blank<'a>(rest: &mut &'a [u8]) -> Option<&'a [u8]> {
    let text = rest.trim_ascii_start();
    if text.is_empty() {
        *rest = text;
        return None;
    }
    let end = text.iter().position(u8::is_ascii_whitespace).unwrap_or(text.len());
    *rest = &text[end..];
    Some(&text[..end])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_exact() {
        assert_eq!(time(b"0.026214", 1_000_000_000), Ok(26_214_000));
        assert_eq!(time(b"12", 1_000_000), Ok(12_000_000));
        assert_eq!(time(b"1.2345678901234", 1_000_000_000), Ok(1_234_567_890));
        assert_eq!(time(b".5", 1_000), Ok(500));
        assert_eq!(time(b"1e-05", 1_000_000_000), Ok(10_000));
        for bad in [&b""[..], b".", b"-1", b"1.2.3", b"99999999999999999999", b"inf", b"nan", b"x"] {
            assert!(time(bad, 1_000_000_000).is_err(), "{}", String::from_utf8_lossy(bad));
        }
    }

    #[test]
    fn numbers_do_not_overflow() {
        assert_eq!(number(b"18446744073709551615", "x"), Ok(u64::MAX));
        for bad in [&b"18446744073709551616"[..], b"", b"+1", b"1 ", b"0x1"] {
            assert!(number(bad, "x").is_err());
        }
    }
}
