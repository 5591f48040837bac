//! How large each workload is: the paper's sizes, or a small part of them.

use serde::{Deserialize, Serialize};

/// The guest's disk (Table II).
pub const DISK_BYTES: u64 = 4 << 30;
/// `mem=` of the guests: 128 MiB (Table II) beside the 28 MiB that User Mode Linux 6.1 keeps for itself.
const GUEST_MIB: u32 = 156;
/// The journal: mke2fs's own choice for such a disk. jbd2's largest transaction, the paper's MTS, is a quarter. The
/// paper's 128 MB and 32 MB do not fit: on a slow device data=journal pins two transactions beside what is dirty, and
/// a guest of 128 MiB with a kernel of today then kills its own processes for want of memory.
const JOURNAL_MIB: u32 = 64;
/// `mem=` of the guests of Fig. 14, whose large journal allows transactions of 256 MiB.
pub const ROOMY_MIB: u32 = 1024;
/// What the host may hold of a modelled device in dirty pages. The paper's guests wrote to partitions, past any host
/// cache; a daemon under `guest-crash` writes to the page cache, which on a machine with much memory would take a
/// whole workload in and show no device at all.
pub const HOST_DIRTY_BYTES: u64 = 16 << 20;

/// Sizes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Scale {
    /// `quick` or `full`: results of one scale are never mixed with the other's.
    pub name: String,
    /// `mem=` of the guests, in MiB.
    pub guest_mib: u32,
    /// The journal, in MiB.
    pub journal_mib: u32,
    /// seq_write's file, in MiB.
    pub seq_write_mib: u64,
    /// rnd_write's file, in MiB.
    pub rnd_file_mib: u64,
    /// How much rnd_write writes, in MiB.
    pub rnd_write_mib: u64,
    /// file_delete's files.
    pub delete_files: u64,
    /// file_delete's directories.
    pub delete_directories: u64,
    /// postmark's files at the start.
    pub postmark_files: u32,
    /// postmark's directories.
    pub postmark_directories: u32,
    /// postmark's transactions.
    pub postmark_transactions: u32,
    /// Files of the source tree that is unpacked.
    pub untar_files: usize,
    /// What of the kernel is built: make's target.
    pub build_target: String,
    /// What a system call costs a guest in virtual time, in nanoseconds.
    pub syscall_ns: u64,
    /// What a request costs a daemon in virtual time, in nanoseconds.
    pub request_ns: u64,
    /// Passed on to `serve --retain-max`, in MiB, if not its default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retain_max_mib: Option<u64>,
}

impl Scale {
    /// The paper's.
    pub fn full() -> Scale {
        Scale {
            name: "full".to_owned(),
            guest_mib: GUEST_MIB,
            journal_mib: JOURNAL_MIB,
            seq_write_mib: 600,
            rnd_file_mib: 512,
            rnd_write_mib: 128,
            delete_files: 40_000,
            delete_directories: 100,
            postmark_files: 10_000,
            postmark_directories: 200,
            postmark_transactions: 25_000,
            untar_files: 17_090,
            build_target: "linux".to_owned(),
            syscall_ns: 0,
            request_ns: 0,
            retain_max_mib: None,
        }
    }

    /// Ten to twenty seconds a cell. Much smaller ones would not leave the guest's and the host's memory.
    pub fn quick() -> Scale {
        Scale {
            name: "quick".to_owned(),
            guest_mib: GUEST_MIB,
            journal_mib: JOURNAL_MIB,
            seq_write_mib: 200,
            rnd_file_mib: 256,
            rnd_write_mib: 96,
            delete_files: 8000,
            delete_directories: 20,
            postmark_files: 4000,
            postmark_directories: 80,
            postmark_transactions: 10_000,
            untar_files: 5000,
            build_target: "kernel/time/".to_owned(),
            syscall_ns: 0,
            request_ns: 0,
            retain_max_mib: None,
        }
    }

    /// The same sizes, where processors are not free. Their results are apart.
    #[must_use]
    pub fn charged(self, syscall_ns: u64, request_ns: u64) -> Scale {
        let name = match (syscall_ns, request_ns) {
            (0, 0) => self.name,
            _ => format!("{}-charged-{syscall_ns}-{request_ns}", self.name),
        };
        Scale { name, syscall_ns, request_ns, ..self }
    }

    /// The same sizes under another bound of what is retained. Their results are apart.
    #[must_use]
    pub fn bounded(self, retain_max_mib: Option<u64>) -> Scale {
        let name = match retain_max_mib {
            None => self.name,
            Some(mib) => format!("{}-retain-max-{mib}", self.name),
        };
        Scale { name, retain_max_mib, ..self }
    }

    /// What times on models are made of.
    pub fn charge(&self) -> String {
        let charge = match (self.syscall_ns, self.request_ns) {
            (0, 0) => "processor free".to_owned(),
            (call, request) => format!("charged {call} ns a system call, {request} ns a request"),
        };
        let bound = self.retain_max_mib.map(|mib| format!(", at most {mib} MiB retained"));
        charge + &bound.unwrap_or_default()
    }

    /// What every table begins with.
    pub fn note(&self) -> String {
        let what = format!(
            "seq_write {} MiB, rnd_write {} of {} MiB, file_delete {} files, postmark {} files and {} transactions, \
             untar {} files, build `{}`",
            self.seq_write_mib,
            self.rnd_write_mib,
            self.rnd_file_mib,
            self.delete_files,
            self.postmark_files,
            self.postmark_transactions,
            self.untar_files,
            self.build_target
        );
        let (is_quick, charge) = (self.name.starts_with("quick"), self.charge());
        if is_quick {
            format!(
                "**Virtual time, {charge}.** **`--quick`: sizes are scaled down** ({what}); the paper's figures are of its full sizes."
            )
        } else {
            format!("**Virtual time, {charge}.** The paper's sizes: {what}.")
        }
    }
}
