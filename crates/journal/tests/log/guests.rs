//! Logs that a real kernel left when its machine stopped, replayed by that kernel, by e2fsck, and by ours.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Stdio};

use afterimage_journal::layout::superblock::Features;
use afterimage_testing::uml_preload;

use crate::image::Image;
use crate::tools::compare;

/// mkfs features, mount options.
const KINDS: [(&str, &str); 6] = [
    ("64bit,metadata_csum", "data=journal"),
    ("64bit,metadata_csum", "data=ordered"),
    ("^64bit,^metadata_csum", "data=ordered"),
    ("64bit,^metadata_csum", "data=journal,journal_checksum"),
    ("^64bit,^metadata_csum", "data=writeback,journal_async_commit"),
    ("^64bit,metadata_csum", "data=journal,journal_async_commit"),
];

/// Boots User Mode Linux on the host's root file system, with a disk for each image, until the script stops it.
fn guest(folder: &Path, images: &[Image], script: &str) {
    // Not below /dev: the guest has its own.
    let scripts = tempfile::tempdir().unwrap();
    let init = scripts.path().join("init");
    let text = format!(
        "#!/bin/sh\nexec >/dev/console 2>&1\nset -e\nmount -t proc proc /proc\n{script}\necho all done\n"
    );
    // Neither halting writes anything back.
    fs::write(&init, format!("{text}busybox poweroff -f -n\n")).unwrap();
    fs::set_permissions(&init, fs::Permissions::from_mode(0o755)).unwrap();
    let output = Command::new("timeout")
        .args(["--signal=KILL", "120", "linux.uml", "mem=192M", "root=/dev/root", "rootfstype=hostfs"])
        .args(["rootflags=/", "ro", "quiet", "con=null", "con0=null,fd:2"])
        .arg(format!("init={}", init.display()))
        .args(images.iter().enumerate().map(|(i, image)| format!("ubd{i}={}", image.path.display())))
        .env("TMPDIR", folder)
        .envs(uml_preload(scripts.path()).unwrap().map(|library| ("LD_PRELOAD", library)))
        .stdin(Stdio::null())
        .output()
        .unwrap_or_else(|e| panic!("timeout: {e}; install coreutils and user-mode-linux"));
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("all done"), "install user-mode-linux, or the guest failed: {said}");
}

#[test]
fn what_a_stopped_kernel_left_is_read_as_that_kernel_reads_it() {
    let folder = tempfile::Builder::new().prefix("afterimage-log").tempdir_in("/dev/shm").unwrap();
    let images: Vec<Image> = (0..)
        .zip(KINDS)
        .map(|(i, (features, _))| Image::make(&folder.path().join(format!("image{i}")), features))
        .collect();
    let mut script = String::new();
    for (letter, (_, options)) in ('a'..).zip(KINDS) {
        // Directories come and go (revokes), blocks begin with jbd2's magic (escapes), the log wraps.
        script += &format!(
            "mount -t ext4 -o {options} /dev/ubd{letter} /mnt\ncd /mnt\ni=0\n\
             while [ $i -lt 8 ]; do\n\
             mkdir d$i; printf '\\300\\073\\071\\230' >d$i/magic; dd if=/dev/urandom of=d$i/f bs=4k count=100 conv=fsync\n\
             if [ $i -gt 1 ]; then rm -r d$((i-1)); fi\n\
             dd if=/dev/urandom of=again bs=4k count=32 conv=notrunc,fsync\ni=$((i+1))\ndone 2>/dev/null\n\
             printf '\\300\\073\\071\\230' >last; dd if=/dev/zero of=last bs=4k count=1 seek=1 conv=notrunc,fsync 2>/dev/null\n\
             cd /\n"
        );
    }
    guest(folder.path(), &images, &script);
    let replayed: Vec<Image> =
        (0..).zip(&images).map(|(i, image)| image.copy(&format!("kernel{i}"))).collect();
    let script: String = ('a'..)
        .zip(KINDS)
        .map(|(letter, _)| format!("mount -t ext4 -o ro /dev/ubd{letter} /mnt; umount /mnt\n"))
        .collect();
    guest(folder.path(), &replayed, &script);
    let (mut formats, mut revokes, mut escapes, mut wraps) = (Vec::new(), 0, 0, 0);
    for ((image, kernel), (_, options)) in images.iter().zip(&replayed).zip(KINDS) {
        let found = compare(image);
        let mut journal = image.journal();
        let (geometry, _) = journal.superblock();
        let homes = crate::generated::homes(&mut journal, &found);
        let mut not_home = 0;
        for (home, content) in homes.iter().filter(|(home, _)| home.0 != 0) {
            assert!(kernel.block(*home) == *content, "{options}: block {home} as the kernel replays it");
            not_home += usize::from(image.block(*home) != *content);
        }
        assert!(not_home > 0, "{options}: nothing was to be done");
        revokes += found.iter().map(|t| t.revokes.len()).sum::<usize>();
        escapes += found.iter().flat_map(|t| &t.tags).filter(|tag| tag.escaped).count();
        wraps += usize::from(found.iter().any(|t| t.next < t.start));
        let Features { checksum, async_commit, csum_v2, csum_v3, bits64, .. } = geometry.features;
        formats.push((checksum, async_commit, csum_v2, csum_v3, bits64));
        println!("{options}: {} transactions, {} homes, {not_home} not home", found.len(), homes.len());
    }
    assert_eq!(
        formats,
        [
            (false, false, false, true, true),
            (false, false, false, true, true),
            (false, false, false, false, false),
            (true, false, false, false, true),
            (true, true, false, false, false),
            (false, true, false, true, false),
        ]
    );
    println!("{revokes} revokes, {escapes} escapes, {wraps} logs that wrap");
    assert!(revokes > 0 && escapes > 0 && wraps > 0);
}
