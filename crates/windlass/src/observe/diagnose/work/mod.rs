//! What to think of the work: what is held, what waits, and who does it.

use std::collections::{BTreeMap, BTreeSet};

use chrono::TimeDelta;

use super::say::{at_least, count, number, some, span};
use super::{Assessment, FindingLevel};
use crate::clock::Timestamp;
use crate::event::names;
use crate::topology::Namespace;

/// How much of anything is looked at.
pub(crate) const FOUND_MAX: usize = 1_000;

/// A lease that ran out is taken back within seconds; so long after it, nobody does that.
pub(crate) const RUN_OUT_MAX: TimeDelta = TimeDelta::minutes(1);
const RUN_OUT_BAD: TimeDelta = TimeDelta::minutes(10);
/// So long nothing was heard of a delivery that is held.
pub(crate) const SILENT_MAX: TimeDelta = TimeDelta::minutes(10);
/// So long nothing was heard of any that a worker holds.
pub(crate) const WORKER_SILENT_MAX: TimeDelta = TimeDelta::minutes(5);
/// Three heartbeats of a node.
pub(crate) const NODE_SILENT_MAX: TimeDelta = TimeDelta::seconds(90);
/// A node that is silent for longer has been given up; it is forgotten after a week.
const NODE_GONE: TimeDelta = TimeDelta::days(1);
/// So long something may be ready before it is taken.
pub(crate) const WAITING_MAX: TimeDelta = TimeDelta::minutes(5);
const WAITING_BAD: TimeDelta = TimeDelta::hours(1);
/// A router finds an event within a second of its commit.
pub(crate) const ARRIVED_MAX: TimeDelta = TimeDelta::seconds(10);
const ARRIVED_BAD: TimeDelta = TimeDelta::minutes(10);
/// So many more live deliveries are a backlog that grows.
const GROWTH_MIN: u64 = 1_000;
/// So many events behind one that is retried are worth a warning.
const BEHIND_MANY: u64 = 100;

/// A delivery that is held, and of which nothing was heard for long.
#[derive(Debug, Clone)]
pub(crate) struct SilentDelivery {
    pub namespace: String,
    pub event_id: i64,
    pub event_type: String,
    pub worker_id: String,
    pub updated_at: Timestamp,
    pub lease_expires_at: Timestamp,
}

impl SilentDelivery {
    fn named(&self) -> String {
        let SilentDelivery { namespace, event_id, event_type, worker_id, .. } = self;
        format!("event {event_id} ({event_type} in '{namespace}', held by {worker_id})")
    }
}

/// Leases that ran out and were not taken back.
pub(crate) fn run_out(held: &[SilentDelivery], now: Timestamp) -> Assessment {
    let over: Vec<&SilentDelivery> = held.iter().filter(|held| held.lease_expires_at <= now - RUN_OUT_MAX).collect();
    let Some(first) = over.iter().min_by_key(|held| held.lease_expires_at) else {
        return Assessment::ok("every lease that ran out was taken back");
    };
    let since = now - first.lease_expires_at;
    let level = if since > RUN_OUT_BAD { FindingLevel::Problem } else { FindingLevel::Warning };
    let (found, since) = (at_least(over.len(), FOUND_MAX), span(since));
    let summary = format!("{found} with a lease that ran out up to {since} ago: {}", some_held(&over));
    Assessment::new(level, summary, "nobody sweeps: run `windlass serve` or a node on this database; see `upkeep`")
}

/// Deliveries whose lease still lasts, and of which nothing was heard.
pub(crate) fn stuck(held: &[SilentDelivery], now: Timestamp) -> Assessment {
    let silent = |held: &&SilentDelivery| held.lease_expires_at > now && held.updated_at <= now - SILENT_MAX;
    let stuck: Vec<&SilentDelivery> = held.iter().filter(silent).collect();
    let Some(first) = stuck.iter().min_by_key(|held| held.updated_at) else {
        return Assessment::ok(format!("none is held without a sign of life for {}", span(SILENT_MAX)));
    };
    let (found, since) = (at_least(stuck.len(), FOUND_MAX), span(now - first.updated_at));
    let summary = format!("{found} held without a sign of life for up to {since}: {}", some_held(&stuck));
    let advice = format!(
        "if its worker is gone, `windlass reset {} --namespace {}` hands it out again; shorter leases (`lease_ms` of the \
         policy) with heartbeats find such workers sooner",
        first.event_id, first.namespace
    );
    Assessment::new(FindingLevel::Warning, summary, advice)
}

fn some_held(held: &[&SilentDelivery]) -> String {
    some(held.iter().map(|held| held.named()))
}

/// A worker that holds deliveries and was not heard of for long.
#[derive(Debug, Clone)]
pub(crate) struct SilentWorker {
    pub namespace: String,
    pub worker_id: String,
    pub held: u64,
    pub seen_at: Timestamp,
}

