//! Every wrong request is answered with one sentence and touches nothing.

mod common;

use std::os::unix::fs::PermissionsExt;

use common::{folder, refused, run, succeeds, Daemon};

/// What a folder holds, to prove that nothing was touched.
fn content(dir: &std::path::Path) -> Vec<(std::ffi::OsString, u64, std::time::SystemTime)> {
    let mut all: Vec<_> = std::fs::read_dir(dir)
        .unwrap()
        .map(|e| e.unwrap())
        .map(|e| {
            let found = e.metadata().unwrap();
            (e.file_name(), found.len(), found.modified().unwrap())
        })
        .collect();
    all.sort();
    all
}

#[test]
fn usage_errors_end_with_status_2() {
    let dir = folder(&[("a.img", "1M"), ("b.img", "1M")]);
    std::fs::hard_link(dir.path().join("a.img"), dir.path().join("same.img")).unwrap();
    let before = content(dir.path());
    let long = format!("/{}", "x".repeat(120));
    let long_disk = format!("a.img,socket={long}");
    for (args, parts) in [
        (&["serve"][..], &["no disk to serve", "--disk FILE"][..]),
        (&["serve", "--disk", "a.img", "--survives", "poweroff"], &["poweroff", "power-window"]),
        (&["serve", "--disk", "a.img", "--survives", "power-window"], &["power-window=50ms"]),
        (&["serve", "--disk", "a.img", "--survives", "power-window=0ms"], &["power-window=0ms"]),
        (&["serve", "--disk", "a.img", "--cache", "fast"], &["fast", "writeback", "--survives"]),
        (
            &["serve", "--disk", "a.img", "--cache", "unsafe", "--survives", "power"],
            &["guest-crash", "leave one"],
        ),
        (
            &["serve", "--disk", "a.img", "--cache", "writeback", "--survives", "power-window=50ms"],
            &["power-window=50ms", "leave one"],
        ),
        (
            &["serve", "--disk", "a.img,direct=on", "--survives", "guest-crash"],
            &["a.img", "direct=on", "page cache"],
        ),
        (&["serve", "--disk", "a.img,colour=red"], &["colour", "socket=PATH"]),
        (&["serve", "--disk", "a.img,serial=123456789012345678901"], &["20 printable"]),
        (&["serve", "--disk", "a.img", "--disk", "./a.img"], &["same"]),
        (&["serve", "--disk", "a.img", "--disk", "same.img"], &["same.img", "same image"]),
        (&["serve", "--disk", "a.img,socket=s", "--disk", "b.img,socket=s"], &["each its own path"]),
        (&["serve", "--disk", "a.img,socket=s", "--disk", "b.img,socket=./s"], &["each its own path"]),
        (&["serve", "--disk", "a.img,socket=s", "--control", "s"], &["the control socket"]),
        (&["serve", "--disk", "a.img,socket=s", "--control", "./s"], &["the control socket"]),
        (&["serve", "--disk", "a.img,socket=s,fd=5"], &["a.img", "exclude each other"]),
        (&["ctl", "s", "wait", "-1"], &["'-1'", "found; tip:"]),
        (&["serve", "--disk", "a.img,socket=a.img"], &["is an image"]),
        (&["serve", "--disk", "a.img,socket=./a.img"], &["is an image"]),
        (&["serve", "--disk", &long_disk], &["at most 107"]),
        (&["serve", "--disk", "a.img", "--control", &long], &["the control socket", "at most 107"]),
        (&["serve", "--disk", "a.img", "--blk-file", "b.img"], &["--blk-file and --disk"]),
        (&["serve", "--disk", "a.img", "--disk", "b.img", "--socket-path", "s"], &["for one disk"]),
        (&["serve", "--blk-file", "a.img", "--socket-path", "s", "--fd", "5"], &["cannot be used with"]),
        (&["serve", "--blk-file", "a.img", "--fd", "77"], &["77", "not open"]),
        (&["serve", "--blk-file", "a.img", "--fd", "0"], &["--fd 0", "standard streams"]),
        (&["serve", "--disk", "a.img,fd=2"], &["--fd 2", "standard streams"]),
        (&["serve", "--disk", "a.img", "--queues", "0"], &["1 to 64"]),
        (&["serve", "--disk", "a.img", "--queues", "65"], &["1 to 64"]),
        (&["serve", "--disk", "a.img", "--log-max", "1M"], &["16777216"]),
        (&["serve", "--disk", "a.img", "--log-max", "lots"], &["--log-max", "lots"]),
        (&["serve", "--disk", "a.img", "--log-max", "1"], &["--log-max 1: ", "16777216"]),
        (&["serve", "--disk", "a.img", "--log-max", "16777217"], &["--log-max: ", "multiple of 512"]),
        (
            &["serve", "--disk", "a.img", "--log-max", "1G"],
            &["--log-max is for power-window", "`power` has none"],
        ),
        (&["serve", "--disk", "a.img", "--cache", "unsafe", "--log-max", "1G"], &["`guest-crash` has none"]),
        (
            &["serve", "--disk", "a.img,socket=s", "--socket-path", "t"],
            &["a.img", "leave one of the two out"],
        ),
        (&["serve", "--disk", "a.img,fd=0", "--fd", "1"], &["a.img", "leave one of the two out"]),
        (&["serve", "--disk", "a.img", "--metrics", "here"], &["127.0.0.1:9150"]),
        (&["serve", "--disk", "a.img", "--sandbox", "maybe"], &["auto, off or require"]),
        (
            &["serve", "--disk", "a.img", "--journal", "retain"],
            &["power", "--survives guest-crash", "--survives power-window=50ms"],
        ),
        (
            &["serve", "--disk", "a.img", "--journal", "retain", "--cache", "none"],
            &["power", "--survives guest-crash"],
        ),
        (&["serve", "--disk", "a.img", "--journal", "keep"], &["--journal", "keep", "passthrough or retain"]),
        (&["serve", "--disk", "a.img", "--retain-max", "1G"], &["--retain-max", "add --journal retain"]),
        (&["serve", "--disk", "a.img", "--arena", "."], &["--arena", "add --journal retain"]),
        (&["serve", "--disk", "a.img", "--vflush-at-truncation"], &["add --journal retain"]),
        (
            &["serve", "--disk", "a.img", "--journal", "retain", "--retain-max", "1k"],
            &["--retain-max 1k", "1048576"],
        ),
        (
            &[
                "serve",
                "--disk",
                "a.img",
                "--journal",
                "retain",
                "--survives",
                "guest-crash",
                "--retain-max",
                "7E",
            ],
            &["--retain-max 7E", "at most 17592"],
        ),
        (
            &["serve", "--disk", "a.img", "--journal", "retain", "--retain-max", "much"],
            &["much", "not a size"],
        ),
        (&["create", "c.img", "8E"], &["too large"]),
        (&["create", "c.img", "99999999999999999999G"], &["too large"]),
        (&["create", "c.img", "1000"], &["multiple of 512"]),
        (&["create", "c.img", "0"], &["at least 512"]),
        (&["create", "c.img"], &["SIZE"]),
        (&["ctl", "s", "pause", "--for", "soon"], &["soon", "duration"]),
        (&["ctl", "s", "pause", "--for", "20m"], &["--for", "20m", "a pause lasts 1ms to 10m"]),
        (&["ctl", "s", "pause", "--for", "0"], &["--for", "'0'", "a pause lasts 1ms to 10m"]),
        (&["ctl", "s", "pause", "--for", "601s"], &["--for", "601s", "a pause lasts 1ms to 10m"]),
        (&["ctl", "s", "copy", "--rate", "0", "."], &["--rate", "a rate of 0 copies nothing"]),
        (&["ctl", "s", "wait", "5", "--timeout", "48h"], &["--timeout", "48h", "a wait lasts at most 24h"]),
        (&["ctl", "s", "wait", "5", "--timeout", "999999h"], &["999999h", "a wait lasts at most 24h"]),
        (&["keep", "--", "status"], &["keep -- serve"]),
        (&["launch"], &["launch"]),
    ] {
        refused(dir.path(), args, 2, parts);
    }
    assert_eq!(content(dir.path()), before);
}

