//! A cell in a process of its own, which measures a slice whenever it is told to: so the simulator, its peer and another
//! build can take turns, and what else the machine does meets all of them.
//!
//! ```text
//! parent ─ line ─► child: ages its drive ─► line      all have come so far before the first slice
//!        ─ line ─► child: a slice ─► line, its rate   as often as wanted; builds before this one say no rate
//!        ─ end  ─► child: what came out, JSON
//! ```

use std::io::{BufRead, BufReader, Read, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use crate::cell::{Aged, Cell, Outcome};

/// The parent's end.
pub struct Apart {
    child: Child,
    turns: Option<ChildStdin>,
    answers: BufReader<ChildStdout>,
    name: String,
}

impl Apart {
    /// Starts a cell in a process of `program`, which ages its drive.
    ///
    /// # Errors
    /// One sentence: the program cannot be started, or has failed.
    pub fn start(program: &Path, cell: &Cell) -> Result<Self, String> {
        let name = format!("{}: {}", program.display(), cell.name());
        let text = serde_json::to_string(cell).map_err(|e| e.to_string())?;
        let mut child = Command::new(program)
            .args(["--cell", &text])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(|e| format!("{name}: cannot start: {e}"))?;
        let (turns, answers) = (child.stdin.take(), child.stdout.take());
        let answers = BufReader::new(answers.ok_or("a process without an output")?);
        let mut apart = Self { child, turns, answers, name };
        apart.turn()?;
        Ok(apart)
    }

    /// One slice; its rate, page writes a second, if the process says it.
    ///
    /// # Errors
    /// One sentence: how the process ended, which has said why if it could.
    pub fn turn(&mut self) -> Result<Option<f64>, String> {
        let told = self.turns.as_mut().is_some_and(|turns| turns.write_all(b"\n").is_ok());
        let mut line = String::new();
        let done = told && self.answers.read_line(&mut line).is_ok() && line.ends_with('\n');
        if done {
            return Ok(line.trim().parse().ok());
        }
        drop(self.turns.take());
        let status = self.child.wait().map_or_else(|e| e.to_string(), |status| status.to_string());
        Err(format!("{}: {status}", self.name))
    }

    /// What came out.
    ///
    /// # Errors
    /// As [`Apart::turn`].
    pub fn finish(mut self) -> Result<Outcome, String> {
        drop(self.turns.take());
        let mut text = String::new();
        self.answers.read_to_string(&mut text).map_err(|e| format!("{}: {e}", self.name))?;
        serde_json::from_str(&text).map_err(|e| format!("{}: what came out cannot be read: {e}", self.name))
    }
}

impl Drop for Apart {
    fn drop(&mut self) {
        drop(self.turns.take());
        // It ends by itself when nobody tells it to go on; how is known by now.
        let _ = self.child.wait();
    }
}

/// The child's end.
///
/// # Errors
/// One sentence: the cell cannot be read or measured, or nobody listens.
pub fn serve(text: &str) -> Result<(), String> {
    let cell: Cell = serde_json::from_str(text).map_err(|e| format!("'{text}' is not a cell: {e}"))?;
    let (mut turns, mut answers) = (std::io::stdin().lock(), std::io::stdout().lock());
    let mut aged: Option<Aged> = None;
    let mut line = String::new();
    while turns.read_line(&mut line).map_err(|e| e.to_string())? > 0 {
        let rate = match &mut aged {
            Some(aged) => aged.slice()?.to_string(),
            None => {
                aged = Some(Aged::new(&cell)?);
                String::new()
            }
        };
        writeln!(answers, "{rate}").and_then(|()| answers.flush()).map_err(|e| e.to_string())?;
    }
    let outcome = aged.ok_or("nothing was measured")?.outcome()?;
    println!("{}", serde_json::to_string(&outcome).map_err(|e| e.to_string())?);
    Ok(())
}
