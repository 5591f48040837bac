//! What a recovery must not take back: the record of errors in the ext4 superblock.
//!
//! The kernel writes errors to the superblock directly, past the journal, and keeps them over a replay
//! (`ext4_load_journal`: the fields from `s_error_count` up to `s_mount_opts`, and the error bit of `s_state`).

use crate::ids::BLOCK_BYTES;

/// Where the superblock is in its block.
const AT: usize = 1024;
const BYTES: usize = 1024;
/// `s_state`, and EXT4_ERROR_FS in it.
const STATE: usize = 0x3a;
const ERROR_FS: u8 = 2;
/// `s_feature_ro_compat`, and RO_COMPAT_METADATA_CSUM in it.
const RO_COMPAT: usize = 0x64;
const METADATA_CSUM: u32 = 0x400;
/// From `s_error_count` up to `s_mount_opts`.
const ERRORS: std::ops::Range<usize> = 0x194..0x200;
/// `s_checksum`.
const CHECKSUM: usize = BYTES - 4;

/// Carries the record of errors from the superblock on the disk into the one that replaces it.
pub(super) fn keep_errors(recovered: &mut [u8; BLOCK_BYTES], on_disk: &[u8; BLOCK_BYTES]) {
    let (new, old) = (&mut recovered[AT..AT + BYTES], &on_disk[AT..AT + BYTES]);
    new[ERRORS].copy_from_slice(&old[ERRORS]);
    new[STATE] |= old[STATE] & ERROR_FS;
    let ro_compat =
        u32::from_le_bytes([new[RO_COMPAT], new[RO_COMPAT + 1], new[RO_COMPAT + 2], new[RO_COMPAT + 3]]);
    if ro_compat & METADATA_CSUM != 0 {
        // ext4_superblock_csum: crc32c(~0, everything before the checksum), not inverted at the end.
        let checksum = !crc32c::crc32c(&new[..CHECKSUM]);
        new[CHECKSUM..].copy_from_slice(&checksum.to_le_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_survive_and_the_checksum_follows() {
        let mut recovered = [0; BLOCK_BYTES];
        let mut on_disk = [0; BLOCK_BYTES];
        on_disk[AT + 0x194] = 3;
        on_disk[AT + STATE] = 1 | ERROR_FS;
        recovered[AT + RO_COMPAT + 1] = 4;
        keep_errors(&mut recovered, &on_disk);
        assert_eq!(recovered[AT + 0x194], 3);
        assert_eq!(recovered[AT + STATE], ERROR_FS, "only the error bit is carried over");
        assert_ne!(recovered[AT + CHECKSUM..AT + BYTES], [0; 4]);
    }
}
