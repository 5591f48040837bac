//! Tables for terminals.

/// Rows of cells under a heading; the first column to the left, the others to the right.
#[derive(Debug, Clone, Default)]
pub struct Table {
    /// What it shows.
    pub title: String,
    /// Column names.
    pub head: Vec<String>,
    /// Rows.
    pub rows: Vec<Vec<String>>,
}

impl std::fmt::Display for Table {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let lines = || std::iter::once(&self.head).chain(&self.rows);
        let width = |i: usize| lines().filter_map(|l| l.get(i)).map(|c| c.chars().count()).max().unwrap_or(0);
        let widths: Vec<usize> = (0..self.head.len()).map(width).collect();
        if !self.title.is_empty() {
            writeln!(f, "{}", self.title)?;
        }
        for line in lines() {
            let cells = line.iter().zip(&widths).enumerate().map(|(i, (cell, width))| {
                if i == 0 {
                    format!("{cell:<width$}")
                } else {
                    format!("{cell:>width$}")
                }
            });
            writeln!(f, "  {}", cells.collect::<Vec<_>>().join("  ").trim_end())?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_line_up() {
        let cells = |row: [&str; 2]| row.map(str::to_owned).to_vec();
        let table = Table {
            title: "t".into(),
            head: cells(["a", "b"]),
            rows: vec![cells(["long", "1"]), cells(["x", "10"])],
        };
        assert_eq!(table.to_string(), "t\n  a      b\n  long   1\n  x     10\n");
    }
}
