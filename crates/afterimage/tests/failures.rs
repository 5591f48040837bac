//! Logs that do not belong, and storage that fails: the decided behaviour, seen from outside.

mod common;

use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixStream;
use std::path::Path;

use common::guest::Guest;
use common::{folder, json, refused, succeeds, with_own_mounts, Daemon, DEADLINE};
use nix::sys::signal::Signal;

const WINDOW: [&str; 4] = ["--survives", "power-window=50ms", "--log-max", "16M"];

/// A daemon on two images that was killed with one write at home and one in its log only.
fn died(dir: &Path) {
    let args = [&["--disk", "a.img", "--disk", "b.img", "--control", "c.sock"][..], &WINDOW].concat();
    let daemon = Daemon::serve(dir, &args);
    let mut guest = Guest::connect(&dir.join("a.img.sock"));
    guest.write(0, &[1; 4096]);
    guest.flush();
    // A pause brings this home, so that an older copy of the image differs from what the log knows of it.
    succeeds(dir, &["ctl", "c.sock", "pause", "--", "true"]);
    guest.write(4096, &[2; 4096]);
    daemon.kill();
    assert!(dir.join("a.img.aflog").exists());
}

/// Every file's bytes.
fn bytes(dir: &Path) -> Vec<(std::path::PathBuf, Vec<u8>)> {
    let mut all: Vec<_> = fs::read_dir(dir)
        .unwrap()
        .map(|e| e.unwrap().path())
        .filter(|p| p.extension().is_none_or(|e| e != "sock"))
        .map(|p| (p.clone(), fs::read(p).unwrap()))
        .collect();
    all.sort();
    all
}

#[test]
fn a_log_that_does_not_belong_is_refused_and_nothing_is_touched() {
    type Damage = fn(&Path);
    let cases: [(&str, Damage, &[&str]); 6] = [
        (
            "another image",
            |dir| {
                fs::copy(dir.join("a.img"), dir.join("copy")).unwrap();
                fs::rename(dir.join("copy"), dir.join("a.img")).unwrap();
            },
            &["a.img.aflog", "another image"],
        ),
        (
            "a restored older copy",
            |dir| fs::write(dir.join("a.img"), vec![0; 8 << 20]).unwrap(),
            &["a.img", "older copy", "the log holds 1 request", "--apply-anyway", "--export FOLDER"],
        ),
        (
            "another size",
            |dir| {
                fs::OpenOptions::new().write(true).open(dir.join("b.img")).unwrap().set_len(4 << 20).unwrap()
            },
            &["b.img", "size"],
        ),
        (
            "a newer version",
            |dir| {
                let log = fs::OpenOptions::new().write(true).open(dir.join("a.img.aflog")).unwrap();
                log.write_all_at(&9u32.to_le_bytes(), 8).unwrap();
            },
            &["a.img.aflog", "version 9", "use a newer afterimage"],
        ),
        (
            "no log at all",
            |dir| fs::write(dir.join("a.img.aflog"), vec![0; 16 << 20]).unwrap(),
            &["a.img.aflog", "not an Afterimage redo log"],
        ),
        (
            "a lost log",
            |dir| fs::remove_file(dir.join("a.img.aflog")).unwrap(),
            &["a.img.aflog", "missing", "put the log back"],
        ),
    ];
    for (name, damage, parts) in cases {
        let dir = folder(&[("a.img", "8M"), ("b.img", "8M")]);
        died(dir.path());
        damage(dir.path());
        let before = bytes(dir.path());
        // Under every contract: a live log is in the way of all of them.
        for contract in ["power-window=50ms", "power", "guest-crash"] {
            let args = ["serve", "--disk", "a.img", "--disk", "b.img", "--survives", contract];
            refused(dir.path(), &args, 1, parts);
        }
        // From the second image's side: only its reference can tell that a log was lost.
        assert!(!common::run(dir.path(), &["recover", "b.img"]).status.success(), "{name}");
        assert_eq!(bytes(dir.path()), before, "{name}");
    }
}

