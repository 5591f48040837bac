//! `power-window`: a committed transaction becomes one atomic part of the group's history.

use std::sync::Arc;

use afterimage_block::Sector;

use crate::retain::{HomeError, HomeWriter};

/// The ordering layer's way to write a set, as the retainer takes it.
pub(super) struct WindowHome(pub(super) Arc<dyn afterimage_order::HomeWriter>);

impl HomeWriter for WindowHome {
    fn write_home(&self, blocks: &[(Sector, &[u8])]) -> Result<(), HomeError> {
        self.0.write_home(blocks).map_err(|error| match error {
            afterimage_order::HomeError::TooLarge { bytes, max_bytes } => {
                HomeError::TooLarge { bytes, bytes_max: max_bytes }
            }
            afterimage_order::HomeError::Block(e) => HomeError::Block(e),
        })
    }

    fn atomic_bytes_max(&self) -> u64 {
        self.0.atomic_bytes_max()
    }
}
