//! Subcommands that are another program's, found as git finds its own: who hosts guests need not install what boots guests,
//! explores crashes and simulates SSDs.

use std::env;
use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::failure::Failure;

/// The program that has them.
pub const PROGRAM: &str = "afterimage-tools";
/// Their names.
pub const NAMES: [&str; 4] = ["guest", "explore", "flash", "trace"];

/// Arguments that the other program understands.
#[derive(clap::Args, Debug)]
pub struct Args {
    #[arg(hide = true, trailing_var_arg = true, allow_hyphen_values = true)]
    passed_on: Vec<OsString>,
}

/// Becomes the other program, with all of these arguments, the program's name first. Returns only where that fails.
pub fn run(args: &[OsString]) -> Failure {
    let Some(program) = find() else {
        return Failure::failed(format!(
            "guest, explore, flash and trace need {PROGRAM}, which is neither beside this program nor in PATH: \
             install it, or build it with ./x build"
        ));
    };
    let error = Command::new(&program).args(args.iter().skip(1)).exec();
    Failure::failed(format!("cannot start {}: {error}", program.display()))
}

/// In the folder named by `$AFTERIMAGE_BIN_DIR`, beside this program, in /usr/lib/afterimage, on the path.
fn find() -> Option<PathBuf> {
    let named = env::var_os("AFTERIMAGE_BIN_DIR").map(PathBuf::from);
    let beside = env::current_exe().ok().and_then(|here| here.parent().map(Path::to_owned));
    let path = env::var_os("PATH").unwrap_or_default();
    let folders =
        named.into_iter().chain(beside).chain(["/usr/lib/afterimage".into()]).chain(env::split_paths(&path));
    folders.map(|folder| folder.join(PROGRAM)).find(|program| program.is_file())
}
