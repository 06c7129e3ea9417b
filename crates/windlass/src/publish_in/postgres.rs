//! In a transaction of sqlx.

use std::pin::Pin;

use sqlx::{PgConnection, Postgres};

use super::{PublishIn, only, sealed, wrong_database};
use crate::error::{Error, Result};
use crate::event::NewEvent;
use crate::publish::{self, Published, ROUNDS_MAX};
use crate::queue::{Core, Queue};
use crate::store::Prepared;
use crate::store::postgres::Transaction;
use crate::topology::Topology;
use crate::trace;

impl sealed::Sealed for &mut PgConnection {}

impl<'c> PublishIn for &'c mut PgConnection {
    type Answer<T> = Pin<Box<dyn Future<Output = Result<T>> + Send + 'c>>;

    fn one(self, queue: &Queue, event: NewEvent) -> Self::Answer<Published> {
        let queue = queue.clone();
        Box::pin(async move { only(publish_in(&queue, self, vec![event]).await?) })
    }

    fn all(self, queue: &Queue, events: Vec<NewEvent>) -> Self::Answer<Vec<Published>> {
        let queue = queue.clone();
        Box::pin(async move { publish_in(&queue, self, events).await })
    }
}

impl sealed::Sealed for &mut sqlx::Transaction<'_, Postgres> {}

impl<'c> PublishIn for &'c mut sqlx::Transaction<'_, Postgres> {
    type Answer<T> = <&'c mut PgConnection as PublishIn>::Answer<T>;

    fn one(self, queue: &Queue, event: NewEvent) -> Self::Answer<Published> {
        PublishIn::one(&mut **self, queue, event)
    }

    fn all(self, queue: &Queue, events: Vec<NewEvent>) -> Self::Answer<Vec<Published>> {
        PublishIn::all(&mut **self, queue, events)
    }
}

async fn publish_in(queue: &Queue, tx: &mut PgConnection, mut events: Vec<NewEvent>) -> Result<Vec<Published>> {
    let store = queue.store().postgres().ok_or_else(|| wrong_database("PostgreSQL", "SQLite"))?;
    let mut tx = store.within(tx)?;
    queue.check_events(&events)?;
    trace::stamp(&mut events);
    queue.topology().await?;
    if events.is_empty() {
        return Ok(Vec::new());
    }
    let (core, namespace) = (queue.core(), queue.namespace());
    let mut prepared: Vec<Prepared> = events.into_iter().map(publish::unrouted).collect();
    for _ in 0..ROUNDS_MAX {
        let version = route_all(core, namespace, &mut tx, &mut prepared).await?;
        let refs: Vec<&Prepared> = prepared.iter().collect();
        match tx.publish(namespace, version, &refs, core.clock.overridden()).await? {
            Some(stored) => {
                let published = prepared.into_iter().zip(stored);
                let mut published: Vec<_> = published.map(|(p, s)| publish::finish(p, s, namespace)).collect();
                let first = publish::duplicates(&published);
                if !first.is_empty() {
                    publish::put_first(&mut published, tx.events(namespace, &first).await?.into_iter());
                }
                return Ok(published);
            }
            None => drop(core.reload(namespace).await?),
        }
    }
    Err(publish::keeps_changing(namespace))
}

/// Gives each event its deliveries, and creates the lanes that are missing; the version they are good for.
async fn route_all(core: &Core, namespace: &str, tx: &mut Transaction<'_>, prepared: &mut [Prepared]) -> Result<i64> {
    let known = core.topology(namespace).await?;
    let missing = publish::try_route(core, &known, prepared)?;
    if missing.is_empty() {
        return Ok(known.version);
    }
    if tx.add_lanes_apart(namespace, &missing).await? {
        let reloaded = core.reload(namespace).await?;
        if publish::try_route(core, &reloaded, prepared)?.is_empty() {
            return Ok(reloaded.version);
        }
    }
    // Somebody is making them in a transaction, which may be this one.
    let mut topology = in_tx(tx, namespace).await?;
    for _ in 0..ROUNDS_MAX {
        let missing = publish::try_route(core, &topology, prepared)?;
        if missing.is_empty() {
            return Ok(topology.version);
        }
        tx.add_lanes(namespace, &missing).await?;
        topology = in_tx(tx, namespace).await?;
    }
    Err(publish::keeps_changing(namespace))
}

async fn in_tx(tx: &mut Transaction<'_>, namespace: &str) -> Result<Topology> {
    let found = tx.topology(namespace).await?;
    found.ok_or_else(|| Error::NamespaceNotFound { namespace: namespace.to_owned() })
}
