//! What the device offers: feature bits and configuration space (virtio 1.2 § 5.2.3, 5.2.4).

use afterimage_block::{Geometry, SECTOR_BYTES};
use vhost::vhost_user::message::VhostUserProtocolFeatures;
use virtio_bindings::bindings::virtio_blk::{
    VIRTIO_BLK_F_BLK_SIZE, VIRTIO_BLK_F_CONFIG_WCE, VIRTIO_BLK_F_DISCARD, VIRTIO_BLK_F_FLUSH,
    VIRTIO_BLK_F_MQ, VIRTIO_BLK_F_RO, VIRTIO_BLK_F_SEG_MAX, VIRTIO_BLK_F_TOPOLOGY, VIRTIO_BLK_F_WRITE_ZEROES,
};
use virtio_bindings::bindings::virtio_config::{VIRTIO_F_ANY_LAYOUT, VIRTIO_F_VERSION_1};
use virtio_bindings::bindings::virtio_ring::{VIRTIO_RING_F_EVENT_IDX, VIRTIO_RING_F_INDIRECT_DESC};

/// VHOST_USER_F_PROTOCOL_FEATURES.
const F_PROTOCOL_FEATURES: u32 = 30;

/// Data segments of one request: with header and status a request fits a queue of 128 without indirect descriptors.
pub(crate) const SEG_MAX: u32 = 126;
/// Ranges in one discard or write-zeroes request.
pub(crate) const RANGES_MAX: u32 = 32;
/// Sectors of one range: 1 GiB, so that one request is never unbounded work below.
pub(crate) const RANGE_SECTORS_MAX: u32 = 1 << 21;

/// Where `writeback` is in the configuration space.
pub(crate) const WRITEBACK_OFFSET: u32 = 32;
/// More than any virtio revision's `struct virtio_blk_config`; what we do not define reads as zero.
const CONFIG_BYTES: usize = 256;

/// Where the memory-mapped transport has the configuration space, and with it Cloud Hypervisor up to v50 and Dragonball.
pub(crate) const CONFIG_AGAIN: u32 = CONFIG_BYTES as u32;

/// An offset into the configuration space, which begins at [`CONFIG_AGAIN`] once more.
pub(crate) fn within_config(offset: u32) -> u32 {
    offset.checked_sub(CONFIG_AGAIN).unwrap_or(offset)
}

/// A set of virtio feature bits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Features(pub u64);

impl Features {
    fn with(self, bit: u32) -> Self {
        Self(self.0 | 1 << bit)
    }

    fn has(self, bit: u32) -> bool {
        self.0 >> bit & 1 == 1
    }

    /// What is offered for this disk. VHOST_F_LOG_ALL is not among it, so that a VMM refuses a live migration,
    /// during which our writes to guest memory would be missed.
    pub fn offered(geometry: &Geometry) -> Self {
        let all = [
            VIRTIO_F_VERSION_1,
            F_PROTOCOL_FEATURES,
            VIRTIO_RING_F_INDIRECT_DESC,
            VIRTIO_RING_F_EVENT_IDX,
            VIRTIO_BLK_F_SEG_MAX,
            VIRTIO_BLK_F_BLK_SIZE,
            VIRTIO_BLK_F_TOPOLOGY,
            VIRTIO_BLK_F_FLUSH,
            VIRTIO_BLK_F_MQ,
        ];
        let writable = [VIRTIO_BLK_F_CONFIG_WCE, VIRTIO_BLK_F_DISCARD, VIRTIO_BLK_F_WRITE_ZEROES];
        let features = all.into_iter().fold(Self::default(), Self::with);
        if geometry.read_only {
            features.with(VIRTIO_BLK_F_RO)
        } else {
            writable.into_iter().fold(features, Self::with)
        }
    }

    /// Without ANY_LAYOUT, which says only that buffers may be cut anywhere, as they may here. QEMU offers it to legacy drivers by itself, and
    /// passes on what they chose (viostor chooses it).
    pub fn without_layout(self) -> Self {
        Self(self.0 & !(1 << VIRTIO_F_ANY_LAYOUT))
    }

    pub fn within(self, offered: Self) -> bool {
        self.0 & !offered.0 == 0
    }

    pub fn protocol_features(self) -> bool {
        self.has(F_PROTOCOL_FEATURES)
    }

    pub fn event_idx(self) -> bool {
        self.has(VIRTIO_RING_F_EVENT_IDX)
    }

