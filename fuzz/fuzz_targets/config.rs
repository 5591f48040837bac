//! The configuration file.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let _ = afterimage::serve::config::parse(data, "fuzz.toml");
});
