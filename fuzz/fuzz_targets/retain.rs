//! A guest's requests against a retained journal.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    afterimage_journal::ext4::fuzz::fuzz_retain(data, 0);
});
