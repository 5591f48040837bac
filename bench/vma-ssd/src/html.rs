//! The figures as one self-contained page.

use afterimage_bench_vma::catalog::Workload;
use afterimage_flash::FtlKind;
use afterimage_report::number::{number, scaled, MIB};
use afterimage_report::page::{self, key};
use afterimage_report::plot::{bars, Bar, Group, Scale};
use afterimage_report::Spread;
use maud::{html, Markup};

use crate::findings::{collection, erases, requests, Findings};
use crate::record::{Age, Simulated, SimulationKey};
use crate::study::{self, Range, Variant};
use crate::tables;

/// The page.
pub fn page(findings: &Findings) -> String {
    let below = |(from, to): Range| html! { p { "The study: VMA " (from) " to " (to) " % below journal." } };
    let of =
        |age: Age, ftl: FtlKind| move |workload, variant| Some(SimulationKey { workload, variant, ftl, age });
    let any = |workload, variant| findings.any(workload, variant).cloned();
    let figure = |what,
                  key: &dyn Fn(Workload, Variant) -> Option<SimulationKey>,
                  value: fn(&Simulated) -> f64,
                  show| { figure(findings, what, key, value, show) };
    let mib = |mib| number(mib) + " MiB";
    let seconds = |seconds| number(seconds) + " s";
    let body = html! {
        p { (tables::setting(findings).replace("**", "")) }
        (key(Variant::ALL.map(|variant| (variant.colour(), variant.title()))))
        h2 { "Figure 2: requests" }
        (figure("requests", &any, requests, scaled))
        (below(study::REQUESTS))
        h2 { "Figure 3: traffic" }
        (figure("traffic", &any, |s| s.traffic_bytes as f64 / MIB, mib))
        (below(study::TRAFFIC))
        @for age in findings.ages() {
            h2 { "Aged by " (age.name()) }
            p { (tables::age_words(findings, age).replace('*', "")) }
            @for ftl in &findings.ftls {
                h3 { "Figure 4: erases, " (ftl) }
                (figure("erases", &of(age, *ftl), erases, scaled))
            }
            @for ftl in &findings.ftls {
                h3 { "Figure 5: GC overhead, " (ftl) }
                (figure("GC overhead", &of(age, *ftl), |s| collection(s) / 1e9, seconds))
            }
            h3 { "journal+retain against journal: fewer erases; the study's range in grey" }
            (reductions(findings, age, erases, study::erases))
            h3 { "journal+retain against journal: less GC overhead; the study's range in grey" }
            (reductions(findings, age, collection, study::collection))
        }
    };
    page::page("VMA journaling on SSDs", &body)
}

fn figure(
    findings: &Findings,
    what: &str,
    key: &dyn Fn(Workload, Variant) -> Option<SimulationKey>,
    value: fn(&Simulated) -> f64,
    show: fn(f64) -> String,
) -> Markup {
    let group = |workload: Workload| {
        let bar = |variant: Variant| {
            let spread = findings.spread(&key(workload, variant)?, value)?;
            Some(bar(variant.title().to_owned(), variant.colour(), spread, show))
        };
        Group {
            name: workload.name().to_owned(),
            bars: Variant::ALL.into_iter().filter_map(bar).collect(),
            range: None,
        }
    };
    bars(what, &Workload::ALL.map(group), Scale::Groups)
}

fn bar(name: String, colour: &'static str, spread: Spread, show: impl Fn(f64) -> String) -> Bar {
    let whisker = (spread.rounds > 1).then_some((spread.min, spread.max));
    Bar { name, colour, value: spread.median, spread: whisker, shown: show(spread.median) }
}

/// Shows from −20 % (retention costs more) to 100 %.
const SHOWN: Scale = Scale::Between(-20.0, 100.0);

fn colour(ftl: FtlKind) -> &'static str {
    match ftl {
        FtlKind::Fast => "#0072b2",
        FtlKind::Superblock => "#e69f00",
        FtlKind::Dftl => "#009e73",
        FtlKind::Page => "#999999",
    }
}

/// How much less than the journal mode's, in percent, on each FTL; the study's range behind.
fn reductions(
    findings: &Findings,
    age: Age,
    value: impl Fn(&Simulated) -> f64 + Copy,
    said: impl Fn(Workload) -> Option<Range>,
) -> Markup {
    let group = |workload: Workload| {
        let bar = |ftl: &FtlKind| {
            let key = SimulationKey { workload, variant: Variant::Retain, ftl: *ftl, age };
            let percent = findings.less_on_drive(&key, value)?;
            Some(bar(ftl.to_string(), colour(*ftl), percent, |percent| format!("{percent:.1} %")))
        };
        Group {
            name: workload.name().to_owned(),
            bars: findings.ftls.iter().filter_map(bar).collect(),
            range: said(workload),
        }
    };
    bars("less than journal", &Workload::ALL.map(group), SHOWN)
}
