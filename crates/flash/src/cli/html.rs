//! A comparison as one self-contained page: charts in SVG, tables, no script and nothing to load.

use std::fmt::Write;

use super::compare::Comparison;
use super::table::Table;
use crate::config::FtlKind;
use crate::report::Report;

const STYLE: &str =
    "body{font:15px/1.45 system-ui,sans-serif;max-width:70em;margin:2em auto;padding:0 1em;color:#222}
h1{font-size:1.5em}h2{font-size:1.1em;margin:2em 0 .4em}
table{border-collapse:collapse}th,td{padding:.25em .8em;text-align:right;border-bottom:1px solid #ddd}
th:first-child,td:first-child{text-align:left}th{background:#f4f4f4}svg{max-width:100%;height:auto}
.note{color:#666}";

/// Told apart also without colour vision.
const COLOURS: [&str; 8] =
    ["#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#999999", "#f0e442"];

/// Text that is no markup.
fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

/// The page.
pub fn page(comparison: &Comparison<'_>, tables: &[Table]) -> String {
    let mut out = format!(
        "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><title>Flash simulation</title>\n\
         <style>{STYLE}</style></head><body>\n<h1>Flash simulation</h1>\n"
    );
    let mut say = |text: String| out.push_str(&text);
    if let Some(run) = comparison.runs.first() {
        say(format!(
            "<p class=\"note\">Baseline: {}. Pages of {} bytes, {} a block; drive aged by: {:?}. Erase reduction is \
             what the study calls lifetime extension; the ratio below it is the lifetime itself.</p>\n",
            escape(comparison.baseline),
            run.geometry.page_bytes,
            run.geometry.pages_per_block,
            run.options.precondition
        ));
    }
    if !comparison.complete {
        say("<p><strong>Incomplete: not every run finished.</strong></p>\n".to_owned());
    }
    say(chart("Erases", comparison, |r| r.erases as f64));
    say(chart("GC overhead, seconds", comparison, |r| r.collection.ns as f64 / 1e9));
    say(chart("Write amplification", comparison, |r| r.write_amplification.unwrap_or(0.0)));
    for table in tables {
        say(format!("<h2>{}</h2>\n<table><tr>", escape(&table.title)));
        for cell in &table.head {
            say(format!("<th>{}</th>", escape(cell)));
        }
        say("</tr>\n".to_owned());
        for row in &table.rows {
            let cells: String = row.iter().map(|cell| format!("<td>{}</td>", escape(cell))).collect();
            say(format!("<tr>{cells}</tr>\n"));
        }
        say("</table>\n".to_owned());
    }
    out.push_str("</body></html>\n");
    out
}

/// Bars in groups: an FTL each, in them a bar for each trace.
fn chart(title: &str, comparison: &Comparison<'_>, value: impl Fn(&Report) -> f64) -> String {
    let mut traces: Vec<&str> = Vec::new();
    let mut ftls: Vec<FtlKind> = Vec::new();
    for run in &comparison.runs {
        if !traces.contains(&run.trace.as_str()) {
            traces.push(&run.trace);
        }
        if !ftls.contains(&run.ftl) {
            ftls.push(run.ftl);
        }
    }
    let most = comparison.runs.iter().map(|r| value(r)).fold(0.0, f64::max);
    let (bar, gap, height, top) = (26.0, 30.0, 200.0, 16.0);
    let group = bar * traces.len() as f64 + gap;
    let width = group * ftls.len() as f64 + gap;
    let legend = top + height + 40.0;
    let total = legend + 20.0 * traces.len() as f64;
    let mut out = format!(
        "<h2>{title}</h2>\n<svg viewBox=\"0 0 {width:.0} {total:.0}\" width=\"{width:.0}\" role=\"img\" \
         aria-label=\"{title}\" font-size=\"11\">\n"
    );
    for (g, ftl) in ftls.iter().enumerate() {
        let left = gap + group * g as f64;
        for (t, trace) in traces.iter().enumerate() {
            let Some(run) = comparison.runs.iter().find(|r| r.ftl == *ftl && r.trace == *trace) else {
                continue;
            };
            let value = value(run);
            let tall = if most > 0.0 { value / most * height } else { 0.0 };
            let (x, y) = (left + bar * t as f64, top + height - tall);
            // Writing to a string cannot fail.
            let _ = writeln!(
                out,
                "<rect x=\"{x:.1}\" y=\"{y:.1}\" width=\"{:.1}\" height=\"{tall:.1}\" fill=\"{}\">\
                 <title>{}, {ftl}: {value:.3}</title></rect>",
                bar - 2.0,
                COLOURS[t % COLOURS.len()],
                escape(trace)
            );
            let _ = writeln!(
                out,
                "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\" font-size=\"8\">{}</text>",
                x + bar / 2.0 - 1.0,
                y - 3.0,
                brief(value)
            );
        }
        let middle = left + (group - gap) / 2.0;
        let below = top + height + 16.0;
        let _ = writeln!(out, "<text x=\"{middle:.1}\" y=\"{below:.1}\" text-anchor=\"middle\">{ftl}</text>");
    }
    for (t, trace) in traces.iter().enumerate() {
        let y = legend + 20.0 * t as f64;
        let _ = writeln!(
            out,
            "<rect x=\"{gap}\" y=\"{:.1}\" width=\"12\" height=\"12\" fill=\"{}\"/><text x=\"{:.1}\" y=\"{:.1}\">{}</text>",
            y - 10.0,
            COLOURS[t % COLOURS.len()],
            gap + 18.0,
            y,
            escape(trace)
        );
    }
    out.push_str("</svg>\n");
    out
}

fn brief(value: f64) -> String {
    match value {
        v if v >= 1e9 => format!("{:.1}G", v / 1e9),
        v if v >= 1e6 => format!("{:.1}M", v / 1e6),
        v if v >= 1e4 => format!("{:.0}k", v / 1e3),
        v if v >= 100.0 || v == 0.0 => format!("{v:.0}"),
        v => format!("{v:.2}"),
    }
}
