//! `/ui/{namespace}`: how things stand, at a glance; and pausing a namespace.

use std::collections::BTreeSet;
use std::sync::Arc;

use askama::Template;
use axum::Router;
use axum::routing::{get, post};
use chrono::TimeDelta;
use serde::Deserialize;
use windlass::{Namespace, Quantiles, Sample, Subscription, Timestamp};

use super::Answer;
use super::chart::{Chart, Series, Steps, Unit, draw};
use super::confirm::Confirm;
use super::figures::{Figures, Range, STUCK_SHOWN, begin};
use super::form::{Form, link};
use super::format::{When, count, counted};
use super::shell::{Shell, Tab, page};
use super::visit::Visit;
use crate::app::App;
use crate::extract::{Args, FormBody};

pub(super) fn routes() -> Router<App> {
    Router::new()
        .route("/ui/{namespace}", get(show))
        .route("/ui/{namespace}/pause", post(pause))
        .route("/ui/{namespace}/resume", post(resume))
}

#[derive(Template)]
#[template(path = "overview.html")]
struct Overview {
    shell: Shell,
    range: Range,
    ranges: [Range; 4],
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

/// Something that somebody should look at.
struct Attention {
    class: &'static str,
    text: String,
    /// Where to: a page, and what it is called.
    links: Vec<(String, String)>,
}

struct TypeRow {
    event_type: String,
    href: String,
    waiting: String,
    running: String,
    later: String,
    oldest: Option<When>,
    completed: String,
    failed: String,
    has_failed: bool,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct OverviewArgs {
    range: Option<String>,
}

async fn show(visit: Visit, Args(args): Args<OverviewArgs>) -> Answer {
    let range = args.range.as_deref().map_or(Ok(Range::default()), Range::parse)?;
    let figures = visit.app.figured.get(&visit.queue, range).await?;
    let subscriptions = visit.queue.subscriptions().await?;
    let (charts, charts_error) = match &figures.samples {
        Ok(samples) => (charts(samples, range, figures.at), None),
        Err(error) => (Vec::new(), Some(error.to_string())),
    };
    let (types, more) = types(&visit, &figures);
    page(&Overview {
        shell: visit.shell(Tab::Overview, "Overview"),
        range,
        ranges: Range::ALL,
        numbers: numbers(&visit, &figures),
        attention: attention(&visit, &figures, &subscriptions),
        types,
        more_types: if more > 0 { counted(more, "more type", "more types") } else { String::new() },
        charts,
        charts_error,
    })
}

fn numbers(visit: &Visit, figures: &Arc<Figures>) -> Vec<Number> {
    let sum = |of: fn(&windlass::Backlog) -> u64| figures.backlog.iter().map(of).sum::<u64>();
    let (retrying, delayed, behind) = (sum(|b| b.retrying), sum(|b| b.delayed), sum(|b| b.behind_group));
    let oldest = figures.backlog.iter().filter_map(|backlog| backlog.ready_since).min();
    let oldest = oldest.map_or_else(String::new, |since| format!("oldest {}", age(since, visit.now)));
    let events = |status: &'static str| link(&visit.path("events"), [("status", Some(status.into()))]);
    let number =
        |label, value: u64, note: String, class, href| Number { label, value: count(value), note, class, href };
    let bad = |value: u64| if value > 0 { "bad" } else { "" };
    let parts = [(delayed, "delayed"), (retrying, "retrying"), (behind, "behind their group")];
    let parts = parts.into_iter().filter(|(number, _)| *number > 0);
    let later = parts.map(|(number, what)| format!("{} {what}", count(number))).collect::<Vec<_>>().join(" · ");
    let lately = format!("{} in the last hour", count(figures.dead_lately));
    let ended = figures.ended;
    let letters = figures.dead_letters;
    vec![
        number("Waiting", sum(|b| b.ready), oldest, "", events("PENDING")),
        number("Running", sum(|b| b.running), String::new(), "", events("PROCESSING")),
        number("Later", retrying + delayed + behind, later, "", events("PENDING")),
        number("Dead letters", letters, lately, bad(letters), visit.path("dead-letters")),
        number("Completed", ended.completed, "in the last hour".into(), "", events("COMPLETED")),
        number("Failed for good", ended.failed, "in the last hour".into(), bad(ended.failed), events("FAILED")),
    ]
}

fn age(since: Timestamp, now: Timestamp) -> String {
    super::format::span(u64::try_from((now - since).num_milliseconds()).unwrap_or(0))
}

/// What could be taken for this long, and was not, needs somebody.
const WAITS_LONG: TimeDelta = TimeDelta::minutes(5);

fn attention(visit: &Visit, figures: &Figures, subscriptions: &[Subscription]) -> Vec<Attention> {
    let mut found = Vec::new();
    let mut add = |class, text, links| found.push(Attention { class, text, links });
    if let Some(namespace) = &visit.namespace {
        paused(namespace, subscriptions, &mut add, &visit.path("subscriptions"));
    }
    if figures.dead_lately > 0 {
        let text = format!("{} in the last hour.", counted(figures.dead_lately, "dead letter", "dead letters"));
        add("bad", text, vec![("Look at them".into(), visit.path("dead-letters"))]);
    }
    if !figures.stuck.is_empty() {
        let many = figures.stuck.len() > STUCK_SHOWN;
        let shown = figures.stuck.iter().take(STUCK_SHOWN);
        let links =
            shown.map(|stuck| (format!("{} #{}", stuck.event_type, stuck.event_id), event(visit, stuck.event_id)));
        let text = format!("{}held for more than 10 minutes:", if many { "Many events are " } else { "" });
        let text =
            if many { text } else { format!("{} {text}", counted(figures.stuck.len(), "event is", "events are")) };
        add("warn", text, links.collect());
    }
    let longest =
        figures.backlog.iter().filter_map(|backlog| Some((backlog.ready_since?, backlog))).min_by_key(|(at, _)| *at);
    if let Some((since, backlog)) = longest.filter(|(since, _)| visit.now - *since > WAITS_LONG) {
        let text = format!("{} has been ready for {}, and nobody took it.", backlog.event_type, age(since, visit.now));
        let pairs = [("status", Some("PENDING".into())), ("type", Some(backlog.event_type.as_str().into()))];
        add("warn", text, vec![("See why".into(), link(&visit.path("events"), pairs))]);
    }
    if !figures.stale_nodes.is_empty() {
        let text = format!(
            "{} silent: {}.",
            counted(figures.stale_nodes.len(), "node is", "nodes are"),
            few(&figures.stale_nodes)
        );
        add("warn", text, vec![("Nodes".into(), visit.path("nodes"))]);
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
        add("warn", "The namespace is paused: nothing is handed out.".to_owned(), Vec::new());
    }
    if !namespace.paused_types.is_empty() {
        add("warn", format!("Paused types: {}.", few(&namespace.paused_types)), Vec::new());
    }
    let paused = subscriptions.iter().filter(|subscription| subscription.paused);
    let paused: Vec<String> = paused.map(|subscription| subscription.subscription.clone()).collect();
    if !paused.is_empty() {
        let text = format!("Paused subscriptions: {}.", few(&paused));
        add("warn", text, vec![("Subscriptions".into(), page.to_owned())]);
    }
}

/// The first few names.
fn few(names: &[String]) -> String {
    const SHOWN: usize = 5;
    let shown = names.iter().take(SHOWN).cloned().collect::<Vec<_>>().join(", ");
    if names.len() > SHOWN { format!("{shown} and {} more", count(names.len() - SHOWN)) } else { shown }
}

fn event(visit: &Visit, event_id: i64) -> String {
    visit.path(&format!("events/{event_id}"))
}

/// The table shows so many types.
const TYPES_SHOWN: usize = 25;

/// Those with the most to do or the most failures first, and how many more there are.
fn types(visit: &Visit, figures: &Figures) -> (Vec<TypeRow>, usize) {
    let names: BTreeSet<&String> =
        figures.backlog.iter().map(|backlog| &backlog.event_type).chain(figures.ended_by_type.keys()).collect();
    let mut rows: Vec<_> = names
        .into_iter()
        .map(|name| {
            let backlog = figures.backlog.iter().find(|backlog| backlog.event_type == *name);
            (name, backlog, figures.ended_by_type.get(name).copied().unwrap_or_default())
        })
        .collect();
    rows.sort_by_key(|(_, backlog, ended)| {
        std::cmp::Reverse((backlog.map_or(0, |b| b.live()), ended.failed, ended.completed))
    });
    let more = rows.len().saturating_sub(TYPES_SHOWN);
    let row = |(name, backlog, ended): (&String, Option<&windlass::Backlog>, super::figures::Ended)| TypeRow {
        href: link(&visit.path("events"), [("type", Some(name.as_str().into()))]),
        event_type: name.clone(),
        waiting: count(backlog.map_or(0, |b| b.ready)),
        running: count(backlog.map_or(0, |b| b.running)),
        later: count(backlog.map_or(0, |b| b.delayed + b.retrying + b.behind_group)),
        oldest: backlog.and_then(|b| b.ready_since).map(|since| When::new(since, visit.now)),
        completed: count(ended.completed),
        failed: count(ended.failed),
        has_failed: ended.failed > 0,
    };
    (rows.into_iter().take(TYPES_SHOWN).map(row).collect(), more)
}

fn charts(samples: &[Sample], range: Range, now: Timestamp) -> Vec<Chart> {
    let (step_s, len) = range.steps();
    let steps = Steps { from: begin(range, now), step_s, len };
    let known =
        |name, class, of: &dyn Fn(&Sample) -> Option<f64>| Series { name, class, values: place(samples, steps, of) };
    let elapsed_s = (now - steps.from).num_seconds();
    let rate = |name, class, of: &dyn Fn(&Sample) -> u64| {
        let counts = place(samples, steps, &|sample| Some(of(sample) as f64));
        Series { name, class, values: per_minute(counts, step_s, elapsed_s) }
    };
    let published = rate("published", "tone-2", &|sample| sample.published);
    let completed = rate("completed", "tone-1", &|sample| sample.completed);
    let retried = rate("retried", "tone-4", &|sample| sample.retried);
    let failed = rate("for good", "tone-3", &|sample| sample.failed + sample.expired);
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
        draw("oldest", "Waiting longest", Unit::Milliseconds, steps, &[oldest]),
        draw("waits", "Wait until taken", Unit::Milliseconds, steps, &waits),
        draw("runs", "Run time", Unit::Milliseconds, steps, &runs),
    ]
}

fn quantile(quantiles: Option<Quantiles>, name: &str) -> Option<f64> {
    quantiles.map(|quantiles| if name == "p50" { quantiles.p50 } else { quantiles.p95 })
}

/// The values of all steps; `None` where there is no sample.
fn place(samples: &[Sample], steps: Steps, of: &dyn Fn(&Sample) -> Option<f64>) -> Vec<Option<f64>> {
    let mut values = vec![None; steps.len];
    for sample in samples {
        let index = (sample.at - steps.from).num_seconds() / i64::from(steps.step_s);
        if let Some(slot) = usize::try_from(index).ok().and_then(|index| values.get_mut(index)) {
            *slot = of(sample);
        }
    }
    values
}

/// Where nothing was counted, nothing happened. The step that is under way counts for as long as it lasts, once a tenth
/// of it is over.
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

async fn pause(visit: Visit, FormBody(fields, _room): FormBody) -> Answer {
    let form = Form(fields);
    let namespace = visit.queue.namespace();
    if !form.is_confirmed() {
        let confirm = Confirm {
            tab: Tab::Overview,
            question: format!("Pause the namespace {namespace}?"),
            detail: "Nothing more is handed out from it until it is resumed. What is running goes on, and publishing \
                     goes on."
                .to_owned(),
            button: "Pause".to_owned(),
            destructive: false,
            action: visit.path("pause"),
            back: visit.path(""),
        };
        return confirm.ask(&visit, form);
    }
    visit.queue.pause().await?;
    visit.done(&visit.path(""), &format!("The namespace {namespace} is paused."))
}

async fn resume(visit: Visit, FormBody(fields, _room): FormBody) -> Answer {
    let form = Form(fields);
    let namespace = visit.queue.namespace();
    if !form.is_confirmed() {
        let confirm = Confirm {
            tab: Tab::Overview,
            question: format!("Resume the namespace {namespace}?"),
            detail: "What is waiting is handed out again at once.".to_owned(),
            button: "Resume".to_owned(),
            destructive: false,
            action: visit.path("resume"),
            back: visit.path(""),
        };
        return confirm.ask(&visit, form);
    }
    visit.queue.resume().await?;
    visit.done(&visit.path(""), &format!("The namespace {namespace} hands out events again."))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_become_rates() {
        let counts = vec![Some(10.0), None, Some(5.0)];
        assert_eq!(per_minute(counts.clone(), 60, 180), [Some(10.0), Some(0.0), Some(5.0)]);
        assert_eq!(per_minute(counts.clone(), 60, 150), [Some(10.0), Some(0.0), Some(10.0)], "half a minute");
        assert_eq!(per_minute(counts.clone(), 60, 121), [Some(10.0), Some(0.0), None], "too early to say");
        assert_eq!(per_minute(counts, 600, 1_800), [Some(1.0), Some(0.0), Some(0.5)]);
    }

    #[test]
    fn few_names_are_enough() {
        let names: Vec<String> = (1..=7).map(|n| format!("n{n}")).collect();
        assert_eq!(few(&names[..2]), "n1, n2");
        assert_eq!(few(&names), "n1, n2, n3, n4, n5 and 2 more");
    }
}
