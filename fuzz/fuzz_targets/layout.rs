//! A disk: partition tables, file systems, where a journal is, and the journal's superblock.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    afterimage_journal::layout::fuzz::fuzz_find(data);
});
