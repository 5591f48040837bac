//! What tests of several formats need.
// Not every test needs all of it.
#![allow(dead_code)]

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use afterimage_testing::skip;

pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

/// Builds a C program that includes files of a folder of the repository; `None`: there is no compiler.
pub fn built_by_c(name: &str, folder: &str, program: &str) -> Option<PathBuf> {
    let header = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(folder);
    let out = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    let built = Command::new("cc")
        .args(["-std=c11", "-D_DEFAULT_SOURCE", "-Wall", "-Wextra", "-Wpadded", "-Werror", "-xc", "-", "-I"])
        .arg(&header)
        .arg("-o")
        .arg(&out)
        .stdin(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn();
    let mut child = match built {
        Ok(child) => child,
        Err(error) => {
            skip(format!("there is no C compiler: {error}"));
            return None;
        }
    };
    child.stdin.take().unwrap().write_all(program.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    Some(out)
}

/// What such a program prints.
pub fn printed_by_c(name: &str, folder: &str, program: &str) -> Option<Vec<u8>> {
    let output = Command::new(built_by_c(name, folder, program)?).output().unwrap();
    assert!(output.status.success(), "the program says that something differs");
    Some(output.stdout)
}
