//! Recovery of iJournaling: areas, runs, trees and directories that anybody may have written.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    afterimage_ijournal::fuzz::fuzz_recover(data);
});
