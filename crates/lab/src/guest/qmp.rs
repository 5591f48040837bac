//! QEMU's machine protocol: JSON lines over a socket.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use serde_json::{json, Value};

use crate::error::{Context, LabError, Result};

/// A connection to QEMU's monitor (or qemu-storage-daemon's).
pub struct Qmp {
    reader: BufReader<UnixStream>,
    writer: UnixStream,
}

impl Qmp {
    /// Connects and leaves the greeting mode. The socket appears a moment after QEMU's start: retried for 5 s.
    ///
    /// # Errors
    /// Nobody answers there.
    pub fn connect(path: &Path) -> Result<Qmp> {
        let mut tries = 0;
        let writer = loop {
            match UnixStream::connect(path) {
                Ok(stream) => break stream,
                Err(error) if tries >= 500 => {
                    return Err(LabError::io(format!("connect to {}", path.display()), error))
                }
                Err(_) => std::thread::sleep(Duration::from_millis(10)),
            }
            tries += 1;
        };
        writer
            .set_read_timeout(Some(Duration::from_secs(10)))
            .context(|| "set a socket's deadline".to_owned())?;
        let reader = BufReader::new(writer.try_clone().context(|| "duplicate a socket".to_owned())?);
        let mut qmp = Qmp { reader, writer };
        qmp.next_message()?;
        qmp.execute("qmp_capabilities", None)?;
        Ok(qmp)
    }

    fn next_message(&mut self) -> Result<Value> {
        let mut line = String::new();
        let bytes = self.reader.read_line(&mut line).context(|| "read from QEMU's monitor".to_owned())?;
        if bytes == 0 {
            return Err(LabError::Peer("QEMU closed its monitor".to_owned()));
        }
        serde_json::from_str(&line)
            .map_err(|error| LabError::Peer(format!("QEMU's monitor said {line:?}: {error}")))
    }

    /// Executes a command and returns its answer; events on the way are passed over.
    ///
    /// # Errors
    /// QEMU refuses, or has gone.
    pub fn execute(&mut self, command: &str, arguments: Option<Value>) -> Result<Value> {
        let mut message = json!({ "execute": command });
        if let Some(arguments) = arguments {
            message["arguments"] = arguments;
        }
        self.writer
            .write_all(format!("{message}\n").as_bytes())
            .context(|| format!("send {command} to QEMU's monitor"))?;
        loop {
            let answer = self.next_message()?;
            if let Some(value) = answer.get("return") {
                return Ok(value.clone());
            }
            if let Some(error) = answer.get("error") {
                return Err(LabError::Peer(format!("QEMU refuses {command}: {error}")));
            }
        }
    }
}