#[test]
fn what_is_not_an_image_is_refused_with_advice() {
    let dir = folder(&[("a.img", "1M")]);
    std::fs::write(dir.path().join("q.img"), [&b"QFI\xfb\0\0\0\x03"[..], &[0; 1016]].concat()).unwrap();
    std::fs::write(dir.path().join("odd.img"), [1; 700]).unwrap();
    std::fs::write(dir.path().join("empty.img"), []).unwrap();
    std::fs::write(dir.path().join("new.qcow2"), [&b"QFI\xfb\0\0\0\x03"[..], &[0; 300]].concat()).unwrap();
    let before = content(dir.path());
    for (args, parts) in [
        (
            &["serve", "--disk", "new.qcow2"][..],
            &["new.qcow2", "qcow2", "qemu-img convert", "--disk FILE,format=raw"][..],
        ),
        (&["serve", "--disk", "empty.img"], &["empty.img is empty", "truncate --size=SIZE empty.img"]),
        (&["check", "new.qcow2"], &["new.qcow2", "qcow2", "qemu-img convert"]),
        (&["inspect", "new.qcow2"], &["new.qcow2", "qcow2", "qemu-img convert"]),
        (&["inspect", "odd.img"], &["odd.img", "700", "512"]),
        (&["inspect", "."], &["directory"]),
        (&["inspect", "/dev/null"], &["/dev/null", "character device"]),
        (&["ctl", "a.img", "status"], &["a.img", "not a socket"]),
        (&["serve", "--disk", "none.img"], &["none.img", "does not exist", "afterimage create"]),
        (&["serve", "--disk", "q.img"], &["q.img", "qcow2", "qemu-img convert"]),
        (&["serve", "--disk", "odd.img"], &["odd.img", "700", "512"]),
        (&["serve", "--disk", "."], &["directory"]),
        (&["serve", "--disk", "/dev/null"], &["/dev/null", "character device"]),
        (&["create", "a.img", "1M"], &["a.img exists already"]),
        (&["create", "no/where.img", "1M"], &["no/where.img"]),
        (&["serve", "--disk", "a.img,socket=no/where.sock"], &["no/where.sock", "folder"]),
        (&["serve", "--disk", "a.img,socket=q.img"], &["q.img", "not a socket"]),
        (&["check", "none.img"], &["none.img"]),
        (&["inspect", "none.img"], &["none.img"]),
        (&["recover", "none.img"], &["none.img"]),
        (&["ctl", "none.sock", "status"], &["none.sock", "--control"]),
    ] {
        refused(dir.path(), args, 1, parts);
    }
    assert_eq!(content(dir.path()), before);
}

