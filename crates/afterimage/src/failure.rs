//! How a command ends when it does not succeed: one sentence on stderr and an exit status.

use std::fmt::Display;
use std::process::ExitCode;

/// Why a command did not succeed.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// The command line or the configuration asks for something that cannot be. Exit status 2; nothing was touched.
    #[error("{0}")]
    Usage(String),
    /// It was tried and did not work. Exit status 1.
    #[error("{0}")]
    Failed(String),
    /// What there is to say was said already: by the answer, or by a program that was run on the user's behalf and ended
    /// with this status.
    #[error("the command ended with status {0}")]
    Status(u8),
}

impl Failure {
    /// A wrong request, in one sentence: what is wrong, where, what to do.
    pub fn usage(sentence: impl Display) -> Self {
        Self::Usage(one_line(&sentence.to_string()))
    }

    /// A failure, in one sentence: what was being done, to what, what to do.
    pub fn failed(sentence: impl Display) -> Self {
        Self::Failed(one_line(&sentence.to_string()))
    }

    /// Prints the sentence and gives the exit status that belongs to it.
    pub fn report(&self) -> ExitCode {
        match self {
            Self::Usage(sentence) => say(sentence, 2),
            Self::Failed(sentence) => say(sentence, 1),
            Self::Status(status) => ExitCode::from(*status),
        }
    }
}

/// Whether or not the sentence can be written, the status is the one that was meant.
fn say(sentence: &str, status: u8) -> ExitCode {
    crate::logging::say_error(&format!("afterimage: {sentence}"));
    ExitCode::from(status)
}

/// Newlines and runs of blanks, as parser messages have them, become single blanks.
fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sentence_is_one_line() {
        assert_eq!(Failure::usage("a\n  b\tc\n").to_string(), "a b c");
    }
}
