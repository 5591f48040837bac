//! What reports are written with: tables in Markdown, numbers, HTML.

use std::fmt::Write as _;

/// Appends a Markdown table whose columns are aligned for reading as text. Every row has as many cells as there are heads.
pub fn markdown_table(text: &mut String, heads: &[&str], rows: impl IntoIterator<Item = Vec<String>>) {
    let mut all = vec![heads.iter().map(|head| (*head).to_owned()).collect::<Vec<String>>()];
    all.extend(rows);
    let widths: Vec<usize> =
        (0..heads.len()).map(|at| all.iter().map(|row| row[at].chars().count()).max().unwrap_or(0)).collect();
    for (index, row) in all.iter().enumerate() {
        let cells: Vec<String> =
            row.iter().zip(&widths).map(|(cell, width)| format!("{cell:<width$}")).collect();
        let _ = writeln!(text, "| {} |", cells.join(" | "));
        if index == 0 {
            let dashes: Vec<String> = widths.iter().map(|width| "-".repeat((*width).max(3))).collect();
            let _ = writeln!(text, "| {} |", dashes.join(" | "));
        }
    }
}

/// Three significant digits, at most two of them behind the point, without exponents.
pub fn number(value: f64) -> String {
    let digits = match value.abs() {
        v if v >= 100.0 || v == 0.0 => 0,
        v if v >= 10.0 => 1,
        _ => 2,
    };
    format!("{value:.digits$}")
}

/// Text for HTML, also within an attribute in double quotes.
pub fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_short() {
        assert_eq!(
            [number(1234.5), number(12.34), number(1.234), number(0.1234), number(0.0)],
            ["1234", "12.3", "1.23", "0.12", "0"]
        );
    }

    #[test]
    fn tables_are_aligned() {
        let mut text = String::new();
        markdown_table(&mut text, &["a", "bbb"], [vec!["µµµ".to_owned(), "1".to_owned()]]);
        assert_eq!(text, "| a   | bbb |\n| --- | --- |\n| µµµ | 1   |\n");
    }

    #[test]
    fn nothing_of_a_text_is_taken_for_html() {
        assert_eq!(escape("<a href=\"&\">"), "&lt;a href=&quot;&amp;&quot;&gt;");
    }
}