/// Opening a pipe waits for its other end: nobody may do that for a name that was given, or that stands where a log would.
#[test]
fn a_pipe_is_refused_and_not_waited_for() {
    let dir = folder(&[("a.img", "1M")]);
    for name in ["pipe", "a.img.aflog"] {
        nix::unistd::mkfifo(&dir.path().join(name), nix::sys::stat::Mode::S_IRWXU).unwrap();
    }
    let before = content(dir.path());
    for (args, parts) in [
        (&["inspect", "pipe"][..], &["pipe", "it is a pipe"][..]),
        (&["check", "pipe"], &["it is a pipe"]),
        (&["recover", "pipe"], &["it is a pipe"]),
        (&["inspect", "a.img"], &["a.img.aflog is a pipe"]),
        (&["serve", "--disk", "a.img"], &["a.img.aflog is a pipe"]),
    ] {
        refused(dir.path(), args, 1, parts);
    }
    common::assert_unsound(dir.path());
    assert_eq!(content(dir.path()), before);
}

/// JSON cannot say such a name: that is known before anything is done.
#[test]
fn a_name_that_json_cannot_say_is_refused_before_anything_is_touched() {
    use std::os::unix::ffi::OsStrExt;
    let dir = folder(&[("a.img", "1M")]);
    let name = std::ffi::OsStr::from_bytes(b"\xff.img");
    std::fs::copy(dir.path().join("a.img"), dir.path().join(name)).unwrap();
    let new = std::ffi::OsStr::from_bytes(b"\xfe.img");
    for (command, file) in [("create", new), ("inspect", name), ("check", name), ("recover", name)] {
        let answer = |json: &[&str]| {
            let mut program = std::process::Command::new(env!("CARGO_BIN_EXE_afterimage"));
            program.arg(command).arg(file).args((command == "create").then_some("1M")).args(json);
            program.current_dir(dir.path()).output().unwrap()
        };
        let output = answer(&["--json"]);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{command}: {said}");
        assert!(said.contains("--json") && said.contains("UTF-8"), "{command}: {said}");
        assert!(!dir.path().join(new).exists());
        if command != "create" {
            assert!(answer(&[]).status.success(), "{command}");
        }
    }
}

