//! What a start makes of a state file and an arena that it finds.

use super::*;

#[test]
fn an_image_with_retained_journals_is_not_served_without_them() {
    let (dir, journal) = died(&CRASH);
    let before = everything(dir.path());
    for args in [
        &["serve", "--disk", "a.img"][..],
        &["serve", "--disk", "a.img", "--survives", "guest-crash"],
        &["serve", "--disk", "a.img", "--accept-loss"],
        &["serve", "--disk", "a.img,read-only"],
        &["serve", "--disk", "a.img,read-only", "--journal", "retain", "--survives", "guest-crash"],
    ] {
        refused(dir.path(), args, 1, &["a.img", "--journal retain", "afterimage recover"]);
    }
    let inspected = json(dir.path(), &["inspect", "--json", "a.img"]);
    assert_eq!(inspected["copy_is_complete"], false, "{inspected}");
    let found = &inspected["retained"][0]["retained"]["file_systems"][0];
    assert_eq!((&found["transactions"], &found["versions_pending"]), (&1.into(), &1.into()), "{inspected}");
    let words = succeeds(dir.path(), &["inspect", "a.img"]);
    assert!(words.contains("1 transactions, 1 versions (1 not home)"), "{words}");
    assert!(words.contains("afterimage recover a.img"), "{words}");
    let checked = json(dir.path(), &["check", "--json", "a.img"]);
    assert_eq!((&checked["sound"], &checked["clean"]), (&true.into(), &false.into()), "{checked}");
    let words = succeeds(dir.path(), &["recover", "--dry-run", "a.img"]);
    assert!(words.contains("would write") && words.contains("1 go home (4096 bytes)"), "{words}");
    assert!(everything(dir.path()) == before, "looking changes nothing");

    let done = json(dir.path(), &["recover", "--json", "a.img"]);
    let found = &done["retained"][0]["file_systems"][0];
    assert_eq!((&found["versions"], &found["home_blocks"]), (&1.into(), &1.into()), "{done}");
    assert_eq!(names(dir.path()), ["a.img", "arena", "c"]);
    assert_eq!(names(&dir.path().join("arena")), [""; 0]);
    assert_filled(&block(dir.path(), journal.free), 7);
    assert_eq!(block(dir.path(), journal.first)[28..32], [0; 4]);
    assert_eq!(json(dir.path(), &["check", "--json", "a.img"])["clean"], true);
    assert!(succeeds(dir.path(), &["recover", "a.img"]).contains("nothing to recover"));
    Daemon::serve(dir.path(), &["--disk", "a.img"]).terminate();
}

#[test]
fn a_lost_arena_is_explained_and_given_up_only_on_demand() {
    type Loss = fn(&Path);
    let losses: [(Loss, &str); 3] = [
        (|dir| fs::remove_file(arena(dir)).unwrap(), "is gone"),
        (
            |dir| {
                let other_boot = State { boot_id: Default::default(), ..state_of(dir) };
                other_boot.write(&dir.join("a.img.state")).unwrap();
            },
            "the host was restarted",
        ),
        (
            |dir| {
                let arena = fs::OpenOptions::new().write(true).open(arena(dir)).unwrap();
                arena.write_all_at(&[0xff; 64], 0).unwrap();
            },
            "arena",
        ),
    ];
    for (lose, why) in losses {
        let (dir, journal) = died(&CRASH);
        lose(dir.path());
        let before = everything(dir.path());
        let serve_it = [&["serve"][..], &CRASH].concat();
        let parts = ["a.img", "are lost", why, "--accept-loss", "not yet written home"];
        refused(dir.path(), &serve_it, 1, &parts);
        let inspected = json(dir.path(), &["inspect", "--json", "a.img"]);
        assert!(inspected["retained"][0]["problem"].as_str().unwrap().contains(why), "{inspected}");
        common::assert_unsound(dir.path());
        refused(dir.path(), &["recover", "a.img"], 1, &parts);
        assert!(everything(dir.path()) == before);

        let daemon = serve(dir.path(), &[&CRASH[..], &["--accept-loss"]].concat());
        assert_filled(&block(dir.path(), journal.free), 0);
        let errors = daemon.terminate();
        assert!(errors.contains("given up"), "{errors}");
        assert!(!dir.path().join("a.img.state").exists());
        Daemon::serve(dir.path(), &["--disk", "a.img"]).terminate();
    }
}

