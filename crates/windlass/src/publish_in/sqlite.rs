//! In a transaction of rusqlite.

use std::collections::HashMap;
use std::sync::Arc;

use rusqlite::Connection;

use super::{PublishIn, only, sealed, wrong_database};
use crate::error::{Error, Result};
use crate::event::NewEvent;
use crate::lanes::LaneKey;
use crate::publish::{self, Published};
use crate::queue::{Core, Queue};
use crate::store::Prepared;
use crate::store::sqlite::Transaction;
use crate::topology::Topology;
use crate::trace;

impl sealed::Sealed for &Connection {}

impl PublishIn for &Connection {
    type Answer<T> = Result<T>;

    fn one(self, queue: &Queue, event: NewEvent) -> Result<Published> {
        only(publish_in(queue, self, vec![event])?)
    }

    fn all(self, queue: &Queue, events: Vec<NewEvent>) -> Result<Vec<Published>> {
        publish_in(queue, self, events)
    }
}

impl sealed::Sealed for &rusqlite::Transaction<'_> {}

impl PublishIn for &rusqlite::Transaction<'_> {
    type Answer<T> = Result<T>;

    fn one(self, queue: &Queue, event: NewEvent) -> Result<Published> {
        PublishIn::one(&**self, queue, event)
    }

    fn all(self, queue: &Queue, events: Vec<NewEvent>) -> Result<Vec<Published>> {
        PublishIn::all(&**self, queue, events)
    }
}

fn publish_in(queue: &Queue, tx: &Connection, mut events: Vec<NewEvent>) -> Result<Vec<Published>> {
    let store = queue.store().sqlite().ok_or_else(|| wrong_database("SQLite", "PostgreSQL"))?;
    let tx = store.within(tx)?;
    queue.check_events(&events)?;
    trace::stamp(&mut events);
    let (core, namespace) = (queue.core(), queue.namespace());
    let mut prepared: Vec<Prepared> = events.into_iter().map(publish::unrouted).collect();
    let stored = tx.attempt(|| {
        let version = route_all(core, namespace, &tx, &mut prepared)?;
        let stored = tx.publish(namespace, version, &prepared)?;
        stored.ok_or_else(|| publish::keeps_changing(namespace))
    })?;
    let published = prepared.into_iter().zip(stored);
    let mut published: Vec<_> = published.map(|(p, s)| publish::finish(p, s, namespace)).collect();
    let mut first = Vec::new();
    for event_id in publish::duplicates(&published) {
        first.extend(tx.event(namespace, event_id)?);
    }
    publish::put_first(&mut published, first.into_iter());
    Ok(published)
}

/// Gives each event its deliveries, and creates the lanes that are missing; the version they are good for.
/// What the transaction sees and others do not stays in here.
fn route_all(core: &Core, namespace: &str, tx: &Transaction<'_>, prepared: &mut [Prepared]) -> Result<i64> {
    let topology = known_or_read(core, namespace, tx)?;
    let missing = publish::route_known(core, &topology, prepared)?;
    let ids = tx.add_lanes(namespace, &missing)?;
    let own: HashMap<LaneKey, i64> = missing.into_iter().zip(ids).collect();
    core.lanes.look_up(&topology, |lane_id| {
        publish::route_with(core, &topology, prepared, &|key| own.get(key).copied().or_else(|| lane_id(key)))
    })?;
    Ok(topology.version)
}

fn known_or_read(core: &Core, namespace: &str, tx: &Transaction<'_>) -> Result<Arc<Topology>> {
    let version = tx.version(namespace)?;
    match core.known_topology(namespace).filter(|known| Some(known.version) == version) {
        Some(known) => Ok(known),
        None => read(namespace, tx).map(Arc::new),
    }
}

fn read(namespace: &str, tx: &Transaction<'_>) -> Result<Topology> {
    tx.topology(namespace)?.ok_or_else(|| Error::NamespaceNotFound { namespace: namespace.to_owned() })
}
