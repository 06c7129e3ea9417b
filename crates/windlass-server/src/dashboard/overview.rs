//! `/ui/{namespace}`: the overview of a namespace, and pausing and resuming it.

use std::collections::BTreeSet;
use std::sync::Arc;

use askama::Template;
use axum::Router;
use axum::routing::{get, post};
use chrono::TimeDelta;
use serde::Deserialize;
use windlass::{Namespace, Quantiles, Sample, Subscription, Timestamp};

use super::PageResult;
use super::chart::{Chart, Series, Steps, Unit, draw};
use super::confirm::Confirm;
use super::form::{Form, link};
use super::format::{RelativeTime, count, pluralize};
use super::layout::{Layout, Tab, render};
use super::overview_data::{OverviewData, STUCK_SHOWN, TimeRange, first_step_start};
use super::page_context::PageContext;
use crate::app::App;
use crate::extract::{FormBody, QueryArgs};

pub(super) fn routes() -> Router<App> {
    Router::new()
        .route("/ui/{namespace}", get(show))
        .route("/ui/{namespace}/pause", post(pause))
        .route("/ui/{namespace}/resume", post(resume))
}

#[derive(Template)]
#[template(path = "overview.html")]
struct Overview {
    layout: Layout,
    range: TimeRange,
    ranges: [TimeRange; 4],
    numbers: Vec<Number>,
    attention: Vec<Attention>,
    types: Vec<TypeRow>,
    more_types: String,
    charts: Vec<Chart>,
    charts_error: Option<String>,
}

/// A key number.
struct Number {
    label: &'static str,
    value: String,
    note: String,
    class: &'static str,
    href: String,
}

/// A condition that needs attention.
struct Attention {
    class: &'static str,
    text: String,
    /// Links: label and URL.
    links: Vec<(String, String)>,
}

