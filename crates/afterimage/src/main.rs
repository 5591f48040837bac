//! The program: everything is in the library, so that tests and fuzz targets reach it.

fn main() -> std::process::ExitCode {
    afterimage::run(std::env::args_os().collect())
}
