//! Draws a chart: per workload one bar per system, in its better variant.

use std::fmt::Write;

use super::figures::Figure;
use super::results::Results;
use super::systems::{SYSTEMS, System};
use super::workloads::Workload;
use crate::statistics::Summary;

const WIDTH: usize = 900;
const LABELS_WIDTH: usize = 240;
/// Leaves room for the figure to the right of the longest bar.
const BARS_WIDTH: usize = 540;
const BAR_HEIGHT: usize = 16;
/// The longest spread line, as a multiple of the longest bar.
const SPREAD_MAX: f64 = 1.06;
const ROW_HEIGHT: usize = 22;
const TITLE_HEIGHT: usize = 40;
const MARGIN: usize = 16;

const STYLE: &str = "
  :root { --paper: #ffffff; --ink: #1f2328; --soft: #59636e; --ours: #0b6bcb; --peer: #9aa4b0; }
  @media (prefers-color-scheme: dark) {
    :root { --paper: #0d1117; --ink: #e6edf3; --soft: #9198a1; --ours: #58a6ff; --peer: #57606c; }
  }
  svg { background: var(--paper); }
  .paper { fill: var(--paper); }
  text { font: 13px system-ui, sans-serif; fill: var(--ink); }
  .title { font-weight: 600; font-size: 14px; }
  .soft { fill: var(--soft); }
  .ours { fill: var(--ours); }
  .peer { fill: var(--peer); }
  .spread { stroke: var(--ink); stroke-width: 1; opacity: 0.6; }
";

struct Bar {
    system: &'static System,
    label: String,
    summary: Summary,
}

pub fn chart(results: &Results, workloads: &[Workload]) -> String {
    let (mut body, mut y) = (String::new(), MARGIN);
    for workload in workloads {
        let Some(figure) = workload.figures().first().copied() else { continue };
        let bars = bars(results, workload, figure);
        if !bars.is_empty() {
            draw(&mut body, &mut y, workload, figure, &bars);
        }
    }
    let height = y + MARGIN;
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" width=\"{WIDTH}\" \
         height=\"{height}\" role=\"img\" aria-label=\"Windlass beside its peers\">\n<style>{STYLE}</style>\n\
         <rect class=\"paper\" width=\"{WIDTH}\" height=\"{height}\"/>\n{body}</svg>\n"
    )
}

/// The bars of a workload, the best first.
fn bars(results: &Results, workload: &Workload, figure: Figure) -> Vec<Bar> {
    let bar = |system: &'static System| {
        let (variant, summary) = results.best(workload.id, system.name, figure)?;
        let label = match workload.variants.len() {
            1 => system.name.to_owned(),
            _ => format!("{}, {}", system.name, variant.name()),
        };
        Some(Bar { system, label, summary })
    };
    let mut bars: Vec<Bar> = SYSTEMS.iter().filter_map(bar).collect();
    bars.sort_by(|a, b| b.summary.median.total_cmp(&a.summary.median));
    if figure.less_is_better() {
        bars.reverse();
    }
    bars
}

fn draw(body: &mut String, y: &mut usize, workload: &Workload, figure: Figure, bars: &[Bar]) {
    let better = if figure.less_is_better() { "less is better" } else { "more is better" };
    let (title, unit) = (escape(workload.title), figure.title());
    let baseline = *y + 20;
    let _ = writeln!(
        body,
        "<text class=\"title\" x=\"{MARGIN}\" y=\"{baseline}\">{}<tspan class=\"soft\" font-weight=\"400\" \
         dx=\"8\">{title}; {unit}, {better}</tspan></text>",
        workload.id
    );
    *y += TITLE_HEIGHT - 8;
    // Scaled by medians: a single outlier would make all bars too short to compare.
    let most = bars.iter().map(|bar| bar.summary.median).fold(f64::MIN_POSITIVE, f64::max);
    for Bar { system, label, summary } in bars {
        let across =
            |value: f64| LABELS_WIDTH + ((value / most).min(SPREAD_MAX) * BARS_WIDTH as f64).round().max(1.0) as usize;
        let class = if system.is_ours() { "ours" } else { "peer" };
        let (middle, text_y, end) = (*y + BAR_HEIGHT / 2, *y + 13, across(summary.median));
        let (width, value) = (end - LABELS_WIDTH, figure.format(summary.median));
        let value_x = end.max(across(summary.max)) + 8;
        let _ = writeln!(
            body,
            "<text x=\"{}\" y=\"{text_y}\" text-anchor=\"end\">{label}</text>\
             <rect class=\"{class}\" x=\"{LABELS_WIDTH}\" y=\"{y}\" width=\"{width}\" height=\"{BAR_HEIGHT}\" rx=\"2\"/>\
             <line class=\"spread\" x1=\"{}\" x2=\"{}\" y1=\"{middle}\" y2=\"{middle}\"/>\
             <text class=\"soft\" x=\"{value_x}\" y=\"{text_y}\">{value}</text>",
            LABELS_WIDTH - 8,
            across(summary.min),
            across(summary.max),
        );
        *y += ROW_HEIGHT;
    }
    *y += MARGIN;
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compare::figures::Figures;
    use crate::compare::protocol::Variant;
    use crate::compare::workloads::WORKLOADS;

    #[test]
    fn bars_are_proportional_and_sorted_by_figure() {
        let mut results = Results::default();
        for (system, rate) in [("pgmq", 500.0), ("windlass-postgres", 1000.0)] {
            results.add("drain", system, Variant::Tuned, Ok(Figures::from([(Figure::Rate, rate)])));
        }
        let svg = chart(&results, WORKLOADS);
        let position = |text: &str| svg.find(text).unwrap_or_else(|| panic!("{text} in {svg}"));
        assert!(position("windlass-postgres, tuned") < position("pgmq, tuned"));
        assert!(position("class=\"ours\" x=\"240\" y=\"48\" width=\"540\"") < position("width=\"270\""));
        assert!(svg.contains("prefers-color-scheme: dark"));
        assert_eq!(svg.matches("class=\"title\"").count(), 1, "only what was measured");
    }
}
