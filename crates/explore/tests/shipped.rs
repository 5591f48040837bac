//! That a program with test features compiled in says so, and that the lab refuses to test it. This test *is* such a
//! program, because this crate's tests want the mutations: called `afterimage`, it is `afterimage`.

use std::path::Path;
use std::process::ExitCode;

use afterimage_lab::daemon::{Daemon, ServeOptions};
use afterimage_lab::{locate, LabError};

fn main() -> ExitCode {
    let args: Vec<_> = std::env::args_os().collect();
    if args.first().is_some_and(|name| Path::new(name).ends_with("afterimage")) {
        return afterimage::run(args);
    }
    let folder = tempfile::tempdir().expect("a folder");
    let program = folder.path().join("afterimage");
    std::os::unix::fs::symlink(std::env::current_exe().expect("this program"), &program).expect("a link");
    std::env::set_var("AFTERIMAGE_BIN_DIR", folder.path());

    let options = ServeOptions::new("power", &[folder.path().join("image")]);
    for refused in [locate::product().map(drop), Daemon::serve(&options).map(drop)] {
        let Err(LabError::Missing(why)) = refused else {
            panic!("taken for the one that ships: {refused:?}")
        };
        assert!(why.contains("order/mutations, journal/mutations"), "{why}");
        assert!(why.contains("./x build"), "{why}");
    }
    // The one that ships is none of this.
    std::fs::remove_file(&program).expect("removed");
    let ships = format!("#!/bin/sh\necho afterimage {}\n", env!("CARGO_PKG_VERSION"));
    std::fs::write(&program, ships).expect("a script");
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(&program, mode).expect("executable");
    assert_eq!(locate::product().expect("taken"), program);
    println!("a program with test features is refused");
    ExitCode::SUCCESS
}