/// Whoever waits for the line would wait for ever.
#[test]
fn a_daemon_whose_line_json_cannot_say_does_not_serve() {
    use std::os::unix::ffi::OsStrExt;
    let dir = folder(&[("a.img", "1M")]);
    let name = std::ffi::OsStr::from_bytes(b"\xff.img");
    std::fs::copy(dir.path().join("a.img"), dir.path().join(name)).unwrap();
    let sound = std::ffi::OsStr::new("a.img");
    for (file, option) in [
        (name, None),
        (sound, Some("--socket-path")),
        (sound, Some("--control")),
        (sound, Some("--control-disk")),
    ] {
        let mut program = common::afterimage(&["serve", "--json", "--blk-file"]);
        program.arg(file).args(option).args(option.map(|_| name)).current_dir(dir.path());
        let output = program.output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!((output.status.code(), output.stdout.len()), (Some(2), 0), "{option:?}: {said}");
        assert!(said.contains("--json") && said.contains("UTF-8"), "{option:?}: {said}");
    }
    assert_eq!(content(dir.path()).len(), 2);
}

/// A hand-over must not find out what was known before it.
#[test]
fn what_keep_asks_before_a_handover_is_all_that_can_be_said_without_the_images() {
    let dir = folder(&[("a.img", "1M")]);
    let long = format!("/{}", "x".repeat(120));
    let long_disk = format!("a.img,socket={long}");
    let disks: Vec<String> = (0..17).map(|n| format!("{n}.img")).collect();
    let many: Vec<&str> = disks.iter().flat_map(|disk| ["--disk", disk]).collect();
    let window = ["--survives", "power-window=50ms"];
    for (args, parts) in [
        (&["--disk", &long_disk][..], &["disk a.img", "at most 107"][..]),
        (&["--disk", "a.img", "--control", &long], &["the control socket", "at most 107"]),
        (&["--disk", "a.img", "--control-disk", &long], &["the control disk", "at most 107"]),
        (&["--disk", "a.img", "--disk", "./a.img"], &["are the same image"]),
        (&[&many[..], &window].concat(), &["at most 16 writable disks, not 17"]),
    ] {
        refused(dir.path(), &[&["serve"], args].concat(), 2, parts);
        refused(dir.path(), &[&["serve", "--check-options"], args].concat(), 2, parts);
    }
    succeeds(dir.path(), &[&["serve", "--check-options"], &many[..32], &window].concat());
    succeeds(dir.path(), &[&["serve", "--check-options", "--read-only"], &many[..], &window].concat());
    succeeds(dir.path(), &[&["serve", "--check-options"], &many[..]].concat());
}