pub(crate) fn workers(silent: &[SilentWorker], now: Timestamp) -> Assessment {
    if silent.is_empty() {
        return Assessment::ok("every worker that holds deliveries was heard of lately");
    }
    let named = |worker: &SilentWorker| {
        let SilentWorker { namespace, worker_id, held, seen_at } = worker;
        format!("{worker_id} in '{namespace}' (holds {}, silent for {})", number(*held), span(now - *seen_at))
    };
    let found = at_least(silent.len(), FOUND_MAX);
    let summary = format!("{found} silent and still holding deliveries: {}", some(silent.iter().map(named)));
    let advice = "see whether they still run; what they hold is handed out again when its lease ends, or at once by \
                  `windlass reset ID`";
    Assessment::new(FindingLevel::Warning, summary, advice)
}

/// A node that did not stop and is silent.
#[derive(Debug, Clone)]
pub(crate) struct SilentNode {
    pub namespace: String,
    pub node_id: String,
    pub last_heartbeat: Timestamp,
}

pub(crate) fn nodes(silent: &[SilentNode], now: Timestamp) -> Assessment {
    let Some(newest) = silent.iter().map(|node| node.last_heartbeat).max() else {
        return Assessment::ok("every node that did not stop was heard of lately");
    };
    let level = if now - newest > NODE_GONE { FindingLevel::Notice } else { FindingLevel::Warning };
    let named =
        |node: &SilentNode| format!("{} in '{}' for {}", node.node_id, node.namespace, span(now - node.last_heartbeat));
    let found = at_least(silent.len(), FOUND_MAX);
    let summary = format!("{found} silent without having stopped: {}", some(silent.iter().map(named)));
    let advice = "start them again, or take those off the list that will not come back: \
                  DELETE /namespaces/{namespace}/nodes/{node_id}; after a week they are forgotten";
    Assessment::new(level, summary, advice)
}

/// What happened in one minute in one namespace.
#[derive(Debug, Clone)]
pub(crate) struct Minute {
    pub namespace: String,
    pub published: u64,
    pub ended: u64,
    /// How many deliveries were live; `None` where nobody looked.
    pub depth: Option<u64>,
}

/// So many looks at the beginning and at the end are taken together.
const LOOKS: usize = 5;

/// Whether more comes in than is done. Minutes are in order.
pub(crate) fn backlog(minutes: &[Minute]) -> Assessment {
    let mut by_namespace: BTreeMap<&str, Vec<&Minute>> = BTreeMap::new();
    minutes.iter().for_each(|minute| by_namespace.entry(&minute.namespace).or_default().push(minute));
    let grown: Vec<String> = by_namespace.iter().filter_map(|(name, minutes)| growth(name, minutes)).collect();
    if grown.is_empty() {
        let live: u64 = by_namespace.values().filter_map(|minutes| minutes.last()?.depth).sum();
        return Assessment::ok(format!("does not grow; {} deliveries live", number(live)));
    }
    let advice = "add workers, or find out what slows them down: `windlass top`, `windlass stats`; see `paused`";
    Assessment::new(FindingLevel::Warning, some(grown), advice)
}

fn growth(namespace: &str, minutes: &[&Minute]) -> Option<String> {
    let depths: Vec<u64> = minutes.iter().filter_map(|minute| minute.depth).collect();
    if depths.len() < 2 * LOOKS {
        return None;
    }
    let mean = |depths: &[u64]| depths.iter().sum::<u64>() / depths.len() as u64;
    let (first, last) = (mean(&depths[..LOOKS]), mean(&depths[depths.len() - LOOKS..]));
    if last < first + GROWTH_MIN || last < first + first / 2 {
        return None;
    }
    let published: u64 = minutes.iter().map(|minute| minute.published).sum();
    let ended: u64 = minutes.iter().map(|minute| minute.ended).sum();
    Some(format!(
        "'{namespace}' grew from {} to {} live deliveries within the hour: {} published, {} ended",
        number(first),
        number(last),
        count(published, "event"),
        number(ended),
    ))
}

/// What nobody is meant to take.
#[derive(Debug, Default)]
pub(crate) struct Pauses {
    namespaces: BTreeSet<String>,
    /// Namespace and pattern.
    types: Vec<(String, String)>,
    /// Namespace and name.
    subscriptions: Vec<(String, String)>,
}

impl Pauses {
    pub fn new(namespaces: &[Namespace], subscriptions: Vec<(String, String)>) -> Pauses {
        let types = |namespace: &Namespace| {
            let patterns = namespace.paused_types.iter();
            patterns.map(|pattern| (namespace.namespace.clone(), pattern.clone())).collect::<Vec<_>>()
        };
        let paused = namespaces.iter().filter(|namespace| namespace.paused);
        Pauses {
            namespaces: paused.map(|namespace| namespace.namespace.clone()).collect(),
            types: namespaces.iter().flat_map(types).collect(),
            subscriptions,
        }
    }

    fn cover(&self, waiting: &Waiting) -> bool {
        let Waiting { namespace, subscription, event_type, .. } = waiting;
        self.namespaces.contains(namespace)
            || self.subscriptions.iter().any(|(of, name)| of == namespace && name == subscription)
            || self.types.iter().any(|(of, pattern)| of == namespace && names::type_matches(pattern, event_type))
    }
}

