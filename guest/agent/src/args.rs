//! The smallest command line that serves: one command, positional words, `--name value` options.

use std::ffi::OsString;
use std::io;

/// No `--size` is larger: what is written at once is in memory.
pub const SIZE_BYTES_MAX: u64 = 1 << 30;

/// What was typed.
pub struct Arguments {
    words: Vec<String>,
    options: Vec<(String, String)>,
}

impl Arguments {
    /// Splits what was typed, all of which must be text. An option without a value (the last, or followed by another
    /// option) is kept with an empty one and refused when it is read as a number.
    pub fn new(typed: impl IntoIterator<Item = OsString>) -> io::Result<Arguments> {
        let mut words = Vec::new();
        let mut options = Vec::new();
        let text: Result<Vec<String>, OsString> = typed.into_iter().map(OsString::into_string).collect();
        let text = text.map_err(|word| invalid(format!("'{}' is not UTF-8", word.to_string_lossy())))?;
        let mut input = text.into_iter().peekable();
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
        Ok(Arguments { words, options })
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

    /// Takes an option that is a number, and no larger than that.
    pub fn number_up_to(&mut self, name: &str, max: u64) -> io::Result<Option<u64>> {
        match self.number(name)? {
            Some(n) if n > max => Err(invalid(format!("--{name} {n} is more than {max}"))),
            number => Ok(number),
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

#[cfg(test)]
mod tests {
    use std::os::unix::ffi::OsStringExt as _;

    use super::*;

    #[test]
    fn what_cannot_be_used_is_refused() {
        let words = ["x", "--size", "1073741825"].map(OsString::from);
        assert!(Arguments::new([words[0].clone(), OsString::from_vec(vec![0xff])]).is_err());
        let mut arguments = Arguments::new(words.clone()).unwrap();
        assert_eq!(arguments.number_up_to("size", SIZE_BYTES_MAX + 1).unwrap(), Some(SIZE_BYTES_MAX + 1));
        let mut arguments = Arguments::new(words).unwrap();
        let refused = arguments.number_up_to("size", SIZE_BYTES_MAX).unwrap_err().to_string();
        assert_eq!(refused, "--size 1073741825 is more than 1073741824");
    }
}
