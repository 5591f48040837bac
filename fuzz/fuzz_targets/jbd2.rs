//! A jbd2 log: transactions parsed and replayed, and that both agree.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    afterimage_journal::log::fuzz::fuzz_log(data);
});