#[test]
fn a_group_is_opened_whole_and_check_says_what_is_there() {
    let dir = folder(&[("a.img", "8M"), ("b.img", "8M")]);
    died(dir.path());
    refused(dir.path(), &["serve", "--disk", "a.img"], 1, &["2 images", "together"]);
    refused(
        dir.path(),
        &["serve", "--disk", "a.img,read-only", "--disk", "b.img,read-only"],
        1,
        &["read-only"],
    );
    let before = bytes(dir.path());
    assert_eq!(json(dir.path(), &["check", "--json", "a.img"])["sound"], true);
    let inspected = json(dir.path(), &["inspect", "--json", "a.img"]);
    assert_eq!(inspected["copy_is_complete"], false, "{inspected}");
    succeeds(dir.path(), &["recover", "--dry-run", "a.img"]);
    assert_eq!(bytes(dir.path()), before, "looking changes nothing");
    succeeds(dir.path(), &["recover", "a.img"]);
    let image = fs::read(dir.path().join("a.img")).unwrap();
    assert_eq!((image[0], image[4096]), (1, 2));
    assert!(!dir.path().join("a.img.aflog").exists());
    Daemon::serve(dir.path(), &["--disk", "a.img"]).terminate();
}

/// `serve` with a bound on the size of the files that it may write, in MiB: a write beyond it fails.
fn serve_with_limit(dir: &Path, limit_mib: u64, args: &[&str]) -> Daemon {
    let program = env!("CARGO_BIN_EXE_afterimage");
    // The shell counts in blocks of 512 bytes.
    let script = format!("ulimit -f {} && exec \"$0\" serve --json \"$@\"", limit_mib * 2048);
    let mut command = std::process::Command::new("sh");
    command.args(["-c", &script, program]).args(args).current_dir(dir).env_remove("RUST_LOG");
    Daemon::start(&mut command)
}

#[test]
fn after_a_failed_write_the_disk_takes_no_more_writes_and_says_why() {
    for contract in ["power", "guest-crash"] {
        let dir = folder(&[("a.img", "8M")]);
        let args = ["--disk", "a.img", "--survives", contract, "--control", "c", "--metrics", "127.0.0.1:0"];
        let mut daemon = serve_with_limit(dir.path(), 1, &args);
        let mut asked = UnixStream::connect(dir.path().join("c")).unwrap();
        asked.set_read_timeout(Some(DEADLINE)).unwrap();
        asked.write_all(b"{\"command\":\"events\"}\n").unwrap();
        let mut told = BufReader::new(asked).lines().map(|line| line.expect("an event"));
        assert_eq!(told.next().unwrap(), "{\"ok\":true}");
        let mut guest = Guest::connect(&dir.path().join("a.img.sock"));
        guest.write(0, &[1; 4096]);
        guest.flush();
        assert_ne!(guest.try_write(2 << 20, &[2; 4096]), 0, "{contract}");
        let failed: serde_json::Value = serde_json::from_str(&told.next().unwrap()).unwrap();
        // Not even where the first write went well.
        assert_ne!(guest.try_write(0, &[3; 4096]), 0, "{contract}");
        assert_ne!(guest.try_flush(), 0, "{contract}");
        assert_eq!(guest.read(0, 4096), [1; 4096], "{contract}: reads go on");
        let status = json(dir.path(), &["ctl", "c", "status", "--json"]);
        let reason = status["failure"].as_str().unwrap();
        for part in ["a.img", "file-size limit", "its file system"] {
            assert!(reason.contains(part), "{part}: {reason}");
        }
        assert_eq!(failed, serde_json::json!({ "event": "failed", "reason": reason }), "{contract}");
        refused(dir.path(), &["ctl", "c", "flush"], 1, &["file-size limit"]);
        let address = daemon.ready["metrics"].as_str().unwrap().to_owned();
        let mut metrics = std::net::TcpStream::connect(address).unwrap();
        std::io::Write::write_all(&mut metrics, b"GET / HTTP/1.1\r\n\r\n").unwrap();
        assert!(std::io::read_to_string(metrics).unwrap().contains("afterimage_failed 1.0"));
        daemon.signal(nix::sys::signal::Signal::SIGTERM);
        let (ended, errors) = daemon.end();
        assert_eq!(told.next(), None, "{contract}: said once");
        assert_eq!(ended.code(), Some(1), "{errors}");
        assert!(errors.contains("afterimage: the disks had stopped taking writes"), "{errors}");
    }
}