pub(crate) fn paused(pauses: &Pauses) -> Assessment {
    let Pauses { namespaces, types, subscriptions } = pauses;
    // What it is, and how to resume it.
    let whole = namespaces.iter().map(|of| (format!("namespace '{of}'"), format!("windlass namespace resume {of}")));
    let types = types.iter().map(|(of, pattern)| {
        let resume = format!("windlass namespace resume {of} --type '{pattern}'");
        (format!("type '{pattern}' in '{of}'"), resume)
    });
    let subscriptions = subscriptions.iter().map(|(of, name)| {
        let resume = format!("windlass subscription resume {name} --namespace {of}");
        (format!("subscription '{name}' in '{of}'"), resume)
    });
    let (names, resumes): (Vec<String>, Vec<String>) = whole.chain(types).chain(subscriptions).unzip();
    match resumes.first() {
        None => Assessment::ok("nothing is paused"),
        Some(resume) => Assessment::new(
            FindingLevel::Notice,
            format!("{} paused: {}", number(names.len() as u64), some(names)),
            format!("if that is not meant any more: `{resume}`"),
        ),
    }
}

/// The first that is free and ready in a lane.
#[derive(Debug, Clone)]
pub(crate) struct Waiting {
    pub namespace: String,
    pub subscription: String,
    pub event_type: String,
    pub ready_at: Timestamp,
}

/// What has been ready for long, and nobody took. The oldest come first.
pub(crate) fn waiting(waiting: &[Waiting], pauses: &Pauses, now: Timestamp) -> Assessment {
    let left: Vec<&Waiting> = waiting.iter().filter(|waiting| !pauses.cover(waiting)).collect();
    let Some(first) = left.first() else {
        return Assessment::ok(format!(
            "nothing has been ready for more than {} without being taken",
            span(WAITING_MAX)
        ));
    };
    let level = if now - first.ready_at > WAITING_BAD { FindingLevel::Warning } else { FindingLevel::Notice };
    let named = |waiting: &&Waiting| {
        let Waiting { namespace, subscription, event_type, ready_at } = waiting;
        format!("{event_type} for '{subscription}' in '{namespace}' for {}", span(now - *ready_at))
    };
    let summary = format!("ready and not taken: {}", some(left.iter().map(named)));
    let advice = format!(
        "does any worker ask for these types and tags? `windlass worker list --namespace {}` lists them; with too few of \
         them the backlog grows",
        first.namespace
    );
    Assessment::new(level, summary, advice)
}

/// Events that were published in transactions and that no router has seen: the namespaces they are in, and since when.
pub(crate) fn arrivals(waiting: &[(String, Timestamp)], now: Timestamp) -> Assessment {
    let Some((_, first)) = waiting.first() else {
        return Assessment::ok("every event that was published in a transaction is routed");
    };
    let level = if now - *first > ARRIVED_BAD { FindingLevel::Problem } else { FindingLevel::Warning };
    let named = |(namespace, since): &(String, Timestamp)| format!("in '{namespace}' for {}", span(now - *since));
    let summary = format!("events published in transactions are not routed: {}", some(waiting.iter().map(named)));
    let advice = "run `windlass serve` or a node on this database; if one runs, its log says why it cannot route them, or \
                  another process stopped while it was routing: end that process";
    Assessment::new(level, summary, advice)
}

/// A group that waits while its first event is tried again.
#[derive(Debug, Clone)]
pub(crate) struct BlockedGroup {
    pub namespace: String,
    pub group_id: String,
    pub event_id: i64,
    pub retry_count: u32,
    pub ready_at: Timestamp,
    /// How many wait behind it.
    pub behind: u64,
}

pub(crate) fn groups(blocked: &[BlockedGroup], now: Timestamp) -> Assessment {
    let Some(first) = blocked.first() else {
        return Assessment::ok("no group waits for a retry");
    };
    let behind: u64 = blocked.iter().map(|group| group.behind).sum();
    let named = |group: &BlockedGroup| {
        let BlockedGroup { namespace, group_id, event_id, retry_count, ready_at, behind } = group;
        let (retries, when) = (count(u64::from(*retry_count), "failure"), span(*ready_at - now));
        format!("'{group_id}' in '{namespace}' ({behind} behind event {event_id}: {retries}, next try in {when})")
    };
    let found = at_least(blocked.len(), FOUND_MAX);
    let summary = format!("{found} with {} waiting for a retry: {}", number(behind), some(blocked.iter().map(named)));
    let advice = format!(
        "`windlass get {0} --namespace {1}` shows why it fails, `windlass cancel {0} --namespace {1}` lets the next one \
         in, and \"group_failure\": \"continue\" in the policy lets groups go on past retries",
        first.event_id, first.namespace
    );
    Assessment::new(if behind >= BEHIND_MANY { FindingLevel::Warning } else { FindingLevel::Notice }, summary, advice)
}

#[cfg(test)]
mod tests;
