//! A guest's memory with a ring in it: fetched, walked, classified.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let _ = afterimage_frontend::fuzz::chains(data);
});
