//! An image that somebody else changed while nobody served it: what is retained does not go over it.

use super::*;

/// What every refusal says.
const PARTS: [&str; 4] = ["a.img", "is not as it was left", "still retained in", "--accept-loss"];

type Change = fn(&Path, &[u8]);

/// Over what an image holds, in place.
fn put(image: &Path, bytes: &[u8]) {
    fs::OpenOptions::new().write(true).open(image).unwrap().write_all_at(bytes, 0).unwrap();
}

/// A backup that is put back in place, and programs that work on the image itself.
const CHANGES: [(&str, Change); 5] = [
    ("a backup from before the mount", |image, backup| {
        put(image, backup);
    }),
    ("zeroes", |image, backup| put(image, &vec![0; backup.len()])),
    ("e2fsck", |image, _| {
        e2fs("e2fsck", &["-fp"], image);
    }),
    ("tune2fs", |image, _| {
        e2fs("tune2fs", &["-L", "other"], image);
    }),
    ("debugfs", |image, _| {
        e2fs("debugfs", &["-w", "-R", "mkdir there"], image);
    }),
];

#[test]
fn an_image_that_was_changed_is_refused_and_loses_nothing() {
    for (what, change) in CHANGES {
        let (dir, mut journal) = place();
        let image = dir.path().join("a.img");
        let backup = fs::read(&image).unwrap();
        let (daemon, _guest) = committed(dir.path(), &mut journal, &CRASH);
        daemon.kill();
        let right = fs::read(&image).unwrap();
        change(&image, &backup);

        let before = fs::read(&image).unwrap();
        assert!(before != right, "{what} changes nothing");
        eprintln!("{what}");
        refused(dir.path(), &[&["serve"][..], &CRASH].concat(), 1, &PARTS);
        refused(dir.path(), &["recover", "a.img"], 1, &PARTS);
        refused(dir.path(), &["recover", "--dry-run", "a.img"], 1, &PARTS);
        let inspected = json(dir.path(), &["inspect", "--json", "a.img"]);
        let problem = inspected["retained"][0]["problem"].as_str().expect("inspect names the problem");
        assert!(problem.contains(PARTS[1]), "{what}: {inspected}");
        common::assert_unsound(dir.path());
        assert!(fs::read(&image).unwrap() == before, "{what}: a refusal changes nothing");

        // With the image as it was nothing is lost.
        put(&image, &right);
        let daemon = serve(dir.path(), &CRASH);
        assert_filled(&connect(dir.path()).read(journal.free * BLOCK, BLOCK as usize), 7);
        daemon.kill();
    }
}

#[test]
fn a_changed_image_is_served_or_recovered_as_it_is_once_the_loss_is_accepted() {
    for serves in [true, false] {
        let (dir, journal) = died(&CRASH);
        let image = dir.path().join("a.img");
        e2fs("tune2fs", &["-L", "other"], &image);
        let before = fs::read(&image).unwrap();
        if serves {
            let daemon = serve(dir.path(), &[&CRASH[..], &["--accept-loss"]].concat());
            assert_eq!(file_system(dir.path())["mode"], "waiting");
            let errors = daemon.terminate();
            assert!(errors.contains("given up"), "{errors}");
        } else {
            let words = succeeds(dir.path(), &["recover", "--dry-run", "--accept-loss", "a.img"]);
            assert!(words.contains("would give up"), "{words}");
            assert!(dir.path().join("a.img.state").exists());
            succeeds(dir.path(), &["recover", "--accept-loss", "a.img"]);
        }
        assert_eq!(names(&dir.path().join("arena")), [""; 0]);
        assert!(!dir.path().join("a.img.state").exists());
        let mut after = fs::read(&image).unwrap();
        // But for the stamp at the end of the journal's superblock, which would be asked for again: it says that nothing durable was lost.
        let end = journal.place(journal.first + 1) as usize;
        assert_eq!((before[end - 36 + 7], after[end - 36 + 7]), (0, 1));
        after[end - 36..end].copy_from_slice(&before[end - 36..end]);
        assert!(after == before, "nothing of the other state went home");
        assert_filled(&block(dir.path(), journal.free), 0);
    }
}

/// What the daemon and its guest do themselves is nobody else's change, wherever the daemon dies.
#[test]
fn ones_own_writes_are_no_foreign_change() {
    for args in [&CRASH[..], &WINDOW] {
        let (dir, mut journal) = place();
        let (mut daemon, mut guest) = committed(dir.path(), &mut journal, args);
        for round in 0..5 {
            match round {
                // The superblock, as ext4 writes it now and then.
                0 => journal.write_file_systems_superblock(&mut guest),
                1 => drop(succeeds(dir.path(), &["ctl", "c", "pause", "--", "true"])),
                2 => drop(succeeds(dir.path(), &["ctl", "c", "flush"])),
                3 => fs::File::open(dir.path().join("a.img")).unwrap().sync_all().unwrap(),
                _ => {}
            }
            daemon.kill();
            daemon = serve(dir.path(), args);
            assert_eq!(file_system(dir.path())["mode"], "retain", "round {round}");
            guest = connect(dir.path());
            assert_filled(&guest.read(journal.free * BLOCK, BLOCK as usize), 7);
        }
        leave(dir.path(), guest);
        daemon.terminate();
        assert_filled(&block(dir.path(), journal.free), 7);
    }
}

