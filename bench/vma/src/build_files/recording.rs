//! From the calls of a build, as strace prints them, to operations on its files; and what these leave of them.

use std::collections::BTreeMap;

use afterimage_protocol::operations::Operation;

/// The names of files and symbolic links, relative, and how long they are; of directories, with a slash at the end, and 0.
pub type Files = BTreeMap<String, u64>;

/// Turns calls into operations.
#[derive(Debug)]
pub struct Recording {
    /// With a slash at its end.
    root: String,
    /// Where processes are that have gone elsewhere.
    directories: BTreeMap<String, String>,
    files: Files,
    /// Where the next write goes, and which operation was the last, of each file that was opened to be written.
    open: BTreeMap<String, Open>,
    operations: Vec<Operation>,
    /// After which operation which file is closed: nobody writes to it again before it is opened again.
    closed: Vec<(usize, String)>,
}

#[derive(Debug)]
struct Open {
    /// `3</mnt/build/file>`, through which it can be read as well; else empty.
    read_by: String,
    position: u64,
    last: usize,
}

impl Recording {
    /// Of calls in the folder `root`, in which these files are.
    pub fn new(root: &str, files: Files) -> Recording {
        Recording {
            root: format!("{root}/"),
            directories: BTreeMap::new(),
            files,
            open: BTreeMap::new(),
            operations: Vec::new(),
            closed: Vec::new(),
        }
    }

    /// The operations, and the files that they leave.
    pub fn end(mut self) -> (Vec<Operation>, Files) {
        for path in self.open.keys().cloned().collect::<Vec<_>>() {
            self.close(&path);
        }
        self.closed.sort();
        let mut closed = self.closed.into_iter().peekable();
        let mut operations = Vec::new();
        for (at, operation) in self.operations.into_iter().enumerate() {
            operations.push(operation);
            while let Some((_, path)) = closed.next_if(|(after, _)| *after == at) {
                operations.push(Operation::Close { path });
            }
        }
        (operations, self.files)
    }

    /// Takes one call of a process, as strace prints it with `-y`.
    ///
    /// # Errors
    /// No operation stands for it.
    pub fn call(&mut self, process: &str, line: &str) -> Result<(), String> {
        let (call, result) = line.rsplit_once(" = ").ok_or("there is no result")?;
        let (name, arguments) = call.trim_end().split_once('(').ok_or("there is no call")?;
        let arguments = split(arguments.strip_suffix(')').ok_or("the call has no end")?);
        if result.starts_with('-') {
            return Ok(());
        }
        let argument = |at: usize| arguments.get(at).copied().ok_or("an argument is missing");
        let count = || number(result);
        match name {
            "openat" | "open" | "creat" => {
                let flags = arguments.iter().find(|argument| argument.starts_with("O_"));
                let flags =
                    if name == "creat" { "O_WRONLY|O_CREAT|O_TRUNC" } else { flags.copied().unwrap_or("") };
                if let Some(path) = self.of_descriptor(result) {
                    self.opened(path, flags, result);
                }
            }
            "write" | "pwrite64" => {
                if let Some(path) = self.of_descriptor(argument(0)?) {
                    let offset = if name == "write" { None } else { Some(number(argument(3)?)?) };
                    self.write(&path, offset, count()?)?;
                }
            }
            "read" => {
                let read = argument(0)?;
                let open = self.of_descriptor(read).and_then(|path| self.open.get_mut(&path));
                if let Some(open) = open.filter(|open| open.read_by == read) {
                    open.position += count()?;
                }
            }
            "lseek" => {
                if let Some(open) = self.of_descriptor(argument(0)?).and_then(|path| self.open.get_mut(&path))
                {
                    open.position = count()?;
                }
            }
            "ftruncate" => {
                if let Some(path) = self.of_descriptor(argument(0)?) {
                    let bytes = number(argument(1)?)?;
                    self.files.insert(path.clone(), bytes);
                    self.work(&path, Operation::SetLength { path: path.clone(), bytes })?;
                }
            }
            "chdir" | "fchdir" => {
                let to = argument(0)?;
                let to = match behind(to) {
                    Some(open) => open.to_owned(),
                    None => resolve(self.directory(process), unquoted(to)?),
                };
                self.directories.insert(process.to_owned(), to);
            }
            "mkdir" | "mkdirat" => {
                if let Some(path) = self.named(process, &arguments, &mut 0)? {
                    self.files.insert(format!("{path}/"), 0);
                    self.operations.push(Operation::MakeDirectory { path });
                }
            }
            "unlink" | "unlinkat" | "rmdir" => {
                if let Some(path) = self.named(process, &arguments, &mut 0)? {
                    if name == "rmdir" || arguments.last().is_some_and(|flags| flags.contains("AT_REMOVEDIR"))
                    {
                        self.files.remove(&format!("{path}/"));
                        self.operations.push(Operation::RemoveDirectory { path });
                    } else {
                        self.close(&path);
                        self.files.remove(&path);
                        self.operations.push(Operation::Remove { path });
                    }
                }
            }
            "rename" | "renameat" | "renameat2" | "link" | "linkat" => {
                let mut at = 0;
                let (from, to) =
                    (self.named(process, &arguments, &mut at)?, self.named(process, &arguments, &mut at)?);
                match (from, to) {
                    (None, None) => {}
                    (Some(from), Some(to)) => self.moved(name, from, to)?,
                    _ => return Err("a name leads out of the folder".to_owned()),
                }
            }
            "symlink" | "symlinkat" => {
                if let Some(path) = self.named(process, &arguments, &mut 1)? {
                    let target = unquoted(argument(0)?)?.to_owned();
                    self.files.insert(path.clone(), target.len() as u64);
                    self.operations.push(Operation::SymbolicLink { target, path });
                }
            }
            "utimensat" | "chmod" | "fchmodat" | "fchmod" => {
                let path = match self.of_descriptor(argument(0)?) {
                    Some(path) => Some(path),
                    None => self.named(process, &arguments, &mut 0)?,
                };
                if let Some(path) = path {
                    self.operations.push(Operation::Touch { path });
                }
            }
            _ => return Err("nothing stands for this call".to_owned()),
        }
        Ok(())
    }

