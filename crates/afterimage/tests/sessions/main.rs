//! The control socket's sessions over time, from random bytes; `fuzz/fuzz_targets/sessions.rs` plays the same world.

mod world;

#[test]
fn no_history_breaks_the_rules_of_pauses_and_places() {
    let mut state = 0x9e37_79b9_7f4a_7c15u64;
    let mut next = || {
        // xorshift64
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    for _ in 0..3000 {
        let steps = 20 + next() % 400;
        let data: Vec<u8> = (0..steps).map(|_| (next() >> 24) as u8).collect();
        world::play(&data);
    }
}
