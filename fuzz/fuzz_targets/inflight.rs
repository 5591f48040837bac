//! An in-flight region that the peer hands back.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let _ = afterimage_frontend::fuzz::inflight(data);
});
