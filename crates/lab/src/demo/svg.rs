//! Bars drawn by hand as SVG. Colours are classes, so that the page's style chooses them for light and dark.

use std::fmt::Write as _;

use crate::text::escape;

/// One bar.
#[derive(Clone, Debug)]
pub struct Bar {
    /// What stands before it.
    pub name: String,
    /// Its length.
    pub value: f64,
    /// The number behind it, with its unit.
    pub shown: String,
    /// The class that colours it.
    pub class: &'static str,
}

/// Units of the drawing; it is scaled to the width of its place.
const WIDTH: f64 = 720.0;
const BAR: f64 = 22.0;
const STEP: f64 = 34.0;
const TOP: f64 = 6.0;
const LEFT: f64 = 232.0;
/// Room for the number behind the longest bar.
const RIGHT: f64 = 110.0;

/// Horizontal bars on one scale that begins at nothing. `what` says what is shown to those who can not see it.
pub fn bars(what: &str, bars: &[Bar]) -> String {
    let most = bars.iter().map(|bar| bar.value).filter(|value| value.is_finite()).fold(0.0, f64::max);
    let scale = if most > 0.0 { (WIDTH - LEFT - RIGHT) / most } else { 0.0 };
    let height = TOP * 2.0 + STEP * bars.len() as f64;
    let all: Vec<String> = bars.iter().map(|bar| format!("{}: {}", bar.name, bar.shown)).collect();
    let mut text = format!(
        "<svg viewBox=\"0 0 {WIDTH:.0} {height:.0}\" role=\"img\" aria-label=\"{}\">\n",
        escape(&format!("{what}: {}", all.join("; ")))
    );
    for (at, bar) in bars.iter().enumerate() {
        let y = TOP + STEP * at as f64 + (STEP - BAR) / 2.0;
        let base = y + BAR / 2.0 + 4.5;
        // A bar of nothing is still a line that can be seen.
        let width = if bar.value.is_finite() { (bar.value * scale).max(1.0) } else { 1.0 };
        let _ = writeln!(
            text,
            "<text x=\"{:.0}\" y=\"{base:.1}\" text-anchor=\"end\">{}</text>\
             <rect class=\"{}\" x=\"{LEFT:.0}\" y=\"{y:.1}\" width=\"{width:.1}\" height=\"{BAR:.0}\" rx=\"2\"/>\
             <text class=\"number\" x=\"{:.1}\" y=\"{base:.1}\">{}</text>",
            LEFT - 10.0,
            escape(&bar.name),
            bar.class,
            LEFT + width + 8.0,
            escape(&bar.shown)
        );
    }
    let _ = writeln!(
        text,
        "<path class=\"axis\" d=\"M{LEFT:.0} {:.0}V{:.0}\"/>\n</svg>",
        TOP / 2.0,
        height - TOP / 2.0
    );
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bar(value: f64) -> Bar {
        Bar { name: "a<b".to_owned(), value, shown: format!("{value} \"MB\""), class: "retain" }
    }

    #[test]
    fn the_longest_bar_fills_its_room_and_names_are_escaped() {
        let text = bars("bytes", &[bar(1.0), bar(4.0)]);
        let room = WIDTH - LEFT - RIGHT;
        assert!(text.contains(&format!("width=\"{room:.1}\"")), "{text}");
        assert!(text.contains(&format!("width=\"{:.1}\"", room / 4.0)), "{text}");
        assert!(text.contains("a&lt;b") && text.contains("4 &quot;MB&quot;") && !text.contains("a<b"));
    }

    #[test]
    fn nothing_is_divided_by_nothing() {
        for value in [0.0, f64::NAN, f64::INFINITY] {
            let text = bars("bytes", &[Bar { shown: String::new(), ..bar(value) }]);
            assert!(!text.contains("NaN") && !text.contains("inf"), "{text}");
        }
        assert!(bars("nothing", &[]).contains("</svg>"));
    }
}
