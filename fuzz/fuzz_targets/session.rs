//! A vhost-user session: messages with descriptors in any order, and queues that serve requests in between.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let _ = afterimage_frontend::fuzz::session(data, true);
});