#[test]
fn what_cannot_go_home_stays_in_the_log_until_it_can() {
    let dir = folder(&[("a.img", "64M")]);
    let args = [&["--disk", "a.img", "--control", "c"][..], &WINDOW].concat();
    let mut daemon = serve_with_limit(dir.path(), 40, &args);
    let mut guest = Guest::connect(&dir.path().join("a.img.sock"));
    guest.write(50 << 20, &[5; 4096]);
    guest.flush();
    // Durable in the log, whatever becomes of home.
    refused(
        dir.path(),
        &["ctl", "c", "pause", "--", "true"],
        1,
        &["home from the redo log", "File too large"],
    );
    assert_eq!(guest.read(50 << 20, 4096), [5; 4096]);
    assert_ne!(guest.try_write(0, &[6; 4096]), 0);
    daemon.signal(nix::sys::signal::Signal::SIGTERM);
    let (ended, errors) = daemon.end();
    assert_eq!(ended.code(), Some(1), "{errors}");
    assert!(dir.path().join("a.img.aflog").exists());
    // Without the limit everything that was acknowledged is there.
    let daemon = Daemon::serve(dir.path(), &args);
    let mut guest = Guest::connect(&dir.path().join("a.img.sock"));
    assert_eq!(guest.read(50 << 20, 4096), [5; 4096]);
    daemon.terminate();
    assert!(!dir.path().join("a.img.aflog").exists());
}

#[test]
fn a_log_that_does_not_fit_is_refused_at_the_start() {
    let dir = folder(&[("a.img", "8M")]);
    fs::create_dir(dir.path().join("small")).unwrap();
    let script = "mount -t tmpfs -o size=4m none small && exec \"$1\" serve --disk a.img --log small/log \
                  --survives power-window=50ms --log-max 16M";
    let Some(mut command) = with_own_mounts(script) else { return };
    let output = command.arg(env!("CARGO_BIN_EXE_afterimage")).current_dir(dir.path()).output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{errors}");
    assert!(errors.contains("no space for the redo log") && errors.contains("small/log"), "{errors}");
    assert!(errors.contains("--log-max"), "{errors}");
    let left: Vec<_> = fs::read_dir(dir.path()).unwrap().map(|e| e.unwrap().file_name()).collect();
    assert_eq!(left.len(), 2, "{left:?}");
}

/// A daemon on one image that was killed with a write that is in its log only.
fn one_died(dir: &Path) {
    let daemon = Daemon::serve(dir, &[&["--disk", "a.img"][..], &WINDOW].concat());
    let mut guest = Guest::connect(&dir.join("a.img.sock"));
    guest.write(4096, &[2; 4096]);
    guest.flush();
    daemon.kill();
}

#[test]
fn an_image_in_another_folder_finds_its_log_from_inside_the_sandbox() {
    for contract in ["power-window=50ms", "power", "guest-crash"] {
        let dir = folder(&[("a.img", "8M")]);
        one_died(dir.path());
        fs::create_dir(dir.path().join("other")).unwrap();
        fs::rename(dir.path().join("a.img"), dir.path().join("other/b.img")).unwrap();
        let check = json(dir.path(), &["check", "--json", "other/b.img"]);
        assert_eq!((&check["sound"], &check["clean"]), (&true.into(), &false.into()), "{check}");
        refused(dir.path(), &["serve", "--disk", "other/b.img,read-only"], 1, &["read-only", "a.img.aflog"]);
        let daemon = Daemon::serve(dir.path(), &["--disk", "other/b.img", "--survives", contract]);
        let mut guest = Guest::connect(&dir.path().join("other/b.img.sock"));
        assert_eq!(guest.read(4096, 4096), [2; 4096], "{contract}");
        daemon.terminate();
        assert!(!dir.path().join("a.img.aflog").exists(), "{contract}");
        assert_eq!(fs::read_dir(dir.path().join("other")).unwrap().count(), 1, "{contract}");
    }
}

