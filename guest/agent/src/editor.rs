//! `editor`: saves versions of a document the way editors do (gedit through GIO: `g_file_replace_contents`).
//!
//! ```text
//!   create FILE's temporary neighbour ─► write ─► fsync ─► rename over FILE ─► (fsync of the folder) ─► report
//! ```
//!
//! What a crash may leave: the document as it was saved before, or as it is being saved now, never a part of one or
//! a mixture. With the folder's fsync the new name is durable, and `{"mark":"v<k>"}` promises it; without, nobody
//! promised the new version, and `{"saved":"v<k>"}` only tells. `--no-fsync` leaves the fsync of the content out: the
//! fault that a test of crashes has to find.

use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use afterimage_protocol::report::Mark;

use crate::args::{invalid, Arguments, SIZE_BYTES_MAX};
use crate::record::mix;
use crate::report::Report;

/// Bytes of an empty document: header and checksum.
const FRAME_BYTES: usize = HEADER_BYTES + SUM_BYTES;
const HEADER_BYTES: usize = 48;
const SUM_BYTES: usize = 17;

/// Runs the workload.
pub fn run(mut arguments: Arguments) -> io::Result<()> {
    let file = PathBuf::from(arguments.word("the file to edit")?);
    let saves = arguments.number("saves")?.unwrap_or(10);
    let first = arguments.number("from")?.unwrap_or(1);
    let size = arguments.number_up_to("size", SIZE_BYTES_MAX)?.unwrap_or(20_000) as usize;
    let fsync = !arguments.flag("no-fsync")?;
    let fsync_folder = arguments.flag("fsync-dir")?;
    let report = Report::open(&mut arguments)?;
    arguments.finish()?;
    let (Some(name), Some(folder)) = (file.file_name(), file.parent()) else {
        return Err(invalid(format!("{} is no file name", file.display())));
    };
    let mut neighbour = OsString::from(".");
    neighbour.push(name);
    neighbour.push(".saving");
    let neighbour = folder.join(neighbour);
    for version in first..first.saturating_add(saves) {
        let content = content(version, size_of(version, size));
        let mut temporary = OpenOptions::new().write(true).create(true).truncate(true).open(&neighbour)?;
        temporary.write_all(&content)?;
        if fsync {
            temporary.sync_all()?;
        }
        drop(temporary);
        fs::rename(&neighbour, &file)?;
        let name = format!("v{version}");
        if fsync_folder {
            File::open(folder)?.sync_all()?;
            report.say(&Mark { mark: name })?;
        } else {
            // No promise: what it says is for people.
            report.line(&format!("{{\"saved\":\"{name}\"}}"))?;
        }
    }
    Ok(())
}

/// Versions differ in size, so that a lost change of the file's size shows.
fn size_of(version: u64, size: usize) -> usize {
    size.max(FRAME_BYTES) + (version.wrapping_mul(1237) % 4096) as usize
}

/// The whole document of that version and size.
fn content(version: u64, size: usize) -> Vec<u8> {
    let mut bytes =
        format!("{:<1$}\n", format!("afterimage editor {version} {size}"), HEADER_BYTES - 1).into_bytes();
    let mut word = 0u64;
    let mut at = 0;
    while bytes.len() < size - SUM_BYTES {
        if at % 8 == 0 {
            word = mix(version ^ mix(at as u64 / 8 + 1));
        }
        bytes.push((word >> (at % 8 * 8)) as u8);
        at += 1;
    }
    let sum = format!("{:016x}\n", sum(&bytes));
    bytes.extend_from_slice(sum.as_bytes());
    bytes
}

/// FNV-1a (Fowler, Noll, Vo), 64 bits.
fn sum(bytes: &[u8]) -> u64 {
    bytes
        .iter()
        .fold(0xcbf2_9ce4_8422_2325, |sum, byte| (sum ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3))
}

/// Which version a file holds, as `v<k>`; `Err` says why it holds none.
pub fn version_of(file: &Path) -> io::Result<Result<String, String>> {
    let bytes = match fs::read(file) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            return Ok(Err(format!("{} is gone", file.display())));
        }
        Err(error) => return Err(error),
    };
    Ok(judge(&bytes).map(|version| format!("v{version}")))
}

fn judge(bytes: &[u8]) -> Result<u64, String> {
    let size = bytes.len();
    let header = String::from_utf8_lossy(&bytes[..size.min(HEADER_BYTES)]).into_owned();
    let mut words = header.split_whitespace();
    let named = match (words.next(), words.next(), words.next(), words.next()) {
        (Some("afterimage"), Some("editor"), Some(version), Some(size)) => {
            version.parse::<u64>().ok().zip(size.parse::<usize>().ok())
        }
        _ => None,
    };
    let Some((version, said)) = named else {
        let zeroes = bytes.iter().all(|byte| *byte == 0);
        return Err(match (size, zeroes) {
            (0, _) => "the document is empty".to_owned(),
            (_, true) => format!("the document is {size} zeroes"),
            _ => format!("the document of {size} bytes begins with no version"),
        });
    };
    if said != size {
        return Err(format!("the document says version {version} of {said} bytes and has {size}"));
    }
    if size < FRAME_BYTES {
        return Err(format!("the document has {size} bytes, too few for any version"));
    }
    let whole = content(version, size);
    match bytes.iter().zip(&whole).position(|(is, should)| is != should) {
        None => Ok(version),
        Some(at) => Err(format!(
            "the document is version {version} up to byte {at} of {size}, and something else there"
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_told_apart() {
        for version in [0, 1, 9, 10_000] {
            let bytes = content(version, size_of(version, 5000));
            assert_eq!(bytes.len(), size_of(version, 5000));
            assert_eq!(judge(&bytes), Ok(version));
        }
    }

    #[test]
    fn no_part_passes() {
        let (old, new) = (content(1, 5000), content(2, 5000));
        for block in 0..10 {
            let mut mixed = new.clone();
            let end = (block * 512 + 512).min(5000);
            mixed[block * 512..end].copy_from_slice(&old[block * 512..end]);
            assert!(judge(&mixed).is_err(), "block {block}");
            mixed[block * 512..end].fill(0);
            assert!(judge(&mixed).is_err(), "zeroed block {block}");
        }
        assert!(judge(&new[..4096]).is_err());
        assert_eq!(judge(&[]), Err("the document is empty".to_owned()));
        assert_eq!(judge(&[0; 9]), Err("the document is 9 zeroes".to_owned()));
    }
}