    fn opened(&mut self, path: String, flags: &str, descriptor: &str) {
        let has = |flag: &str| flags.split('|').any(|set| set == flag);
        if has("O_DIRECTORY") {
            return;
        }
        if !has("O_WRONLY") && !has("O_RDWR") {
            if self.files.contains_key(&path) {
                self.operations.push(Operation::Read { path });
            }
            return;
        }
        self.close(&path);
        let truncate = has("O_TRUNC");
        let bytes = self.files.entry(path.clone()).or_default();
        if truncate {
            *bytes = 0;
        }
        let position = if has("O_APPEND") { *bytes } else { 0 };
        let read_by = if has("O_RDWR") { descriptor.to_owned() } else { String::new() };
        self.open.insert(path.clone(), Open { read_by, position, last: self.operations.len() });
        self.operations.push(Operation::Open { path, truncate });
    }

    fn write(&mut self, path: &str, offset: Option<u64>, bytes: u64) -> Result<(), String> {
        let open = self.open.get_mut(path).ok_or("a write to a file that is not open")?;
        let at = offset.unwrap_or(open.position);
        if offset.is_none() {
            open.position = at + bytes;
        }
        let length = self.files.entry(path.to_owned()).or_default();
        *length = (*length).max(at + bytes);
        self.work(path, Operation::Write { path: path.to_owned(), offset: at, bytes })
    }

    /// Does something to an open file.
    fn work(&mut self, path: &str, operation: Operation) -> Result<(), String> {
        self.open.get_mut(path).ok_or("the file is not open")?.last = self.operations.len();
        self.operations.push(operation);
        Ok(())
    }

    fn close(&mut self, path: &str) {
        if let Some(open) = self.open.remove(path) {
            self.closed.push((open.last, path.to_owned()));
        }
    }

    fn moved(&mut self, call: &str, from: String, to: String) -> Result<(), String> {
        self.close(&from);
        self.close(&to);
        let Some(bytes) = self.files.get(&from).copied() else {
            return Err("a directory gets another name".to_owned());
        };
        self.files.insert(to.clone(), bytes);
        self.operations.push(if call.starts_with("link") {
            Operation::Link { from, to }
        } else {
            self.files.remove(&from);
            Operation::Rename { from, to }
        });
        Ok(())
    }

