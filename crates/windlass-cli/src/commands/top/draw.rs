//! Draws a frame of `windlass top` from a view.

use std::time::Duration;

use ratatui::buffer::Buffer;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style, Stylize};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Block, Cell, Clear, Paragraph, Row as TableRow, Sparkline, Table, Widget};
use windlass::Timestamp;

use super::keys::ScreenState;
use super::view::{Row, View};
use crate::output::sanitize;
use crate::time::format_duration;

const FAINT: Style = Style::new().add_modifier(Modifier::DIM);
const HEAD: Style = Style::new().add_modifier(Modifier::BOLD);
const BAD: Style = Style::new().fg(Color::Red);
const WARN: Style = Style::new().fg(Color::Yellow);
const GOOD: Style = Style::new().fg(Color::Green);

/// Number of charts.
const CHART_COUNT: u16 = 4;
/// Lines of a section below the table, including its heading.
const SECTION_MAX: u16 = 6;

/// Draws all parts. On a small screen, first the sections below the table are omitted, then the charts.
pub fn draw(view: &View, screen: &ScreenState, source: &str, now: Timestamp, area: Rect, buffer: &mut Buffer) {
    let charts = if area.height >= 12 { CHART_COUNT + 1 } else { 0 };
    let section = |lines: usize| u16::try_from(lines + 1).unwrap_or(SECTION_MAX).min(SECTION_MAX);
    let has_sections = area.height >= 18;
    let (nodes, dead_letters) = (section(view.working.len().max(1)), section(view.dead_letters.len().max(1)));
    let heights = [
        Constraint::Length(1),
        Constraint::Length(2),
        Constraint::Length(charts),
        Constraint::Min(2),
        Constraint::Length(if has_sections { nodes + 1 } else { 0 }),
        Constraint::Length(if has_sections { dead_letters + 1 } else { 0 }),
        Constraint::Length(1),
    ];
    let [title, totals, charts, rows, working, dead_letters, footer] = Layout::vertical(heights).areas(area);
    draw_title(view, screen, source, now, title, buffer);
    draw_totals(view, now, totals, buffer);
    draw_charts(view, charts, buffer);
    draw_rows(view, screen, now, rows, buffer);
    draw_working(view, now, working, buffer);
    draw_dead_letters(view, now, dead_letters, buffer);
    draw_footer(view, screen, now, footer, buffer);
    if screen.shows_help {
        draw_help(area, buffer);
    }
}

fn draw_title(view: &View, screen: &ScreenState, source: &str, now: Timestamp, area: Rect, buffer: &mut Buffer) {
    let mut title = vec!["windlass".bold(), "  ".into(), sanitize(&view.namespace).bold()];
    if view.paused {
        title.push("  paused: nothing is handed out".fg(Color::Yellow));
    }
    if screen.is_paused() {
        title.push("  screen stopped, p goes on".fg(Color::Yellow));
    }
    title.push(Span::styled(format!("  {}", sanitize(source)), FAINT));
    Line::from(title).render(area, buffer);
    let time = format!(" {}", now.format("%H:%M:%SZ"));
    Line::styled(time, FAINT).right_aligned().render(area, buffer);
}

fn draw_totals(view: &View, now: Timestamp, area: Rect, buffer: &mut Buffer) {
    let sum = |of: fn(&Row) -> u64| view.rows.iter().map(of).sum::<u64>();
    let (pending, processing, dead) = (sum(|row| row.pending), sum(|row| row.processing), sum(|row| row.dead));
    let oldest = view.rows.iter().filter_map(|row| row.oldest_at).min();
    let [first, second] = Layout::vertical([Constraint::Length(1), Constraint::Length(1)]).areas(area);
    let number = |count: u64, style: Style| Span::styled(count.to_string(), if count > 0 { style } else { FAINT });
    let counts = vec![
        Span::styled("waiting ", FAINT),
        number(pending, WARN),
        Span::styled("  running ", FAINT),
        number(processing, GOOD),
        Span::styled("  dead ", FAINT),
        number(dead, BAD),
        Span::styled("  oldest ", FAINT),
        Span::raw(age(oldest, now)),
    ];
    Line::from(counts).render(first, buffer);
    let rates = &view.rates;
    let flow = format!(
        "in {}/s  out {}/s  failed {}/s  wait p95 {}  run p95 {}",
        format_rate(rates.published),
        format_rate(rates.completed),
        format_rate(rates.failed),
        format_millis(rates.wait_p95_ms),
        format_millis(rates.run_p95_ms)
    );
    Line::raw(flow).render(second, buffer);
}

