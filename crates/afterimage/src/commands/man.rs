//! `afterimage man FOLDER`: the manual pages, made from the command line's own description.

use std::path::{Path, PathBuf};

use clap::CommandFactory;

use crate::cli::Cli;
use crate::failure::Failure;

/// Write one manual page for the program and one for each subcommand
#[derive(clap::Args, Debug)]
pub struct Args {
    /// Where the pages go
    folder: PathBuf,
}

/// Runs it.
pub fn run(args: &Args) -> Result<(), Failure> {
    let mut command = Cli::command();
    command.build();
    write_all(&args.folder, &command)
}

fn write_all(folder: &Path, command: &clap::Command) -> Result<(), Failure> {
    write(folder, command)?;
    for sub in command.get_subcommands().filter(|sub| !sub.is_hide_set()) {
        write_all(folder, sub)?;
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