/// A copy that a pause made complete needs no arena; put back later, it is another state of the image.
#[test]
fn a_copy_of_a_pause_that_is_put_back_is_refused() {
    let (dir, mut journal) = place();
    let image = dir.path().join("a.img");
    let (daemon, mut guest) = committed(dir.path(), &mut journal, &CRASH);
    succeeds(dir.path(), &["ctl", "c", "pause", "--", "cp", "a.img", "copy"]);
    fs::create_dir(dir.path().join("copies")).unwrap();
    succeeds(dir.path(), &["ctl", "c", "copy", "copies"]);
    journal.commit(&mut guest, journal.free, 8);
    daemon.kill();
    let copy = fs::read(dir.path().join("copy")).unwrap();
    // One that is made while the guest may write is made complete, too.
    let made = fs::read(dir.path().join("copies/a.img")).unwrap();
    assert!(made == copy, "a copy holds something else than the image in a pause");
    put(&image, &copy);
    refused(dir.path(), &[&["serve"][..], &CRASH].concat(), 1, &PARTS);
}

/// A copy that was made while the image was served, without a pause, and that ext4 has written its superblock since.
#[test]
fn an_older_live_copy_that_is_put_back_is_refused() {
    let (dir, mut journal) = place();
    let image = dir.path().join("a.img");
    let (daemon, mut guest) = committed(dir.path(), &mut journal, &CRASH);
    let copy = fs::read(&image).unwrap();
    journal.write_file_systems_superblock(&mut guest);
    journal.commit(&mut guest, journal.free, 8);
    daemon.kill();
    let right = fs::read(&image).unwrap();
    put(&image, &copy);
    common::assert_unsound(dir.path());
    refused(dir.path(), &["recover", "a.img"], 1, &PARTS);
    refused(dir.path(), &[&["serve"][..], &CRASH].concat(), 1, &PARTS);
    assert!(fs::read(&image).unwrap() == copy, "a refusal changes nothing");
    put(&image, &right);
    succeeds(dir.path(), &["recover", "a.img"]);
    assert_filled(&block(dir.path(), journal.free), 8);
}

#[test]
fn a_mount_on_the_host_is_noticed() {
    if !afterimage_testing::is_root() {
        return afterimage_testing::skip("needs root, to mount");
    }
    let (dir, _) = died(&CRASH);
    let point = dir.path().join("point");
    fs::create_dir(&point).unwrap();
    let script = "mount -o loop a.img point && umount point";
    let output =
        std::process::Command::new("sh").args(["-c", script]).current_dir(dir.path()).output().unwrap();
    if !output.status.success() {
        return afterimage_testing::skip(String::from_utf8_lossy(&output.stderr));
    }
    common::assert_unsound(dir.path());
    refused(dir.path(), &["recover", "a.img"], 1, &PARTS);
    refused(dir.path(), &[&["serve"][..], &CRASH].concat(), 1, &PARTS);
}

/// As `vext4-recover` opens it, which knows of no arena and no redo log.
#[test]
fn an_image_that_is_not_complete_is_not_recovered_beside_its_daemons() {
    let open = |dir: &Path| {
        let opened = afterimage_ijournal::FileStorage::open(&dir.join("a.img"));
        opened.map(drop).map_err(|e| e.to_string())
    };
    let (dir, _) = died(&CRASH);
    let why = open(dir.path()).unwrap_err();
    assert!(why.contains("a.img is not complete") && why.contains("still retained in"), "{why}");
    succeeds(dir.path(), &["recover", "a.img"]);
    open(dir.path()).unwrap();
    let (dir, _) = died(&WINDOW);
    let why = open(dir.path()).unwrap_err();
    assert!(why.contains("a.img is not complete") && why.contains("redo log"), "{why}");
    succeeds(dir.path(), &["recover", "a.img"]);
    open(dir.path()).unwrap();
}

/// Killed in or right after a pause, the image is complete without the arena; and still no other image is.
#[test]
fn a_backup_that_is_put_back_after_a_pause_is_refused() {
    let (dir, mut journal) = place();
    let image = dir.path().join("a.img");
    let backup = fs::read(&image).unwrap();
    let (daemon, _guest) = committed(dir.path(), &mut journal, &CRASH);
    succeeds(dir.path(), &["ctl", "c", "pause", "--", "true"]);
    daemon.kill();
    let right = fs::read(&image).unwrap();
    put(&image, &backup);
    refused(dir.path(), &[&["serve"][..], &CRASH].concat(), 1, &PARTS);
    put(&image, &right);
    serve(dir.path(), &CRASH).kill();
}