fn draw_charts(view: &View, area: Rect, buffer: &mut Buffer) {
    let chart = &view.chart;
    let lines = [
        ("published", &chart.published, Color::Cyan, "/min"),
        ("completed", &chart.completed, Color::Green, "/min"),
        ("failed", &chart.failed, Color::Red, "/min"),
        ("depth", &chart.depth, Color::Yellow, ""),
    ];
    for ((name, data, color, unit), y) in lines.into_iter().zip(area.y..area.bottom()) {
        let line = Rect { y, height: 1, ..area };
        let widths = [Constraint::Length(10), Constraint::Fill(1), Constraint::Length(16)];
        let [label, bars, maximum] = Layout::horizontal(widths).areas(line);
        Line::styled(name, FAINT).render(label, buffer);
        // If not all values fit, draw the latest.
        let visible = &data[data.len().saturating_sub(usize::from(bars.width))..];
        Sparkline::default().data(visible).style(Style::new().fg(color)).render(bars, buffer);
        let max = visible.iter().max().copied().unwrap_or(0);
        Line::styled(format!(" most {max}{unit}"), FAINT).render(maximum, buffer);
    }
}

fn draw_rows(view: &View, screen: &ScreenState, now: Timestamp, area: Rect, buffer: &mut Buffer) {
    let columns: Vec<&Column> = COLUMNS.iter().filter(|column| area.width >= column.from_width).collect();
    let sorted = screen.sorted(&view.rows);
    let head = |column: &&Column| match column.width {
        Constraint::Fill(_) => Cell::from(column.head),
        _ => Cell::from(Line::raw(column.head).right_aligned()),
    };
    let head = TableRow::new(columns.iter().map(head)).style(FAINT);
    let cells = |row: &&Row| TableRow::new(columns.iter().map(|column| (column.cell)(row, now)));
    let rows = sorted.iter().skip(screen.first_row).map(cells);
    let widths: Vec<Constraint> = columns.iter().map(|column| column.width).collect();
    Widget::render(Table::new(rows, widths).header(head), area, buffer);
}

/// A column of the table, and the screen width from which it is shown.
struct Column {
    head: &'static str,
    from_width: u16,
    width: Constraint,
    cell: fn(&Row, Timestamp) -> Cell<'static>,
}

const fn number(head: &'static str, from_width: u16, cell: fn(&Row, Timestamp) -> Cell<'static>) -> Column {
    Column { head, from_width, width: Constraint::Length(7), cell }
}

const COLUMNS: [Column; 10] = [
    Column { head: "TYPE", from_width: 0, width: Constraint::Fill(2), cell: |row, _| sanitize(&row.event_type).into() },
    Column {
        head: "SUBSCRIPTION",
        from_width: 70,
        width: Constraint::Fill(1),
        cell: |row, _| sanitize(&row.subscription).into(),
    },
    number("WAITING", 20, |row, _| count(row.pending, WARN)),
    number("RUNNING", 40, |row, _| count(row.processing, GOOD)),
    number("DEAD", 40, |row, _| count(row.dead, BAD)),
    number("OLDEST", 60, |row, now| right(age(row.oldest_at, now))),
    number("IN/S", 90, |row, _| right(format_rate(row.rates.published))),
    number("OUT/S", 60, |row, _| right(format_rate(row.rates.completed))),
    number("FAIL/S", 90, |row, _| right(format_rate(row.rates.failed))),
    number("RUN P95", 90, |row, _| right(format_millis(row.rates.run_p95_ms))),
];

fn right(text: String) -> Cell<'static> {
    Cell::from(Line::raw(text).right_aligned())
}

fn count(count: u64, style: Style) -> Cell<'static> {
    right(count.to_string()).style(if count > 0 { style } else { FAINT })
}

