//! A redo log: headers, records, what opening makes of them.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    afterimage_fuzz_kit::redo_log::fuzz_log(data);
});
