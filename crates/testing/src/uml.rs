//! What User Mode Linux needs of this machine.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;

const SOURCE: &str = include_str!("../../../guest/uml/xstate.c");

/// The library to preload into User Mode Linux on a processor with AMX (see `guest/uml/xstate.c`), made in `folder` with gcc; `None` where
/// none is needed.
///
/// # Errors
/// It cannot be made.
pub fn uml_preload(folder: &Path) -> io::Result<Option<PathBuf>> {
    if !fs::read_to_string("/proc/cpuinfo")?.contains(" amx_tile") {
        return Ok(None);
    }
    let (source, library) = (folder.join("xstate.c"), folder.join("xstate.so"));
    fs::write(&source, SOURCE)?;
    let made =
        Command::new("gcc").args(["-O2", "-shared", "-fPIC", "-o"]).arg(&library).arg(&source).output()?;
    match made.status.success() {
        true => Ok(Some(library)),
        false => Err(io::Error::other(format!(
            "gcc could not compile {}: {}",
            source.display(),
            String::from_utf8_lossy(&made.stderr).trim()
        ))),
    }
}
