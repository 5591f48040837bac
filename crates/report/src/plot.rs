//! Plots as SVG that stands in a page: bars in groups, and curves over time.

use maud::{html, Markup, PreEscaped};
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use crate::number::{number, scaled};

/// One bar.
#[derive(Clone, Debug)]
pub struct Bar {
    /// What it stands for.
    pub name: String,
    /// `#rrggbb`
    pub colour: &'static str,
    /// Its length.
    pub value: f64,
    /// The whisker, if there is one.
    pub spread: Option<(f64, f64)>,
    /// The number behind it.
    pub shown: String,
}

/// Bars that belong together.
#[derive(Clone, Debug, Default)]
pub struct Group {
    /// Its name.
    pub name: String,
    /// Its bars.
    pub bars: Vec<Bar>,
    /// A range to compare with, drawn behind the bars.
    pub range: Option<(f64, f64)>,
}

/// How lengths are drawn.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Scale {
    /// From nothing to the most of all bars.
    Common,
    /// From nothing to the most of each group: groups may differ by orders of magnitude.
    Groups,
    /// From this to that; what lies outside ends at the edge.
    Between(f64, f64),
    /// Ratios: to both sides of 1, logarithmic.
    Ratios,
}

const WIDTH: u32 = 860;
const LEFT: f64 = 170.0;
/// Room for the words behind the longest bar.
const RIGHT: f64 = 230.0;
const BAR: f64 = 15.0;
const GAP: f64 = 12.0;
const EDGE: f64 = 8.0;

fn colour(text: &str) -> RGBColor {
    let part =
        |at: usize| text.get(at..at + 2).and_then(|hex| u8::from_str_radix(hex, 16).ok()).unwrap_or(0x77);
    RGBColor(part(1), part(3), part(5))
}

const INK: RGBColor = RGBColor(0x55, 0x5d, 0x66);
const GRID: RGBColor = RGBColor(0xc4, 0xca, 0xd0);

fn words(horizontal: HPos) -> TextStyle<'static> {
    ("sans-serif", 16).into_font().color(&INK).pos(Pos::new(horizontal, VPos::Center))
}

type Drawing<'a> = DrawingArea<SVGBackend<'a>, plotters::coord::Shift>;