    /// The name in the folder of `3</mnt/build/file>`.
    fn of_descriptor(&self, text: &str) -> Option<String> {
        behind(text)?.strip_prefix(&self.root).map(str::to_owned)
    }

    /// Where a process is: in the build's folder, as whoever begins one, before it goes elsewhere.
    fn directory(&self, process: &str) -> &str {
        self.directories.get(process).map_or(self.root.trim_end_matches('/'), String::as_str)
    }

    /// The next name among the arguments, with the directory before it if there is one; `None` where it is not in the folder.
    fn named(&self, process: &str, arguments: &[&str], at: &mut usize) -> Result<Option<String>, String> {
        let mut next = || {
            *at += 1;
            arguments.get(*at - 1).copied().ok_or_else(|| "a name is missing".to_owned())
        };
        let mut word = next()?;
        let mut directory = self.directory(process);
        if !word.starts_with('"') {
            directory = behind(word).ok_or("no directory")?;
            word = next()?;
        }
        let path = resolve(directory, unquoted(word)?);
        Ok(path.strip_prefix(&self.root).map(str::to_owned))
    }
}

/// What a descriptor stands for, as strace says it with `-y`: `3</mnt/build/file>`.
fn behind(descriptor: &str) -> Option<&str> {
    descriptor.split_once('<')?.1.strip_suffix('>')
}

/// The name, absolute and without detours.
fn resolve(directory: &str, name: &str) -> String {
    let path = if name.starts_with('/') { name.to_owned() } else { format!("{directory}/{name}") };
    let mut parts = Vec::new();
    for part in path.split('/') {
        match part {
            "" | "." => {}
            // No directory of a build is a symbolic link, but the source's.
            ".." => drop(parts.pop()),
            part => parts.push(part),
        }
    }
    format!("/{}", parts.join("/"))
}

/// A string as strace prints one; what it had to escape is nothing that a build calls its files.
fn unquoted(word: &str) -> Result<&str, String> {
    let inside =
        word.strip_prefix('"').and_then(|word| word.strip_suffix('"')).ok_or("a name is not whole")?;
    if inside.contains('\\') {
        Err("a name has strange characters".to_owned())
    } else {
        Ok(inside)
    }
}

fn number(text: &str) -> Result<u64, String> {
    let digits = text.split(|c: char| !c.is_ascii_digit()).next().unwrap_or("");
    digits.parse().map_err(|_| "there is no number".to_owned())
}

