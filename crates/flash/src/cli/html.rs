//! A comparison as one self-contained page: charts and tables.

use afterimage_report::number::scaled;
use afterimage_report::page::{key, page};
use afterimage_report::plot::{bars, Bar, Group, Scale};
use afterimage_report::Table;
use maud::{html, Markup};

use crate::comparison::Comparison;
use crate::config::FtlKind;
use crate::report::Report;

/// Told apart also without colour vision.
const COLOURS: [&str; 8] =
    ["#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#999999", "#f0e442"];

/// The page.
pub fn comparison(comparison: &Comparison<'_>, tables: &[(String, Table)]) -> String {
    let mut traces: Vec<&str> = Vec::new();
    for run in &comparison.runs {
        if !traces.contains(&run.trace.as_str()) {
            traces.push(&run.trace);
        }
    }
    let colours: Vec<(&'static str, &str)> = COLOURS.into_iter().cycle().zip(traces).collect();
    let chart = |title: &str, value: fn(&Report) -> f64| chart(title, &comparison.runs, &colours, value);
    let body = html! {
        @if let Some(run) = comparison.runs.first() {
            p.soft {
                "Baseline: " (comparison.baseline) ". Pages of " (run.geometry.page_bytes) " bytes, "
                (run.geometry.pages_per_block) " a block; drive aged by: " (format!("{:?}", run.options.precondition))
                ". Erase reduction is what the study calls lifetime extension; the ratio below it is the lifetime itself."
            }
        }
        @if !comparison.complete { p { strong { "Incomplete: not every run finished." } } }
        (key(colours.iter().copied()))
        (chart("Erases", |r| r.erases as f64))
        (chart("GC overhead, seconds", |r| r.collection.ns as f64 / 1e9))
        (chart("Write amplification", |r| r.write_amplification.unwrap_or(0.0)))
        @for (title, table) in tables { h2 { (title) } (table.html()) }
    };
    page("Flash simulation", &body)
}

/// Bars in groups: an FTL each, in them a bar for each trace.
fn chart(
    title: &str,
    runs: &[&Report],
    colours: &[(&'static str, &str)],
    value: fn(&Report) -> f64,
) -> Markup {
    let bar = |run: &&Report, colour: &'static str| {
        let value = value(run);
        Bar { name: run.trace.clone(), colour, value, spread: None, shown: scaled(value) }
    };
    let group = |ftl: FtlKind| Group {
        name: ftl.to_string(),
        bars: colours
            .iter()
            .filter_map(|(colour, trace)| {
                runs.iter().find(|r| r.ftl == ftl && r.trace == *trace).map(|run| bar(run, colour))
            })
            .collect(),
        range: None,
    };
    let groups: Vec<Group> = FtlKind::ALL.into_iter().map(group).collect();
    html! { h2 { (title) } (bars(title, &groups, Scale::Common)) }
}
