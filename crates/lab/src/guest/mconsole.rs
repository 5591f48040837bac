//! User Mode Linux's management console: datagrams of a fixed layout (the kernel's
//! `arch/um/drivers/mconsole.h`, MCONSOLE_VERSION 2).

use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::time::Duration;

use crate::error::{Context, LabError, Result};

const MAGIC: u32 = 0xcafe_babe;
const VERSION: u32 = 2;
const DATA_BYTES: usize = 512;

/// Sends one command and waits for its answer; a kernel that dies of the command need not answer.
pub(super) fn request(socket_path: &Path, command: &str) -> Result<()> {
    let own_path = socket_path.with_file_name("lab");
    // Left over from an earlier request, if that one was cut short.
    let _ = std::fs::remove_file(&own_path);
    let socket = UnixDatagram::bind(&own_path).context(|| format!("bind {}", own_path.display()))?;
    let answer = exchange(&socket, socket_path, command);
    let _ = std::fs::remove_file(&own_path);
    answer
}

fn exchange(socket: &UnixDatagram, socket_path: &Path, command: &str) -> Result<()> {
    let dies = command == "sysrq c";
    socket
        .set_read_timeout(Some(Duration::from_secs(if dies { 1 } else { 10 })))
        .context(|| "set a socket's deadline".to_owned())?;
    let mut message = Vec::with_capacity(12 + DATA_BYTES);
    for word in [MAGIC, VERSION, command.len() as u32] {
        message.extend_from_slice(&word.to_ne_bytes());
    }
    message.extend_from_slice(command.as_bytes());
    message.resize(12 + DATA_BYTES, 0);
    socket.send_to(&message, socket_path).context(|| format!("send to {}", socket_path.display()))?;
    // The reply: error number, more-to-come, length, text.
    let mut reply = [0; 12 + DATA_BYTES];
    match socket.recv(&mut reply) {
        Err(_) if dies => Ok(()),
        Err(error) => Err(LabError::io(format!("the guest's answer to '{command}'"), error)),
        Ok(bytes) if bytes >= 12 && reply[..4] == [0; 4] => Ok(()),
        Ok(bytes) => {
            let text =
                String::from_utf8_lossy(&reply[12.min(bytes)..bytes]).trim_end_matches('\0').to_owned();
            Err(LabError::Guest(format!("the guest refuses '{command}': {text}")))
        }
    }
}
