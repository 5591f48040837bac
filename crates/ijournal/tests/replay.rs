//! What a real kernel left in its journal, replayed here and by e2fsck.

mod common;

use std::fs;
use std::process::Command;

use afterimage_ijournal::recover;
use afterimage_testing::{is_root, skip};
use common::*;

/// In a mount that is copied while it lives: commits, some of them over each other, with blocks revoked.
const WORK: &str = r#"
set -e
mount -o loop,commit=300 "$1" "$2"
trap 'umount "$2"' EXIT
cd "$2"
for i in $(seq 40); do
    mkdir -p "d$i/sub"
    echo "$i" > "d$i/sub/file"
    [ $((i % 3)) = 0 ] && rm -r "d$((i / 3))"
    [ $((i % 5)) = 0 ] && sync -f .
    [ $((i % 7)) = 0 ] && dd if=/dev/urandom of=big bs=4k seek=$((i * 3)) count=1 conv=notrunc,fsync status=none
done
sync big
cp --sparse=never "$1" "$3"
cd /
"#;

#[test]
fn a_kernels_journal_is_replayed_as_e2fsck_does() {
    if !is_root() {
        return skip("needs root, to mount");
    }
    for options in [&[][..], &["-O", "^metadata_csum,^64bit"]] {
        let mut disk = Disk::mkfs(24, options, &[("kept", pattern(1, 30_000))]);
        let folder = tempfile::tempdir().unwrap();
        let (point, copy) = (folder.path().join("mount"), folder.path().join("copy"));
        fs::create_dir(&point).unwrap();
        let mounted = disk.as_file(|image| {
            let output =
                Command::new("sh").args(["-c", WORK, "sh", image]).args([&point, &copy]).output().unwrap();
            output.status.success().then_some(()).ok_or(String::from_utf8_lossy(&output.stderr).into_owned())
        });
        match mounted {
            Err(why) if why.contains("mount") => return skip(why),
            other => other.unwrap(),
        }
        let crashed = Disk(fs::read(&copy).unwrap());
        let mut theirs = crashed.clone();
        theirs.as_file(|image| {
            let output = Command::new("e2fsck").args(["-fy", image]).output().unwrap();
            assert!(matches!(output.status.code(), Some(0 | 1)), "{output:?}");
        });
        let mut ours = crashed;
        let report = recover(&mut ours, 0).unwrap();
        assert!(report.transactions >= 8 && report.blocks > 20 && !report.had_bit, "{report}");
        let ours = ours.checked("replayed");
        assert!(ours.tree() == theirs.tree());
    }
}
