//! Plots drawn by hand: bars in groups, and lines over time. No scripts, nothing from elsewhere.

use std::fmt::Write as _;

use afterimage_lab::text::{escape, number};

/// One bar.
#[derive(Clone, Debug)]
pub struct Bar {
    /// What the pointer shows.
    pub label: String,
    /// `#rrggbb`
    pub colour: &'static str,
    /// Its length.
    pub value: f64,
    /// The whisker, if there is one.
    pub spread: Option<(f64, f64)>,
}

/// Bars that belong together.
#[derive(Clone, Debug)]
pub struct Group {
    /// Its name.
    pub name: String,
    /// Its bars.
    pub bars: Vec<Bar>,
}

const BAR_PX: f64 = 14.0;
const GAP_PX: f64 = 14.0;
const LEFT_PX: f64 = 100.0;
const PLOT_PX: f64 = 620.0;

/// Horizontal bars; each group has a scale of its own, since workloads differ by orders of magnitude.
pub fn bars(groups: &[Group], unit: &str) -> String {
    let mut text = String::new();
    let mut y = 6.0;
    for group in groups.iter().filter(|group| !group.bars.is_empty()) {
        let most = group
            .bars
            .iter()
            .map(|bar| bar.spread.map_or(bar.value, |(_, max)| max.max(bar.value)))
            .fold(f64::MIN_POSITIVE, f64::max);
        let x = |value: f64| LEFT_PX + value / most * PLOT_PX;
        let middle = y + group.bars.len() as f64 * BAR_PX / 2.0 + 4.0;
        let _ = writeln!(text, "<text x=\"0\" y=\"{middle:.1}\">{}</text>", escape(&group.name));
        for bar in &group.bars {
            let _ = writeln!(
                text,
                "<rect x=\"{LEFT_PX}\" y=\"{y:.1}\" width=\"{:.1}\" height=\"{:.1}\" fill=\"{}\"><title>{}: {} {unit}</title></rect>",
                (x(bar.value) - LEFT_PX).max(1.0),
                BAR_PX - 2.0,
                bar.colour,
                escape(&bar.label),
                number(bar.value)
            );
            let mut end = x(bar.value);
            if let Some((min, max)) = bar.spread.filter(|(min, max)| max > min) {
                let _ = writeln!(
                    text,
                    "<path d=\"M{:.1} {2:.1}H{:.1}\" stroke=\"#000\"/>",
                    x(min),
                    x(max),
                    y + BAR_PX / 2.0 - 1.0
                );
                end = end.max(x(max));
            }
            let _ = writeln!(
                text,
                "<text x=\"{:.1}\" y=\"{:.1}\">{} {unit}</text>",
                end + 5.0,
                y + BAR_PX - 4.0,
                number(bar.value)
            );
            y += BAR_PX;
        }
        y += GAP_PX;
    }
    frame(LEFT_PX + PLOT_PX + 90.0, y, &text)
}

/// One curve.
#[derive(Clone, Debug)]
pub struct Curve {
    /// Its name.
    pub name: String,
    /// `#rrggbb`
    pub colour: &'static str,
    /// Points, by time in seconds.
    pub points: Vec<(f64, f64)>,
}

const CURVE_HEIGHT_PX: f64 = 150.0;

/// Curves over time, on one scale.
pub fn curves(curves: &[Curve], unit: &str) -> String {
    let points = || curves.iter().flat_map(|curve| &curve.points);
    let last_s = points().map(|point| point.0).fold(f64::MIN_POSITIVE, f64::max);
    let most = points().map(|point| point.1).fold(f64::MIN_POSITIVE, f64::max);
    let (top, bottom) = (14.0, 14.0 + CURVE_HEIGHT_PX);
    let x = |at_s: f64| LEFT_PX + at_s / last_s * PLOT_PX;
    let y = |value: f64| bottom - value / most * CURVE_HEIGHT_PX;
    let mut text = format!(
        "<path d=\"M{LEFT_PX} {top}V{bottom}H{:.1}\" stroke=\"#999\" fill=\"none\"/>\n\
         <text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{} {unit}</text>\n\
         <text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">0</text>\n\
         <text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{} s</text>\n",
        LEFT_PX + PLOT_PX,
        LEFT_PX - 6.0,
        top + 4.0,
        number(most),
        LEFT_PX - 6.0,
        bottom + 4.0,
        LEFT_PX + PLOT_PX,
        bottom + 14.0,
        number(last_s)
    );
    for curve in curves.iter().filter(|curve| !curve.points.is_empty()) {
        let path: Vec<String> =
            curve.points.iter().map(|(at, value)| format!("{:.1} {:.1}", x(*at), y(*value))).collect();
        let _ = writeln!(
            text,
            "<path d=\"M{}\" stroke=\"{}\" fill=\"none\"><title>{}</title></path>",
            path.join("L"),
            curve.colour,
            escape(&curve.name)
        );
    }
    frame(LEFT_PX + PLOT_PX + 90.0, bottom + 18.0, &text)
}

fn frame(width: f64, height: f64, inside: &str) -> String {
    format!("<svg viewBox=\"0 0 {width:.0} {height:.0}\" width=\"100%\" role=\"img\">\n{inside}</svg>\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_bar_fills_the_plot_and_names_are_escaped() {
        let bar = |value| Bar { label: "a<b".to_owned(), colour: "#123456", value, spread: None };
        let text = bars(&[Group { name: "g&h".to_owned(), bars: vec![bar(1.0), bar(4.0)] }], "s");
        assert!(text.contains(&format!("width=\"{PLOT_PX:.1}\"")), "{text}");
        assert!(text.contains(&format!("width=\"{:.1}\"", PLOT_PX / 4.0)));
        assert!(text.contains("a&lt;b") && text.contains("g&amp;h"));
    }

    #[test]
    fn nothing_is_divided_by_nothing() {
        let flat = Curve { name: String::new(), colour: "#000000", points: vec![(0.0, 0.0)] };
        assert!(!curves(&[flat], "B").contains("NaN"));
        assert!(!bars(&[Group { name: String::new(), bars: Vec::new() }], "s").contains("NaN"));
    }
}
