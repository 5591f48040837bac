//! A picture of the ratios: one self-contained HTML file with SVG drawn by hand, no scripts.

use std::fmt::Write as _;

use crate::catalog::{Device, Row, Workload};
use crate::scale::Scale;
use crate::summary::Line;
use afterimage_lab::spread::Spread;

const BAR_PX: f64 = 13.0;
const GROUP_GAP_PX: f64 = 12.0;
const LEFT_PX: f64 = 110.0;
const PLOT_PX: f64 = 640.0;
const TOP_PX: f64 = 28.0;

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
pub fn html(scale: &Scale, lines: &[Line]) -> String {
    let mut page = String::from(
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><title>serve-guests</title><style>\n\
         body{font:14px/1.45 system-ui,sans-serif;max-width:860px;margin:2em auto;padding:0 1em;color:#222;background:#fff}\n\
         svg text{font:11px system-ui,sans-serif;fill:#222}\n\
         .key span{display:inline-block;width:.9em;height:.9em;margin:0 .35em 0 1em;vertical-align:-.1em}\n\
         </style></head><body>\n<h1>vDrive's workloads in real guests</h1>\n",
    );
    let _ = writeln!(
        page,
        "<p>Throughput over qemu-storage-daemon writeback in the same round (logarithmic); the whisker is the spread \
         over the rounds. Scale <code>{}</code>. <code>hdd15k</code> and <code>ssd</code> are models; \
         <code>disk</code> is the machine's own.</p>",
        scale.name
    );
    page.push_str("<p class=\"key\">");
    for row in Row::ALL {
        let _ = write!(page, "<span style=\"background:{}\"></span>{}", colour(row), row.title());
    }
    page.push_str("</p>\n");
    for device in Device::ALL {
        let here: Vec<&Line> =
            lines.iter().filter(|line| line.device == device && line.to_writeback.is_some()).collect();
        if !here.is_empty() {
            let _ = writeln!(page, "<h2>{}</h2>", device.name());
            page.push_str(&svg(&here));
        }
    }
    page.push_str("</body></html>\n");
    page
}

fn svg(lines: &[&Line]) -> String {
    let spreads: Vec<Spread> = lines.iter().filter_map(|line| line.to_writeback).collect();
    let low = spreads.iter().map(|s| s.min).fold(0.5, f64::min).max(0.01).log2().floor();
    let high = spreads.iter().map(|s| s.max).fold(2.0, f64::max).log2().ceil();
    let x = |ratio: f64| LEFT_PX + (ratio.max(0.01).log2() - low) / (high - low) * PLOT_PX;

    let mut bars = String::new();
    let mut y = TOP_PX;
    for workload in Workload::ALL {
        let group: Vec<&&Line> = lines.iter().filter(|line| line.workload == workload).collect();
        if group.is_empty() {
            continue;
        }
        let middle = y + group.len() as f64 * BAR_PX / 2.0 + 4.0;
        let _ = writeln!(bars, "<text x=\"0\" y=\"{middle:.1}\">{}</text>", workload.name());
        for line in group {
            let Some(ratio) = line.to_writeback else { continue };
            let (from, to) = (x(1.0).min(x(ratio.median)), x(1.0).max(x(ratio.median)));
            let _ = writeln!(
                bars,
                "<rect x=\"{from:.1}\" y=\"{y:.1}\" width=\"{:.1}\" height=\"{:.1}\" fill=\"{}\"><title>{} {}: {:.2}× \
                 ({:.2}–{:.2}), {:.0} ops/s</title></rect>",
                (to - from).max(1.0),
                BAR_PX - 2.0,
                colour(line.row),
                workload.name(),
                line.row.title(),
                ratio.median,
                ratio.min,
                ratio.max,
                line.ops_per_s.median
            );
            let whisker_y = y + BAR_PX / 2.0 - 1.0;
            let _ = writeln!(
                bars,
                "<path d=\"M{:.1} {whisker_y:.1}H{:.1}\" stroke=\"#000\" stroke-width=\"1\"/>\
                 <text x=\"{:.1}\" y=\"{:.1}\">{:.2}</text>",
                x(ratio.min),
                x(ratio.max),
                x(ratio.max).max(x(1.0)) + 4.0,
                y + BAR_PX - 3.0,
                ratio.median
            );
            y += BAR_PX;
        }
        y += GROUP_GAP_PX;
    }

    let mut grid = String::new();
    let mut power = low;
    while power <= high {
        let ratio = power.exp2();
        let at = x(ratio);
        let stroke = if power == 0.0 { "#000" } else { "#ddd" };
        let _ = writeln!(
            grid,
            "<path d=\"M{at:.1} {TOP_PX}V{y:.1}\" stroke=\"{stroke}\"/>\
             <text x=\"{at:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{ratio}×</text>",
            TOP_PX - 8.0
        );
        power += 1.0;
    }
    format!(
        "<svg viewBox=\"0 0 {:.0} {:.0}\" width=\"100%\" role=\"img\" aria-label=\"ratios to writeback\">\n{grid}{bars}</svg>\n",
        LEFT_PX + PLOT_PX + 50.0,
        y + 4.0
    )
}
