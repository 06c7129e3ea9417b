//! Assesses deliveries, workers and nodes: expired and silent leases, backlog, pauses, arrivals and groups.
//!
//! Thresholds end in `_WARNING` and `_PROBLEM`, after the level of the finding.

use std::collections::{BTreeMap, BTreeSet};

use chrono::TimeDelta;

use super::format::{at_least, count, duration, list, number};
use super::{Assessment, FindingLevel};
use crate::clock::Timestamp;
use crate::event::names;
use crate::topology::Namespace;

/// The most rows that any check reads.
pub(crate) const ROWS_MAX: usize = 1_000;

/// Maintenance releases an expired lease within seconds, so an older one means that it does not run.
pub(crate) const LEASE_EXPIRED_WARNING: TimeDelta = TimeDelta::minutes(1);
const LEASE_EXPIRED_PROBLEM: TimeDelta = TimeDelta::minutes(10);
/// Time since the last update of a processing delivery.
pub(crate) const SILENT_DELIVERY_WARNING: TimeDelta = TimeDelta::minutes(10);
/// Time since the last update of any delivery that a worker holds.
pub(crate) const SILENT_WORKER_WARNING: TimeDelta = TimeDelta::minutes(5);
/// Three heartbeats of a node.
pub(crate) const SILENT_NODE_WARNING: TimeDelta = TimeDelta::seconds(90);
/// A node silent for longer is assumed to be gone on purpose. Maintenance removes it after a week.
const NODE_GONE: TimeDelta = TimeDelta::days(1);
/// Time that a delivery may be ready before it is claimed.
pub(crate) const READY_WARNING: TimeDelta = TimeDelta::minutes(5);
const READY_PROBLEM: TimeDelta = TimeDelta::hours(1);
/// A router finds an arrival within a second of its commit.
pub(crate) const ARRIVAL_WARNING: TimeDelta = TimeDelta::seconds(10);
const ARRIVAL_PROBLEM: TimeDelta = TimeDelta::minutes(10);
/// Growth of the pending and processing deliveries that counts as a growing backlog.
const GROWTH_MIN: u64 = 1_000;
/// Number of deliveries behind a retried one that is worth a warning.
const BLOCKED_WARNING: u64 = 100;

/// A processing delivery whose lease expired, or that was not updated for a long time.
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
    fn described(&self) -> String {
        let SilentDelivery { namespace, event_id, event_type, worker_id, .. } = self;
        format!("event {event_id} ({event_type} in '{namespace}', held by {worker_id})")
    }
}

/// Leases that expired and were not released.
pub(crate) fn expired_leases(silent: &[SilentDelivery], now: Timestamp) -> Assessment {
    let is_expired = |delivery: &&SilentDelivery| delivery.lease_expires_at <= now - LEASE_EXPIRED_WARNING;
    let expired: Vec<&SilentDelivery> = silent.iter().filter(is_expired).collect();
    let Some(first) = expired.iter().min_by_key(|delivery| delivery.lease_expires_at) else {
        return Assessment::ok("every expired lease was released");
    };
    let since = now - first.lease_expires_at;
    let level = if since > LEASE_EXPIRED_PROBLEM { FindingLevel::Problem } else { FindingLevel::Warning };
    let (found, since) = (at_least(expired.len(), ROWS_MAX), duration(since));
    let summary = format!("{found} with a lease that expired up to {since} ago: {}", described(&expired));
    let advice = "maintenance does not run: start `windlass serve` or a node on this database; see `maintenance`";
    Assessment::new(level, summary, advice)
}

/// Deliveries with a valid lease that were not updated for a long time.
pub(crate) fn stuck_events(silent: &[SilentDelivery], now: Timestamp) -> Assessment {
    let is_stuck = |delivery: &&SilentDelivery| {
        delivery.lease_expires_at > now && delivery.updated_at <= now - SILENT_DELIVERY_WARNING
    };
    let stuck: Vec<&SilentDelivery> = silent.iter().filter(is_stuck).collect();
    let Some(first) = stuck.iter().min_by_key(|delivery| delivery.updated_at) else {
        return Assessment::ok(format!(
            "no delivery is held without a heartbeat for {}",
            duration(SILENT_DELIVERY_WARNING)
        ));
    };
    let (found, since) = (at_least(stuck.len(), ROWS_MAX), duration(now - first.updated_at));
    let summary = format!("{found} held without a heartbeat for up to {since}: {}", described(&stuck));
    let advice = format!(
        "if its worker is gone, `windlass reset {} --namespace {}` makes it pending again; shorter leases \
         (`lease_ms` of the policy) with heartbeats detect such workers sooner",
        first.event_id, first.namespace
    );
    Assessment::new(FindingLevel::Warning, summary, advice)
}

fn described(deliveries: &[&SilentDelivery]) -> String {
    list(deliveries.iter().map(|delivery| delivery.described()))
}

/// A worker that holds deliveries and updated none of them for a long time.
#[derive(Debug, Clone)]
pub(crate) struct SilentWorker {
    pub namespace: String,
    pub worker_id: String,
    pub held: u64,
    pub seen_at: Timestamp,
}

