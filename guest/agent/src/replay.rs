//! `replay`: what programs did to the files of a folder, done again without the programs.
//!
//! Order, sizes and names are the recording's; what is written is anything that does not compress. One thread, as a build without `-j`.

use std::collections::HashMap;
use std::fs::{self, File};
use std::io::{self, BufRead as _, BufReader, Read as _};
use std::os::unix::fs::{symlink, FileExt as _, PermissionsExt as _};
use std::path::{Component, Path, PathBuf};

use afterimage_protocol::operations::Operation;
use rand::{Rng as _, SeedableRng as _};
use rand_chacha::ChaCha8Rng;

use crate::args::{invalid, Arguments};

/// Does all of them, in the folder.
pub fn run(mut arguments: Arguments) -> io::Result<()> {
    let folder = PathBuf::from(arguments.word("the folder to work in")?);
    let recording = arguments.word("the file of operations")?;
    arguments.finish()?;
    let mut replay = Replay::new(folder);
    for (number, line) in BufReader::new(File::open(&recording)?).lines().enumerate() {
        let failed = |story: String| invalid(format!("{recording} line {}: {story}", number + 1));
        let operation = serde_json::from_str(&line?).map_err(|error| failed(error.to_string()))?;
        replay.step(&operation).map_err(|error| failed(format!("{operation:?}: {error}")))?;
    }
    Ok(())
}

struct Replay {
    folder: PathBuf,
    open: HashMap<String, File>,
    /// What is written: as much as the largest write so far.
    content: Vec<u8>,
    random: ChaCha8Rng,
}

impl Replay {
    fn new(folder: PathBuf) -> Replay {
        Replay { folder, open: HashMap::new(), content: Vec::new(), random: ChaCha8Rng::seed_from_u64(1) }
    }

    /// A recording's name; one that leads out of the folder is refused.
    fn at(&self, path: &str) -> io::Result<PathBuf> {
        let inside = Path::new(path).components().all(|part| matches!(part, Component::Normal(_)));
        if inside {
            Ok(self.folder.join(path))
        } else {
            Err(invalid("is not a name in the folder".to_owned()))
        }
    }

    fn opened(&self, path: &str) -> io::Result<&File> {
        self.open.get(path).ok_or_else(|| invalid("the file is not open".to_owned()))
    }

    fn step(&mut self, operation: &Operation) -> io::Result<()> {
        match operation {
            Operation::MakeDirectory { path } => fs::create_dir(self.at(path)?),
            Operation::RemoveDirectory { path } => fs::remove_dir(self.at(path)?),
            Operation::Open { path, truncate } => {
                let mut options = File::options();
                let file = options.write(true).create(true).truncate(*truncate).open(self.at(path)?)?;
                self.open.insert(path.clone(), file);
                Ok(())
            }
            Operation::Write { path, offset, bytes } => {
                let (bytes, had) = (*bytes as usize, self.content.len());
                if bytes > had {
                    self.content.resize(bytes, 0);
                    self.random.fill_bytes(&mut self.content[had..]);
                }
                self.opened(path)?.write_all_at(&self.content[..bytes], *offset)
            }
            Operation::SetLength { path, bytes } => self.opened(path)?.set_len(*bytes),
            Operation::Close { path } => {
                self.open.remove(path).map(drop).ok_or_else(|| invalid("the file is not open".to_owned()))
            }
            Operation::Read { path } => {
                let mut file = File::open(self.at(path)?)?;
                let mut buffer = [0; 64 << 10];
                while file.read(&mut buffer)? > 0 {}
                Ok(())
            }
            Operation::Rename { from, to } => fs::rename(self.at(from)?, self.at(to)?),
            Operation::Link { from, to } => fs::hard_link(self.at(from)?, self.at(to)?),
            Operation::SymbolicLink { target, path } => symlink(target, self.at(path)?),
            Operation::Remove { path } => fs::remove_file(self.at(path)?),
            Operation::Touch { path } => {
                let path = self.at(path)?;
                let mode = fs::metadata(&path)?.permissions().mode();
                fs::set_permissions(path, fs::Permissions::from_mode(mode))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operations_are_done_in_the_folder_and_nowhere_else() {
        let folder = std::env::temp_dir().join(format!("afterimage-replay-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let mut replay = Replay::new(folder.clone());
        let name = |text: &str| text.to_owned();
        for operation in [
            Operation::MakeDirectory { path: name("a") },
            Operation::Open { path: name("a/new"), truncate: true },
            Operation::Write { path: name("a/new"), offset: 100, bytes: 50 },
            Operation::Write { path: name("a/new"), offset: 0, bytes: 10 },
            Operation::SetLength { path: name("a/new"), bytes: 140 },
            Operation::Close { path: name("a/new") },
            Operation::Rename { from: name("a/new"), to: name("b") },
            Operation::Link { from: name("b"), to: name("c") },
            Operation::SymbolicLink { target: name("c"), path: name("a/d") },
            Operation::Touch { path: name("b") },
            Operation::Read { path: name("c") },
            Operation::Remove { path: name("a/d") },
            Operation::RemoveDirectory { path: name("a") },
        ] {
            replay.step(&operation).unwrap();
        }
        let found = fs::read(folder.join("c")).unwrap();
        assert_eq!((found.len(), &found[10..100]), (140, &[0; 90][..]));
        assert!(found[..10].iter().any(|byte| *byte != 0) && found[100..].iter().any(|byte| *byte != 0));
        assert!(!folder.join("a").exists());
        for outside in ["/etc/passwd", "../b", "a/../../b", ""] {
            assert!(replay.step(&Operation::Remove { path: name(outside) }).is_err(), "{outside}");
        }
        assert!(replay.step(&Operation::Write { path: name("b"), offset: 0, bytes: 1 }).is_err(), "closed");
        fs::remove_dir_all(folder).unwrap();
    }
}