#[test]
fn without_an_arena_it_can_be_served_or_recovered_once_the_loss_is_accepted() {
    let (dir, _) = died(&CRASH);
    fs::remove_file(arena(dir.path())).unwrap();
    let parts = ["are lost", "--accept-loss"];
    refused(dir.path(), &["serve", "--disk", "a.img"], 1, &parts);
    Daemon::serve(dir.path(), &["--disk", "a.img", "--accept-loss"]).terminate();
    assert!(!dir.path().join("a.img.state").exists());
    Daemon::serve(dir.path(), &["--disk", "a.img"]).terminate();

    let (dir, _) = died(&CRASH);
    fs::remove_file(arena(dir.path())).unwrap();
    refused(dir.path(), &["recover", "--dry-run", "a.img"], 1, &parts);
    let words = succeeds(dir.path(), &["recover", "--dry-run", "--accept-loss", "a.img"]);
    assert!(words.contains("would give up"), "{words}");
    assert!(dir.path().join("a.img.state").exists());
    succeeds(dir.path(), &["recover", "--accept-loss", "a.img"]);
    assert!(!dir.path().join("a.img.state").exists());
}

#[test]
fn under_power_window_nothing_durable_is_lost_with_an_arena() {
    let (dir, journal) = died(&WINDOW);
    fs::remove_file(arena(dir.path())).unwrap();
    let daemon = serve(dir.path(), &WINDOW);
    // It went into the redo log when it was committed.
    assert_filled(&connect(dir.path()).read(journal.free * BLOCK, BLOCK as usize), 7);
    let errors = daemon.terminate();
    assert!(errors.contains("nothing durable is lost"), "{errors}");
    assert_eq!(names(dir.path()), ["a.img", "arena"]);
    // Nobody asks for it any more.
    Daemon::serve(dir.path(), &["--disk", "a.img"]).terminate();
}

/// The daemon and its arena are gone, and the guest lives: it goes on with its log, and its superblock says nothing of that.
#[test]
fn a_guest_that_outlives_its_arena_is_found_by_its_own_recovery() {
    let (dir, mut journal) = died(&WINDOW);
    fs::remove_file(arena(dir.path())).unwrap();
    let daemon = serve(dir.path(), &WINDOW);
    let mut guest = connect(dir.path());
    let (tid, start) = (2u32.to_be_bytes(), 4u32.to_be_bytes());
    journal.commit(&mut guest, journal.free, 8);
    let superblock = guest.read(journal.place(journal.first), BLOCK as usize);
    assert_eq!((&superblock[24..28], &superblock[28..32]), (&tid[..], &start[..]), "s_sequence and s_start");
    drop(guest);
    let errors = daemon.terminate();
    assert!(errors.contains("goes on with a log"), "{errors}");
    assert_eq!(block(dir.path(), journal.first)[24..32], [tid, start].concat());
    assert_filled(&block(dir.path(), journal.first + 5), 8);
}

/// An image that was renamed or copied without its state file: its journals say that it is not complete.
#[test]
fn an_image_without_its_state_file_is_not_served() {
    let moved: [fn(&Path, &Path); 2] =
        [|from, to| fs::rename(from, to).unwrap(), |from, to| assert!(fs::copy(from, to).unwrap() > 0)];
    for act in moved {
        let (dir, journal) = died(&CRASH);
        let kept = names(&dir.path().join("arena")).remove(0);
        let (here, there) = (dir.path().join("a.img"), dir.path().join("b.img"));
        act(&here, &there);
        let before = everything(dir.path());
        let parts = ["b.img is not complete", "--accept-loss"];
        let retain = ["serve", "--disk", "b.img", "--journal", "retain", "--survives", "guest-crash"];
        refused(dir.path(), &[&retain[..], &CRASH[4..6]].concat(), 1, &[parts[0], parts[1], &kept]);
        refused(dir.path(), &["serve", "--disk", "b.img"], 1, &parts);
        refused(dir.path(), &["serve", "--disk", "b.img,read-only"], 1, &parts);
        refused(dir.path(), &["recover", "b.img"], 1, &parts);
        let checked = run(dir.path(), &["check", "--json", "b.img"]);
        let said = String::from_utf8_lossy(&checked.stdout);
        assert!(checked.status.code() == Some(1) && said.contains(parts[0]), "{said}");
        assert!(everything(dir.path()) == before, "a refusal changes nothing");

        if here.exists() {
            // The copy is given up, by either of two ways, and is plain then.
            Daemon::serve(dir.path(), &["--disk", "b.img", "--accept-loss"]).terminate();
            Daemon::serve(dir.path(), &["--disk", "b.img"]).terminate();
            fs::copy(&here, &there).unwrap();
            succeeds(dir.path(), &["recover", "--accept-loss", "b.img"]);
            assert_eq!(json(dir.path(), &["check", "--json", "b.img"])["clean"], true);
        } else {
            fs::rename(&there, &here).unwrap();
        }
        succeeds(dir.path(), &["recover", "a.img"]);
        assert_filled(&block(dir.path(), journal.free), 7);
    }
}

