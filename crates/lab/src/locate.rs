//! Where the programs are that the lab starts.

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::error::{LabError, Result};

/// Finds one of our own programs: in the folder named by `$AFTERIMAGE_BIN_DIR`, else beside the running
/// program (or one folder up, where cargo keeps the programs of its test executables), else on the path.
///
/// # Errors
/// [`LabError::Missing`], which says how to build it.
pub fn own_program(name: &str) -> Result<PathBuf> {
    let mut folders = Vec::new();
    if let Some(folder) = env::var_os("AFTERIMAGE_BIN_DIR") {
        folders.push(PathBuf::from(folder));
    }
    if let Ok(here) = env::current_exe() {
        folders.extend(here.ancestors().skip(1).take(2).map(Path::to_path_buf));
    }
    folders.push(PathBuf::from("/usr/lib/afterimage"));
    folders.extend(search_path());
    folders.into_iter().map(|folder| folder.join(name)).find(|path| path.is_file()).ok_or_else(|| {
        LabError::Missing(format!(
            "{name} is neither beside this program nor on the path: build it with ./x build, or set AFTERIMAGE_BIN_DIR"
        ))
    })
}

/// Finds `afterimage`, and makes sure that it is the program that ships: of this version, with nothing compiled in that
/// only tests want. Cargo builds such things into it whenever it builds the programs beside tests that want them.
///
/// # Errors
/// [`LabError::Missing`]: it is not there, or another build.
pub fn product() -> Result<PathBuf> {
    let program = own_program("afterimage")?;
    let said = crate::process::run(Command::new(&program).arg("--version"))?;
    let ships = concat!("afterimage ", env!("CARGO_PKG_VERSION"));
    if said.trim_end() == ships {
        return Ok(program);
    }
    Err(LabError::Missing(format!(
        "{} says that it is \"{}\", and only \"{ships}\" is worth testing: build it with ./x build",
        program.display(),
        said.trim_end()
    )))
}

/// The folder with the kernel of guests in virtual time, and the library that pins its random numbers:
/// `$AFTERIMAGE_VIRTUAL_KERNEL`, which `./x` sets.
///
/// # Errors
/// [`LabError::Missing`], which says how to have it set.
pub fn virtual_kernel() -> Result<PathBuf> {
    const NAME: &str = "AFTERIMAGE_VIRTUAL_KERNEL";
    let folder = env::var_os(NAME).map(PathBuf::from).filter(|folder| folder.join("linux").is_file());
    folder.ok_or_else(|| {
        LabError::Missing(format!(
            "{NAME} names no folder with the kernel of guests in virtual time: run ./x virtual kernel, and set it to what that says"
        ))
    })
}

/// Finds a program of the system.
///
/// # Errors
/// [`LabError::Missing`], which names the Debian package.
pub fn system_program(name: &str, package: &str) -> Result<PathBuf> {
    let mut folders = search_path();
    folders.extend(["/usr/sbin", "/sbin", "/usr/bin", "/bin"].map(PathBuf::from));
    folders
        .into_iter()
        .map(|folder| folder.join(name))
        .find(|path| path.is_file())
        .ok_or_else(|| LabError::Missing(format!("{name} is not installed: apt-get install {package}")))
}

fn search_path() -> Vec<PathBuf> {
    env::var_os("PATH").map(|path| env::split_paths(&path).collect()).unwrap_or_default()
}

/// Where downloaded things are kept: `$AFTERIMAGE_CACHE`, else `~/.cache/afterimage`.
pub fn cache_folder() -> PathBuf {
    if let Some(folder) = env::var_os("AFTERIMAGE_CACHE") {
        return PathBuf::from(folder);
    }
    let home = env::var_os("HOME").map_or_else(|| PathBuf::from("/root"), PathBuf::from);
    home.join(".cache/afterimage")
}
