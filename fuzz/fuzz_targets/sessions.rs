//! The control socket's sessions over time: several connections, pauses, waits, events, time, and ends in any order.
#![no_main]

use libfuzzer_sys::fuzz_target;

#[path = "../../crates/afterimage/tests/sessions/world.rs"]
mod world;

fuzz_target!(|data: &[u8]| world::play(data));