pub(crate) fn stale_workers(silent: &[SilentWorker], now: Timestamp) -> Assessment {
    if silent.is_empty() {
        return Assessment::ok("every worker that holds deliveries was seen recently");
    }
    let named = |worker: &SilentWorker| {
        let SilentWorker { namespace, worker_id, held, seen_at } = worker;
        format!("{worker_id} in '{namespace}' (holds {}, silent for {})", number(*held), duration(now - *seen_at))
    };
    let found = at_least(silent.len(), ROWS_MAX);
    let summary = format!("{found} silent and still holding deliveries: {}", list(silent.iter().map(named)));
    let advice = "check whether they still run; their deliveries become pending again when the leases expire, or \
                  immediately with `windlass reset ID`";
    Assessment::new(FindingLevel::Warning, summary, advice)
}

/// A node without a recent heartbeat that did not report its stop.
#[derive(Debug, Clone)]
pub(crate) struct SilentNode {
    pub namespace: String,
    pub node_id: String,
    pub last_heartbeat: Timestamp,
}

pub(crate) fn stale_nodes(silent: &[SilentNode], now: Timestamp) -> Assessment {
    let Some(newest) = silent.iter().map(|node| node.last_heartbeat).max() else {
        return Assessment::ok("every running node has a recent heartbeat");
    };
    let level = if now - newest > NODE_GONE { FindingLevel::Notice } else { FindingLevel::Warning };
    let named = |node: &SilentNode| {
        format!("{} in '{}' for {}", node.node_id, node.namespace, duration(now - node.last_heartbeat))
    };
    let found = at_least(silent.len(), ROWS_MAX);
    let summary = format!("{found} silent without having stopped: {}", list(silent.iter().map(named)));
    let advice = "restart them, or delete those that will not come back: \
                  DELETE /namespaces/{namespace}/nodes/{node_id}; they are removed after a week";
    Assessment::new(level, summary, advice)
}

/// The counts of one minute in one namespace.
#[derive(Debug, Clone)]
pub(crate) struct MinuteSample {
    pub namespace: String,
    pub published: u64,
    pub ended: u64,
    /// Pending and processing deliveries; `None` if not measured.
    pub depth: Option<u64>,
}

/// How many measurements at the beginning and at the end of the hour are averaged.
const DEPTHS_AVERAGED: usize = 5;

/// Whether more is published than finished. The minutes are in order.
pub(crate) fn backlog(minutes: &[MinuteSample]) -> Assessment {
    let mut by_namespace: BTreeMap<&str, Vec<&MinuteSample>> = BTreeMap::new();
    minutes.iter().for_each(|minute| by_namespace.entry(&minute.namespace).or_default().push(minute));
    let grown: Vec<String> = by_namespace.iter().filter_map(|(name, minutes)| growth(name, minutes)).collect();
    if grown.is_empty() {
        let live: u64 = by_namespace.values().filter_map(|minutes| minutes.last()?.depth).sum();
        return Assessment::ok(format!("does not grow; {} deliveries pending or processing", number(live)));
    }
    let advice = "add workers, or find out why they are slow: `windlass top`, `windlass stats`; see `paused`";
    Assessment::new(FindingLevel::Warning, list(grown), advice)
}

fn growth(namespace: &str, minutes: &[&MinuteSample]) -> Option<String> {
    let depths: Vec<u64> = minutes.iter().filter_map(|minute| minute.depth).collect();
    if depths.len() < 2 * DEPTHS_AVERAGED {
        return None;
    }
    let mean = |depths: &[u64]| depths.iter().sum::<u64>() / depths.len() as u64;
    let (first, last) = (mean(&depths[..DEPTHS_AVERAGED]), mean(&depths[depths.len() - DEPTHS_AVERAGED..]));
    if last < first + GROWTH_MIN || last < first + first / 2 {
        return None;
    }
    let published: u64 = minutes.iter().map(|minute| minute.published).sum();
    let ended: u64 = minutes.iter().map(|minute| minute.ended).sum();
    Some(format!(
        "'{namespace}' grew from {} to {} pending and processing deliveries within the hour: {} published, {} finished",
        number(first),
        number(last),
        count(published, "event"),
        number(ended),
    ))
}

/// The paused namespaces, types and subscriptions, whose deliveries cannot be claimed.
#[derive(Debug, Default)]
pub(crate) struct PausedScopes {
    namespaces: BTreeSet<String>,
    /// Namespace and pattern.
    types: Vec<(String, String)>,
    /// Namespace and name.
    subscriptions: Vec<(String, String)>,
}

impl PausedScopes {
    pub fn new(namespaces: &[Namespace], subscriptions: Vec<(String, String)>) -> PausedScopes {
        let types = |namespace: &Namespace| {
            let patterns = namespace.paused_types.iter();
            patterns.map(|pattern| (namespace.namespace.clone(), pattern.clone())).collect::<Vec<_>>()
        };
        let paused = namespaces.iter().filter(|namespace| namespace.paused);
        PausedScopes {
            namespaces: paused.map(|namespace| namespace.namespace.clone()).collect(),
            types: namespaces.iter().flat_map(types).collect(),
            subscriptions,
        }
    }