/// Splits arguments at their commas: not those in strings, structures or names of files.
fn split(text: &str) -> Vec<&str> {
    let (mut found, mut start, mut depth, mut quoted, mut escaped) = (Vec::new(), 0, 0_u32, false, false);
    for (at, c) in text.char_indices() {
        match c {
            _ if escaped => escaped = false,
            '\\' if quoted => escaped = true,
            '"' => quoted = !quoted,
            _ if quoted => {}
            '[' | '{' | '<' => depth += 1,
            ']' | '}' | '>' => depth = depth.saturating_sub(1),
            ',' if depth == 0 => {
                found.push(text[start..at].trim());
                start = at + 1;
            }
            _ => {}
        }
    }
    found.push(text[start..].trim());
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn recorded(lines: &[&str], files: &[(&str, u64)]) -> Result<(Vec<Operation>, Files), String> {
        let files = files.iter().map(|(name, bytes)| ((*name).to_owned(), *bytes)).collect();
        let mut recording = Recording::new("/mnt/build", files);
        lines.iter().try_for_each(|line| recording.call("of.1", line))?;
        Ok(recording.end())
    }

    #[test]
    fn calls_become_operations_and_a_file_is_closed_after_its_last_write() {
        let (operations, files) = recorded(
            &[
                r#"mkdir("a", 0777) = 0"#,
                r#"openat(AT_FDCWD</mnt/build>, "a/x.o", O_RDWR|O_CREAT|O_TRUNC, 0666) = 3</mnt/build/a/x.o>"#,
                r#"lseek(3</mnt/build/a/x.o>, 64, SEEK_SET) = 64"#,
                r#"read(3</mnt/build/a/x.o>, "", 4096) = 0"#,
                r#"write(3</mnt/build/a/x.o>, "\0a, b) = 7"..., 60) = 60"#,
                r#"read(4</mnt/build/a/x.o>, "\177ELF"..., 4096) = 124"#,
                r#"lseek(3</mnt/build/a/x.o>, 0, SEEK_SET) = 0"#,
                r#"read(3</mnt/build/a/x.o>, "\0", 4096) = 124"#,
                r#"write(3</mnt/build/a/x.o>, "", 40) = 40"#,
                r#"openat(AT_FDCWD</mnt/build>, "old", O_RDONLY) = 4</mnt/build/old>"#,
                r#"openat(AT_FDCWD</mnt/build>, "none", O_RDONLY) = -1 ENOENT (No such file or directory)"#,
                r#"openat(AT_FDCWD</mnt/build>, ".", O_RDONLY|O_DIRECTORY) = 4</mnt/build>"#,
                r#"pwrite64(3</mnt/build/a/x.o>, "abc", 3, 0) = 3"#,
                r#"openat(AT_FDCWD</mnt/build>, "old", O_WRONLY|O_APPEND) = 4</mnt/build/old>"#,
                r#"write(4</mnt/build/old>, "abc", 3) = 3"#,
                r#"renameat2(AT_FDCWD</mnt/build>, "a/x.o", AT_FDCWD</mnt/build>, "./y.o", RENAME_NOREPLACE) = 0"#,
                r#"unlinkat(5</mnt/build/a>, "z", 0) = -1 ENOENT (No such file or directory)"#,
                r#"unlinkat(AT_FDCWD</mnt/build>, "/tmp/cc.s", 0) = 0"#,
                r#"symlink("/tree", "C1") = 0"#,
                r#"renameat(AT_FDCWD</mnt/build>, "C1", AT_FDCWD</mnt/build>, "source") = 0"#,
                r#"mkdir("./b/../a/c/", 0777) = 0"#,
                r#"chdir("a") = 0"#,
                r#"mkdir("e", 0777) = 0"#,
                r#"unlinkat(AT_FDCWD</mnt/build/a>, "e", AT_REMOVEDIR) = 0"#,
                r#"rmdir("../a/c") = 0"#,
                r#"fchdir(3</mnt/build>) = 0"#,
                r#"rmdir("a") = 0"#,
            ],
            &[("old", 5)],
        )
        .unwrap();
        let path = |name: &str| name.to_owned();
        let x = || path("a/x.o");
        assert_eq!(
            operations,
            [
                Operation::MakeDirectory { path: path("a") },
                Operation::Open { path: x(), truncate: true },
                Operation::Write { path: x(), offset: 64, bytes: 60 },
                Operation::Write { path: x(), offset: 124, bytes: 40 },
                Operation::Read { path: path("old") },
                Operation::Write { path: x(), offset: 0, bytes: 3 },
                Operation::Close { path: x() },
                Operation::Open { path: path("old"), truncate: false },
                Operation::Write { path: path("old"), offset: 5, bytes: 3 },
                Operation::Close { path: path("old") },
                Operation::Rename { from: x(), to: path("y.o") },
                Operation::SymbolicLink { target: path("/tree"), path: path("C1") },
                Operation::Rename { from: path("C1"), to: path("source") },
                Operation::MakeDirectory { path: path("a/c") },
                Operation::MakeDirectory { path: path("a/e") },
                Operation::RemoveDirectory { path: path("a/e") },
                Operation::RemoveDirectory { path: path("a/c") },
                Operation::RemoveDirectory { path: path("a") },
            ]
        );
        assert_eq!(
            files.into_iter().collect::<Vec<_>>(),
            [(path("old"), 8), (path("source"), 5), (path("y.o"), 164)]
        );
    }

    #[test]
    fn what_no_operation_stands_for_is_no_recording() {
        for line in [
            r#"fallocate(3</mnt/build/x>, 0, 0, 100) = 0"#,
            r#"write(3</mnt/build/x>, "abc", 3) = 3"#,
            r#"rename("x", "/tmp/x") = 0"#,
            r#"rename("folder", "other") = 0"#,
            r#"unlink("a\nb") = 0"#,
        ] {
            assert!(recorded(&[line], &[("x", 1)]).is_err(), "{line}");
        }
    }
}
