//! Finding journals on images that the real mkfs made; e2fsprogs is the oracle.

mod image;
mod kinds;
