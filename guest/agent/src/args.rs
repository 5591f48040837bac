//! The smallest command line that serves: one command, positional words, `--name value` options.

use std::io;

/// What was typed.
pub struct Arguments {
    words: Vec<String>,
    options: Vec<(String, String)>,
}

impl Arguments {
    /// Splits the process's arguments. An option without a value (the last, or followed by another option) is kept with
    /// an empty one and refused when it is read as a number.
    pub fn from_env() -> Arguments {
        let mut words = Vec::new();
        let mut options = Vec::new();
        let mut input = std::env::args().skip(1).peekable();
        while let Some(word) = input.next() {
            match word.strip_prefix("--") {
                Some(name) => {
                    let value = input.next_if(|next| !next.starts_with("--"));
                    options.push((name.to_owned(), value.unwrap_or_default()));
                }
                None => words.push(word),
            }
        }
        words.reverse();
        Arguments { words, options }
    }

    /// Takes the command.
    pub fn command(&mut self) -> Option<String> {
        self.words.pop()
    }

    /// Takes the next positional word.
    pub fn word(&mut self, what: &str) -> io::Result<String> {
        self.words.pop().ok_or_else(|| invalid(format!("{what} is missing")))
    }

    /// Takes all positional words that are left.
    pub fn words(&mut self) -> Vec<String> {
        let mut words = std::mem::take(&mut self.words);
        words.reverse();
        words
    }

    /// Takes an option.
    pub fn option(&mut self, name: &str) -> Option<String> {
        let at = self.options.iter().position(|(n, _)| n == name)?;
        Some(self.options.remove(at).1)
    }

    /// Takes an option that has no value.
    pub fn flag(&mut self, name: &str) -> io::Result<bool> {
        match self.option(name) {
            None => Ok(false),
            Some(value) if value.is_empty() => Ok(true),
            Some(value) => Err(invalid(format!("--{name} takes no value: put '{value}' before it"))),
        }
    }

    /// Takes an option that is a number.
    pub fn number(&mut self, name: &str) -> io::Result<Option<u64>> {
        match self.option(name) {
            None => Ok(None),
            Some(text) => match text.parse() {
                Ok(n) => Ok(Some(n)),
                Err(_) => Err(invalid(format!("--{name} wants a whole number, not '{text}'"))),
            },
        }
    }

    /// Refuses whatever nobody took: a mistyped option must not change what a test means.
    pub fn finish(self) -> io::Result<()> {
        match (self.words.last(), self.options.first()) {
            (None, None) => Ok(()),
            (Some(word), _) => Err(invalid(format!("do not know what to do with '{word}'"))),
            (_, Some((name, _))) => Err(invalid(format!("there is no option --{name} here"))),
        }
    }
}

/// An error that the caller made.
pub fn invalid(text: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, text)
}
