//! A line on the control socket.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let _ = afterimage::control::parse_request(data);
});
