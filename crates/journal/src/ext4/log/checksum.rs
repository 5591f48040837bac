//! The two checksums of a log.

/// The kernel's `crc32c`: no inversion, neither before nor after.
pub(super) fn crc32c(seed: u32, bytes: &[u8]) -> u32 {
    !crc32c::crc32c_append(!seed, bytes)
}

/// What seeds every checksum of a journal with JBD2_FEATURE_INCOMPAT_CSUM_V2 or _V3: its UUID's.
pub(super) fn uuid_seed(uuid: &[u8; 16]) -> u32 {
    crc32c(!0, uuid)
}

const fn be_table() -> [u32; 256] {
    let mut table = [0; 256];
    let mut i = 0;
    while i < 256 {
        let mut crc = (i as u32) << 24;
        let mut bit = 0;
        while bit < 8 {
            crc = if crc >> 31 == 1 { crc << 1 ^ 0x04c1_1db7 } else { crc << 1 };
            bit += 1;
        }
        table[i] = crc;
        i += 1;
    }
    table
}

static BE_TABLE: [u32; 256] = be_table();

/// The kernel's `crc32_be`, of JBD2_FEATURE_COMPAT_CHECKSUM: most significant bit first, no inversion.
pub(super) fn crc32_be(seed: u32, bytes: &[u8]) -> u32 {
    bytes.iter().fold(seed, |crc, byte| crc << 8 ^ BE_TABLE[usize::from((crc >> 24) as u8 ^ byte)])
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Catalogue values ("check" of "123456789"): CRC-32/MPEG-2 is `crc32_be` of !0, CRC-32C inverted at the end.
    #[test]
    fn known_values() {
        assert_eq!(crc32_be(!0, b"123456789"), 0x0376_e6e7);
        assert_eq!(!crc32c(!0, b"123456789"), 0xe306_9283);
        assert_eq!(crc32c(crc32c(!0, b"1234"), b"56789"), crc32c(!0, b"123456789"));
    }
}
