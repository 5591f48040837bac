//! `afterimage-lab`: the lab's programs.
fn main() {}
