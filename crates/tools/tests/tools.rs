//! The program by itself: what it refuses, and its manual pages.

use std::path::Path;
use std::process::{Command, Output};

fn run(folder: &Path, args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_afterimage-tools"));
    command.args(args).current_dir(folder).env_remove("RUST_LOG").env_remove("AFTERIMAGE_REPORT");
    command.output().expect("it runs")
}

/// One sentence each, in the name of `afterimage`, with status 2.
#[test]
fn wrong_requests_are_one_sentence() {
    let folder = tempfile::tempdir().expect("a folder");
    std::fs::write(folder.path().join("a.img"), [0; 4096]).expect("written");
    for (args, parts) in [
        (&["explore"][..], &["--quick", "--budget 30m", "--help"][..]),
        (&["explore", "--quick", "--only", "nothing"], &["--only nothing", "planted fault"]),
        (&["explore", "--budget", "soon"], &["soon", "--budget"]),
        (&["explore", "--budget", "0s"], &["--budget", "30m"]),
        (&["explore", "run", "a.img", "--budget", "0s"], &["--budget", "30m"]),
        (&["explore", "run", "a.img", "--states", "0"], &["--states"]),
        (&["flash", "sweep", "--trace", "a.img", "--vary", "foo=1"], &["'foo' cannot vary", "spare, blocks"]),
        (&["explore", "run", "a.img", "--log-max", "1M"], &["--survives"]),
        (&["explore", "record", "--out", "a.img", "--", "true"], &["a.img is there already", "--force"]),
        (&["explore", "record", "--out", "r", "--memory", "1M", "--", "true"], &["--memory", "64M"]),
        (
            &["explore", "record", "--out", "r", "--journal", "retain", "--", "true"],
            &["power-window", "guest-crash"],
        ),
        (
            &["explore", "record", "--out", "r", "--control-disk", "--", "true"],
            &["control disk", "--journal retain"],
        ),
        (&["explore", "mark", "begin"], &["begin", "recorder"]),
        (&["explore", "mark", "x"], &["AFTERIMAGE_REPORT", "explore record"]),
    ] {
        let output = run(folder.path(), args);
        let message = String::from_utf8_lossy(&output.stderr);
        let sentences: Vec<&str> = message.lines().filter(|line| line.starts_with("afterimage: ")).collect();
        assert_eq!((output.status.code(), sentences.len()), (Some(2), 1), "{args:?}: {message}");
        assert!(parts.iter().all(|part| sentences[0].contains(part)), "{args:?}: {message}");
        assert!(output.stdout.is_empty(), "{args:?}");
    }
}

/// What can be seen to be wrong is said before a machine is chosen, which takes seconds, and before a guest boots without disks.
#[test]
fn a_guest_that_cannot_be_is_refused_before_anything_boots() {
    let folder = tempfile::tempdir().expect("a folder");
    std::fs::write(folder.path().join("a.img"), [0; 4096]).expect("written");
    for (options, status, parts) in [
        (&["--memory", "1M"][..], 2, &["--memory", "at least 64M"][..]),
        (&["--memory", "lots"], 2, &["--memory", "512M"]),
        (&["--queues", "0"], 2, &["--queues", "1..=64"]),
        (&["--timeout", "0"], 2, &["--timeout"]),
        (&[], 1, &["--disk a.img is not a socket", "afterimage serve"]),
    ] {
        let output =
            run(folder.path(), &[&["guest", "run", "--disk", "a.img"], options, &["--", "true"]].concat());
        let message = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(status), "{options:?}: {message}");
        assert!(
            message.starts_with("afterimage: ") && message.lines().count() == 1,
            "{options:?}: {message}"
        );
        assert!(parts.iter().all(|part| message.contains(part)), "{options:?}: {message}");
    }
}

fn pipe(folder: &Path) -> std::path::PathBuf {
    let path = folder.join("pipe");
    assert!(Command::new("mkfifo").arg(&path).status().expect("mkfifo").success());
    path
}

