//! A torn record in which an older block shows through is no record, whatever checksum the guest puts into its blocks.

use std::sync::Arc;
use std::time::Duration;

use afterimage_block::{Blocking, Disk as _, Medium, MediumDisk, Sector};
use afterimage_block_conformance::sim::SimWorld;
use afterimage_format::checksum;
use afterimage_format::log::{ImageEntry, RECORDS_OFFSET};
use afterimage_order::redo::{create_medium, scan, Config, Redo, RedoDisk};
use afterimage_order::{LoggedDisk, VirtualClock};

const DISK_BYTES: usize = 64 << 10;
const AREA_BYTES: usize = 16 * 4096;

/// As ext4 writes a descriptor block of its journal: a head, zeroes, and at the end the CRC-32C (not inverted) of it all.
fn descriptor(transaction: u8) -> Vec<u8> {
    let mut block = vec![0; 4096];
    block[..64].fill(transaction);
    let own = !checksum(&block[..4092]);
    block[4092..].copy_from_slice(&own.to_le_bytes());
    block
}

#[test]
fn an_older_block_with_its_own_checksum_does_not_make_a_torn_record_whole() {
    let (older, newer) = (descriptor(1), descriptor(2));
    assert_eq!(checksum(&older), checksum(&newer), "a CRC-32C over them could not tell them apart");
    let world = SimWorld::new(vec![vec![0; RECORDS_OFFSET as usize + AREA_BYTES], vec![0; DISK_BYTES]]);
    let image = ImageEntry { size_bytes: (DISK_BYTES as u64).into(), ..ImageEntry::default() };
    let log: Arc<dyn Medium> = world.medium(0);
    create_medium(&log, &[world.medium(1)], &[image], &[], [1; 16], 1).expect("a log");
    let clock = Arc::new(VirtualClock::default());
    let config = Config::new(Duration::from_millis(50), clock, log, vec![world.medium(1)], 2);
    let core = Redo::open(config).expect("a core");
    let disk = RedoDisk::new(Arc::clone(&core), LoggedDisk(0), Arc::new(MediumDisk::new(world.medium(1))));
    let mut lane = Blocking::new(disk.open_lane().expect("a lane"));
    lane.write(Sector(0), &newer).expect("a write");
    lane.write(Sector(8), &newer).expect("a write");
    let bytes = world.cached(0);
    let found = |bytes: Vec<u8>| {
        let log: Arc<dyn Medium> = SimWorld::new(vec![bytes]).medium(0);
        scan(&log).expect("a log")
    };
    let whole = found(bytes.clone());
    assert_eq!(whole.sequence.0, 2);

    // The sectors that differ between the blocks were lost: the first ones and the last one. An earlier lap of the log shows.
    let last = whole.records.last().expect("two records");
    let at = (RECORDS_OFFSET + last.payload().0 % AREA_BYTES as u64) as usize;
    for torn in [0..64, 4092..4096, 0..4096] {
        let mut bytes = bytes.clone();
        bytes[at + torn.start..at + torn.end].copy_from_slice(&older[torn.clone()]);
        assert_eq!(found(bytes).sequence.0, 1, "bytes {torn:?} of the payload are of the older block");
    }
}
