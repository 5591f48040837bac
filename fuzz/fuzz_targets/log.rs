//! A redo log: headers, records, what opening makes of them.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    afterimage_order::redo::fuzz_log(data);
});