#[test]
fn a_configuration_that_cannot_be_read_is_named_with_its_place() {
    let dir = folder(&[("a.img", "1M")]);
    let config = dir.path().join("c.toml");
    for (text, parts) in [
        ("[[disk]]\nfile = \"a.img\"\nspeed = 9\n", &["c.toml:3:1", "unknown field `speed`"][..]),
        ("disks = [\n", &["c.toml:"]),
        ("survives = \"always\"\n[[disk]]\nfile = \"a.img\"\n", &["c.toml", "survives", "always"]),
        ("queues = 99\n[[disk]]\nfile = \"a.img\"\n", &["1 to 64"]),
    ] {
        std::fs::write(&config, text).unwrap();
        refused(dir.path(), &["serve", "--config", "c.toml"], 2, parts);
    }
    refused(dir.path(), &["serve", "--config", "none.toml"], 2, &["none.toml", "No such file"]);
    let made = std::process::Command::new("mkfifo").arg("pipe.toml").current_dir(&dir).status();
    assert!(made.unwrap().success());
    refused(
        dir.path(),
        &["serve", "--config", "pipe.toml"],
        2,
        &["pipe.toml: a configuration is a regular file"],
    );
    assert!(!dir.path().join("a.img.sock").exists());
}

#[test]
fn a_configuration_is_judged_as_a_command_line_and_named_as_the_place() {
    let dir = folder(&[("a.img", "1M")]);
    let before = content(dir.path());
    let config = dir.path().join("x.toml");
    let crash = "survives = \"guest-crash\"\n";
    for (text, args, parts) in [
        ("queues = 0", &[][..], &["x.toml, queues 0: "][..]),
        ("spin-us = 5000", &[], &["x.toml, spin-us 5000: "]),
        ("survives = \"power-window=50ms\"\nlog-max = \"1k\"", &[], &["x.toml, log-max 1k: ", "16777216"]),
        ("log-max = \"1G\"", &[], &["x.toml, log-max is for power-window", "`power` has none"]),
        ("metrics = \"x\"", &[], &["x.toml, metrics x: "]),
        ("trace = \"a.gz\"", &[], &["x.toml, trace a.gz: "]),
        ("journal = \"retain\"", &[], &["x.toml, journal retain does not go with `power`"]),
        (
            "cache = \"none\"\nsurvives = \"guest-crash\"",
            &[],
            &["x.toml, cache none", "but x.toml, survives asks"],
        ),
        ("cache = \"none\"", &["--survives", "guest-crash"], &["x.toml, cache none", "but --survives asks"]),
        (crash, &["--cache", "none"], &["--cache none", "but x.toml, survives asks"]),
        (crash, &["--queues", "0"], &["afterimage: --queues 0: "]),
        ("retain-max = \"2M\"", &[], &["x.toml, retain-max says", "add --journal retain"]),
        ("arena = \".\"", &[], &["x.toml, arena says"]),
        ("vflush-at-truncation = true", &[], &["x.toml, vflush-at-truncation says"]),
        (
            "journal = \"retain\"\narena = \".\"",
            &["--journal", "passthrough", "--arena", "."],
            &["--arena says"],
        ),
        ("log = \"\"", &[], &["x.toml:1:7: an empty path"]),
        ("control = \"\"", &[], &["x.toml:1:11: an empty path"]),
    ] {
        std::fs::write(&config, format!("{text}\n[[disk]]\nfile = \"a.img\"\n")).unwrap();
        refused(dir.path(), &[&["serve", "--config", "x.toml"], args].concat(), 2, parts);
    }
    std::fs::write(&config, format!("{crash}[[disk]]\nfile = \"a.img\"\ndirect = \"on\"\n")).unwrap();
    refused(dir.path(), &["serve", "--config", "x.toml"], 2, &["x.toml, disk a.img: direct=on"]);
    std::fs::write(&config, "recover-ijournal = true\n[[disk]]\nfile = \"a.img\"\n").unwrap();
    refused(
        dir.path(),
        &["keep", "--", "serve", "--config", "x.toml"],
        2,
        &["x.toml, recover-ijournal does"],
    );
    for empty in ["file = \"\"", "file = \"a.img\"\nsocket = \"\""] {
        std::fs::write(&config, format!("[[disk]]\n{empty}\n")).unwrap();
        refused(dir.path(), &["serve", "--config", "x.toml"], 2, &["x.toml:", "an empty path"]);
    }
    std::fs::remove_file(&config).unwrap();
    assert_eq!(content(dir.path()), before);
}

