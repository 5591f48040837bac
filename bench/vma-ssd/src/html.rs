//! The figures as one self-contained page: plots in SVG, no script, nothing to load.

use std::fmt::Write as _;

use afterimage_bench_vma::catalog::Workload;
use afterimage_bench_vma::svg::{bars, Bar, Group};
use afterimage_flash::FtlKind;
use afterimage_lab::text::escape;

use crate::findings::{collection, erases, Findings};
use crate::record::{Age, Simulated, SimulationKey};
use crate::study::{self, Range, Variant};
use crate::tables;

const STYLE: &str = "body{font:14px/1.45 system-ui,sans-serif;max-width:900px;margin:2em auto;padding:0 1em;color:#222;background:#fff}
svg text{font:11px system-ui,sans-serif;fill:#222}
.key span{display:inline-block;width:.9em;height:.9em;margin:0 .35em 0 1em;vertical-align:-.1em}";

/// The page.
pub fn page(findings: &Findings) -> String {
    let mut page = format!(
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><title>VMA journaling on SSDs</title>\n\
         <style>{STYLE}</style></head><body>\n<h1>VMA journaling on SSDs</h1>\n<p>{}</p>\n<p class=\"key\">",
        escape(&tables::setting(findings).replace("**", ""))
    );
    for variant in Variant::ALL {
        let _ = write!(page, "<span style=\"background:{}\"></span>{}", variant.colour(), variant.title());
    }
    page.push_str("</p>\n<h2>Figure 2: requests</h2>\n");
    page.push_str(&bars(&groups(|w, v| findings.any(w, v), |s| s.requests as f64 / 1e3), "thousand"));
    let _ = writeln!(
        page,
        "<p>The study: VMA {} below journal.</p>\n<h2>Figure 3: traffic</h2>",
        words(study::REQUESTS)
    );
    page.push_str(&bars(
        &groups(|w, v| findings.any(w, v), |s| s.traffic_bytes as f64 / f64::from(1 << 20)),
        "MiB",
    ));
    let _ = writeln!(page, "<p>The study: VMA {} below journal.</p>", words(study::TRAFFIC));
    for age in findings.ages() {
        let _ = writeln!(
            page,
            "<h2>Aged by {}</h2>\n<p>{}</p>",
            age.name(),
            escape(&tables::age_words(findings, age).replace('*', ""))
        );
        for ftl in &findings.ftls {
            let _ = writeln!(page, "<h3>Figure 4: erases, {ftl}</h3>");
            page.push_str(&bars(&groups(|w, v| findings.get(w, v, *ftl, age), erases), "erases"));
        }
        for ftl in &findings.ftls {
            let _ = writeln!(page, "<h3>Figure 5: GC overhead, {ftl}</h3>");
            page.push_str(&bars(&groups(|w, v| findings.get(w, v, *ftl, age), |s| collection(s) / 1e9), "s"));
        }
        page.push_str("<h3>journal+retain against journal: fewer erases; the study's range in grey</h3>\n");
        page.push_str(&reductions(findings, age, erases, study::erases));
        page.push_str(
            "<h3>journal+retain against journal: less GC overhead; the study's range in grey</h3>\n",
        );
        page.push_str(&reductions(findings, age, collection, study::collection));
    }
    page.push_str("</body></html>\n");
    page
}

fn words((from, to): Range) -> String {
    format!("{from} to {to} %")
}

fn groups<'a>(
    found: impl Fn(Workload, Variant) -> Option<&'a Simulated>,
    value: impl Fn(&Simulated) -> f64,
) -> Vec<Group> {
    let group = |workload: Workload| Group {
        name: workload.name().to_owned(),
        bars: Variant::ALL
            .into_iter()
            .filter_map(|variant| {
                Some(Bar {
                    label: format!("{}, {}", workload.name(), variant.title()),
                    colour: variant.colour(),
                    value: value(found(workload, variant)?),
                    spread: None,
                })
            })
            .collect(),
    };
    Workload::ALL.into_iter().map(group).collect()
}

const LEFT_PX: f64 = 150.0;
const PLOT_PX: f64 = 600.0;
const ROW_PX: f64 = 16.0;
/// Shows from −20 % (retention costs more) to 100 %.
const LEAST: f64 = -20.0;

fn colour(ftl: FtlKind) -> &'static str {
    match ftl {
        FtlKind::Fast => "#0072b2",
        FtlKind::Superblock => "#e69f00",
        FtlKind::Dftl => "#009e73",
        FtlKind::Page => "#999999",
    }
}

/// A dot for each workload and FTL on a scale of percent, with the study's range behind it.
fn reductions(
    findings: &Findings,
    age: Age,
    value: impl Fn(&Simulated) -> f64 + Copy,
    said: impl Fn(Workload) -> Option<Range>,
) -> String {
    let x = |percent: f64| LEFT_PX + (percent.clamp(LEAST, 100.0) - LEAST) / (100.0 - LEAST) * PLOT_PX;
    let mut inside = String::new();
    let mut y = 6.0;
    for workload in Workload::ALL {
        let dots: Vec<(FtlKind, f64)> = findings
            .ftls
            .iter()
            .filter_map(|ftl| {
                let key = SimulationKey { workload, variant: Variant::Retain, ftl: *ftl, age };
                Some((*ftl, findings.less_than_journal(&key, value)?))
            })
            .collect();
        if dots.is_empty() {
            continue;
        }
        let height = ROW_PX * dots.len() as f64;
        if let Some((from, to)) = said(workload) {
            let _ = writeln!(
                inside,
                "<rect x=\"{:.1}\" y=\"{y:.1}\" width=\"{:.1}\" height=\"{height:.1}\" fill=\"#e4e4e4\"><title>the study: {from} to {to} %</title></rect>",
                x(from),
                x(to) - x(from)
            );
        }
        let _ =
            writeln!(inside, "<text x=\"0\" y=\"{:.1}\">{}</text>", y + height / 2.0 + 4.0, workload.name());
        for (ftl, percent) in dots {
            let middle = y + ROW_PX / 2.0;
            let _ = writeln!(
                inside,
                "<circle cx=\"{:.1}\" cy=\"{middle:.1}\" r=\"5\" fill=\"{}\"/><text x=\"{:.1}\" y=\"{:.1}\">{ftl} {percent:.1} %</text>",
                x(percent),
                colour(ftl),
                x(percent) + 9.0,
                middle + 4.0
            );
            y += ROW_PX;
        }
        y += ROW_PX / 2.0;
    }
    let zero = x(0.0);
    let _ = writeln!(inside, "<path d=\"M{zero:.1} 0V{y:.1}\" stroke=\"#999\"/>");
    for percent in [0.0, 50.0, 100.0] {
        let _ = writeln!(
            inside,
            "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{percent} %</text>",
            x(percent),
            y + 12.0
        );
    }
    format!(
        "<svg viewBox=\"0 0 {:.0} {:.0}\" width=\"100%\" role=\"img\">\n{inside}</svg>\n",
        LEFT_PX + PLOT_PX + 110.0,
        y + 18.0
    )
}