#[test]
fn without_extended_attributes_a_lost_log_is_missed_all_the_same() {
    let dir = folder(&[]);
    fs::create_dir(dir.path().join("plain")).unwrap();
    let script = "mount -t ramfs none plain && \"$1\" create plain/a.img 8M || exit 9
        serve() { exec \"$1\" serve --disk plain/a.img,socket=s --survives power-window=50ms --log-max 16M; }
        serve \"$1\" > out 2> first & pid=$!
        until [ -s out ]; do kill -0 $pid || exit 8; sleep 0.01; done
        kill -9 $pid; wait $pid; ls plain; rm plain/a.img.aflog; serve \"$1\"";
    let Some(mut command) = with_own_mounts(script) else { return };
    let output = command.arg(env!("CARGO_BIN_EXE_afterimage")).current_dir(dir.path()).output().unwrap();
    let (errors, names) = (String::from_utf8_lossy(&output.stderr), String::from_utf8_lossy(&output.stdout));
    assert_eq!(output.status.code(), Some(1), "{errors}");
    assert!(names.contains("a.img.afref"), "{names}");
    assert!(errors.contains("a.img.aflog") && errors.contains("missing"), "{errors}");
    let first = fs::read_to_string(dir.path().join("first")).unwrap();
    assert!(first.contains("no extended attributes") && first.contains("do not rename"), "{first}");
}

/// A full tmpfs in a mount of the daemon's own, which sees everything else as we do.
fn serve_on_a_full_file_system(dir: &Path, fill: bool, args: &[&str]) -> Option<std::process::Command> {
    fs::create_dir_all(dir.join("small")).unwrap();
    let fill = if fill { "head -c 8M /dev/zero > small/filler 2> /dev/null;" } else { "" };
    let script = format!(
        "program=$1; shift; mount -t tmpfs -o size=2m none small && \"$program\" create small/a.img 8M > /dev/null || \
         exit 9; {fill} exec \"$program\" serve --json --disk small/a.img,socket=s \"$@\""
    );
    let mut command = with_own_mounts(&script)?;
    command.arg(env!("CARGO_BIN_EXE_afterimage")).args(args).current_dir(dir);
    Some(command)
}

#[test]
fn a_full_file_system_names_its_file_and_what_to_do() {
    // The image, under every contract.
    for contract in ["power", "guest-crash", "power-window=50ms"] {
        let dir = folder(&[]);
        let mut args = vec!["--survives", contract, "--control", "c"];
        if contract.contains("window") {
            args.extend(["--log", "log", "--log-max", "16M"]);
        }
        let Some(mut command) = serve_on_a_full_file_system(dir.path(), false, &args) else {
            return;
        };
        let mut daemon = Daemon::start(&mut command);
        let mut guest = Guest::connect(&dir.path().join("s"));
        for at in 0..16 {
            guest.try_write(at << 18, &[7; 1 << 18]);
        }
        // Under power-window the log has them, and home is full.
        drop(common::run(dir.path(), &["ctl", "c", "pause", "--", "true"]));
        let status = json(dir.path(), &["ctl", "c", "status", "--json"]);
        let reason = status["failure"].as_str().unwrap_or_else(|| panic!("{contract}: {status}"));
        assert!(
            reason.contains("a.img") && reason.contains("its file system is full, free space"),
            "{reason}"
        );
        drop(guest);
        daemon.signal(nix::sys::signal::Signal::SIGTERM);
        let (_, errors) = daemon.end();
        assert!(errors.contains("its file system is full"), "{contract}: {errors}");
    }
    // What is made at the start: the log is tested above; the arena, the state file.
    let dir = folder(&[]);
    fs::create_dir(dir.path().join("arena")).unwrap();
    let retain = ["--survives", "guest-crash", "--journal", "retain", "--arena"];
    for (folder, parts) in [
        ("small", ["the arena", "free some, or name another folder with --arena"]),
        ("arena", ["a.img.state", "its file system is full, free space"]),
    ] {
        let args = [&retain[..], &[folder]].concat();
        let Some(mut command) = serve_on_a_full_file_system(dir.path(), true, &args) else { return };
        let output = command.output().unwrap();
        let errors = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{errors}");
        assert!(parts.iter().all(|part| errors.contains(part)), "{folder}: {errors}");
    }
    // The trace, in the middle.
    let dir = folder(&[("b.img", "8M")]);
    let args = ["--trace", "small/trace", "--disk", "b.img,socket=b"];
    let Some(mut command) = serve_on_a_full_file_system(dir.path(), true, &args) else { return };
    let mut daemon = Daemon::start(&mut command);
    let mut guest = Guest::connect(&dir.path().join("b"));
    guest.write(0, &[1; 4096]);
    guest.flush();
    drop(guest);
    daemon.signal(nix::sys::signal::Signal::SIGTERM);
    let (ended, errors) = daemon.end();
    assert_eq!(ended.code(), Some(1), "{errors}");
    assert!(errors.contains("small/trace") && errors.contains("its file system is full"), "{errors}");
}

/// The program, started by a script that has it and its arguments as "$@".
fn by_shell(dir: &Path, script: &str, args: &[&str]) -> std::process::Command {
    let mut command = std::process::Command::new("sh");
    command.args(["-c", script, "sh", env!("CARGO_BIN_EXE_afterimage")]).args(args);
    command.current_dir(dir).env_remove("RUST_LOG").stdout(std::process::Stdio::piped());
    command
}

/// Messages are lost, and nobody who is served.
#[test]
fn a_stderr_that_takes_nothing_changes_nothing_else() {
    // A device that is full; and a log file that has become as long as a file may be, which is a signal besides.
    let full = "exec \"$@\" 2> /dev/full";
    let limit = "truncate -s 16M log && ulimit -f 32768 && exec \"$@\" 2>> log";
    for script in [full, limit] {
        for format in ["text", "json"] {
            let dir = folder(&[("a.img", "8M")]);
            let mistake = by_shell(dir.path(), script, &["create", "c.img", "1000"]);
            assert_eq!(common::finish({ mistake }.spawn().unwrap()).status.code(), Some(2), "{script}");
            let options = ["-vv", "--log-format", format];
            let serve = [
                "serve",
                "--json",
                "--disk",
                "a.img,socket=s",
                "--survives",
                "power-window=50ms",
                "--log-max",
                "16M",
            ];
            let args = [&options[..], &["keep", "--restart", "--"], &serve, &options].concat();
            let mut keep = Daemon::start(&mut by_shell(dir.path(), script, &args));
            let mut guest = Guest::connect(&dir.path().join("s"));
            guest.write(0, &[1; 4096]);
            guest.flush();
            // The keeper has to say something of it.
            let daemon = i32::try_from(keep.ready["pid"].as_i64().unwrap()).unwrap();
            nix::sys::signal::kill(nix::unistd::Pid::from_raw(daemon), Signal::SIGKILL).unwrap();
            assert!(keep.next_ready().is_some(), "{script}, {format}: {:?}", keep.end().0);
            assert_eq!(guest.read(0, 4096), [1; 4096]);
            drop(guest);
            keep.terminate();
        }
    }
}

#[test]
fn a_file_beyond_the_limit_is_an_error_of_every_command_and_no_matter_of_its_children() {
    let dir = folder(&[]);
    let create = by_shell(dir.path(), "ulimit -f 1; exec \"$@\" 2>&1", &["create", "c.img", "1M"]);
    let output = common::finish({ create }.spawn().unwrap());
    let said = String::from_utf8_lossy(&output.stdout);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert!(said.starts_with("afterimage: ") && said.contains("c.img"), "{said}");
    // What is started finds the signal as it found it itself.
    // By another process: a file that this one has open for writing could be open in a child of another test, and not be run.
    let script =
        "printf '#!/bin/sh\ngrep SigIgn /proc/self/status\n' > afterimage-tools; chmod +x afterimage-tools";
    assert!(by_shell(dir.path(), script, &[]).status().unwrap().success());
    let ignored = |command: &mut std::process::Command| {
        let output = command.current_dir(dir.path()).output().unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        u64::from_str_radix(text.trim().rsplit('\t').next().unwrap(), 16).unwrap()
    };
    let bit = 1 << (Signal::SIGXFSZ as u32 - 1);
    let child = ignored(common::afterimage(&["explore"]).env("AFTERIMAGE_BIN_DIR", dir.path()));
    assert_eq!(child & bit, ignored(std::process::Command::new("sh").arg("afterimage-tools")) & bit);
}

#[test]
fn out_of_descriptors_is_said_once_and_served_afterwards() {
    let dir = folder(&[("a.img", "8M")]);
    let daemon =
        Daemon::serve(dir.path(), &["--disk", "a.img", "--control", "c.sock", "--metrics", "127.0.0.1:0"]);
    let pid = rustix::process::Pid::from_raw(daemon.pid());
    let limit = |current: Option<u64>| {
        let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile);
        let limit = rustix::process::Rlimit { current: current.or(limit.maximum), ..limit };
        rustix::process::prlimit(pid, rustix::process::Resource::Nofile, limit).unwrap();
    };
    // Fewer than are open, and enough for `poll`, which is held to it, too.
    limit(Some(8));
    let guest = UnixStream::connect(dir.path().join("a.img.sock")).unwrap();
    let client = UnixStream::connect(dir.path().join("c.sock")).unwrap();
    let scraper = std::net::TcpStream::connect(daemon.ready["metrics"].as_str().unwrap()).unwrap();
    // Several rounds of each listener's retry.
    std::thread::sleep(std::time::Duration::from_millis(1500));
    let said = daemon.said();
    assert_eq!(said.matches("cannot accept a connection").count(), 3, "{said}");
    limit(None);
    drop((guest, client, scraper));
    Guest::connect(&dir.path().join("a.img.sock")).flush();
    succeeds(dir.path(), &["ctl", "c.sock", "status"]);
    daemon.terminate();
}