/// What a command line leaves without effect is no mistake of the file.
#[test]
fn a_command_line_wins_over_a_file_that_is_sound_by_itself() {
    let dir = folder(&[("a.img", "8M")]);
    let serve = |text: &str, args: &[&str]| {
        let text = format!("{text}\n[[disk]]\nfile = \"a.img\"\nsocket = \"s\"\n");
        std::fs::write(dir.path().join("x.toml"), text).unwrap();
        let daemon = Daemon::serve(dir.path(), &[&["--config", "x.toml"], args].concat());
        let socket = daemon.ready["disks"][0]["socket"].as_str().unwrap().to_owned();
        (socket, daemon.terminate())
    };
    let retain = "survives = \"guest-crash\"\njournal = \"retain\"\narena = \".\"\nretain-max = \"2M\"";
    serve(retain, &["--journal", "passthrough"]);
    let window = "survives = \"power-window=50ms\"\nlog-max = \"16M\"";
    serve(window, &["--survives", "power"]);
    assert_eq!(serve("", &["--socket-path", "t"]).0, "t");
    // What holds at every start, or has no effect, is said at every start.
    let (_, said) = serve("accept-loss = true", &[]);
    assert!(said.contains("WARN x.toml, accept-loss = true"), "{said}");
    let (_, said) = serve("log = \"no/where\"", &[]);
    assert!(said.contains("WARN x.toml, log no/where has no effect: `power` keeps no redo log"), "{said}");
    let (_, said) = serve(window, &["--log", "log"]);
    assert!(!said.contains("WARN"), "{said}");
}

#[test]
fn a_log_filter_is_understood_or_named() {
    let dir = folder(&[("a.img", "1M")]);
    let said = |filter: &str| {
        let args = ["serve", "-v", "--json", "--disk", "a.img"];
        Daemon::start(common::afterimage(&args).env("RUST_LOG", filter).current_dir(dir.path())).terminate()
    };
    let empty = said("");
    assert!(empty.contains("closed in order") && empty.contains("DEBUG"), "{empty}");
    let wrong = said("afterimage=loud");
    assert!(wrong.contains("closed in order"), "{wrong}");
    assert_eq!(wrong.matches("RUST_LOG=afterimage=loud is not a filter").count(), 1, "{wrong}");
    assert_eq!(said("error"), "");
}

#[test]
fn a_second_daemon_on_the_image_or_the_socket_is_refused() {
    let dir = folder(&[("a.img", "1M"), ("b.img", "1M")]);
    let window = ["--disk", "a.img,socket=s", "--survives", "power-window=50ms", "--control", "c"];
    let daemon = Daemon::serve(dir.path(), &window);
    let said = succeeds(dir.path(), &["inspect", "a.img.aflog"]);
    assert!(said.contains("in use: `afterimage ctl SOCKET stop`") && !said.contains("recover"), "{said}");
    daemon.terminate();
    let daemon = Daemon::serve(dir.path(), &["--disk", "a.img,socket=s", "--control", "c"]);
    let pid = daemon.pid().to_string();
    refused(dir.path(), &["serve", "--disk", "a.img,socket=other"], 1, &["a.img", "in use", &pid]);
    refused(
        dir.path(),
        &["serve", "--disk", "b.img,socket=s"],
        1,
        &["the socket s is in use by process", &pid],
    );
    refused(
        dir.path(),
        &["ctl", "s", "status"],
        1,
        &["lost the connection", "is it the socket that `serve --control` names"],
    );
    refused(
        dir.path(),
        &["serve", "--disk", "b.img", "--control", "c"],
        1,
        &["the socket c is in use", &pid],
    );
    refused(dir.path(), &["recover", "a.img"], 1, &["a.img", "in use"]);
    assert!(!dir.path().join("other").exists() && !dir.path().join("b.img.sock").exists());
    // The one that runs is as well as before.
    succeeds(dir.path(), &["ctl", "c", "status"]);
    daemon.kill();
    // Its socket files are stale now, and replaced.
    assert!(dir.path().join("s").exists());
    Daemon::serve(dir.path(), &["--disk", "b.img,socket=s", "--control", "c"]).terminate();
    assert!(!dir.path().join("s").exists() && !dir.path().join("c").exists());
}

