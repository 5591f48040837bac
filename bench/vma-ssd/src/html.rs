//! The figures as one self-contained page.

use afterimage_bench_vma::catalog::Workload;
use afterimage_flash::FtlKind;
use afterimage_report::number::{number, scaled, MIB};
use afterimage_report::page::{self, key};
use afterimage_report::plot::{bars, Bar, Group, Scale};
use maud::{html, Markup};

use crate::findings::{collection, erases, Findings};
use crate::record::{Age, Simulated, SimulationKey};
use crate::study::{self, Range, Variant};
use crate::tables;

/// The page.
pub fn page(findings: &Findings) -> String {
    let below = |(from, to): Range| html! { p { "The study: VMA " (from) " to " (to) " % below journal." } };
    let of = |age: Age, ftl: FtlKind| move |w, v| findings.get(w, v, ftl, age);
    let body = html! {
        p { (tables::setting(findings).replace("**", "")) }
        (key(Variant::ALL.map(|variant| (variant.colour(), variant.title()))))
        h2 { "Figure 2: requests" }
        (figure("requests", |w, v| findings.any(w, v), |s| s.requests as f64, scaled))
        (below(study::REQUESTS))
        h2 { "Figure 3: traffic" }
        (figure("traffic", |w, v| findings.any(w, v), |s| s.traffic_bytes as f64 / MIB, |mib| number(mib) + " MiB"))
        (below(study::TRAFFIC))
        @for age in findings.ages() {
            h2 { "Aged by " (age.name()) }
            p { (tables::age_words(findings, age).replace('*', "")) }
            @for ftl in &findings.ftls {
                h3 { "Figure 4: erases, " (ftl) }
                (figure("erases", of(age, *ftl), erases, scaled))
            }
            @for ftl in &findings.ftls {
                h3 { "Figure 5: GC overhead, " (ftl) }
                (figure("GC overhead", of(age, *ftl), |s| collection(s) / 1e9, |seconds| number(seconds) + " s"))
            }
            h3 { "journal+retain against journal: fewer erases; the study's range in grey" }
            (reductions(findings, age, erases, study::erases))
            h3 { "journal+retain against journal: less GC overhead; the study's range in grey" }
            (reductions(findings, age, collection, study::collection))
        }
    };
    page::page("VMA journaling on SSDs", &body)
}

fn figure<'a>(
    what: &str,
    found: impl Fn(Workload, Variant) -> Option<&'a Simulated>,
    value: impl Fn(&Simulated) -> f64,
    show: impl Fn(f64) -> String,
) -> Markup {
    let group = |workload: Workload| {
        let bar = |variant: Variant| {
            let value = value(found(workload, variant)?);
            let (name, colour) = (variant.title().to_owned(), variant.colour());
            Some(Bar { name, colour, value, spread: None, shown: show(value) })
        };
        Group {
            name: workload.name().to_owned(),
            bars: Variant::ALL.into_iter().filter_map(bar).collect(),
            range: None,
        }
    };
    bars(what, &Workload::ALL.map(group), Scale::Groups)
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
            let percent = findings.less_than_journal(&key, value)?;
            let (name, shown) = (ftl.to_string(), format!("{percent:.1} %"));
            Some(Bar { name, colour: colour(*ftl), value: percent, spread: None, shown })
        };
        Group {
            name: workload.name().to_owned(),
            bars: findings.ftls.iter().filter_map(bar).collect(),
            range: said(workload),
        }
    };
    bars("less than journal", &Workload::ALL.map(group), SHOWN)
}
