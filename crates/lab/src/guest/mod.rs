//! Guests.

mod cli;

pub use cli::{run_cli, RunOptions, VmmChoice};