#[test]
fn a_file_that_may_not_be_written_is_refused_unless_read_only_is_asked_for() {
    let dir = folder(&[("a.img", "1M")]);
    let image = dir.path().join("a.img");
    std::fs::set_permissions(&image, std::fs::Permissions::from_mode(0o444)).unwrap();
    std::fs::set_permissions(dir.path(), std::fs::Permissions::from_mode(0o777)).unwrap();
    let as_nobody = |args: &[&str]| {
        let program = program_for_everybody(dir.path());
        let mut command = if nix::unistd::geteuid().is_root() {
            let mut command = std::process::Command::new("setpriv");
            command.args(["--reuid", "65534", "--regid", "65534", "--clear-groups"]).arg(program);
            command
        } else {
            std::process::Command::new(program)
        };
        command.args(args).current_dir(dir.path());
        command
    };
    let output = as_nobody(&["serve", "--disk", "a.img"]).output().unwrap();
    let message = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{message}");
    assert!(message.contains("a.img") && message.contains("read-only"), "{message}");
    // Unprivileged and read-only it is served.
    let daemon = Daemon::start(&mut as_nobody(&["serve", "--json", "--disk", "a.img,read-only"]));
    assert_eq!(daemon.ready["disks"][0]["read_only"], true);
    let guest = common::guest::Guest::connect(&dir.path().join("a.img.sock"));
    assert!(guest.read_only());
    drop(guest);
    daemon.terminate();
}

/// A copy of the program where another user can reach it: a build folder may be private.
fn program_for_everybody(dir: &std::path::Path) -> std::path::PathBuf {
    let copy = dir.join("program");
    if !copy.exists() {
        // By another process: a file that this one has open for writing could be open in a child of another test, and not be run.
        let copied = std::process::Command::new("cp")
            .args([env!("CARGO_BIN_EXE_afterimage").as_ref(), copy.as_os_str()])
            .status();
        assert!(copied.unwrap().success());
    }
    copy
}

/// Guests and the demo run what says this, and nothing else.
#[test]
fn the_program_under_test_is_the_one_that_ships() {
    let said = common::succeeds(&std::env::temp_dir(), &["--version"]);
    assert_eq!(
        said,
        concat!("afterimage ", env!("CARGO_PKG_VERSION"), "\n"),
        "cargo built in what other crates' tests want: ./x test, or cargo test -p afterimage"
    );
}

#[test]
fn qemu_conventions() {
    let dir = folder(&[]);
    for args in [&["--print-capabilities"][..], &["serve", "--print-capabilities", "--blk-file", "x"]] {
        let value = common::json(dir.path(), args);
        assert_eq!(value, serde_json::json!({"type": "block", "features": ["read-only", "blk-file"]}));
    }
    let output = run(dir.path(), &["--help"]);
    assert!(output.status.success() && output.stderr.is_empty());
    assert!(String::from_utf8_lossy(&output.stdout).contains("Examples:"));
    let help = succeeds(dir.path(), &["serve", "--help"]);
    let help = help.split_whitespace().collect::<Vec<_>>().join(" ");
    for part in ["power-window=50ms", "guest-crash", "at most the last 50 ms", "consistency group"] {
        assert!(help.contains(part), "{part}");
    }
}