/// `what` is for those who cannot see the picture.
fn figure(
    what: &str,
    height: f64,
    draw: impl FnOnce(&Drawing<'_>) -> Result<(), Box<dyn std::error::Error>>,
) -> Markup {
    let mut svg = String::new();
    let drawn = {
        let area = SVGBackend::with_string(&mut svg, (WIDTH, height.ceil() as u32)).into_drawing_area();
        draw(&area).and_then(|()| Ok(area.present()?))
    };
    // Within a page a name space is not needed, and nothing on it should look like an address.
    let svg = svg.replacen(" xmlns=\"http://www.w3.org/2000/svg\"", "", 1);
    html! {
        figure role="img" aria-label=(what) {
            @if let Err(error) = drawn { (error) } @else { (PreEscaped(svg)) }
        }
    }
}

fn pixel(x: f64, y: f64) -> (i32, i32) {
    (x.round() as i32, y.round() as i32)
}

/// Where a value lies between the ends of its scale, 0 to 1, and where bars begin.
struct Axis {
    low: f64,
    high: f64,
    logarithmic: bool,
}

impl Axis {
    fn new(scale: Scale, groups: &[&Group]) -> Self {
        let values = || {
            groups.iter().flat_map(|g| &g.bars).flat_map(|bar| {
                let (min, max) = bar.spread.unwrap_or((bar.value, bar.value));
                [bar.value, min, max].into_iter().filter(|value| value.is_finite())
            })
        };
        let (low, high, logarithmic) = match scale {
            Scale::Common | Scale::Groups => (0.0, values().fold(0.0, f64::max), false),
            Scale::Between(low, high) => (low, high, false),
            Scale::Ratios => {
                let low = values().fold(0.5, f64::min).max(0.01).log2().floor();
                (low, values().fold(2.0, f64::max).log2().ceil(), true)
            }
        };
        Self { low, high: if high > low { high } else { low + 1.0 }, logarithmic }
    }

    fn x(&self, value: f64) -> f64 {
        let value = if self.logarithmic { value.max(0.01).log2() } else { value };
        // What is not finite is drawn as nothing.
        let share = if value.is_finite() {
            ((value - self.low) / (self.high - self.low)).clamp(0.0, 1.0)
        } else {
            0.0
        };
        LEFT + share * (f64::from(WIDTH) - LEFT - RIGHT)
    }

    fn base(&self) -> f64 {
        self.x(if self.logarithmic { 1.0 } else { 0.0 })
    }
}

/// Horizontal bars in groups; `what` says what is shown.
pub fn bars(what: &str, groups: &[Group], scale: Scale) -> Markup {
    let groups: Vec<&Group> = groups.iter().filter(|group| !group.bars.is_empty()).collect();
    let said: Vec<String> = groups
        .iter()
        .flat_map(|g| g.bars.iter().map(|bar| format!("{} {}: {}", g.name, bar.name, bar.shown)))
        .collect();
    let height: f64 =
        2.0 * EDGE + groups.iter().map(|group| group.bars.len() as f64 * BAR + GAP).sum::<f64>();
    figure(&format!("{what}: {}", said.join("; ")), height, |area| {
        let whole = Axis::new(scale, &groups);
        let marks: Vec<f64> = match scale {
            Scale::Ratios => {
                (whole.low as i32..=whole.high as i32).map(|power| f64::from(power).exp2()).collect()
            }
            _ => vec![0.0],
        };
        for mark in marks {
            let x = whole.x(mark);
            let ink = if x == whole.base() { INK } else { GRID };
            area.draw(&PathElement::new([pixel(x, EDGE / 2.0), pixel(x, height - EDGE)], ink))?;
        }
        let mut y = EDGE;
        for group in &groups {
            let axis =
                if scale == Scale::Groups { Axis::new(scale, &[*group]) } else { Axis::new(scale, &groups) };
            let tall = group.bars.len() as f64 * BAR;
            if let Some((from, to)) = group.range {
                let corners = [pixel(axis.x(from), y), pixel(axis.x(to), y + tall)];
                area.draw(&Rectangle::new(corners, GRID.mix(0.5).filled()))?;
            }
            let name = Text::new(group.name.clone(), pixel(LEFT - 10.0, y + tall / 2.0), words(HPos::Right));
            area.draw(&name)?;
            for bar in &group.bars {
                let (base, end) = (axis.base(), axis.x(bar.value));
                // A bar of nothing is still a line that can be seen.
                let (from, to) = (base.min(end), base.max(end).max(base.min(end) + 1.0));
                let corners = [pixel(from, y), pixel(to, y + BAR - 2.0)];
                area.draw(&Rectangle::new(corners, colour(bar.colour).filled()))?;
                let middle = y + BAR / 2.0 - 1.0;
                let mut behind = to;
                if let Some((min, max)) = bar.spread.filter(|(min, max)| max > min) {
                    area.draw(&PathElement::new(
                        [pixel(axis.x(min), middle), pixel(axis.x(max), middle)],
                        INK,
                    ))?;
                    behind = behind.max(axis.x(max));
                }
                let shown = [bar.shown.as_str(), bar.name.as_str()].join("  ");
                area.draw(&Text::new(shown, pixel(behind + 6.0, middle), words(HPos::Left)))?;
                y += BAR;
            }
            y += GAP;
        }
        Ok(())
    })
}

/// A curve over time.
#[derive(Clone, Debug)]
pub struct Curve {
    /// `#rrggbb`
    pub colour: &'static str,
    /// Points, by time in seconds.
    pub points: Vec<(f64, f64)>,
}

/// Curves over time, on one scale that begins at nothing.
pub fn curves(what: &str, curves: &[Curve], unit: &str) -> Markup {
    let points = || curves.iter().flat_map(|curve| &curve.points);
    let last_s = points().map(|point| point.0).fold(f64::MIN_POSITIVE, f64::max);
    let most = points().map(|point| point.1).fold(f64::MIN_POSITIVE, f64::max);
    figure(what, 210.0, |area| {
        let mut chart = ChartBuilder::on(area)
            .margin(8)
            .x_label_area_size(24)
            .y_label_area_size(LEFT as u32 / 2)
            .build_cartesian_2d(0.0..last_s, 0.0..most)?;
        chart
            .configure_mesh()
            .disable_mesh()
            .axis_style(INK)
            .label_style(words(HPos::Left))
            .x_label_formatter(&|at| format!("{} s", number(*at)))
            .y_label_formatter(&|value| format!("{} {unit}", scaled(*value)))
            .draw()?;
        for curve in curves {
            chart.draw_series(LineSeries::new(curve.points.iter().copied(), colour(curve.colour)))?;
        }
        Ok(())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bar(value: f64) -> Bar {
        Bar {
            name: "a<b".to_owned(),
            colour: "#123456",
            value,
            spread: None,
            shown: format!("{value} \"MB\""),
        }
    }

    fn group(bars: Vec<Bar>) -> Group {
        Group { name: "g&h".to_owned(), bars, range: None }
    }

    #[test]
    fn the_longest_bar_fills_the_plot_and_names_are_escaped() {
        let text = bars("bytes", &[group(vec![bar(1.0), bar(4.0)])], Scale::Common).into_string();
        let room = f64::from(WIDTH) - LEFT - RIGHT;
        for width in [room, room / 4.0] {
            assert!(text.contains(&format!("width=\"{width:.0}\"")), "{width} {text}");
        }
        assert!(text.contains("a&lt;b") && text.contains("g&amp;h") && !text.contains("a<b"), "{text}");
    }

    #[test]
    fn ratios_grow_to_both_sides_of_one() {
        let axis = Axis::new(Scale::Ratios, &[&group(vec![bar(0.5), bar(8.0)])]);
        assert_eq!((axis.low, axis.high), (-1.0, 3.0));
        assert!(axis.x(0.5) < axis.base() && axis.base() < axis.x(8.0));
    }

    #[test]
    fn nothing_is_divided_by_nothing() {
        for value in [0.0, f64::NAN, f64::INFINITY] {
            let one = Bar { shown: String::new(), ..bar(value) };
            for scale in [Scale::Common, Scale::Groups, Scale::Between(0.0, 1.0), Scale::Ratios] {
                let text = bars("bytes", &[group(vec![one.clone()])], scale).into_string();
                assert!(!text.contains("NaN") && !text.contains("inf"), "{text}");
            }
        }
        assert!(bars("nothing", &[], Scale::Common).into_string().contains("</svg>"));
        let flat = Curve { colour: "#000000", points: vec![(0.0, 0.0)] };
        assert!(!curves("flat", &[flat], "B").into_string().contains("NaN"));
    }
}
