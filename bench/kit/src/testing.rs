//! A record for this crate's tests.

use serde::{Deserialize, Serialize};

use crate::identity::{CellIdentity, Turn};
use crate::store::Record;

/// The whole identity is a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Number(pub u64);

impl CellIdentity for Number {
    fn path(&self) -> String {
        "cell".to_owned()
    }

    fn turn(&self) -> Turn {
        Turn::Seed(self.0)
    }
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Cell {
    version: u32,
    key: Number,
    pub scale: String,
}

impl Record for Cell {
    type Key = Number;
    const VERSION: u32 = 2;

    fn key(&self) -> &Number {
        &self.key
    }
}

pub fn cell(key: u64, scale: &str) -> Cell {
    Cell { version: Cell::VERSION, key: Number(key), scale: scale.to_owned() }
}
