//! `afterimage flash` and `afterimage trace`: the SSD simulator and the traces it reads.

use afterimage_flash::cli::{self, CliError};

pub use afterimage_flash::cli::{FlashArgs as Args, TraceArgs};

use afterimage::failure::Failure;

/// Runs `afterimage flash`.
pub fn run(args: &Args) -> Result<(), Failure> {
    cli::flash(args, &mut std::io::stdout()).map_err(failure)
}

/// Runs `afterimage trace`.
pub fn trace(args: &TraceArgs) -> Result<(), Failure> {
    cli::trace(args, &mut std::io::stdout()).map_err(failure)
}

fn failure(error: CliError) -> Failure {
    match error {
        CliError::Usage(sentence) => Failure::usage(sentence),
        CliError::Failed(sentence) => Failure::failed(sentence),
    }
}
