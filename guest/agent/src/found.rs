//! What a check of one crash state says.

use crate::verify;

/// What a check found.
#[derive(Default)]
pub struct Found {
    /// 0: what is there is sound.
    pub exit: i32,
    /// The application's state.
    pub state: Option<String>,
    /// What the check printed, or why it is not content.
    pub output: String,
    /// What the records are, where they were asked for.
    pub records: Option<verify::Survey>,
}

impl Found {
    /// Not content, and why.
    pub fn bad(output: String) -> Found {
        Found { exit: 1, output, ..Found::default() }
    }
}
