//! A recording: chunks, what they decode to, and that what was read can be written.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    afterimage_fuzz_kit::recording::fuzz_recording(data);
});