#[test]
fn each_manual_page_can_be_made() {
    let dir = folder(&[]);
    succeeds(dir.path(), &["man", "."]);
    for name in ["afterimage", "afterimage-serve", "afterimage-ctl", "afterimage-ctl-copy"] {
        let page = std::fs::read_to_string(dir.path().join(format!("{name}.1"))).expect(name);
        assert!(page.contains(".SH NAME") && page.contains(".SH SYNOPSIS"), "{page}");
    }
    // The others are the other program's.
    assert!(!dir.path().join("afterimage-explore.1").exists());
}

#[test]
fn subcommands_of_the_other_program_are_handed_on_as_they_are() {
    let dir = folder(&[]);
    let beside = dir.path().join("afterimage-tools");
    let call = |args: &[&str]| {
        let mut command = common::afterimage(args);
        command.env("AFTERIMAGE_BIN_DIR", dir.path()).stdout(std::process::Stdio::piped());
        common::finish(command.spawn().unwrap())
    };
    std::fs::write(&beside, "#!/bin/sh\nprintf '%s\\n' \"$@\"\nexit 7\n").unwrap();
    std::fs::set_permissions(&beside, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    for args in [
        &["explore", "--help"][..],
        &["explore", "record", "--version", "--", "sh", "-c", "a b"],
        &["-v", "--log-format", "json", "flash", "run", "-v", "--x=1"],
        &["guest"],
        &["trace", "stat", "-"],
    ] {
        let output = call(args);
        assert_eq!(String::from_utf8_lossy(&output.stdout), args.join("\n") + "\n");
        assert_eq!(output.status.code(), Some(7), "{args:?}");
    }
}

#[test]
fn a_missing_program_is_one_sentence() {
    // A copy, because the other program may stand beside this one.
    let dir = folder(&[]);
    let copy = dir.path().join("afterimage");
    // By another process: a file that this one has open for writing could be open in a child of another test, and not be run.
    let copied = std::process::Command::new("cp")
        .args([env!("CARGO_BIN_EXE_afterimage").as_ref(), copy.as_os_str()])
        .status();
    assert!(copied.unwrap().success());
    let mut command = std::process::Command::new(&copy);
    command.args(["explore", "--quick"]).env("PATH", dir.path()).env_remove("AFTERIMAGE_BIN_DIR");
    if std::path::Path::new("/usr/lib/afterimage/afterimage-tools").exists() {
        return;
    }
    let output = command.output().unwrap();
    let message = String::from_utf8_lossy(&output.stderr);
    assert_eq!((output.status.code(), message.lines().count()), (Some(1), 1), "{message}");
    assert!(message.contains("afterimage-tools") && message.contains("install it"), "{message}");
}

#[test]
fn more_disks_than_descriptors_are_refused_at_the_start() {
    let dir = common::folder(&[("a.img", "1M")]);
    // Soft limits are raised by the daemon itself; the hard one is not its to raise, unless it is root.
    let serve = |limits: &str, args: &str| {
        let script = format!("{limits}; exec \"$0\" {args}");
        let program = env!("CARGO_BIN_EXE_afterimage");
        let mut command = std::process::Command::new("sh");
        command.args(["-c", &script, program]).current_dir(dir.path()).env_remove("RUST_LOG");
        command.stdout(std::process::Stdio::piped()).stderr(std::process::Stdio::piped());
        command
    };
    let refused = common::finish(serve("ulimit -n 300", "serve --disk a.img").spawn().unwrap());
    let message = String::from_utf8_lossy(&refused.stderr);
    assert_eq!(refused.status.code(), Some(1), "{message}");
    assert!(message.contains("the limit is 300"), "{message}");
    assert!(!dir.path().join("a.img.sock").exists());
    let daemon = common::Daemon::start(&mut serve("ulimit -Sn 64", "serve --json --disk a.img"));
    let limits = std::fs::read_to_string(format!("/proc/{}/limits", daemon.pid())).unwrap();
    let line = limits.lines().find(|line| line.starts_with("Max open files")).unwrap();
    let numbers: Vec<&str> = line.split_whitespace().filter(|word| word.parse::<u64>().is_ok()).collect();
    assert_eq!(numbers[0], numbers[1], "{line}");
    daemon.terminate();
}