/// It would be found empty when it is read again, or be waited for.
#[test]
fn a_trace_that_is_read_twice_is_no_pipe() {
    let folder = tempfile::tempdir().expect("a folder");
    pipe(folder.path());
    for args in [&["trace", "stat", "pipe"][..], &["flash", "run", "--ftl", "page", "--trace", "pipe"]] {
        let output = run(folder.path(), args);
        let message = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{args:?}: {message}");
        assert!(
            message.contains("the trace pipe is a pipe") && message.contains("file"),
            "{args:?}: {message}"
        );
    }
}

#[test]
fn a_recording_that_is_a_pipe_is_not_waited_for() {
    let folder = tempfile::tempdir().expect("a folder");
    pipe(folder.path());
    let output = run(folder.path(), &["explore", "run", "pipe"]);
    let message = String::from_utf8_lossy(&output.stderr);
    assert!(message.contains("pipe: a recording is an ordinary file"), "{message}");
    assert_eq!(output.status.code(), Some(1), "{message}");
}

/// As wherever else a file cannot be made: the request is sound.
#[test]
fn a_recording_that_cannot_be_made_has_failed() {
    let folder = tempfile::tempdir().expect("a folder");
    let output = run(folder.path(), &["explore", "record", "--out", "nowhere/x", "--", "true"]);
    assert_eq!(output.status.code(), Some(1), "{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn a_conversion_that_is_interrupted_leaves_nothing() {
    use std::io::Write;
    let folder = tempfile::tempdir().expect("a folder");
    let path = pipe(folder.path());
    for signal in ["INT", "TERM", "HUP"] {
        let mut convert = Command::new(env!("CARGO_BIN_EXE_afterimage-tools"))
            .args(["trace", "convert", "pipe", "--to", "msr", "--out", "out"])
            .current_dir(folder.path())
            .spawn()
            .expect("it runs");
        let mut input = std::fs::OpenOptions::new().write(true).open(&path).expect("opened");
        let lines = "10 /dev/sda write 4096 4096\n".repeat(1 << 15);
        input.write_all(b"fio version 3 iolog\n0 /dev/sda add\n0 /dev/sda open\n").expect("written");
        // More than the pipe holds: when this is written, the conversion has begun.
        input.write_all(lines.as_bytes()).expect("written");
        let there = || std::fs::read_dir(folder.path()).expect("readable").count();
        assert_eq!(there(), 2, "the pipe, and the output without its name");
        let kill = Command::new("kill").args(["-s", signal, &convert.id().to_string()]).status();
        assert!(kill.expect("kill").success());
        // The reader may be gone already.
        drop(input.write_all(lines.as_bytes()));
        drop(input);
        assert_eq!((convert.wait().expect("it ends").code(), there()), (Some(1), 1), "{signal}");
    }
}

#[test]
fn help_says_afterimage() {
    for args in [&["explore", "--help"][..], &["explore", "record", "--help"], &["flash", "run", "-h"]] {
        let output = run(&std::env::temp_dir(), args);
        let help = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(output.status.success() && output.stderr.is_empty(), "{output:?}");
        assert!(help.contains(&format!("Usage: afterimage {}", args[0])), "{help}");
        assert!(!help.contains("afterimage-tools"), "{help}");
    }
}

#[test]
fn each_manual_page_can_be_made() {
    let folder = tempfile::tempdir().expect("a folder");
    assert!(run(folder.path(), &["man", "."]).status.success());
    for tool in afterimage::tools::NAMES {
        let page = std::fs::read_to_string(folder.path().join(format!("afterimage-{tool}.1"))).expect(tool);
        assert!(page.contains(".SH NAME") && page.contains(".SH SYNOPSIS"), "{page}");
    }
    assert!(folder.path().join("afterimage-explore-run.1").exists());
}
