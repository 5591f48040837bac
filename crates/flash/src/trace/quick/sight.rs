//! A line seen through a window of fixed size: fields without searching, numbers without loops.
//!
//! ```text
//! window: ........................123456 disk0 write 4096 512 home\n...
//!         └──── before ──────────┘└ the line, and what follows it
//! ```
//!
//! Numbers are taken backwards from the end of their field: 16 bytes of which the field's are kept. What is read this way is
//! exactly what the general path reads; everything else is `None`.

use super::marks::{self, Marked, Marks, BLOCK};

/// Bytes before the line: the longest number that is read.
pub const BEFORE: usize = 24;
/// Bytes from the line's beginning: longer lines are not for this path.
pub const WIDTH: usize = 2 * BLOCK;
/// What is seen.
pub type Window = [u8; BEFORE + WIDTH];

/// A field: from its first byte to behind its last, counted from the line's beginning.
#[derive(Debug, Clone, Copy)]
pub struct Field {
    from: usize,
    to: usize,
}

impl Field {
    /// From the beginning of one to the end of another.
    #[inline(always)]
    pub fn join(first: Self, last: Self) -> Self {
        Self { from: first.from, to: last.to }
    }

    /// Its length; huge where there is no field.
    #[inline(always)]
    fn len(self) -> usize {
        self.to.wrapping_sub(self.from)
    }
}

/// A line and its fields not yet taken.
#[derive(Clone, Copy)]
pub struct Sight<'a, M> {
    window: &'a Window,
    marks: M,
    /// Single separators: where the next field begins.
    from: usize,
    /// And where the line ends.
    end: usize,
}

/// Where a line ends: behind its last byte, and behind its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct End {
    line: usize,
    pub next: usize,
}

/// Kept of 16 bytes: the last one, the last two, and so on.
const LAST: [u128; 16] = {
    let mut last = [0; 16];
    let mut i = 0;
    while i < 16 {
        last[i] = u128::MAX << (8 * (15 - i));
        i += 1;
    }
    last
};

const TEN: [u64; 10] = {
    let mut ten = [1; 10];
    let mut i = 1;
    while i < 10 {
        ten[i] = ten[i - 1] * 10;
        i += 1;
    }
    ten
};

/// The separators in a window and the end of its line: in its first half, in the whole, or neither.
#[derive(Clone, Copy)]
pub enum Looked {
    Narrow(u64, End),
    Wide(u128, End),
    No,
}

/// Looks for the separators and the end of the line, whose first bytes are marked.
#[inline(always)]
pub fn look(window: &Window, first: Marked, separator: u8) -> Looked {
    if first.controls == 0 {
        return look_further(window, first, separator);
    }
    match end(window, first.controls.trailing_zeros() as usize) {
        Some(end) => Looked::Narrow(first.separators, end),
        None => Looked::No,
    }
}

#[inline(never)]
fn look_further(window: &Window, first: Marked, separator: u8) -> Looked {
    let Some(second) = window[BEFORE + BLOCK..].first_chunk() else { return Looked::No };
    let second = marks::of(second, separator);
    if second.controls == 0 {
        return Looked::No;
    }
    match end(window, BLOCK + second.controls.trailing_zeros() as usize) {
        Some(end) => {
            Looked::Wide(u128::from(first.separators) | (u128::from(second.separators) << BLOCK), end)
        }
        None => Looked::No,
    }
}

/// Where the line ends if the first control character in it ends it.
#[inline(always)]
fn end(window: &Window, at: usize) -> Option<End> {
    match window.get(BEFORE + at)? {
        b'\n' => Some(End { line: at, next: at + 1 }),
        b'\r' if window.get(BEFORE + at + 1) == Some(&b'\n') => Some(End { line: at, next: at + 2 }),
        _ => None,
    }
}

impl<'a, M: Marks> Sight<'a, M> {
    /// A line of fields between blanks, and there is no other white space in it.
    #[inline(always)]
    pub fn between_blanks(window: &'a Window, blanks: M, end: End) -> Self {
        Self { window, marks: blanks.edges(end.line), from: 0, end: end.line }
    }

    /// A line of fields with one separator after each.
    #[inline(always)]
    pub fn between_single(window: &'a Window, separators: M, end: End) -> Self {
        Self { window, marks: separators.until(end.line), from: 0, end: end.line }
    }

    /// The next field between blanks; one without length where there is none.
    #[inline(always)]
    pub fn blank(&mut self) -> Field {
        let from = self.marks.pop();
        Field { from, to: self.marks.pop() }
    }

    /// The next field between single separators; an empty one where there is none.
    #[inline(always)]
    pub fn single(&mut self) -> Field {
        let field = Field { from: self.from, to: self.marks.pop() };
        self.from = field.to + 1;
        field
    }

    /// Whether the line ends with the single-separated field taken last.
    #[inline(always)]
    pub fn is_over(&self) -> bool {
        self.from == self.end + 1
    }

    /// Whether no field between blanks is left.
    #[inline(always)]
    pub fn is_empty(&self) -> bool {
        self.marks.is_empty()
    }

    /// The 16 bytes up to a place.
    #[inline(always)]
    fn before(&self, to: usize) -> [u8; 16] {
        // All places lie below the number of marks.
        let from = (to & (M::PLACES - 1)) + (BEFORE - 16);
        self.window[from..].first_chunk().copied().unwrap_or_default()
    }

