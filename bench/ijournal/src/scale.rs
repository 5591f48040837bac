//! For figures, or for a look.

/// How much of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Scale {
    /// `full` or `quick`
    pub name: &'static str,
    /// How long files are synced, where no task says when it has ended.
    pub seconds: u32,
    /// Transactions of a database.
    pub transactions: u32,
    /// TPC-C's warehouses.
    pub warehouses: u32,
}

impl Scale {
    /// For figures.
    pub const FULL: Scale = Scale { name: "full", seconds: 30, transactions: 1000, warehouses: 10 };
    /// A look.
    pub const QUICK: Scale = Scale { name: "quick", seconds: 5, transactions: 100, warehouses: 1 };
}
