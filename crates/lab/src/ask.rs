//! Control sockets as ours are: one JSON object a line, one answer a line, with `"ok"`.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use serde_json::Value;

use crate::error::{Context, LabError, Result};

/// How long `whom` may take for an answer.
const PATIENCE: Duration = Duration::from_secs(60);

/// Asks `whom` on a connection of its own, which is returned with the answer: some things last as long as it.
///
/// # Errors
/// Nobody answers, or it refuses.
pub(crate) fn ask(socket: &Path, whom: &str, request: &Value) -> Result<(UnixStream, Value)> {
    let mut stream = UnixStream::connect(socket).context(|| format!("connect to {}", socket.display()))?;
    stream.set_read_timeout(Some(PATIENCE)).context(|| "set a socket's deadline".to_owned())?;
    stream.write_all(format!("{request}\n").as_bytes()).context(|| format!("send to {whom}"))?;
    let mut line = String::new();
    BufReader::new(&stream).read_line(&mut line).context(|| format!("read from {whom}"))?;
    let answer: Value = serde_json::from_str(&line)
        .map_err(|error| LabError::Peer(format!("{whom} answered {line:?} to {request}: {error}")))?;
    if answer["ok"] == Value::Bool(true) {
        Ok((stream, answer))
    } else {
        Err(LabError::Peer(format!("{whom} refuses {request}: {}", answer["error"])))
    }
}
