//! The program as a process, and a guest without a guest: the driver side of vhost-user-blk.
// Each test program uses its own part of this.
#![allow(dead_code)]

pub mod guest;
pub mod journal;

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use serde_json::Value;

/// How long anything may take that should take milliseconds: only a test that would hang otherwise meets it.
pub const DEADLINE: Duration = Duration::from_secs(60);

/// The program.
pub fn afterimage(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_afterimage"));
    command.args(args).env_remove("RUST_LOG").env_remove("NOTIFY_SOCKET").stdin(Stdio::null());
    command
}

/// Runs the program to its end.
pub fn run(dir: &Path, args: &[&str]) -> Output {
    finish(afterimage(args).current_dir(dir).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap())
}

/// Waits for a process that should end by itself.
pub fn finish(mut child: Child) -> Output {
    let deadline = Instant::now() + DEADLINE;
    while child.try_wait().unwrap().is_none() {
        if Instant::now() > deadline {
            child.kill().unwrap();
            let output = child.wait_with_output().unwrap();
            panic!("the program does not end: {}", String::from_utf8_lossy(&output.stderr));
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    child.wait_with_output().unwrap()
}

/// Runs the program, expects this exit status and one sentence on stderr that holds all `parts`.
#[track_caller]
pub fn refused(dir: &Path, args: &[&str], status: i32, parts: &[&str]) {
    let output = run(dir, args);
    let message = String::from_utf8_lossy(&output.stderr).into_owned();
    let sentences: Vec<&str> = message.lines().filter(|l| l.starts_with("afterimage: ")).collect();
    assert_eq!(output.status.code(), Some(status), "{args:?}: {message}");
    assert_eq!(sentences.len(), 1, "{args:?}: {message}");
    for part in parts {
        assert!(sentences[0].contains(part), "{args:?}: {message}");
    }
    assert_eq!(output.stdout, b"", "{args:?}");
}

/// Runs the program, expects success, returns stdout.
#[track_caller]
pub fn succeeds(dir: &Path, args: &[&str]) -> String {
    let output = run(dir, args);
    assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// As [`succeeds`], with the answer parsed.
#[track_caller]
pub fn json(dir: &Path, args: &[&str]) -> Value {
    serde_json::from_str(&succeeds(dir, args)).unwrap()
}

/// `check` says that `a.img` is not sound, in words, in JSON and with its exit status.
#[track_caller]
pub fn assert_unsound(dir: &Path) {
    let answer = run(dir, &["check", "--json", "a.img"]);
    let parsed: Value = serde_json::from_slice(&answer.stdout).unwrap();
    assert_eq!((&parsed["sound"], answer.status.code()), (&Value::Bool(false), Some(1)), "{parsed}");
    let said = run(dir, &["check", "a.img"]);
    assert_eq!(said.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&said.stdout).contains("NOT sound"), "{said:?}");
}

/// A running `serve` or `keep`; killed when dropped.
pub struct Daemon {
    child: Option<Child>,
    stdout: BufReader<std::process::ChildStdout>,
    stderr: Option<std::thread::JoinHandle<()>>,
    said: Arc<Mutex<String>>,
    /// The start-up line.
    pub ready: Value,
}

impl Daemon {
    /// Starts `serve --json ARGS` and waits until it is ready.
    #[track_caller]
    pub fn serve(dir: &Path, args: &[&str]) -> Self {
        let mut all = vec!["serve", "--json"];
        all.extend(args);
        Self::start(afterimage(&all).current_dir(dir))
    }

    /// Starts a command that prints `serve --json`'s ready line.
    #[track_caller]
    pub fn start(command: &mut Command) -> Self {
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let errors = BufReader::new(child.stderr.take().unwrap());
        let said = Arc::<Mutex<String>>::default();
        let heard = Arc::clone(&said);
        let stderr = std::thread::spawn(move || {
            for line in errors.lines().map_while(Result::ok) {
                heard.lock().unwrap().extend([line.as_str(), "\n"]);
            }
        });
        let stdout = BufReader::new(child.stdout.take().unwrap());
        let mut daemon = Self { child: Some(child), stdout, stderr: Some(stderr), said, ready: Value::Null };
        match daemon.next_ready() {
            Some(ready) => daemon.ready = ready,
            None => panic!("no ready line: {}", daemon.end().1),
        }
        daemon
    }

    /// The next daemon's ready line, under `keep`.
    pub fn next_ready(&mut self) -> Option<Value> {
        let mut line = String::new();
        self.stdout.read_line(&mut line).unwrap();
        serde_json::from_str(&line).ok()
    }

    /// The process number of what was started.
    pub fn pid(&self) -> i32 {
        self.child.as_ref().unwrap().id() as i32
    }

    /// Sends a signal.
    pub fn signal(&self, signal: nix::sys::signal::Signal) {
        nix::sys::signal::kill(nix::unistd::Pid::from_raw(self.pid()), signal).unwrap();
    }

    /// SIGTERM, and the orderly end.
    #[track_caller]
    pub fn terminate(mut self) -> String {
        self.signal(nix::sys::signal::Signal::SIGTERM);
        let (status, errors) = self.end();
        assert!(status.success(), "{status}: {errors}");
        errors
    }

    /// SIGKILL.
    pub fn kill(mut self) {
        self.signal(nix::sys::signal::Signal::SIGKILL);
        self.end();
    }

    /// Waits for the end; the status and what was said on stderr.
    pub fn end(&mut self) -> (ExitStatus, String) {
        let status = finish(self.child.take().unwrap()).status;
        self.stderr.take().unwrap().join().unwrap();
        (status, self.said())
    }

    /// What was said on stderr so far.
    pub fn said(&self) -> String {
        self.said.lock().unwrap().clone()
    }

    /// Waits until this was said on stderr.
    #[track_caller]
    pub fn wait_until_said(&self, text: &str) {
        self.wait_until_said_behind(0, text);
    }

    /// Waits until this was said on stderr behind its first `bytes`.
    #[track_caller]
    pub fn wait_until_said_behind(&self, bytes: usize, text: &str) {
        let deadline = Instant::now() + DEADLINE;
        while !self.said()[bytes..].contains(text) {
            assert!(Instant::now() < deadline, "it did not say {text:?}: {}", self.said());
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        if let Some(child) = &mut self.child {
            // `keep`'s daemon is a process of its own and must not stay: it is told through its parent first.
            let _ = nix::sys::signal::kill(
                nix::unistd::Pid::from_raw(child.id() as i32),
                nix::sys::signal::Signal::SIGTERM,
            );
            let deadline = Instant::now() + Duration::from_secs(10);
            while child.try_wait().unwrap().is_none() && Instant::now() < deadline {
                std::thread::sleep(Duration::from_millis(5));
            }
            drop(child.kill());
            drop(child.wait());
            if std::thread::panicking() {
                // What the daemon said of it, where it may be the reason.
                drop(self.stderr.take().map(std::thread::JoinHandle::join));
                println!("the daemon said: {}", self.said());
            }
        }
    }
}

/// A folder with images of these names and sizes (as `create` reads them).
pub fn folder(images: &[(&str, &str)]) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    for (name, size) in images {
        succeeds(dir.path(), &["create", name, size]);
    }
    dir
}

/// A path in a folder as text.
pub fn path(dir: &tempfile::TempDir, name: &str) -> PathBuf {
    dir.path().join(name)
}

/// A shell that runs `script` with mounts of its own, which go with it; `None`, and the test is named as skipped, where
/// that cannot be.
#[track_caller]
pub fn with_own_mounts(script: &str) -> Option<Command> {
    let mut command = match afterimage_testing::own_mounts() {
        Ok(command) => command,
        Err(why) => {
            afterimage_testing::skip(why);
            return None;
        }
    };
    command.args(["sh", "-c", script, "sh"]).env_remove("RUST_LOG");
    Some(command)
}
