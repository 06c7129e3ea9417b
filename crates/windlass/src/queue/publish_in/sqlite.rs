//! Publishing in a transaction of rusqlite.

use rusqlite::Connection;

use super::{PublishIn, only, published, sealed, wrong_database};
use crate::error::Result;
use crate::event::NewEvent;
use crate::node::SqliteTx;
use crate::observe::trace;
use crate::queue::Queue;
use crate::queue::publish::{self, Published};
use crate::store::PreparedEvent;

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

impl sealed::Sealed for &SqliteTx<'_> {}

impl PublishIn for &SqliteTx<'_> {
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
    trace::add_trace_context(&mut events);
    let namespace = queue.namespace();
    let mut prepared: Vec<PreparedEvent> = events.into_iter().map(publish::unrouted).collect();
    let stored = tx.publish(namespace, &prepared, queue.core().clock.overridden())?;
    let topology = queue.core().cached_topology(namespace);
    let mut published = published(prepared.drain(..).zip(stored), namespace, topology.as_deref());
    let mut first = Vec::new();
    for event_id in publish::duplicates(&published) {
        first.extend(tx.event(namespace, event_id)?);
    }
    publish::replace_duplicates(&mut published, first.into_iter());
    Ok(published)
}
