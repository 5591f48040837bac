//! `afterimage recover FILE`

use std::fmt;
use std::path::PathBuf;

use afterimage_journal::offline;
use afterimage_order::offline::{RecoverOptions, RecoverReport};
use serde::Serialize;

use crate::failure::Failure;

/// Bring an image to its last consistent state, offline, and remove its redo log and its retained journals
///
/// First, complete records of the log are written back, and a torn end is dropped. Then commits in retained journals are
/// written back, and the journals are emptied. Last, each ext4 that a guest with iJournaling did not unmount is recovered:
/// journal first, then i-transactions.
///
/// `serve` does the same, the last step with --recover-ijournal. This command is for using the image with other tools. If
/// the log or a retained journal cannot be recovered, nothing is changed. The images must not be served meanwhile.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// The image, or its redo log
    file: PathBuf,
    /// Print what would be done, and change nothing
    #[arg(long)]
    dry_run: bool,
    /// Go on without a lost redo log or lost retained journals, or after the image was changed. Their content is lost.
    /// After a failed sync: use what storage holds, not the page cache
    #[arg(long)]
    accept_loss: bool,
    /// Accept an image whose inode or times do not match the log: a moved image, or a clock set back. Its size and known
    /// content must still match
    #[arg(long)]
    trust_image: bool,
    /// Apply the redo log although the image was changed since, by a mount or a repair. Check its file systems afterwards
    #[arg(long, conflicts_with = "accept_loss")]
    apply_anyway: bool,
    /// Export the redo log into this folder, and change nothing else. Each image gets a sparse file and a list of ranges
    #[arg(long, value_name = "FOLDER", conflicts_with_all = ["dry_run", "accept_loss", "apply_anyway", "trust_image"])]
    export: Option<PathBuf>,
    /// Answer as JSON
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Report {
    #[serde(flatten)]
    log: RecoverReport,
    /// Per image with retained journals.
    retained: Vec<offline::RecoverReport>,
    /// Per file system with iJournaling.
    ijournal: Vec<super::ijournal::Recovered>,
    /// Images in which iJournaling was not looked for: a dry run leaves newer content in their log.
    ijournal_unknown: Vec<PathBuf>,
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.log.log.is_some() || self.retained.is_empty() && self.ijournal.is_empty() {
            writeln!(f, "{}", self.log)?;
        }
        self.retained.iter().try_for_each(|retained| writeln!(f, "{retained}"))?;
        self.ijournal.iter().try_for_each(|recovered| writeln!(f, "{recovered}"))?;
        self.ijournal_unknown.iter().try_for_each(|image| {
            writeln!(f, "{}: i-transactions are looked for when the log is home", image.display())
        })
    }
}

/// Runs it.
///
/// # Errors
/// It cannot be recovered. Where its log, or what is retained, is the reason, everything is as before.
pub fn run(args: &Args) -> Result<(), Failure> {
    super::can_say(&args.file, args.json)?;
    if let Some(folder) = &args.export {
        let report = afterimage_order::offline::export(&args.file, folder).map_err(Failure::failed)?;
        return super::print_report(&report, args.json);
    }
    let recover_log = |dry_run| {
        let options = RecoverOptions {
            dry_run,
            accept_loss: args.accept_loss,
            trust_image: args.trust_image,
            apply_anyway: args.apply_anyway,
        };
        afterimage_order::offline::recover(&args.file, &options).map_err(Failure::failed)
    };
    let mut log = recover_log(true)?;
    if !args.dry_run {
        // The log goes home only where what is retained can follow, of all its images: until then nothing is touched.
        // What that warns of is said when it is done.
        tracing::subscriber::with_default(tracing::subscriber::NoSubscriber::default(), || {
            let mut images = super::images_of(&args.file, log.images.iter()).into_iter();
            images.try_for_each(|image| offline::recover(image, true, args.accept_loss).map(drop))
        })
        .map_err(Failure::failed)?;
        log = recover_log(false)?;
    }
    let (mut retained, mut ijournal, mut ijournal_unknown) = (Vec::new(), Vec::new(), Vec::new());
    let mut left = Vec::new();
    for image in super::images_of(&args.file, log.images.iter()) {
        retained.extend(offline::recover(image, args.dry_run, args.accept_loss).map_err(Failure::failed)?);
        match super::ijournal::recover(image, args.dry_run)? {
            Some(done) => {
                ijournal.extend(done.recovered);
                left.extend(done.left);
            }
            None => ijournal_unknown.push(image.to_owned()),
        }
    }
    super::print_report(&Report { log, retained, ijournal, ijournal_unknown }, args.json)?;
    match &left[..] {
        [] => Ok(()),
        left => Err(Failure::failed(format!("iJournaling's recovery: {}", left.join("; ")))),
    }
}