fn draw_working(view: &View, now: Timestamp, area: Rect, buffer: &mut Buffer) {
    let mut lines = vec![Line::raw(""), Line::styled("Nodes and workers", HEAD)];
    if view.working.is_empty() {
        lines.push(Line::styled("none", FAINT));
    }
    for working in &view.working {
        let (status, style) = if working.is_stale { ("stale", BAD) } else { ("alive", GOOD) };
        let age = format!("  {} ago", age(Some(working.seen_at), now));
        let held = if working.held > 0 { format!("  holds {}", working.held) } else { String::new() };
        let description =
            working.description.as_deref().map(|text| format!("  {}", sanitize(text))).unwrap_or_default();
        lines.push(Line::from(vec![
            Span::styled(format!("{status:<6}"), style),
            Span::raw(sanitize(&working.name)),
            Span::styled(age, FAINT),
            Span::raw(held),
            Span::styled(description, FAINT),
        ]));
    }
    Paragraph::new(lines).render(area, buffer);
}

fn draw_dead_letters(view: &View, now: Timestamp, area: Rect, buffer: &mut Buffer) {
    let mut lines = vec![Line::raw(""), Line::styled("Newest dead letters", HEAD)];
    if view.dead_letters.is_empty() {
        lines.push(Line::styled("none", FAINT));
    }
    for dead_letter in &view.dead_letters {
        let reason = dead_letter.error.as_ref().unwrap_or(&dead_letter.reason);
        lines.push(Line::from(vec![
            Span::raw(format!("{}  ", dead_letter.event_id)),
            Span::raw(sanitize(&dead_letter.event_type)),
            Span::styled(format!("  {}", sanitize(&dead_letter.subscription)), FAINT),
            Span::styled(format!("  {} ago  ", age(Some(dead_letter.failed_at), now)), FAINT),
            Span::styled(sanitize(reason), BAD),
        ]));
    }
    Paragraph::new(lines).render(area, buffer);
}

fn draw_footer(view: &View, screen: &ScreenState, now: Timestamp, area: Rect, buffer: &mut Buffer) {
    let line = match (&view.error, view.fetched_at) {
        (Some((error, _)), Some(at)) => {
            Line::styled(format!("as of {} ago: {}", age(Some(at), now), sanitize(error)), BAD)
        }
        (Some((error, _)), None) => Line::styled(sanitize(error), BAD),
        (None, None) => Line::styled("looking …", FAINT),
        (None, Some(_)) => {
            let order = if screen.reversed { "reversed" } else { "" };
            let keys = format!("q quit  p pause  s sort: {} {order}", screen.sort.name());
            Line::styled(format!("{}  n namespace  ? help", keys.trim_end()), FAINT)
        }
    };
    line.render(area, buffer);
}

const HELP: [&str; 9] = [
    "q, Esc     quit",
    "p, space   stop the screen, and go on",
    "s          sort: waiting, dead, oldest, rate, type",
    "r          the other way round",
    "↑ ↓ j k    move through the rows, also by page",
    "n, N       the next namespace, the one before",
    "?          this help",
    "",
    "IN, OUT and FAIL are of the type, for all subscriptions",
];

fn draw_help(area: Rect, buffer: &mut Buffer) {
    let (width, height) = (62.min(area.width), 11.min(area.height));
    let dialog = Rect { x: area.x + (area.width - width) / 2, y: area.y + (area.height - height) / 2, width, height };
    Clear.render(dialog, buffer);
    let lines: Vec<Line> = HELP.iter().map(|line| Line::raw(*line)).collect();
    Paragraph::new(lines).block(Block::bordered().title(" Help ")).render(dialog, buffer);
}

fn age(at: Option<Timestamp>, now: Timestamp) -> String {
    at.map_or_else(|| "–".to_owned(), |at| format_duration((now - at).to_std().unwrap_or(Duration::ZERO)))
}

/// Formats a rate with as many digits as are meaningful.
fn format_rate(rate: f64) -> String {
    match rate {
        0.0 => "0".to_owned(),
        0.0..0.1 => "<0.1".to_owned(),
        0.1..100.0 => format!("{rate:.1}"),
        _ => format!("{rate:.0}"),
    }
}

fn format_millis(ms: Option<f64>) -> String {
    match ms {
        None => "–".to_owned(),
        Some(ms) if ms < 10.0 => format!("{ms:.1} ms"),
        Some(ms) if ms < 10_000.0 => format!("{ms:.0} ms"),
        Some(ms) => format_duration(Duration::from_secs_f64(ms / 1_000.0)),
    }
}
