//! `afterimage explore replay FAILURE`

use std::path::PathBuf;

use afterimage_explore::campaign::again;
use afterimage_explore::judge::Class;
use afterimage_explore::{materialise, runner, saved, ExploreError};

use super::explain;
use afterimage::commands::{print_line, to_json};
use afterimage::failure::Failure;

/// Recover and check a saved failure's state again
///
/// Exit status 1: it still fails, or is not judged. 0: it fails no longer. --image writes the crash state for other tools:
/// the guest's first disk after the daemon's own recovery.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// The folder that `explore run` saved
    folder: PathBuf,
    /// Write the state's image to this file, sparse, and check nothing
    #[arg(long, value_name = "FILE")]
    image: Option<PathBuf>,
    /// Answer as JSON
    #[arg(long)]
    json: bool,
}

/// Runs it.
pub fn run(args: &Args) -> Result<(), Failure> {
    let (saved, recording) = saved::load(&args.folder).map_err(explain)?;
    let subject = saved.setup.subject(&recording).map_err(explain)?;
    let found = &saved.failure;
    if let Some(path) = &args.image {
        let cut = subject.cuts.iter().find(|cut| cut.event == found.cut_event).ok_or_else(|| {
            explain(ExploreError::Corrupt("the recording has no such crash point".to_owned()))
        })?;
        let images = cut.state_at(&subject.stream, &found.choice, found.crash_event);
        materialise::write(&subject, images, path).map_err(explain)?;
        let written = serde_json::json!({ "image": path });
        let text =
            if args.json { to_json(&written)? } else { format!("the state's disk is in {}", path.display()) };
        return print_line(&text);
    }
    let tools = saved.setup.tools(&recording, 1).map_err(explain)?;
    let checkers = |_worker: usize| tools.checkers();
    let mut evaluator = runner::evaluator(&subject, &checkers).map_err(explain)?;
    let verdict = again(&subject, &mut evaluator, found.cut_event, found.crash_event, &found.choice)
        .map_err(explain)?;
    if args.json {
        print_line(&to_json(&verdict)?)?;
    } else {
        let text = match &verdict.problem {
            Some(problem) if verdict.class == Class::NotJudged => {
                format!("not judged: {}: {}", problem.check, problem.what)
            }
            Some(problem) => {
                format!("still fails: {}: {}\n{}", problem.check, problem.what, problem.evidence)
            }
            None => "does not fail any more".to_owned(),
        };
        print_line(text.trim_end())?;
    }
    // What is not known does not pass.
    if verdict.class >= Class::NotJudged {
        Err(Failure::Status(1))
    } else {
        Ok(())
    }
}
