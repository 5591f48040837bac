//! A picture of the ratios, on a page of its own.

use afterimage_report::page::{self, key};
use afterimage_report::plot::{bars, Bar, Group, Scale as Lengths};
use maud::html;

use crate::catalog::{Device, Row, Workload};
use crate::scale::Scale;
use crate::summary::Line;

fn colour(row: Row) -> &'static str {
    match row {
        Row::Nested => "#7f7f7f",
        Row::Writeback => "#c7a76c",
        Row::NoFlush => "#d62728",
        Row::Power => "#1f4e79",
        Row::Window => "#2ca02c",
        Row::WindowFull => "#98cf8e",
        Row::GuestCrash => "#9467bd",
    }
}

/// The page.
pub fn page(scale: &Scale, lines: &[Line]) -> String {
    let compared = |device: Device| lines.iter().any(|l| l.device == device && l.to_writeback.is_some());
    let body = html! {
        p {
            "Throughput over qemu-storage-daemon writeback in the same round (logarithmic); the whisker is the spread over the \
             rounds. Scale " code { (scale.name) } ". " code { "hdd15k" } " and " code { "ssd" } " are models; " code { "disk" }
            " is the machine's own."
        }
        (key(Row::ALL.map(|row| (colour(row), row.title()))))
        @for device in Device::ALL.into_iter().filter(|device| compared(*device)) {
            h2 { (device.name()) }
            (bars("ratios to writeback", &Workload::ALL.map(|workload| group(lines, device, workload)), Lengths::Ratios))
        }
    };
    page::page("vDrive's workloads in real guests", &body)
}

fn group(lines: &[Line], device: Device, workload: Workload) -> Group {
    let bar = |line: &Line| {
        let ratio = line.to_writeback?;
        Some(Bar {
            name: format!("{}, {:.0} ops/s", line.row.title(), line.ops_per_s.median),
            colour: colour(line.row),
            value: ratio.median,
            spread: Some((ratio.min, ratio.max)),
            shown: format!("{:.2}×", ratio.median),
        })
    };
    let here = lines.iter().filter(|line| line.device == device && line.workload == workload);
    Group { name: workload.name().to_owned(), bars: here.filter_map(bar).collect(), range: None }
}