#[test]
fn the_state_file_says_which_contract_is_in_force() {
    let (dir, journal) = died(&CRASH);
    let daemon = serve(dir.path(), &WINDOW);
    assert_eq!(state_of(dir.path()).contract, "power-window=50ms");
    assert_filled(&connect(dir.path()).read(journal.free * BLOCK, BLOCK as usize), 7);
    daemon.kill();
    let daemon = serve(dir.path(), &CRASH);
    assert_eq!(state_of(dir.path()).contract, "guest-crash");
    daemon.terminate();
    assert_filled(&block(dir.path(), journal.free), 7);
}

#[test]
fn a_damaged_state_file_is_refused() {
    let (dir, _) = died(&CRASH);
    let path = dir.path().join("a.img.state");
    let good = fs::read_to_string(&path).unwrap();
    for text in ["", "{", &good.replace("\"size_bytes\": 33554432", "\"size_bytes\": 33554433")] {
        assert_ne!(text, good);
        fs::write(&path, text).unwrap();
        assert!(matches!(State::read(&path), Err(StateError::Corrupt { .. })));
        for args in [&["serve", "--disk", "a.img"][..], &[&["serve"][..], &CRASH].concat()] {
            refused(dir.path(), args, 1, &["a.img.state is damaged", "--accept-loss"]);
        }
        common::assert_unsound(dir.path());
        assert_eq!(fs::read_to_string(&path).unwrap(), text);
    }
    fs::write(&path, good.replace("\"afterimage_state\": 1", "\"afterimage_state\": 2")).unwrap();
    refused(
        dir.path(),
        &["serve", "--disk", "a.img", "--accept-loss"],
        1,
        &["version 2", "use the afterimage that wrote it"],
    );
    fs::write(&path, "{").unwrap();
    Daemon::serve(dir.path(), &["--disk", "a.img", "--accept-loss"]).terminate();
    assert!(!path.exists());
}

#[test]
fn a_state_file_of_another_image_is_refused() {
    let (dir, _) = died(&CRASH);
    fs::copy(dir.path().join("a.img"), dir.path().join("b.img")).unwrap();
    fs::copy(dir.path().join("a.img.state"), dir.path().join("b.img.state")).unwrap();
    let before = everything(dir.path());
    refused(dir.path(), &["serve", "--disk", "b.img"], 1, &["b.img.state", "another image", "--accept-loss"]);
    assert!(everything(dir.path()) == before);
    // The copy is given up, not what it was copied from.
    Daemon::serve(dir.path(), &["--disk", "b.img", "--accept-loss"]).terminate();
    succeeds(dir.path(), &["recover", "a.img"]);
}

/// Copies an image with all that stands beside it.
fn copy_all(dir: &Path, there: &Path) {
    for name in names(dir).iter().filter(|name| name.starts_with("a.img") && !name.ends_with(".sock")) {
        fs::copy(dir.join(name), there.join(name)).unwrap();
    }
}

/// Another file system gives it another inode; its journal's stamp says that it is the state file's all the same.
#[test]
fn an_image_that_was_moved_with_its_state_file_goes_on() {
    for how in ["serve", "recover"] {
        let (dir, journal) = died(&CRASH);
        let moved = tempfile::tempdir_in("/dev/shm").unwrap();
        copy_all(dir.path(), moved.path());
        let arenas = dir.path().join("arena");
        let args = [&CRASH[..5], &[arenas.to_str().unwrap()], &CRASH[6..]].concat();
        let recover = ["recover", "--trust-image", "a.img"];
        // A copy, beside what it is a copy of.
        refused(moved.path(), &recover, 1, &["a.img.state", "another image"]);
        for name in names(dir.path()).iter().filter(|name| name.starts_with("a.img")) {
            fs::remove_file(dir.path().join(name)).unwrap();
        }
        let image = moved.path().join("a.img");
        let inode = fs::metadata(&image).unwrap().ino();
        assert_ne!(state_of(moved.path()).image.inode, inode);
        if how == "serve" {
            assert_eq!(json(moved.path(), &["check", "--json", "a.img"])["sound"], true);
            let daemon = serve(moved.path(), &args);
            assert_filled(&connect(moved.path()).read(journal.free * BLOCK, BLOCK as usize), 7);
            daemon.kill();
            assert_eq!(state_of(moved.path()).image.inode, inode, "it is known from now on");
        }
        succeeds(moved.path(), &[&["recover", "--dry-run"], &recover[1..]].concat());
        succeeds(moved.path(), &recover);
        assert_filled(&block(moved.path(), journal.free), 7);
        assert_eq!(names(&arenas), [""; 0]);
        assert!(!moved.path().join("a.img.state").exists());
    }
}

