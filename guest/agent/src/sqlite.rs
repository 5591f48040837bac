//! The real `sqlite3`, started once and asked about one database after the other.
//!
//! ```text
//!   script (opens the database, asks) ─► .open :memory: (closes it) ─► .print END ─► output up to END
//! ```
//!
//! The script prints one line, the state's name, where all is well, and more or something else where it is not.
//! Closing the database is a part of its recovery: the last one to leave a write-ahead log checkpoints it.

use std::io::{self, BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use crate::found::Found;

const END: &str = "afterimage: that was all";

/// The script, and the program once it has been needed.
pub struct Sqlite {
    script: String,
    running: Option<Running>,
}

struct Running {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Running {
    fn start() -> io::Result<Running> {
        // A line a write, and errors where the answers are.
        let mut child = Command::new("/bin/sh")
            .args(["-c", "exec stdbuf -oL sqlite3 -batch -init /dev/null 2>&1"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        match (child.stdin.take(), child.stdout.take()) {
            (Some(input), Some(output)) => Ok(Running { child, input, output: BufReader::new(output) }),
            _ => Err(io::Error::other("sqlite3 has no pipes")),
        }
    }

    /// What the script prints; `None` if the program ends before it has said all.
    fn ask(&mut self, script: &str) -> io::Result<(String, bool)> {
        let text = format!("{script}\n;\n.open :memory:\n.print {END}\n");
        // A program that has died says so by the end of its output.
        let _ = self.input.write_all(text.as_bytes());
        let mut said = String::new();
        loop {
            let mut line = Vec::new();
            if self.output.read_until(b'\n', &mut line)? == 0 {
                return Ok((said, false));
            }
            let line = String::from_utf8_lossy(&line);
            if line.trim_end() == END {
                return Ok((said, true));
            }
            said.push_str(&line);
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Sqlite {
    /// `script` as `sqlite3` reads it.
    pub fn new(script: String) -> Sqlite {
        Sqlite { script, running: None }
    }

    /// Asks.
    pub fn run(&mut self) -> io::Result<Found> {
        let mut running = match self.running.take() {
            Some(running) => running,
            None => Running::start()?,
        };
        let (said, whole) = running.ask(&self.script)?;
        if !whole {
            return Ok(Found::bad(format!("sqlite3 died\n{said}")));
        }
        self.running = Some(running);
        let lines: Vec<&str> = said.lines().filter(|line| !line.trim().is_empty()).collect();
        Ok(match lines.as_slice() {
            [state] => Found { state: Some(state.trim().to_owned()), ..Found::default() },
            _ => Found::bad(said),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_program_answers_again_and_again() {
        let mut sqlite = Sqlite::new("SELECT 't'||(1+1);".to_owned());
        for _ in 0..3 {
            let found = sqlite.run().unwrap();
            assert_eq!((found.exit, found.state.as_deref()), (0, Some("t2")), "{}", found.output);
        }
        sqlite.script = "SELECT 'a'; SELECT nothing FROM nowhere;".to_owned();
        let found = sqlite.run().unwrap();
        assert!(found.exit == 1 && found.output.contains("nowhere"), "{}", found.output);
        sqlite.script = ".quit".to_owned();
        assert!(sqlite.run().unwrap().output.contains("died"));
        sqlite.script = "SELECT 7".to_owned();
        assert_eq!(sqlite.run().unwrap().state.as_deref(), Some("7"), "a script without its end");
    }
}