    pub fn indirect(self) -> bool {
        self.has(VIRTIO_RING_F_INDIRECT_DESC)
    }

    pub fn flush(self) -> bool {
        self.has(VIRTIO_BLK_F_FLUSH)
    }

    pub fn discard(self) -> bool {
        self.has(VIRTIO_BLK_F_DISCARD)
    }

    pub fn write_zeroes(self) -> bool {
        self.has(VIRTIO_BLK_F_WRITE_ZEROES)
    }
}

/// The vhost-user protocol features offered. LOG_SHMFD is left out for the reason given at [`Features::offered`].
pub(crate) fn protocol_features() -> VhostUserProtocolFeatures {
    VhostUserProtocolFeatures::MQ
        | VhostUserProtocolFeatures::REPLY_ACK
        | VhostUserProtocolFeatures::BACKEND_REQ
        | VhostUserProtocolFeatures::CONFIG
        | VhostUserProtocolFeatures::INFLIGHT_SHMFD
        | VhostUserProtocolFeatures::RESET_DEVICE
        | VhostUserProtocolFeatures::CONFIGURE_MEM_SLOTS
        | VhostUserProtocolFeatures::STATUS
}

/// The configuration space.
pub(crate) fn config_space(geometry: &Geometry, queues: u16, write_cache: bool) -> [u8; CONFIG_BYTES] {
    let mut space = [0; CONFIG_BYTES];
    let mut put = |at: usize, bytes: &[u8]| space[at..at + bytes.len()].copy_from_slice(bytes);
    let block = geometry.logical_block_bytes;
    let physical_exponent = (geometry.physical_block_bytes / block).max(1).ilog2() as u8;
    let granularity_sectors = (geometry.discard_granularity_bytes / SECTOR_BYTES as u32).max(1);
    put(0, &geometry.sectors.to_le_bytes()); // capacity
    put(12, &SEG_MAX.to_le_bytes());
    put(20, &block.to_le_bytes()); // blk_size
    put(24, &[physical_exponent, 0]); // physical_block_exp, alignment_offset
    put(26, &(1u16 << physical_exponent).to_le_bytes()); // min_io_size, in logical blocks
    put(32, &[u8::from(write_cache), 0]); // writeback, unused
    put(34, &queues.to_le_bytes());
    if !geometry.read_only {
        put(36, &RANGE_SECTORS_MAX.to_le_bytes()); // max_discard_sectors
        put(40, &RANGES_MAX.to_le_bytes()); // max_discard_seg
        put(44, &granularity_sectors.to_le_bytes()); // discard_sector_alignment
        put(48, &RANGE_SECTORS_MAX.to_le_bytes()); // max_write_zeroes_sectors
        put(52, &RANGES_MAX.to_le_bytes()); // max_write_zeroes_seg
        put(56, &[1]); // write_zeroes_may_unmap
    }
    space
}

#[cfg(test)]
mod tests {
    use super::*;

    const GEOMETRY: Geometry = Geometry {
        sectors: 0x1_0000,
        logical_block_bytes: 512,
        physical_block_bytes: 4096,
        discard_granularity_bytes: 4096,
        read_only: false,
    };

    #[test]
    fn the_golden_bytes_of_the_configuration_space() {
        let space = config_space(&GEOMETRY, 3, true);
        let golden = [
            0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 126, 0, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 3, 0, 8, 0, 0, 0, 0, 0,
            1, 0, 3, 0, 0, 0, 32, 0, 32, 0, 0, 0, 8, 0, 0, 0, 0, 0, 32, 0, 32, 0, 0, 0, 1, 0, 0, 0,
        ];
        assert_eq!(space[..60], golden);
        assert!(space[60..].iter().all(|byte| *byte == 0));
    }

    #[test]
    fn migration_logging_is_not_offered_and_read_only_disks_offer_no_writes() {
        let features = Features::offered(&GEOMETRY);
        assert_eq!(features.0 >> 26 & 1, 0, "VHOST_F_LOG_ALL");
        assert!(!protocol_features().contains(VhostUserProtocolFeatures::LOG_SHMFD));
        assert!(features.discard() && features.write_zeroes() && features.flush());
        let read_only = Features::offered(&Geometry { read_only: true, ..GEOMETRY });
        assert!(!read_only.discard() && read_only.0 >> 5 & 1 == 1);
    }
}
