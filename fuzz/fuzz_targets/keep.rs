//! Messages between a daemon and its keeper.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let _ = afterimage_frontend::fuzz::keep(data);
});
