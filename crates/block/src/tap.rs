//! Where somebody may listen: what guests ask of a group of disks, and what the group does to the files below it, passes
//! through here.

use std::fmt::Debug;
use std::io;
use std::sync::Arc;

use crate::{Disk, DiskIndex, Medium};

/// Wraps what lies around a group of disks, before anybody uses it. Each method returns something that does
/// exactly what it was given does. A group without a tap uses the layers below directly.
///
/// A wrapper may look at the content as it is when it is called: nothing is in flight then.
pub trait Tap: Send + Sync + Debug {
    /// The group's redo log.
    ///
    /// # Errors
    /// Its content could not be read; the group is then not opened.
    fn log(&self, log: Arc<dyn Medium>) -> io::Result<Arc<dyn Medium>>;

    /// The image of that index in the group, as the group's own work (going home, syncing) reaches it.
    ///
    /// # Errors
    /// As [`Tap::log`].
    fn home(&self, index: DiskIndex, home: Arc<dyn Medium>) -> io::Result<Arc<dyn Medium>>;

    /// The same image, as requests of a guest reach it that are handed through.
    ///
    /// # Errors
    /// As [`Tap::log`].
    fn lower(&self, index: DiskIndex, disk: Arc<dyn Disk>) -> io::Result<Arc<dyn Disk>>;

    /// An image as it is only read: a read-only one, or one whose writes go through the log and come home by
    /// [`Tap::home`]. Not listened to unless somebody cares for reads.
    ///
    /// # Errors
    /// As [`Tap::log`].
    fn only_read(&self, _index: DiskIndex, disk: Arc<dyn Disk>) -> io::Result<Arc<dyn Disk>> {
        Ok(disk)
    }

    /// The disk of that index as its guest will see it, above all layers. Asked for when those below are open, and not
    /// listened to unless somebody cares.
    ///
    /// # Errors
    /// As [`Tap::log`].
    fn guest(&self, _index: DiskIndex, disk: Arc<dyn Disk>) -> io::Result<Arc<dyn Disk>> {
        Ok(disk)
    }
}
