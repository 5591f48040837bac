//! `afterimage inspect FILE`

use std::fmt;
use std::path::PathBuf;

use afterimage_journal::offline;
use afterimage_order::offline::InspectReport;
use serde::Serialize;

use crate::failure::Failure;

/// Describe an image, its redo log and its retained journals without changing anything
///
/// Shows the content of the log and the retained journals, and whether the image alone may be copied.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// The image, or its redo log
    file: PathBuf,
    /// Answer as JSON
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Report {
    #[serde(flatten)]
    image: InspectReport,
    /// Per image with retained journals.
    retained: Vec<offline::InspectReport>,
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let image = self.image.to_string();
        let (facts, advice) = image.rsplit_once('\n').unwrap_or(("", &image));
        if !facts.is_empty() {
            writeln!(f, "{facts}")?;
        }
        self.retained.iter().try_for_each(|retained| writeln!(f, "{retained}"))?;
        write!(f, "{advice}")
    }
}

/// Runs it.
///
/// # Errors
/// It cannot be read, or is none.
pub fn run(args: &Args) -> Result<(), Failure> {
    super::can_say(&args.file, args.json)?;
    let mut image = afterimage_order::offline::inspect(&args.file).map_err(Failure::failed)?;
    let logged = image.log.iter().flat_map(|log| &log.images).map(|image| &image.path);
    let mut retained = Vec::new();
    // Of the images that a log names, some may be gone; the log itself is described all the same.
    for image in super::images_of(&args.file, logged).into_iter().filter(|i| i.exists()) {
        retained.extend(offline::inspect(image).map_err(Failure::failed)?);
    }
    let free = retained.iter().find(|r: &&offline::InspectReport| !r.in_use && r.gone.is_none());
    image.copy_is_complete &= retained.iter().all(|r| r.gone.is_some());
    if let (Some(found), true) = (free, image.log.is_none()) {
        image.advice = match &found.problem {
            None => format!(
                "a copy of the image alone lacks commits that are still retained: run `afterimage recover {}` first",
                args.file.display()
            ),
            Some(_) => "it lacks commits that were not written back: use a backup, or go on with --accept-loss"
                .to_owned(),
        };
    }
    super::print_report(&Report { image, retained }, args.json)
}
