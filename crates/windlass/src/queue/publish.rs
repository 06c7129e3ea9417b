//! Publishing: stores each event once, with one delivery for each matching subscription.
//!
//! Concurrent calls share a transaction (see [`coalesce`](super::coalesce)). Publishing in a transaction of the
//! application is in [`publish_in`](super::publish_in).

use std::borrow::BorrowMut;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use tracing::Instrument;

use crate::clock::after;
use crate::error::{Error, Result};
use crate::event::{Event, NewEvent, tag_set};
use crate::observe::trace;
use crate::queue::wake::ReadyLane;
use crate::queue::{Core, Queue};
use crate::store::{NewDelivery, PreparedEvent, PublishOutcome};
use crate::topology::lanes::LaneKey;
use crate::topology::{MAIN, Subscription, Topology};

/// The result of publishing an event.
#[derive(Debug, Clone)]
pub struct Published {
    /// The stored event; for a duplicate, the first event with the key.
    pub event: Event,
    /// The key was used before within the policy's window. Nothing was stored.
    pub duplicate: bool,
    /// The `max_retries` of the event's delivery to the subscription `main`; `None`: no limit.
    pub max_retries: Option<u32>,
}

/// The events of one call, which are stored together or not at all.
pub(crate) type PublishUnit = Vec<NewEvent>;

pub(crate) type PublishedUnit = Vec<Published>;

/// How often a transaction is repeated because the topology changed meanwhile.
pub(crate) const TOPOLOGY_RETRIES_MAX: usize = 10;

impl Queue {
    /// Publishes one event. When this returns, the event is committed and synced to disk.
    pub async fn publish(&self, event: NewEvent) -> Result<Published> {
        let mut published = self.publish_all(vec![event]).await?;
        published.pop().ok_or(Error::Closed)
    }

    /// Publishes events in one transaction: all of them are stored, or none is.
    pub async fn publish_all(&self, mut events: Vec<NewEvent>) -> Result<Vec<Published>> {
        self.check_events(&events)?;
        self.topology().await?;
        if events.is_empty() {
            return Ok(Vec::new());
        }
        let span = trace::publish_span(self.namespace(), &mut events);
        let weight = events.len();
        let mut published = self.coalescers().publish.call(events, weight).instrument(span.clone()).await?;
        if let [only] = &published[..] {
            span.record("messaging.message.id", only.event.id);
        }
        self.load_first_events(&mut published).await;
        Ok(published)
    }

    /// Validates the events before any is stored.
    pub(crate) fn check_events(&self, events: &[NewEvent]) -> Result<()> {
        let max = self.limits().publish_batch_max;
        if events.len() > max {
            return Err(Error::invalid("events", format!("has {} events; the limit is {max}", events.len())));
        }
        let now = self.clock().now();
        for (index, event) in events.iter().enumerate() {
            event.check(self.limits(), now).map_err(|error| match events.len() {
                1 => error,
                _ => Error::InItem { what: "events", index, error: Box::new(error) },
            })?;
        }
        Ok(())
    }

    /// Replaces duplicates by the first event with their key.
    async fn load_first_events(&self, published: &mut [Published]) {
        let ids = duplicates(published);
        if ids.is_empty() {
            return;
        }
        match self.store().get(self.namespace(), &ids).await {
            Ok(found) => replace_duplicates(published, found.into_iter().flatten().map(|view| view.event)),
            // The other events are stored, so the call succeeds anyway.
            Err(error) => tracing::debug!(%error, "could not load the first events of duplicate keys"),
        }
    }
}

/// The ids of the first events of duplicates, without repetitions.
pub(crate) fn duplicates(published: &[Published]) -> Vec<i64> {
    let duplicates = published.iter().filter(|published| published.duplicate);
    let ids: HashSet<i64> = duplicates.map(|duplicate| duplicate.event.id).collect();
    ids.into_iter().collect()
}

/// Replaces each duplicate by the first event with its key. If the policy did not keep the first event, the duplicate
/// keeps the contents of the repeated publish.
pub(crate) fn replace_duplicates(published: &mut [Published], first: impl Iterator<Item = Event>) {
    let first: HashMap<i64, Event> = first.map(|event| (event.id, event)).collect();
    for duplicate in published.iter_mut().filter(|published| published.duplicate) {
        if let Some(event) = first.get(&duplicate.event.id) {
            duplicate.event = event.clone();
        }
    }
}

