//! What programs did to the files of a folder, recorded once and done again by the agent: a line each, in order.
//!
//! A file has one name in a recording and is open once: what is written goes to where the line says. What is in the files is not
//! recorded.

use serde::{Deserialize, Serialize};

/// One operation. Paths are relative to the folder.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "do", rename_all = "kebab-case", deny_unknown_fields)]
pub enum Operation {
    /// A directory is made.
    MakeDirectory {
        /// Which.
        path: String,
    },
    /// An empty directory is removed.
    RemoveDirectory {
        /// Which.
        path: String,
    },
    /// A file is opened to be written, and made if it is not there.
    Open {
        /// Which.
        path: String,
        /// Whether what was in it goes.
        truncate: bool,
    },
    /// Bytes are written to an open file.
    Write {
        /// Which.
        path: String,
        /// Where.
        offset: u64,
        /// How many, in one call.
        bytes: u64,
    },
    /// An open file is made as long as this.
    SetLength {
        /// Which.
        path: String,
        /// How long.
        bytes: u64,
    },
    /// An open file is closed.
    Close {
        /// Which.
        path: String,
    },
    /// A file is read from its beginning to its end.
    Read {
        /// Which.
        path: String,
    },
    /// A file gets another name, in the place of what has that name.
    Rename {
        /// The old name.
        from: String,
        /// The new one.
        to: String,
    },
    /// A file gets a second name.
    Link {
        /// The name it has.
        from: String,
        /// The new one.
        to: String,
    },
    /// A symbolic link is made.
    SymbolicLink {
        /// What it says.
        target: String,
        /// Where it is.
        path: String,
    },
    /// A file or symbolic link is removed.
    Remove {
        /// Which.
        path: String,
    },
    /// A file's times or mode are set: its inode is written again.
    Touch {
        /// Which.
        path: String,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_one_operation_and_nothing_else() {
        let path = || "kernel/fork.o".to_owned();
        let operations = [
            Operation::Open { path: path(), truncate: true },
            Operation::Write { path: path(), offset: 64, bytes: 4096 },
            Operation::Rename { from: path(), to: "built-in.a".to_owned() },
        ];
        operations.iter().for_each(crate::tests::assert_exact);
        let line = serde_json::to_string(&operations[0]).unwrap();
        assert_eq!(line, r#"{"do":"open","path":"kernel/fork.o","truncate":true}"#);
    }
}