struct TypeRow {
    event_type: String,
    href: String,
    waiting: String,
    running: String,
    later: String,
    oldest: Option<RelativeTime>,
    completed: String,
    failed: String,
    has_failed: bool,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct OverviewArgs {
    range: Option<String>,
}

async fn show(ctx: PageContext, QueryArgs(args): QueryArgs<OverviewArgs>) -> PageResult {
    let range = args.range.as_deref().map_or(Ok(TimeRange::default()), TimeRange::parse)?;
    let data = ctx.app.overview_cache.get(&ctx.queue, range).await?;
    let subscriptions = ctx.queue.subscriptions().await?;
    let (charts, charts_error) = match &data.samples {
        Ok(samples) => (charts(samples, range, data.at), None),
        Err(error) => (Vec::new(), Some(error.to_string())),
    };
    let (types, more) = types(&ctx, &data);
    render(&Overview {
        layout: ctx.layout(Tab::Overview, "Overview"),
        range,
        ranges: TimeRange::ALL,
        numbers: numbers(&ctx, &data),
        attention: attention(&ctx, &data, &subscriptions),
        types,
        more_types: if more > 0 { pluralize(more, "more type", "more types") } else { String::new() },
        charts,
        charts_error,
    })
}

fn numbers(ctx: &PageContext, data: &Arc<OverviewData>) -> Vec<Number> {
    let sum = |of: fn(&windlass::Backlog) -> u64| data.backlog.iter().map(of).sum::<u64>();
    let (retrying, delayed, behind) = (sum(|b| b.retrying), sum(|b| b.delayed), sum(|b| b.behind_group));
    let oldest = data.backlog.iter().filter_map(|backlog| backlog.ready_since).min();
    let oldest = oldest.map_or_else(String::new, |since| format!("oldest {}", age(since, ctx.now)));
    let events = |status: &'static str| link(&ctx.path("events"), [("status", Some(status.into()))]);
    let number =
        |label, value: u64, note: String, class, href| Number { label, value: count(value), note, class, href };
    let bad = |value: u64| if value > 0 { "bad" } else { "" };
    let parts = [(delayed, "delayed"), (retrying, "retrying"), (behind, "behind their group")];
    let parts = parts.into_iter().filter(|(number, _)| *number > 0);
    let later = parts.map(|(number, what)| format!("{} {what}", count(number))).collect::<Vec<_>>().join(" · ");
    let recent = format!("{} in the last hour", count(data.recent_dead_letters));
    let finished = data.finished;
    let letters = data.dead_letters;
    vec![
        number("Waiting", sum(|b| b.ready), oldest, "", events("PENDING")),
        number("Running", sum(|b| b.running), String::new(), "", events("PROCESSING")),
        number("Later", retrying + delayed + behind, later, "", events("PENDING")),
        number("Dead letters", letters, recent, bad(letters), ctx.path("dead-letters")),
        number("Completed", finished.completed, "in the last hour".into(), "", events("COMPLETED")),
        number("Failed", finished.failed, "in the last hour".into(), bad(finished.failed), events("FAILED")),
    ]
}

fn age(since: Timestamp, now: Timestamp) -> String {
    super::format::duration(u64::try_from((now - since).num_milliseconds()).unwrap_or(0))
}

/// A delivery that has been ready for longer than this needs attention.
const LONG_WAIT: TimeDelta = TimeDelta::minutes(5);

fn attention(ctx: &PageContext, data: &OverviewData, subscriptions: &[Subscription]) -> Vec<Attention> {
    let mut found = Vec::new();
    let mut add = |class, text, links| found.push(Attention { class, text, links });
    if let Some(namespace) = &ctx.namespace {
        paused(namespace, subscriptions, &mut add, &ctx.path("subscriptions"));
    }
    if data.recent_dead_letters > 0 {
        let text = format!("{} in the last hour.", pluralize(data.recent_dead_letters, "dead letter", "dead letters"));
        add("bad", text, vec![("Show".into(), ctx.path("dead-letters"))]);
    }
    if !data.stuck.is_empty() {
        let many = data.stuck.len() > STUCK_SHOWN;
        let shown = data.stuck.iter().take(STUCK_SHOWN);
        let links =
            shown.map(|stuck| (format!("{} #{}", stuck.event_type, stuck.event_id), event(ctx, stuck.event_id)));
        let text = format!("{}held for more than 10 minutes:", if many { "Many events are " } else { "" });
        let text =
            if many { text } else { format!("{} {text}", pluralize(data.stuck.len(), "event is", "events are")) };
        add("warn", text, links.collect());
    }
    let longest =
        data.backlog.iter().filter_map(|backlog| Some((backlog.ready_since?, backlog))).min_by_key(|(at, _)| *at);
    if let Some((since, backlog)) = longest.filter(|(since, _)| ctx.now - *since > LONG_WAIT) {
        let text = format!("{} has been ready for {} and was not claimed.", backlog.event_type, age(since, ctx.now));
        let pairs = [("status", Some("PENDING".into())), ("type", Some(backlog.event_type.as_str().into()))];
        add("warn", text, vec![("See why".into(), link(&ctx.path("events"), pairs))]);
    }
    if !data.stale_nodes.is_empty() {
        let text = format!(
            "{} silent: {}.",
            pluralize(data.stale_nodes.len(), "node is", "nodes are"),
            shorten(&data.stale_nodes)
        );
        add("warn", text, vec![("Nodes".into(), ctx.path("nodes"))]);
    }
    found
}

fn paused(
    namespace: &Namespace,
    subscriptions: &[Subscription],
    add: &mut impl FnMut(&'static str, String, Vec<(String, String)>),
    page: &str,
) {
    if namespace.paused {
        add("warn", "The namespace is paused: no events are delivered.".to_owned(), Vec::new());
    }
    if !namespace.paused_types.is_empty() {
        add("warn", format!("Paused types: {}.", shorten(&namespace.paused_types)), Vec::new());
    }
    let paused = subscriptions.iter().filter(|subscription| subscription.paused);
    let paused: Vec<String> = paused.map(|subscription| subscription.subscription.clone()).collect();
    if !paused.is_empty() {
        let text = format!("Paused subscriptions: {}.", shorten(&paused));
        add("warn", text, vec![("Subscriptions".into(), page.to_owned())]);
    }
}

/// The first few names.
fn shorten(names: &[String]) -> String {
    const SHOWN: usize = 5;
    let shown = names.iter().take(SHOWN).cloned().collect::<Vec<_>>().join(", ");
    if names.len() > SHOWN { format!("{shown} and {} more", count(names.len() - SHOWN)) } else { shown }
}

fn event(ctx: &PageContext, event_id: i64) -> String {
    ctx.path(&format!("events/{event_id}"))
}

/// Maximum number of types in the table.
const TYPES_SHOWN: usize = 25;

/// The types with the most pending work or failures first, and the number of types left out.
fn types(ctx: &PageContext, data: &OverviewData) -> (Vec<TypeRow>, usize) {
    let names: BTreeSet<&String> =
        data.backlog.iter().map(|backlog| &backlog.event_type).chain(data.finished_by_type.keys()).collect();
    let mut rows: Vec<_> = names
        .into_iter()
        .map(|name| {
            let backlog = data.backlog.iter().find(|backlog| backlog.event_type == *name);
            (name, backlog, data.finished_by_type.get(name).copied().unwrap_or_default())
        })
        .collect();
    rows.sort_by_key(|(_, backlog, finished)| {
        std::cmp::Reverse((backlog.map_or(0, |b| b.live()), finished.failed, finished.completed))
    });
    let more = rows.len().saturating_sub(TYPES_SHOWN);
    let row =
        |(name, backlog, finished): (&String, Option<&windlass::Backlog>, super::overview_data::FinishedCounts)| {
            TypeRow {
                href: link(&ctx.path("events"), [("type", Some(name.as_str().into()))]),
                event_type: name.clone(),
                waiting: count(backlog.map_or(0, |b| b.ready)),
                running: count(backlog.map_or(0, |b| b.running)),
                later: count(backlog.map_or(0, |b| b.delayed + b.retrying + b.behind_group)),
                oldest: backlog.and_then(|b| b.ready_since).map(|since| RelativeTime::new(since, ctx.now)),
                completed: count(finished.completed),
                failed: count(finished.failed),
                has_failed: finished.failed > 0,
            }
        };
    (rows.into_iter().take(TYPES_SHOWN).map(row).collect(), more)
}

fn charts(samples: &[Sample], range: TimeRange, now: Timestamp) -> Vec<Chart> {
    let (step_s, len) = range.steps();
    let steps = Steps { from: first_step_start(range, now), step_s, len };
    let known =
        |name, class, of: &dyn Fn(&Sample) -> Option<f64>| Series { name, class, values: align(samples, steps, of) };
    let elapsed_s = (now - steps.from).num_seconds();
    let rate = |name, class, of: &dyn Fn(&Sample) -> u64| {
        let counts = align(samples, steps, &|sample| Some(of(sample) as f64));
        Series { name, class, values: per_minute(counts, step_s, elapsed_s) }
    };
    let published = rate("published", "tone-2", &|sample| sample.published);
    let completed = rate("completed", "tone-1", &|sample| sample.completed);
    let retried = rate("retried", "tone-4", &|sample| sample.retried);
    let failed = rate("failed", "tone-3", &|sample| sample.failed + sample.expired);
    let depth = known("waiting or running", "tone-2", &|sample| sample.depth.map(|depth| depth as f64));
    let oldest = known("oldest", "tone-4", &|sample| sample.oldest_ms.map(|oldest| oldest as f64));
    let waits =
        [("p50", "tone-1"), ("p95", "tone-2")].map(|(name, class)| known(name, class, &|s| quantile(s.wait_ms, name)));
    let runs =
        [("p50", "tone-1"), ("p95", "tone-2")].map(|(name, class)| known(name, class, &|s| quantile(s.run_ms, name)));
    vec![
        draw("rates", "Throughput", Unit::PerMinute, steps, &[published, completed]),
        draw("failures", "Failures", Unit::PerMinute, steps, &[retried, failed]),
        draw("depth", "Depth", Unit::Count, steps, &[depth]),
        draw("oldest", "Oldest pending", Unit::Milliseconds, steps, &[oldest]),
        draw("waits", "Queue latency", Unit::Milliseconds, steps, &waits),
        draw("runs", "Run time", Unit::Milliseconds, steps, &runs),
    ]
}

fn quantile(quantiles: Option<Quantiles>, name: &str) -> Option<f64> {
    quantiles.map(|quantiles| if name == "p50" { quantiles.p50 } else { quantiles.p95 })
}

/// One value for each step; `None` if there is no sample.
fn align(samples: &[Sample], steps: Steps, of: &dyn Fn(&Sample) -> Option<f64>) -> Vec<Option<f64>> {
    let mut values = vec![None; steps.len];
    for sample in samples {
        let index = (sample.at - steps.from).num_seconds() / i64::from(steps.step_s);
        if let Some(slot) = usize::try_from(index).ok().and_then(|index| values.get_mut(index)) {
            *slot = of(sample);
        }
    }
    values
}

/// Converts counts to rates. A step without a count had no activity. The current step is included once a tenth of it has
/// passed, with the rate of the time passed so far.
fn per_minute(counts: Vec<Option<f64>>, step_s: u32, elapsed_s: i64) -> Vec<Option<f64>> {
    let last = counts.len().saturating_sub(1);
    let step = f64::from(step_s);
    let current = elapsed_s as f64 - step * last as f64;
    let rate = |(index, count): (usize, Option<f64>)| match count.unwrap_or(0.0) {
        count if index < last => Some(count * 60.0 / step),
        count if current >= step / 10.0 => Some(count * 60.0 / current.min(step)),
        _ => None,
    };
    counts.into_iter().enumerate().map(rate).collect()
}

async fn pause(ctx: PageContext, FormBody(fields, _memory): FormBody) -> PageResult {
    let form = Form(fields);
    let namespace = ctx.queue.namespace();
    if !form.is_confirmed() {
        let confirm = Confirm {
            tab: Tab::Overview,
            question: format!("Pause the namespace {namespace}?"),
            detail: "No events are delivered from it until it is resumed. Running work and publishing continue."
                .to_owned(),
            button: "Pause".to_owned(),
            destructive: false,
            action: ctx.path("pause"),
            back: ctx.path(""),
        };
        return confirm.ask(&ctx, form);
    }
    ctx.queue.pause().await?;
    ctx.redirect_with_notice(&ctx.path(""), &format!("The namespace {namespace} is paused."))
}

async fn resume(ctx: PageContext, FormBody(fields, _memory): FormBody) -> PageResult {
    let form = Form(fields);
    let namespace = ctx.queue.namespace();
    if !form.is_confirmed() {
        let confirm = Confirm {
            tab: Tab::Overview,
            question: format!("Resume the namespace {namespace}?"),
            detail: "Pending events are delivered again.".to_owned(),
            button: "Resume".to_owned(),
            destructive: false,
            action: ctx.path("resume"),
            back: ctx.path(""),
        };
        return confirm.ask(&ctx, form);
    }
    ctx.queue.resume().await?;
    ctx.redirect_with_notice(&ctx.path(""), &format!("The namespace {namespace} is resumed."))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_are_converted_to_rates() {
        let counts = vec![Some(10.0), None, Some(5.0)];
        assert_eq!(per_minute(counts.clone(), 60, 180), [Some(10.0), Some(0.0), Some(5.0)]);
        assert_eq!(per_minute(counts.clone(), 60, 150), [Some(10.0), Some(0.0), Some(10.0)], "half a minute");
        assert_eq!(per_minute(counts.clone(), 60, 121), [Some(10.0), Some(0.0), None], "too early to say");
        assert_eq!(per_minute(counts, 600, 1_800), [Some(1.0), Some(0.0), Some(0.5)]);
    }

    #[test]
    fn long_lists_of_names_are_shortened() {
        let names: Vec<String> = (1..=7).map(|n| format!("n{n}")).collect();
        assert_eq!(shorten(&names[..2]), "n1, n2");
        assert_eq!(shorten(&names), "n1, n2, n3, n4, n5 and 2 more");
    }
}
