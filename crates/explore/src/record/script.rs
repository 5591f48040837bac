//! What the guest runs.

use afterimage_block::SECTOR_BYTES;
use afterimage_format::control_disk::{SLOTS, SLOT_BYTES};
use afterimage_lab::locate;
use afterimage_lab::process::quote;

use afterimage_protocol::report::Mark;

use super::RecordOptions;
use crate::{ExploreError, Result};

/// The longest name of a mark, in bytes.
pub const MARK_NAME_BYTES_MAX: usize = 100;

/// The line that a guest reports to say that from here on a crash must leave the application's state of that name, or a
/// later one.
///
/// # Errors
/// The name cannot be one: empty, too long, not printable, with quotes or backslashes, or one of the recorder's own.
pub fn mark_line(name: &str) -> Result<String> {
    let wrong = |why: &str| {
        Err(ExploreError::Usage(format!(
            "{name:?} cannot name a mark: {why}; use 1 to {MARK_NAME_BYTES_MAX} bytes of printable text without quotes"
        )))
    };
    if name.is_empty() {
        return wrong("it is empty");
    }
    if name.len() > MARK_NAME_BYTES_MAX {
        return wrong("it is too long");
    }
    if name.chars().any(|c| c.is_control() || matches!(c, '"' | '\'' | '`' | '\\')) {
        return wrong("it has characters that are not printable, quotes or backslashes");
    }
    if matches!(name, "begin" | "end") {
        return wrong("the recorder says `begin` and `end` itself");
    }
    serde_json::to_string(&Mark { mark: name.to_owned() }).map_err(|e| ExploreError::Usage(e.to_string()))
}

/// The type of the file system that a command makes, as mount(8) names it, where the command tells: `mkfs.xfs …`,
/// `mkfs -t xfs …`.
pub(super) fn file_system(mkfs: &str) -> Option<&str> {
    let mut words = mkfs.split_whitespace();
    let program = words.next()?.rsplit('/').next()?;
    match program.strip_prefix("mkfs.") {
        Some(name) => Some(name),
        None if matches!(program, "mkfs" | "mke2fs") => words.skip_while(|word| *word != "-t").nth(1),
        None => None,
    }
}

/// The guest's names for its first disk, and for its control disk (nothing where it has none). In virtual time it has one device, of which
/// both are partitions.
fn devices(options: &RecordOptions) -> (String, String) {
    let control = match (options.control_disk, &options.virtual_time) {
        (false, _) => String::new(),
        (true, Some(_)) => return ("/dev/vda1".to_owned(), "/dev/vda9".to_owned()),
        // Behind at most 16 disks.
        (true, None) => format!("/dev/vd{}", char::from(b'a' + options.disks as u8)),
    };
    ("/dev/vda".to_owned(), control)
}

/// What makes such devices: the control disk lies behind the end of the disk.
fn partitions(options: &RecordOptions) -> String {
    if !options.control_disk || options.virtual_time.is_none() {
        return String::new();
    }
    let (sectors, control) =
        (options.disk_bytes / SECTOR_BYTES, u64::from(SLOTS * SLOT_BYTES) / SECTOR_BYTES);
    format!("addpart /dev/vda 1 0 {sectors}\naddpart /dev/vda 9 {sectors} {control}\n")
}

/// What the script finds in its environment.
pub(super) fn environment(options: &RecordOptions) -> Result<Vec<(&'static str, String)>> {
    let program = locate::own_program("afterimage")?;
    let folder = program.parent().map(|folder| folder.to_string_lossy().into_owned()).unwrap_or_default();
    let (disk, control_disk) = devices(options);
    Ok(vec![
        ("AFTERIMAGE_DISK", disk),
        ("AFTERIMAGE_CONTROL_DISK", control_disk),
        ("AFTERIMAGE", program.to_string_lossy().into_owned()),
        ("PATH", format!("{folder}:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin")),
        ("AFTERIMAGE_MOUNT", options.mount_point.clone()),
        ("AFTERIMAGE_SEED", options.seed.to_string()),
    ])
}

/// Tells the recorder that the setup is done, and waits until everything is home.
pub(super) const TELL_AND_WAIT: &str = "\
    # The channel stays open meanwhile: its last closing would throw an early answer away. QEMU's is opened once at a time.\n\
    exec 9<> \"$AFTERIMAGE_REPORT\"\n\
    echo '{\"guest\":\"set-up\"}' >&9\n\
    read -r answer <&9\n\
    exec 9>&-\n";

/// Setup and command run in shells of their own, in the folder where the file system is mounted; they may leave it and unmount.
/// `bring_home` waits until the recorder has brought everything home.
pub(super) fn script(options: &RecordOptions, bring_home: &str) -> String {
    let mount = quote(&options.mount_point);
    let (disk, _) = devices(options);
    let mount_options = match options.mount_options.as_str() {
        "" => String::new(),
        text => format!("-o {} ", quote(text)),
    };
    format!(
        "set -e\n\
         {}{} {disk}\n\
         mkdir -p {mount}\n\
         mount {mount_options}{disk} {mount}\n\
         (cd {mount} && exec sh -e -c {})\n\
         sync\n\
         # The recorder brings everything home: what the setup wrote would be recovered again in every state.\n\
         {bring_home}\
         \"$AFTERIMAGE_AGENT\" say '{{\"mark\":\"begin\"}}'\n\
         (cd {mount} && exec sh -c {})\n\
         \"$AFTERIMAGE_AGENT\" say '{{\"mark\":\"end\"}}'\n\
         # Until the machine is killed: an end in order would unmount.\n\
         while :; do sleep 1000; done\n",
        partitions(options),
        options.mkfs,
        quote(if options.setup.trim().is_empty() { ":" } else { &options.setup }),
        quote(&options.command),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn file_systems_are_told_by_their_makers() {
        for (mkfs, name) in [
            ("mkfs.ext4 -q -F -b 4096", Some("ext4")),
            ("/sbin/mkfs.xfs -f", Some("xfs")),
            ("mkfs -q -t btrfs", Some("btrfs")),
            ("mke2fs -q -t ext3 -j", Some("ext3")),
            ("mke2fs -q", None),
            ("./make-it", None),
        ] {
            assert_eq!(file_system(mkfs), name, "{mkfs}");
        }
    }

    #[test]
    fn names_of_marks() {
        assert_eq!(mark_line("row 1 is new").expect("a name"), "{\"mark\":\"row 1 is new\"}");
        assert_eq!(mark_line("größer").expect("a name"), "{\"mark\":\"größer\"}");
        for name in ["", "begin", "end", "a\"b", "a'b", "a\\b", "a\nb", "\u{7f}", &"x".repeat(101)] {
            assert!(mark_line(name).is_err(), "{name:?}");
        }
        assert!(mark_line(&"x".repeat(100)).is_ok());
    }
}
