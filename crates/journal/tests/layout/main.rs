//! Finding journals on images that the real mkfs made; e2fsprogs and partx are the oracles.

mod hostile;
mod image;
mod kinds;
mod partitions;
mod refused;
