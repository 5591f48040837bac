//! The checkers on real file systems, made without root.

mod ext4;
mod fsck;
mod mount_per_state;
mod pool;