/// What stands where an image was says nothing of the image that was there.
#[test]
fn an_arena_that_a_renamed_image_needs_stays() {
    let (dir, journal) = died(&CRASH);
    let kept = arena(dir.path());
    let remove = ["arenas", "--remove", kept.to_str().unwrap()];
    for name in ["a.img", "a.img.state"] {
        fs::rename(dir.path().join(name), dir.path().join(name.replacen('a', "b", 1))).unwrap();
    }
    Journal::make(&dir.path().join("a.img"));
    let need = || json(dir.path(), &["arenas", "--json", "arena"])["arenas"][0]["need"].clone();
    assert_eq!(need(), "unknown");
    refused(dir.path(), &remove, 1, &["stays", "a.img", "--accept-loss"]);
    Daemon::serve(dir.path(), &["--disk", "a.img"]).terminate();
    // The same inode, which may have been given out again: all that is retained is still there.
    fs::remove_file(dir.path().join("a.img")).unwrap();
    fs::hard_link(dir.path().join("b.img"), dir.path().join("a.img")).unwrap();
    assert_eq!(need(), "unknown");
    refused(dir.path(), &remove, 1, &["stays", "a.img", "--accept-loss"]);
    fs::remove_file(dir.path().join("a.img")).unwrap();
    succeeds(dir.path(), &["recover", "b.img"]);
    fs::rename(dir.path().join("b.img"), dir.path().join("a.img")).unwrap();
    assert_filled(&block(dir.path(), journal.free), 7);
}

#[test]
fn one_arena_has_one_daemon() {
    let (dir, _) = place();
    let daemon = serve(dir.path(), &CRASH);
    refused(dir.path(), &[&["serve"][..], &CRASH].concat(), 1, &["a.img", "in use"]);
    refused(dir.path(), &["recover", "a.img"], 1, &["a.img", "in use"]);
    let inspected = json(dir.path(), &["inspect", "--json", "a.img"]);
    assert_eq!(inspected["retained"][0]["in_use"], true, "{inspected}");
    // A state file that leads another image to it.
    fs::write(dir.path().join("b.img"), vec![0; 8 << 20]).unwrap();
    let found = fs::metadata(dir.path().join("b.img")).unwrap();
    let image = afterimage_journal::state_file::ImageIdentity { inode: found.ino(), size_bytes: 8 << 20 };
    State { image, ..state_of(dir.path()) }.write(&dir.path().join("b.img.state")).unwrap();
    let other = [&["serve", "--disk", "b.img"][..], &CRASH[2..]].concat();
    refused(dir.path(), &other, 1, &["arena", "in use by"]);
    daemon.terminate();
    // And without the daemon it is found not to be the image's own.
    refused(dir.path(), &other, 1, &["b.img", "are lost"]);
}

#[test]
fn a_start_that_fails_leaves_nothing() {
    let (dir, _) = place();
    let failing: [&[&str]; 3] = [
        &["--arena", "no/where"],
        // There is no socket to be made here.
        &["--arena", "arena", "--control", "no/where"],
        &["--arena", "a.img"],
    ];
    for args in failing {
        let all = [&["serve", "--disk", "a.img", "--journal", "retain", "--survives", "guest-crash"], args];
        let output = run(dir.path(), &all.concat());
        assert_eq!(output.status.code(), Some(1), "{args:?}");
        assert_eq!(names(dir.path()), ["a.img", "arena"], "{args:?}");
        assert_eq!(names(&dir.path().join("arena")), [""; 0], "{args:?}");
    }
    refused(
        dir.path(),
        &[
            "serve",
            "--disk",
            "a.img",
            "--journal",
            "retain",
            "--survives",
            "guest-crash",
            "--arena",
            "no/where",
        ],
        1,
        &["no/where", "--arena"],
    );
    // The group cannot be opened when the arena is there already.
    fs::write(dir.path().join("a.img.aflog"), vec![0; 16 << 20]).unwrap();
    refused(dir.path(), &[&["serve"][..], &CRASH].concat(), 1, &["a.img.aflog"]);
    assert_eq!(names(&dir.path().join("arena")), [""; 0]);
    assert!(!dir.path().join("a.img.state").exists());
}