/// Guests do not wait for a pager that pauses, and whoever asks gets its answers: lines are left out.
#[test]
fn a_log_that_nobody_reads_holds_nothing_up() {
    let dir = folder(&[("a.img", "1M")]);
    let (_unread, writer) = std::io::pipe().unwrap();
    let mut full = writer.try_clone().unwrap();
    nix::fcntl::fcntl(&full, nix::fcntl::FcntlArg::F_SETFL(nix::fcntl::OFlag::O_NONBLOCK)).unwrap();
    while full.write(&[b'x'; 4096]).is_ok() {}
    // The flag is the pipe's end's, which the daemon has, too.
    nix::fcntl::fcntl(&full, nix::fcntl::FcntlArg::F_SETFL(nix::fcntl::OFlag::empty())).unwrap();
    let mut daemon = common::afterimage(&["serve", "--json", "--disk", "a.img", "--control", "c"])
        .current_dir(dir.path())
        .stdout(std::process::Stdio::piped())
        .stderr(writer)
        .spawn()
        .unwrap();
    let mut ready = String::new();
    BufReader::new(daemon.stdout.take().unwrap()).read_line(&mut ready).unwrap();
    let mut guest = Guest::connect(&dir.path().join("a.img.sock"));
    succeeds(dir.path(), &["ctl", "c", "pause", "--for", "200ms"]);
    guest.write(0, &[1; 4096]);
    guest.flush();
    assert_eq!(json(dir.path(), &["ctl", "c", "status", "--json"])["paused"], false);
    nix::sys::signal::kill(nix::unistd::Pid::from_raw(daemon.id() as i32), Signal::SIGTERM).unwrap();
    assert!(common::finish(daemon).status.success());
}
