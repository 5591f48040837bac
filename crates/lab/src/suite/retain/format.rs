//! The kinds of ext4 that are killed: what mkfs is told, how they are mounted.

/// One kind.
#[derive(Clone, Copy, Debug)]
pub(super) struct Format {
    pub name: &'static str,
    /// Options of `mkfs.ext4`.
    pub make: &'static str,
    /// Options of `mount`.
    pub mount: &'static str,
    /// In a partition instead of on the whole disk.
    pub partition: bool,
    /// Whether a file may hold blocks of somebody else after a crash: `data=writeback` says so.
    pub foreign_blocks: bool,
    /// Killed in the quick suite too.
    pub quick: bool,
}

const PLAIN: Format =
    Format { name: "", make: "", mount: "", partition: false, foreign_blocks: false, quick: false };

/// A journal of 4 MiB, the smallest that a mkfs of 4 KiB blocks makes, wraps every second or so.
pub(super) const FORMATS: [Format; 14] = [
    Format { name: "journal", mount: "data=journal", quick: true, ..PLAIN },
    Format { name: "ordered", mount: "data=ordered", ..PLAIN },
    Format { name: "writeback", mount: "data=writeback", foreign_blocks: true, ..PLAIN },
    Format { name: "journal-small", make: "-J size=4", mount: "data=journal", quick: true, ..PLAIN },
    Format {
        name: "ordered-small-plain",
        make: "-O ^metadata_csum,^64bit -J size=4",
        mount: "data=ordered",
        quick: true,
        ..PLAIN
    },
    Format { name: "journal-plain", make: "-O ^metadata_csum,^64bit", mount: "data=journal", ..PLAIN },
    Format {
        name: "journal-64bit",
        make: "-O ^metadata_csum,64bit -J size=4",
        mount: "data=journal",
        ..PLAIN
    },
    Format {
        name: "journal-csum-32bit",
        make: "-O metadata_csum,^64bit -J size=4",
        mount: "data=journal",
        ..PLAIN
    },
    Format {
        name: "journal-async",
        make: "-J size=4",
        mount: "data=journal,journal_async_commit",
        quick: true,
        ..PLAIN
    },
    Format {
        name: "writeback-async-plain",
        make: "-O ^metadata_csum,^64bit -J size=4",
        mount: "data=writeback,journal_async_commit",
        foreign_blocks: true,
        ..PLAIN
    },
    Format {
        name: "journal-checksum",
        make: "-O ^metadata_csum -J size=4",
        mount: "data=journal,journal_checksum",
        ..PLAIN
    },
    Format {
        name: "journal-quota",
        make: "-O quota,project -E quotatype=usrquota:grpquota:prjquota -J size=4",
        mount: "data=journal,prjquota",
        ..PLAIN
    },
    Format { name: "journal-orphan-file", make: "-O orphan_file -J size=4", mount: "data=journal", ..PLAIN },
    Format { name: "journal-partition", make: "-J size=4", mount: "data=journal", partition: true, ..PLAIN },
];

/// Where the partition begins: what partitioning programs choose.
const PARTITION_SECTOR: u64 = 2048;

impl Format {
    /// By name.
    pub fn named(name: &str) -> Option<Format> {
        FORMATS.into_iter().find(|format| format.name == name)
    }

    /// The guest's device.
    pub fn device(self) -> &'static str {
        if self.partition {
            "/dev/vda1"
        } else {
            "/dev/vda"
        }
    }

    /// Where the file system begins in the image.
    pub fn offset_bytes(self) -> u64 {
        if self.partition {
            PARTITION_SECTOR * 512
        } else {
            0
        }
    }

    /// The shell that formats.
    pub fn mkfs(self) -> String {
        format!("mkfs.ext4 -q -F -b 4096 {} {}", self.make, self.device())
    }

    /// The shell that mounts.
    pub fn mount(self) -> String {
        self.mount_of(self.device())
    }

    /// The shell that mounts it from another device.
    pub fn mount_of(self, device: &str) -> String {
        format!("mount -t ext4 -o {} {device} /mnt", self.mount)
    }

    /// The first sector of the image: a partition table with one partition to the end, or nothing.
    pub fn first_sector(self, image_bytes: u64) -> [u8; 512] {
        let mut sector = [0; 512];
        if self.partition {
            let count = (image_bytes / 512 - PARTITION_SECTOR) as u32;
            // An entry: status, CHS of its first sector, type 0x83, CHS of its last, first sector, sectors.
            sector[446..462].copy_from_slice(&[0, 0, 2, 0, 0x83, 0xfe, 0xff, 0xff, 0, 0, 0, 0, 0, 0, 0, 0]);
            sector[454..458].copy_from_slice(&(PARTITION_SECTOR as u32).to_le_bytes());
            sector[458..462].copy_from_slice(&count.to_le_bytes());
            sector[510..512].copy_from_slice(&[0x55, 0xaa]);
        }
        sector
    }
}