    /// A field's bytes; `None` where there is none.
    #[inline]
    pub fn bytes(&self, field: Field) -> Option<&'a [u8]> {
        self.window.get(BEFORE + field.from..BEFORE + field.to).filter(|bytes| !bytes.is_empty())
    }

    /// A field of 1 to 16 bytes as a number that tells it from all others without zeroes; 0: it is longer.
    #[inline(always)]
    pub fn key(&self, field: Field) -> Option<u128> {
        let len = field.len();
        if len == 0 || len > M::PLACES {
            return None;
        }
        Some(LAST.get(len - 1).map_or(0, |mask| u128::from_le_bytes(self.before(field.to)) & mask))
    }

    /// A word of 1 to 8 bytes, as [`word`] makes it.
    #[inline(always)]
    pub fn word(&self, field: Field) -> Option<u64> {
        let mask = LAST[..8].get(field.len().wrapping_sub(1))?;
        Some((u128::from_le_bytes(self.before(field.to)) & mask).wrapping_shr(64) as u64)
    }

    /// A field of one byte.
    #[inline(always)]
    pub fn byte(&self, field: Field) -> Option<u8> {
        (field.len() == 1).then(|| self.before(field.to)[15])
    }

    /// A number of 1 to 8 digits.
    #[inline(always)]
    pub fn short(&self, field: Field) -> Option<u64> {
        let mask = LAST[..8].get(field.len().wrapping_sub(1))?;
        let text = (u128::from_le_bytes(self.before(field.to)) >> 64) as u64;
        let digits = (text ^ ZEROES) & (*mask >> 64) as u64;
        are_digits(digits).then(|| eight(digits))
    }

    /// A number of 1 to 16 digits, mostly up to 8.
    #[inline(always)]
    pub fn mostly_short(&self, field: Field) -> Option<u64> {
        if field.len() <= 8 {
            self.short(field)
        } else {
            self.number(field)
        }
    }

    /// A number of 1 to 16 digits.
    #[inline(always)]
    pub fn number(&self, field: Field) -> Option<u64> {
        let mask = LAST.get(field.len().wrapping_sub(1))?;
        sixteen(u128::from_le_bytes(self.before(field.to)), *mask)
    }

    /// A number of 1 to 19 digits.
    #[inline(always)]
    pub fn long(&self, field: Field) -> Option<u64> {
        if field.len() <= 16 {
            return self.number(field);
        }
        if field.len() > 19 {
            return None;
        }
        let split = field.to - 16;
        let high = self.short(Field { from: field.from, to: split })?;
        let low = self.number(Field { from: split, to: field.to })?;
        // Less than 10^19.
        Some(high.wrapping_mul(10_000_000_000_000_000).wrapping_add(low))
    }

    /// A number with a point, in units of 10^`unit` nanoseconds (`unit` up to 9) as nanoseconds; up to 16 digits, of which
    /// up to `unit` behind the point.
    #[inline(always)]
    pub fn time(&self, field: Field, unit: usize) -> Option<u64> {
        let after = self.before(field.to);
        // Bytes behind the last point; 16 without one.
        let fraction = marks::behind_last(after, b'.');
        let digits = field.len().wrapping_sub(1);
        if fraction == 0 || fraction >= digits || fraction > unit {
            return None;
        }
        let all = LAST.get(digits - 1)?;
        let behind = LAST.get(fraction - 1)?;
        // The digits before the point, moved up by the point's byte, join those behind it.
        let whole = u128::from_le_bytes(self.before(field.to - 1));
        let number = sixteen((u128::from_le_bytes(after) & behind) | (whole & !behind), *all)?;
        number.checked_mul(*TEN.get(unit - fraction)?)
    }
}

/// A word of up to 8 bytes as [`Sight::word`] reads it.
pub const fn word(text: &[u8]) -> u64 {
    assert!(text.len() <= 8);
    let mut bytes = [0; 8];
    let mut i = 0;
    while i < text.len() {
        bytes[8 - text.len() + i] = text[i];
        i += 1;
    }
    u64::from_le_bytes(bytes)
}

/// Whether a word has this byte, which is not zero.
#[inline(always)]
pub fn has(word: u64, byte: u8) -> bool {
    let other = word ^ (u64::from(byte) * EACH);
    other.wrapping_sub(EACH) & !other & (0x80 * EACH) != 0
}

const EACH: u64 = 0x0101_0101_0101_0101;
const ZEROES: u64 = b'0' as u64 * EACH;

/// Whether eight bytes are numbers up to 9.
#[inline(always)]
fn are_digits(digits: u64) -> bool {
    (digits.wrapping_add(0x76 * EACH) | digits) & (0x80 * EACH) == 0
}

/// The number of eight digits, the first in the lowest byte.
#[inline(always)]
fn eight(digits: u64) -> u64 {
    // Neighbours are joined: 8 digits, 4 pairs, 2 fours, 1 number.
    let pairs = (digits.wrapping_mul(10 << 8 | 1) >> 8) & 0x00ff_00ff_00ff_00ff;
    let fours = (pairs.wrapping_mul(100 << 16 | 1) >> 16) & 0x0000_ffff_0000_ffff;
    fours.wrapping_mul(10_000 << 32 | 1) >> 32
}

/// The number of up to 16 digits that the mask keeps.
#[inline(always)]
fn sixteen(text: u128, mask: u128) -> Option<u64> {
    let low = (text as u64 ^ ZEROES) & mask as u64;
    let high = ((text >> 64) as u64 ^ ZEROES) & (mask >> 64) as u64;
    let good =
        (low.wrapping_add(0x76 * EACH) | low | high.wrapping_add(0x76 * EACH) | high) & (0x80 * EACH) == 0;
    good.then(|| eight(low).wrapping_mul(100_000_000).wrapping_add(eight(high)))
}
