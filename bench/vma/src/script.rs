//! The shell that runs inside the guest.
//!
//! ```text
//!   run:      mount ─► set up ─► drop caches ─► "ready" ─► meet ─► work ─► "end" ─► meet ─► sync ─► unmount ─► "done"
//!   recover:  "ready" ─► meet ─► mount (the kernel replays what there is) ─► "mounted" ─► meet ─► unmount ─► "done"
//! ```
//! To meet is to wait until all guests have come: in real time the host says so, in virtual time the calendar's world.
//! Each report carries `/sys/block/vda/stat`, the guest's own count of its requests, and jbd2's own figures.

use std::path::Path;

use afterimage_lab::process::quote;

use crate::build_files::BUILD_FOLDER;
use crate::catalog::{Mode, Setup, Workload, RAM_JOURNAL_MIB, RECORDS_BYTES};
use crate::scale::Scale;
use crate::source::Sources;

const PROLOGUE: &str = r#"
set -e
A=$AFTERIMAGE_AGENT
tell() {
    j=$(cat /proc/fs/jbd2/*/info 2>/dev/null | tr '\n\t' ';;' || :)
    "$A" say "{\"bench\":\"$1\",\"stat\":\"$(cat /sys/block/vda/stat)\",\"jbd2\":\"$j\"}"
}
# Held open: the kernel forgets what has come when the last user of a serial line closes it.
exec 5<> "$AFTERIMAGE_REPORT"
meet() { read -r go <&5; }
SEED=1
"#;

/// Where commits are handed over the control disk lies behind the disk's end (a cell in virtual time has one device for both); two partitions,
/// for the driver's sake, tell them apart. And the journal's own counts are vext4's.
const CONTROL_DISK: &str = r#"
disk=$(($(blockdev --getsz /dev/vda) - 131072))
addpart /dev/vda 1 0 $disk
addpart /dev/vda 9 $disk 131072
tell() {
    j=$(cat /proc/fs/vjbd2/*/info 2>/dev/null | tr '\n\t' ';;' || :)
    v=$(cat /proc/fs/vjbd2/*/vma 2>/dev/null | tr '\n' ';' || :)
    "$A" say "{\"bench\":\"$1\",\"stat\":\"$(cat /sys/block/vda/stat)\",\"jbd2\":\"$j\",\"vma\":\"$v\"}"
}
"#;

/// What comes before a mount.
fn before_mount(mode: Mode, setup: Setup) -> String {
    let control_disk = if mode.hands_over() { CONTROL_DISK } else { "" };
    format!("{}{control_disk}", ram_journal(setup))
}

/// The mount, with these options besides.
fn mount(mode: Mode, setup: Setup, more: &str) -> String {
    let (kind, disk) = if mode.hands_over() { ("vext4", "/dev/vda1") } else { ("ext4", "/dev/vda") };
    format!("mount -t {kind} -o {}{more} {disk} /mnt", mount_options(mode, setup))
}

/// A mount's options.
fn mount_options(mode: Mode, setup: Setup) -> String {
    let mut options = vec!["noatime".to_owned()];
    if let Some(data) = mode.data() {
        options.push(format!("data={data}"));
        if mode.hands_over() {
            options.push("vma_disk=/dev/vda9".to_owned());
        }
        if let Setup::CommitS(seconds) = setup {
            options.push(format!("commit={seconds}"));
        }
    }
    options.join(",")
}

/// Puts a journal on a RAM disk of the guest: the template's file system has none.
fn ram_journal(setup: Setup) -> String {
    if setup != Setup::RamJournal {
        return String::new();
    }
    format!(
        "[ -b /dev/ram0 ] || busybox insmod /usr/lib/uml/modules/$(uname -r)/kernel/drivers/block/brd.ko rd_nr=1 rd_size={}\n\
         mke2fs -q -F -O journal_dev -b 4096 /dev/ram0\n\
         tune2fs -J device=/dev/ram0 /dev/vda > /dev/null\n",
        u64::from(RAM_JOURNAL_MIB) << 10
    )
}

/// A script for a guest in real time.
pub fn in_real_time(script: &str) -> String {
    format!("{PROLOGUE}{script}")
}

/// The script of a guest that works.
pub fn run_script(workload: Workload, mode: Mode, setup: Setup, scale: &Scale, sources: &Sources) -> String {
    let (set_up, work) = parts(workload, scale, sources);
    // The paper's caches are cold; but what file_delete deletes has just been made.
    let drop = if workload == Workload::FileDelete { "" } else { "\"$A\" drop-caches\n" };
    format!(
        "{}{}\n{set_up}\n{drop}tell ready\nmeet\n{work}\ntell end\n\
         meet\n\"$A\" timed sync -- sync\n\"$A\" timed umount -- umount /mnt\ntell done\n",
        before_mount(mode, setup),
        mount(mode, setup, "")
    )
}

/// The script of the guest that finds what a killed one has left.
pub fn recover_script(mode: Mode, setup: Setup) -> String {
    format!(
        "{}tell ready\nmeet\n\"$A\" timed mount -- {}\ntell mounted\nmeet\numount /mnt\ntell done\n",
        if mode.hands_over() { CONTROL_DISK } else { "" },
        mount(mode, setup, "")
    )
}

/// The script of a guest that updates records until it is killed. Commits and write-back after one second and not after five and thirty:
/// as in `afterimage-lab integrity`.
pub fn update_script(mode: Mode, setup: Setup, kib: u32) -> String {
    format!(
        "{}{}\necho 100 > /proc/sys/vm/dirty_expire_centisecs\n\
         echo 50 > /proc/sys/vm/dirty_writeback_centisecs\ntell ready\nmeet\n{} --seed \"$SEED\"\n",
        before_mount(mode, setup),
        mount(mode, setup, ",commit=1"),
        records("update", kib)
    )
}

/// The script of the guest that looks at what is left of them.
pub fn verify_script(mode: Mode, setup: Setup, kib: u32) -> String {
    let (before, mount) = (before_mount(mode, setup), mount(mode, setup, ""));
    format!("{before}{mount}\n{}\numount /mnt\n", records("verify", kib))
}

fn records(what: &str, kib: u32) -> String {
    format!("\"$A\" integrity {what} /mnt/database --size {} --bytes {RECORDS_BYTES}", kib << 10)
}

fn parts(workload: Workload, scale: &Scale, sources: &Sources) -> (String, String) {
    match workload {
        Workload::SeqWrite => (
            String::new(),
            format!("\"$A\" micro append /mnt/file --bytes {} --size 8192", scale.seq_write_mib << 20),
        ),
        Workload::RndWrite => (
            String::new(),
            format!(
                "\"$A\" micro overwrite /mnt/data --bytes {} --size 4096 --seed \"$SEED\"",
                scale.rnd_write_mib << 20
            ),
        ),
        Workload::FileDelete => {
            let files = format!(
                "--files {} --directories {} --seed \"$SEED\"",
                scale.delete_files, scale.delete_directories
            );
            (
                format!("\"$A\" micro create /mnt/files {files} --median 16384"),
                format!("\"$A\" micro delete /mnt/files {files} --threads 16"),
            )
        }
        Workload::Postmark => (
            format!(
                "mkdir /mnt/mail\nprintf 'set location /mnt/mail\\nset number {}\\nset subdirectories {}\\n\
                 set transactions {}\\nset seed %s\\nrun\\nquit\\n' $((SEED + 41)) > /run/postmark",
                scale.postmark_files, scale.postmark_directories, scale.postmark_transactions
            ),
            "\"$A\" timed postmark -- sh -c 'postmark /run/postmark > /run/postmark.out'".to_owned(),
        ),
        Workload::Untar => (
            "mkdir /mnt/tree".to_owned(),
            format!("\"$A\" timed untar -- tar -xjf {} -C /mnt/tree", shell(&sources.tarball)),
        ),
        Workload::Build => {
            (String::new(), format!("\"$A\" timed build -- {} {}", sources.make(), scale.build_target))
        }
        Workload::BuildFiles => (
            String::new(),
            format!(
                "\"$A\" timed build-files -- \"$A\" replay {BUILD_FOLDER} {}",
                shell(&sources.operations)
            ),
        ),
        Workload::Records => (String::new(), String::new()),
    }
}

fn shell(path: &Path) -> String {
    quote(&path.to_string_lossy())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_script_is_shell() {
        let sources = Sources::at(Path::new("/a b"), &Scale::quick());
        let is_shell = |script: &str| {
            let status = std::process::Command::new("/bin/sh").args(["-n", "-c", script]).status().unwrap();
            assert!(status.success(), "{script}");
        };
        for workload in Workload::ALL {
            for mode in Mode::ALL {
                is_shell(&run_script(workload, mode, Setup::RamJournal, &Scale::quick(), &sources));
            }
        }
        is_shell(&recover_script(Mode::Journal, Setup::CommitS(1)));
        is_shell(&update_script(Mode::Ordered, Setup::Records(8), 8));
        is_shell(&verify_script(Mode::JournalRetain, Setup::Records(8), 8));
    }

    #[test]
    fn a_file_system_without_a_journal_gets_no_journal_options() {
        assert_eq!(mount_options(Mode::NoJournal, Setup::CommitS(1)), "noatime");
        assert_eq!(mount_options(Mode::JournalRetain, Setup::CommitS(1)), "noatime,data=journal,commit=1");
        let vma = mount(Mode::Vma, Setup::Plain, ",commit=1");
        assert_eq!(vma, "mount -t vext4 -o noatime,data=vma,vma_disk=/dev/vda9,commit=1 /dev/vda1 /mnt");
    }
}
