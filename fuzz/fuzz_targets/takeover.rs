//! A daemon that is handed any state by a keeper.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let _ = afterimage_frontend::fuzz::takeover(data, true);
});