    fn contains(&self, ready: &OldestReadyDelivery) -> bool {
        let OldestReadyDelivery { namespace, subscription, event_type, .. } = ready;
        self.namespaces.contains(namespace)
            || self.subscriptions.iter().any(|(paused_in, name)| paused_in == namespace && name == subscription)
            || self
                .types
                .iter()
                .any(|(paused_in, pattern)| paused_in == namespace && names::type_matches(pattern, event_type))
    }
}

pub(crate) fn paused(pauses: &PausedScopes) -> Assessment {
    let PausedScopes { namespaces, types, subscriptions } = pauses;
    // The description of each, and the command that resumes it.
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
            format!("{} paused: {}", number(names.len() as u64), list(names)),
            format!("to resume: `{resume}`"),
        ),
    }
}

/// The oldest ready delivery of a lane.
#[derive(Debug, Clone)]
pub(crate) struct OldestReadyDelivery {
    pub namespace: String,
    pub subscription: String,
    pub event_type: String,
    pub ready_at: Timestamp,
}

/// Deliveries that have been ready for a long time and were not claimed, the oldest first.
pub(crate) fn oldest_waiting(ready: &[OldestReadyDelivery], pauses: &PausedScopes, now: Timestamp) -> Assessment {
    let claimable: Vec<&OldestReadyDelivery> = ready.iter().filter(|ready| !pauses.contains(ready)).collect();
    let Some(first) = claimable.first() else {
        return Assessment::ok(format!("no delivery has been ready for more than {}", duration(READY_WARNING)));
    };
    let level = if now - first.ready_at > READY_PROBLEM { FindingLevel::Warning } else { FindingLevel::Notice };
    let named = |ready: &&OldestReadyDelivery| {
        let OldestReadyDelivery { namespace, subscription, event_type, ready_at } = ready;
        format!("{event_type} for '{subscription}' in '{namespace}' for {}", duration(now - *ready_at))
    };
    let summary = format!("ready and not claimed: {}", list(claimable.iter().map(named)));
    let advice = format!(
        "check that workers claim these types and tags: `windlass worker list --namespace {}`; with too few workers the \
         backlog grows",
        first.namespace
    );
    Assessment::new(level, summary, advice)
}

/// Namespaces with arrivals that are not routed yet, and when the first was published.
pub(crate) fn arrivals(unrouted: &[(String, Timestamp)], now: Timestamp) -> Assessment {
    let Some((_, first)) = unrouted.first() else {
        return Assessment::ok("every event that was published in a transaction is routed");
    };
    let level = if now - *first > ARRIVAL_PROBLEM { FindingLevel::Problem } else { FindingLevel::Warning };
    let named = |(namespace, since): &(String, Timestamp)| format!("in '{namespace}' for {}", duration(now - *since));
    let summary = format!("events published in transactions are not routed: {}", list(unrouted.iter().map(named)));
    let advice = "run `windlass serve` or a node on this database; if one runs, its log shows why it cannot route \
                  them, or another process hangs while it routes: end that process";
    Assessment::new(level, summary, advice)
}

/// A group whose other deliveries wait while its first one is retried.
#[derive(Debug, Clone)]
pub(crate) struct BlockedGroup {
    pub namespace: String,
    pub group_id: String,
    pub event_id: i64,
    pub retry_count: u32,
    pub ready_at: Timestamp,
    /// How many deliveries wait behind it.
    pub behind: u64,
}

pub(crate) fn blocked_groups(blocked: &[BlockedGroup], now: Timestamp) -> Assessment {
    let Some(first) = blocked.first() else {
        return Assessment::ok("no group waits for a retry");
    };
    let behind: u64 = blocked.iter().map(|group| group.behind).sum();
    let named = |group: &BlockedGroup| {
        let BlockedGroup { namespace, group_id, event_id, retry_count, ready_at, behind } = group;
        let (retries, when) = (count(u64::from(*retry_count), "failure"), duration(*ready_at - now));
        format!("'{group_id}' in '{namespace}' ({behind} behind event {event_id}: {retries}, next attempt in {when})")
    };
    let found = at_least(blocked.len(), ROWS_MAX);
    let summary = format!("{found} with {} waiting for a retry: {}", number(behind), list(blocked.iter().map(named)));
    let advice = format!(
        "`windlass get {0} --namespace {1}` shows why it fails, `windlass cancel {0} --namespace {1}` unblocks the \
         group, and \"group_failure\": \"continue\" in the policy lets groups continue past retries",
        first.event_id, first.namespace
    );
    Assessment::new(
        if behind >= BLOCKED_WARNING { FindingLevel::Warning } else { FindingLevel::Notice },
        summary,
        advice,
    )
}

#[cfg(test)]
mod tests;
