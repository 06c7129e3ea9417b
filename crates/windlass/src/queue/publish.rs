//! Publishing: an event is stored once, with one delivery for each subscription that wants it.

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

/// What a publish stored, or found.
#[derive(Debug, Clone)]
pub struct Published {
    /// The stored event; for a duplicate, the first one.
    pub event: Event,
    /// The key was seen before, within its window: nothing was stored.
    pub duplicate: bool,
    /// How many failures the subscription `main` allows a new event; `None`: any number.
    pub max_retries: Option<u32>,
}

/// The events of one call: stored together or not at all.
pub(crate) type PublishUnit = Vec<NewEvent>;

pub(crate) type PublishedUnit = Vec<Published>;

/// How often a publish starts over because the topology changed under it.
pub(crate) const ROUNDS_MAX: usize = 10;

impl Queue {
    /// Publishes one event. When this returns, the event is stored and synced.
    pub async fn publish(&self, event: NewEvent) -> Result<Published> {
        let mut published = self.publish_all(vec![event]).await?;
        published.pop().ok_or(Error::Closed)
    }

    /// Publishes events together: all of them are stored, or none is.
    pub async fn publish_all(&self, mut events: Vec<NewEvent>) -> Result<Vec<Published>> {
        self.check_events(&events)?;
        self.topology().await?;
        if events.is_empty() {
            return Ok(Vec::new());
        }
        let span = trace::publishing(self.namespace(), &mut events);
        let weight = events.len();
        let mut published = self.lines().publish.call(events, weight).instrument(span.clone()).await?;
        if let [only] = &published[..] {
            span.record("messaging.message.id", only.event.id);
        }
        self.show_first(&mut published).await;
        Ok(published)
    }

    /// Refuses what cannot be stored, before anything is.
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

    async fn show_first(&self, published: &mut [Published]) {
        let ids = duplicates(published);
        if ids.is_empty() {
            return;
        }
        match self.store().get(self.namespace(), &ids).await {
            Ok(found) => put_first(published, found.into_iter().flatten().map(|view| view.event)),
            // What was stored with them counts, whether or not the first ones can be read.
            Err(error) => tracing::debug!(%error, "the first events of some keys cannot be shown"),
        }
    }
}

/// The first events of the keys that were known; each once, though its key may have come several times.
pub(crate) fn duplicates(published: &[Published]) -> Vec<i64> {
    let duplicates = published.iter().filter(|published| published.duplicate);
    let ids: HashSet<i64> = duplicates.map(|duplicate| duplicate.event.id).collect();
    ids.into_iter().collect()
}

/// Puts the first event in the place of each duplicate. One that its policy did not keep is shown with
/// the contents it was published with again.
pub(crate) fn put_first(published: &mut [Published], first: impl Iterator<Item = Event>) {
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
    let mut prepared: Vec<PreparedEvent> = units.into_iter().flatten().map(unrouted).collect();
    match store(&core, &namespace, &mut prepared).await {
        Ok(stored) => {
            let mut rest = prepared.into_iter().zip(stored);
            let split = |size: &usize| Ok(rest.by_ref().take(*size).map(|(p, s)| finish(p, s, &namespace)).collect());
            Ok(sizes.iter().map(split).collect())
        }
        // Whoever brought what cannot be stored is the only one to fail.
        Err(error) if sizes.len() > 1 && concerns_one_unit(&error) => {
            let mut rest = prepared.into_iter();
            let mut answers = Vec::with_capacity(sizes.len());
            for size in sizes {
                let mut unit: Vec<PreparedEvent> = rest.by_ref().take(size).collect();
                let stored = store(&core, &namespace, &mut unit).await;
                answers.push(
                    stored.map(|stored| unit.into_iter().zip(stored).map(|(p, s)| finish(p, s, &namespace)).collect()),
                );
            }
            Ok(answers)
        }
        Err(error) => Err(error),
    }
}

/// Whether the error may be due to one of the units.
fn concerns_one_unit(error: &Error) -> bool {
    matches!(
        error,
        Error::Database { .. } | Error::DataRefused { .. } | Error::Invalid { .. } | Error::KeyConflict { .. }
    )
}

pub(crate) fn unrouted(event: NewEvent) -> PreparedEvent {
    PreparedEvent { event, key_window: Default::default(), expires_in: None, deliveries: Vec::new() }
}

async fn store(core: &Core, namespace: &str, prepared: &mut [PreparedEvent]) -> Result<Vec<PublishOutcome>> {
    for _ in 0..ROUNDS_MAX {
        let topology = route_all(core, namespace, prepared).await?;
        let refs: Vec<&PreparedEvent> = prepared.iter().collect();
        let stored = core.store.publish(namespace, topology.version, &refs, core.clock.overridden()).await?;
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

/// Counts the new events among these and notifies claims that wait for them. Those that have arrived are counted once they are
/// routed.
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

/// Gives each event its deliveries, and creates the lanes that are missing.
pub(crate) async fn route_all(core: &Core, namespace: &str, prepared: &mut [PreparedEvent]) -> Result<Arc<Topology>> {
    for _ in 0..ROUNDS_MAX {
        let topology = core.topology(namespace).await?;
        let missing = route_known(core, &topology, prepared)?;
        if missing.is_empty() {
            return Ok(topology);
        }
        core.add_lanes(&topology, missing).await?;
    }
    Err(keeps_changing(namespace))
}

/// The deliveries that events of one kind get, and how long they may wait.
type Routes = (Vec<NewDelivery>, Option<Duration>);

/// Gives each event its deliveries, with the lanes that this process knows; the lanes that are missing.
pub(crate) fn route_known(core: &Core, topology: &Topology, prepared: &mut [PreparedEvent]) -> Result<Vec<LaneKey>> {
    core.lanes.look_up(topology, |lane_id| route_with(core, topology, prepared, lane_id))
}

/// Gives each event its deliveries; the lanes that are missing, in the order of their events.
pub(crate) fn route_with(
    core: &Core,
    topology: &Topology,
    prepared: &mut [impl BorrowMut<PreparedEvent>],
    lane_id: &dyn Fn(&LaneKey) -> Option<i64>,
) -> Result<Vec<LaneKey>> {
    let mut missing = Vec::new();
    // Events of one batch are often alike: each combination of type, tags and priority is routed once.
    let mut known: HashMap<(String, String, i16), Routes> = HashMap::new();
    for prepared in prepared {
        let prepared = prepared.borrow_mut();
        let event = &prepared.event;
        let kind = (event.event_type.clone(), event.tags.clone(), event.priority);
        let (routes, expires_after) = match known.get(&kind) {
            Some(known) => known,
            None => {
                let tags = tag_set("tags", &event.tags, &core.limits)?;
                let wanting = topology.subscriptions.iter().filter(|found| found.wants(&event.event_type, &tags));
                let routes = wanting.filter_map(|subscription| {
                    let routed = route_to(topology, subscription, &event.event_type, &tags, event.priority, lane_id);
                    routed.map_err(|lane| missing.push(lane)).ok()
                });
                let routes = routes.collect();
                known.entry(kind).or_insert((routes, topology.expires_after(&event.event_type)))
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

/// The delivery of such an event to one subscription, or the lane that is missing for it.
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

pub(crate) fn finish(prepared: PreparedEvent, stored: PublishOutcome, namespace: &str) -> Published {
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
