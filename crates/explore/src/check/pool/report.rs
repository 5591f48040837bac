//! What a guest of the pool reports about a state, and what that means.

use afterimage_protocol::report::PoolDone;

use crate::check::Observation;

/// Parts of messages, in small letters, by which a kernel says that a file system is broken. Not among them: what it says
/// when it recovers ("recovery complete", "orphan cleanup on readonly fs", "1 orphan inode deleted", XFS' "Starting
/// recovery").
const COMPLAINTS: [&str; 20] = [
    // fs/ext4/super.c: __ext4_error and its kin, ext4_msg(KERN_ERR, …).
    "ext4-fs error",
    "ext4-fs: error",
    "mounting fs with errors",
    "error count since last fsck",
    "error recorded from previous mount",
    "error loading journal",
    "remounting filesystem read-only",
    "failed to open journal",
    // fs/jbd2: journal.c, recovery.c.
    "jbd2: io error",
    "jbd2: invalid",
    "jbd2: error",
    "jbd2: bad",
    "aborting journal",
    "journal has aborted",
    // Block layer, XFS, Btrfs, all.
    "i/o error",
    "corrupt",
    "metadata crc error",
    "internal error",
    "btrfs error",
    "btrfs critical",
];

/// Messages of the kernel about itself: always whole words at these places.
const KERNEL_COMPLAINTS: [&str; 6] =
    ["BUG:", "kernel BUG", "WARNING: CPU", "Kernel panic", "Call Trace:", "Oops"];

fn complaint(message: &str) -> bool {
    let small = message.to_lowercase();
    COMPLAINTS.iter().any(|part| small.contains(part))
        || KERNEL_COMPLAINTS.iter().any(|part| message.contains(part))
}

/// What a report says about the state; `Err`: that nothing can be said, and why.
pub(super) fn judge(report: &PoolDone) -> Result<Observation, String> {
    let evidence = || {
        let mut text = report.output.clone();
        if !report.kmsg.is_empty() {
            text.push_str("\n--- kernel ---\n");
            text.push_str(&report.kmsg.join("\n"));
        }
        text.trim().to_owned()
    };
    let bad = |what: String| Ok(Observation::Inconsistent { what, evidence: evidence() });
    if report.mount != 0 {
        let error = std::io::Error::from_raw_os_error(report.mount);
        return bad(format!("the kernel refuses to mount the state: {error}"));
    }
    if let Some(message) = report.kmsg.iter().find(|message| complaint(message)) {
        return bad(format!("the kernel complains: {message}"));
    }
    if report.exit != 0 {
        let last = report.output.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or("no output");
        return bad(format!("the application's check ended with status {}: {}", report.exit, last.trim()));
    }
    if report.umount != 0 || report.forget != 0 {
        let error = std::io::Error::from_raw_os_error(report.umount.max(report.forget));
        return Err(format!("a guest of the pool can not let go of a state ({error}): does the check leave programs running in /mnt?"));
    }
    if let Some(records) = &report.records {
        if let Some((missing, newer)) = records.violations.first() {
            return bad(format!(
                "record {missing} is missing, but record {newer}, written after its acknowledgement, is there"
            ));
        }
        return Ok(Observation::Records { present: records.present.clone(), torn: records.torn.clone() });
    }
    Ok(match &report.state {
        Some(state) => Observation::Named { state: state.clone() },
        None => Observation::Sound,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn found(json: serde_json::Value) -> Result<Observation, String> {
        let mut whole = serde_json::to_value(PoolDone::default()).unwrap();
        for (key, value) in json.as_object().unwrap() {
            whole[key] = value.clone();
        }
        judge(&serde_json::from_value(whole).unwrap())
    }

    #[test]
    fn reports_are_judged() {
        assert_eq!(found(json!({})), Ok(Observation::Sound));
        assert_eq!(found(json!({"state":"t3"})), Ok(Observation::Named { state: "t3".to_owned() }));
        let records = json!({"records":{"present":[[1,5]],"torn":[[0,5]],"violations":[]}});
        assert_eq!(found(records), Ok(Observation::Records { present: vec![(1, 5)], torn: vec![(0, 5)] }));
        for bad in [
            json!({"mount":117}),
            json!({"exit":1,"output":"mixed"}),
            json!({"kmsg":["EXT4-fs error (device vda): ext4_lookup:1785: inode #2"]}),
            json!({"records":{"present":[],"torn":[],"violations":[[3,4]]}}),
        ] {
            assert!(matches!(found(bad.clone()), Ok(Observation::Inconsistent { .. })), "{bad}");
        }
        assert!(found(json!({"umount":16})).is_err());
    }

    #[test]
    fn recovery_is_no_complaint() {
        for fine in [
            "EXT4-fs (vda): recovery complete",
            "EXT4-fs (vda): mounted filesystem with ordered data mode. Quota mode: none.",
            "EXT4-fs (vda): 1 orphan inode deleted",
            "EXT4-fs (vda): orphan cleanup on readonly fs",
            "EXT4-fs (vda): unmounting filesystem.",
        ] {
            assert!(!complaint(fine), "{fine}");
        }
        for bad in [
            "Buffer I/O error on dev vda, logical block 0, async page read",
            "JBD2: Invalid checksum recovering data block 5 in log",
            "EXT4-fs (vda): error loading journal",
            "EXT4-fs (vda): ext4_check_descriptors: Block bitmap for group 0 not in group: corrupted",
            "XFS (vda): Corruption of in-memory data detected.",
        ] {
            assert!(complaint(bad), "{bad}");
        }
    }
}
