//! Tables: laid out as text or Markdown by comfy-table, as HTML by maud.

use std::ops::{Bound, RangeBounds};

use comfy_table::{presets, CellAlignment};
use maud::{html, Markup};

/// Rows of cells below a head.
#[derive(Clone, Debug, Default)]
pub struct Table {
    heads: Vec<String>,
    rows: Vec<Vec<String>>,
    right: Option<(Bound<usize>, Bound<usize>)>,
    indent: u16,
}

impl Table {
    /// Nothing but a head. A head of several lines has `\n` in it.
    pub fn new(heads: impl IntoIterator<Item = impl Into<String>>) -> Self {
        Self { heads: heads.into_iter().map(Into::into).collect(), ..Self::default() }
    }

    /// Which columns are numbers, which line up at the right.
    #[must_use]
    pub fn right(mut self, columns: impl RangeBounds<usize>) -> Self {
        self.right = Some((columns.start_bound().cloned(), columns.end_bound().cloned()));
        self
    }

    /// As text, every line is this many spaces in.
    #[must_use]
    pub fn indented(mut self, spaces: u16) -> Self {
        self.indent = spaces;
        self
    }

    /// Adds a row.
    pub fn row(&mut self, cells: impl IntoIterator<Item = impl Into<String>>) {
        self.rows.push(cells.into_iter().map(Into::into).collect());
    }

    /// The same for all rows.
    #[must_use]
    pub fn with(mut self, rows: impl IntoIterator<Item = Vec<String>>) -> Self {
        self.rows.extend(rows);
        self
    }

    /// Whether it has a head only.
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    fn is_right(&self, column: usize) -> bool {
        self.right.is_some_and(|columns| columns.contains(&column))
    }

    /// For a terminal: columns two spaces apart.
    pub fn text(&self) -> String {
        let mut table = comfy_table::Table::new();
        table.load_preset(presets::NOTHING).set_header(&self.heads).add_rows(&self.rows);
        for (at, column) in table.column_iter_mut().enumerate() {
            column.set_padding((if at == 0 { self.indent } else { 2 }, 0));
            if self.is_right(at) {
                column.set_cell_alignment(CellAlignment::Right);
            }
        }
        table.trim_fmt() + "\n"
    }

    /// In Markdown, aligned so that it reads well as text too.
    pub fn markdown(&self) -> String {
        let mut table = comfy_table::Table::new();
        table.load_preset(presets::ASCII_MARKDOWN).set_header(&self.heads).add_rows(&self.rows);
        table.to_string() + "\n"
    }

    /// In Markdown under a heading and a paragraph; nothing at all without rows.
    pub fn section(&self, title: &str, words: &str) -> String {
        if self.is_empty() {
            return String::new();
        }
        format!("\n### {title}\n\n{words}\n\n{}", self.markdown())
    }

    /// In HTML.
    pub fn html(&self) -> Markup {
        let class = |column: usize| self.is_right(column).then_some("right");
        html! {
            div.scroll {
                table {
                    tr { @for (at, head) in self.heads.iter().enumerate() { th class=[class(at)] { (head) } } }
                    @for row in &self.rows {
                        tr { @for (at, cell) in row.iter().enumerate() { td class=[class(at)] { (cell) } } }
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_line_up() {
        let mut table = Table::new(["a", "bbb\nunit"]);
        table.row(["µµµ", "1"]);
        assert_eq!(table.text(), "a    bbb\n     unit\nµµµ  1\n");
        let table = table.right(1..).indented(2);
        assert_eq!(table.text(), "  a     bbb\n       unit\n  µµµ     1\n");
    }

    #[test]
    fn markdown_is_aligned() {
        let table = Table::new(["a", "bbb"]).with([vec!["µµµ".to_owned(), "1".to_owned()]]);
        assert_eq!(table.markdown(), "| a   | bbb |\n|-----|-----|\n| µµµ | 1   |\n");
        assert!(table.section("t", "w").starts_with("\n### t\n\nw\n\n| a "));
        assert_eq!(Table::new(["a"]).section("t", "w"), "");
    }

    #[test]
    fn nothing_of_a_text_is_taken_for_html() {
        let table = Table::new(["<a>"]).with([vec!["&".to_owned()]]);
        assert!(
            table.html().into_string().contains("&lt;a&gt;") && !table.html().into_string().contains("<a>")
        );
    }
}