/// Stores the units of several callers in one transaction.
pub(crate) async fn run(
    core: Arc<Core>,
    namespace: Arc<str>,
    units: Vec<PublishUnit>,
) -> Result<Vec<Result<PublishedUnit>>> {
    let sizes: Vec<usize> = units.iter().map(Vec::len).collect();
    let mut prepared: Arc<Vec<PreparedEvent>> = Arc::new(units.into_iter().flatten().map(unrouted).collect());
    match store(&core, &namespace, &mut prepared).await {
        Ok(stored) => {
            let mut results = Arc::unwrap_or_clone(prepared).into_iter().zip(stored);
            let split =
                |size: &usize| Ok(results.by_ref().take(*size).map(|(p, s)| to_published(p, s, &namespace)).collect());
            Ok(sizes.iter().map(split).collect())
        }
        // Store the units one by one, so that only the unit with invalid data fails.
        Err(error) if sizes.len() > 1 && may_concern_one_unit(&error) => {
            let mut rest = Arc::unwrap_or_clone(prepared).into_iter();
            let mut answers = Vec::with_capacity(sizes.len());
            for size in sizes {
                let mut unit: Arc<Vec<PreparedEvent>> = Arc::new(rest.by_ref().take(size).collect());
                let stored = store(&core, &namespace, &mut unit).await;
                answers.push(stored.map(|stored| {
                    Arc::unwrap_or_clone(unit)
                        .into_iter()
                        .zip(stored)
                        .map(|(p, s)| to_published(p, s, &namespace))
                        .collect()
                }));
            }
            Ok(answers)
        }
        Err(error) => Err(error),
    }
}

/// Whether one of the units may have caused the error.
fn may_concern_one_unit(error: &Error) -> bool {
    matches!(
        error,
        Error::Database { .. } | Error::DataRefused { .. } | Error::Invalid { .. } | Error::KeyConflict { .. }
    )
}

pub(crate) fn unrouted(event: NewEvent) -> PreparedEvent {
    PreparedEvent { event, key_window: Default::default(), expires_in: None, deliveries: Vec::new() }
}

/// The store shares the events, so that their payloads are not copied.
async fn store(core: &Core, namespace: &str, prepared: &mut Arc<Vec<PreparedEvent>>) -> Result<Vec<PublishOutcome>> {
    for _ in 0..TOPOLOGY_RETRIES_MAX {
        let topology = route_all(core, namespace, Arc::make_mut(prepared).as_mut_slice()).await?;
        let stored = core.store.publish(namespace, topology.version, prepared.clone(), core.clock.overridden()).await?;
        match stored {
            Some(stored) => {
                announce(core, namespace, prepared.iter().zip(&stored));
                return Ok(stored);
            }
            None => drop(core.reload(namespace).await?),
        }
    }
    Err(keeps_changing(namespace))
}

pub(crate) fn keeps_changing(namespace: &str) -> Error {
    Error::Database { detail: format!("namespace '{namespace}' keeps changing; try again") }
}

/// Counts the new events and notifies claims that wait for them. For arrivals it notifies the router, which counts them
/// after routing.
pub(crate) fn announce<'a>(
    core: &Core,
    namespace: &str,
    stored: impl Iterator<Item = (&'a PreparedEvent, &'a PublishOutcome)> + Clone,
) {
    if stored.clone().any(|(_, stored)| stored.arrived) {
        core.wakes.notify_router(namespace);
    }
    let new = stored.filter(|(_, stored)| !stored.duplicate && !stored.arrived);
    core.count_published(namespace, new.clone());
    let ready: HashSet<ReadyLane> = new.flat_map(|(p, _)| &p.deliveries).map(NewDelivery::ready_lane).collect();
    core.wakes.notify(namespace, ready);
}

/// Assigns the deliveries to each event, and creates missing lanes.
pub(crate) async fn route_all(core: &Core, namespace: &str, prepared: &mut [PreparedEvent]) -> Result<Arc<Topology>> {
    for _ in 0..TOPOLOGY_RETRIES_MAX {
        let topology = core.topology(namespace).await?;
        let missing = route_with_cached_lanes(core, &topology, prepared)?;
        if missing.is_empty() {
            return Ok(topology);
        }
        core.add_lanes(&topology, missing).await?;
    }
    Err(keeps_changing(namespace))
}

