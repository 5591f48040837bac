//! What fuzz targets and tests share, and no product carries: harnesses over the crates' public interfaces, and samples to
//! start from. Harnesses that look into a crate stand in that crate, behind its feature `testkit`.

pub mod recording;
pub mod redo_log;
pub mod traces;
