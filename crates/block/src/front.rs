//! A disk in front of another one: what it passes on, all of it, once.

use crate::{BlockError, Disk, Geometry, Health, Lane, Quiesced};

/// A disk that looks at the requests that pass to another one. Of everything else it says what that one says, and tells it what
/// it is told: so nothing that [`Disk`] learns is forgotten in a layer that does not care.
pub trait Front: Send + Sync {
    /// The disk behind.
    fn lower(&self) -> &dyn Disk;

    /// A lane of this disk, over one of the disk behind.
    ///
    /// # Errors
    /// As [`Disk::open_lane`].
    fn open_front(&self, lower: Box<dyn Lane>) -> Result<Box<dyn Lane>, BlockError>;
}

impl<F: Front> Disk for F {
    fn geometry(&self) -> Geometry {
        self.lower().geometry()
    }

    fn serial(&self) -> &str {
        self.lower().serial()
    }

    fn health(&self) -> &Health {
        self.lower().health()
    }

    fn open_lane(&self) -> Result<Box<dyn Lane>, BlockError> {
        self.open_front(self.lower().open_lane()?)
    }

    fn quiesced(&self, why: Quiesced) {
        self.lower().quiesced(why);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    #[derive(Default)]
    struct Told(AtomicUsize, Health);

    impl Disk for Told {
        fn geometry(&self) -> Geometry {
            Geometry {
                sectors: 8,
                logical_block_bytes: 512,
                physical_block_bytes: 4096,
                discard_granularity_bytes: 4096,
                read_only: true,
            }
        }

        fn serial(&self) -> &str {
            "told"
        }

        fn health(&self) -> &Health {
            &self.1
        }

        fn open_lane(&self) -> Result<Box<dyn Lane>, BlockError> {
            Err(BlockError::ReadOnly)
        }

        fn quiesced(&self, _why: Quiesced) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }

    struct Window(Told);

    impl Front for Window {
        fn lower(&self) -> &dyn Disk {
            &self.0
        }

        fn open_front(&self, lower: Box<dyn Lane>) -> Result<Box<dyn Lane>, BlockError> {
            Ok(lower)
        }
    }

    #[test]
    fn the_disk_behind_is_told_and_asked() {
        let front = Window(Told::default());
        front.quiesced(Quiesced::Stopped);
        front.health().fail("broken");
        assert_eq!(front.0 .0.load(Ordering::SeqCst), 1);
        assert!(front.0.health().check().is_err());
        assert_eq!((front.serial(), front.geometry()), ("told", front.0.geometry()));
        assert!(matches!(front.open_lane(), Err(BlockError::ReadOnly)));
    }
}
