//! `afterimage man FOLDER`, `afterimage completions SHELL`: manual pages and completions, made from the command line's own
//! description.

use std::path::{Path, PathBuf};

use crate::failure::Failure;
use crate::tools;

/// Write one manual page for the program and one for each subcommand
#[derive(clap::Args, Debug)]
pub struct Args {
    /// Folder of the pages
    folder: PathBuf,
}

/// Write the completions of a shell to stdout
#[derive(clap::Args, Debug)]
pub struct CompletionsArgs {
    /// The shell
    shell: clap_complete::Shell,
}

/// Writes them. The options of another program's subcommands are not among them.
///
/// # Errors
/// Stdout takes nothing.
pub fn completions(args: &CompletionsArgs, mut command: clap::Command) -> Result<(), Failure> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut command, "afterimage", &mut script);
    super::print_line(String::from_utf8_lossy(&script).trim_end())
}

/// Runs it. The pages of another program's subcommands are its own to write.
///
/// # Errors
/// A page cannot be written.
pub fn run(args: &Args, mut command: clap::Command) -> Result<(), Failure> {
    command.build();
    write(&args.folder, &command)?;
    write_subcommands(&args.folder, &command, &tools::NAMES)
}

/// Writes the pages of a command line's subcommands, without one for itself.
///
/// # Errors
/// A file cannot be written.
pub fn subcommands(args: &Args, mut command: clap::Command) -> Result<(), Failure> {
    command.build();
    write_subcommands(&args.folder, &command, &[])
}

fn write_subcommands(folder: &Path, command: &clap::Command, but: &[&str]) -> Result<(), Failure> {
    for sub in command.get_subcommands().filter(|sub| !sub.is_hide_set() && !but.contains(&sub.get_name())) {
        write(folder, sub)?;
        write_subcommands(folder, sub, &[])?;
    }
    Ok(())
}

fn write(folder: &Path, command: &clap::Command) -> Result<(), Failure> {
    let man = clap_mangen::Man::new(command.clone())
        .manual("Afterimage")
        .source(concat!("afterimage ", env!("CARGO_PKG_VERSION")));
    let path = folder.join(man.get_filename());
    let mut page = Vec::new();
    man.render(&mut page)
        .and_then(|()| std::fs::write(&path, &page))
        .map_err(|e| Failure::failed(format!("cannot write {}: {e}", path.display())))
}
