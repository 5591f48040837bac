//! The three checksums of these structures, with the conventions that their formats use.

/// CRC-32C as ext4 and jbd2 chain it: the running value goes in and comes out, nothing is inverted.
pub fn crc32c(seed: u32, bytes: &[u8]) -> u32 {
    !crc32c::crc32c_append(!seed, bytes)
}

/// CRC-16 (polynomial 0x8005, reflected) of group descriptors under `uninit_bg`, chained.
pub fn crc16(seed: u16, bytes: &[u8]) -> u16 {
    bytes.iter().fold(seed, |crc, &byte| {
        (0..8).fold(crc ^ u16::from(byte), |crc, _| if crc & 1 == 1 { crc >> 1 ^ 0xA001 } else { crc >> 1 })
    })
}

/// CRC-32 (ISO 3309) of a GUID partition table (UEFI specification 2.10, § 5.3.2).
pub fn crc32(bytes: &[u8]) -> u32 {
    const TABLE: [u32; 256] = table();
    !bytes.iter().fold(!0, |crc, &byte| TABLE[usize::from(crc as u8 ^ byte)] ^ (crc >> 8))
}

const fn table() -> [u32; 256] {
    let mut table = [0; 256];
    let mut i = 0;
    while i < 256 {
        let mut crc = i as u32;
        let mut bit = 0;
        while bit < 8 {
            crc = if crc & 1 == 1 { crc >> 1 ^ 0xEDB8_8320 } else { crc >> 1 };
            bit += 1;
        }
        table[i] = crc;
        i += 1;
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The catalogue's check values, all of "123456789": CRC-32C and CRC-32 invert their result, MODBUS is this CRC-16.
    #[test]
    fn catalogue_values() {
        assert_eq!(!crc32c(!0, b"123456789"), 0xE306_9283);
        assert_eq!(crc32(b"123456789"), 0xCBF4_3926);
        assert_eq!(crc16(!0, b"123456789"), 0x4B37);
    }

    #[test]
    fn chained_equals_whole() {
        assert_eq!(crc32c(crc32c(7, b"1234"), b"56789"), crc32c(7, b"123456789"));
        assert_eq!(crc16(crc16(7, b"1234"), b"56789"), crc16(7, b"123456789"));
    }
}