/// The deliveries of events with the same type, tags and priority, and the duration after which they expire.
type Routes = (Vec<NewDelivery>, Option<Duration>);

/// Assigns the deliveries to each event, using cached lanes. Returns the lanes that are missing.
pub(crate) fn route_with_cached_lanes(
    core: &Core,
    topology: &Topology,
    prepared: &mut [PreparedEvent],
) -> Result<Vec<LaneKey>> {
    core.lanes.look_up(topology, |lane_id| route_with(core, topology, prepared, lane_id))
}

/// Assigns the deliveries to each event. Returns the lanes that are missing, in the order of their events.
pub(crate) fn route_with(
    core: &Core,
    topology: &Topology,
    prepared: &mut [impl BorrowMut<PreparedEvent>],
    lane_id: &dyn Fn(&LaneKey) -> Option<i64>,
) -> Result<Vec<LaneKey>> {
    let mut missing = Vec::new();
    // Events of a batch often have the same type, tags and priority. Route each combination once.
    let mut cache: HashMap<(String, String, i16), Routes> = HashMap::new();
    for prepared in prepared {
        let prepared = prepared.borrow_mut();
        let event = &prepared.event;
        let kind = (event.event_type.clone(), event.tags.clone(), event.priority);
        let (routes, expires_after) = match cache.get(&kind) {
            Some(cached) => cached,
            None => {
                let tags = tag_set("tags", &event.tags, &core.limits)?;
                let matching = topology.subscriptions.iter().filter(|found| found.wants(&event.event_type, &tags));
                let routes = matching.filter_map(|subscription| {
                    let routed = route_to(topology, subscription, &event.event_type, &tags, event.priority, lane_id);
                    routed.map_err(|lane| missing.push(lane)).ok()
                });
                let routes = routes.collect();
                cache.entry(kind).or_insert((routes, topology.expires_after(&event.event_type)))
            }
        };
        prepared.key_window = topology.namespace.policy.base.key_window();
        prepared.expires_in = event.expires_in.or(*expires_after);
        prepared.deliveries = routes.clone();
        if event.max_retries.is_some() {
            prepared.deliveries.iter_mut().for_each(|delivery| delivery.max_retries = event.max_retries);
        }
    }
    let mut seen = HashSet::new();
    missing.retain(|lane: &LaneKey| seen.insert(lane.clone()));
    Ok(missing)
}

/// The delivery of an event to one subscription; an error with the lane if it does not exist yet.
pub(crate) fn route_to(
    topology: &Topology,
    subscription: &Subscription,
    event_type: &str,
    tags: &[String],
    priority: i16,
    lane_id: &dyn Fn(&LaneKey) -> Option<i64>,
) -> Result<NewDelivery, LaneKey> {
    let subscription_id = subscription.subscription_id;
    let lane = LaneKey { subscription_id, event_type: event_type.to_owned(), tags: tags.to_vec(), priority };
    let Some(lane_id) = lane_id(&lane) else { return Err(lane) };
    let policy = topology.policy(&subscription.subscription, event_type);
    Ok(NewDelivery {
        subscription_id,
        lane_id,
        subscription: subscription.subscription.clone(),
        max_retries: policy.max_retries,
        attempts_limit: policy.max_attempts,
    })
}

pub(crate) fn to_published(prepared: PreparedEvent, stored: PublishOutcome, namespace: &str) -> Published {
    let main = prepared.deliveries.iter().find(|delivery| delivery.subscription == MAIN);
    let max_retries = main.and_then(|delivery| delivery.max_retries);
    let new = prepared.event;
    let run_at = new.run_at.or(new.delay.map(|delay| after(stored.created_at, delay)));
    let due_at = run_at.map_or(stored.created_at, |run_at| run_at.max(stored.created_at));
    let event = Event {
        id: stored.event_id,
        namespace: namespace.to_owned(),
        event_type: new.event_type,
        title: new.title,
        description: new.description,
        tags: new.tags,
        payload: new.payload,
        group_id: new.group_id,
        key: new.key,
        priority: new.priority,
        producer: new.producer,
        scheduled_task_id: new.scheduled_task_id,
        run_at,
        expires_at: new.expires_at.or(prepared.expires_in.map(|expires_in| after(due_at, expires_in))),
        metadata: new.metadata,
        created_at: stored.created_at,
    };
    Published { event, duplicate: stored.duplicate, max_retries }
}
