//! In a transaction of sqlx.

use std::collections::HashMap;
use std::pin::Pin;

use sqlx::{PgConnection, Postgres};

use super::{PublishIn, only, sealed, wrong_database};
use crate::error::Result;
use crate::event::NewEvent;
use crate::lanes::LaneKey;
use crate::publish::{self, Published, ROUNDS_MAX};
use crate::queue::{Core, Queue};
use crate::store::Prepared;
use crate::store::postgres::Transaction;
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
    let topology = core.topology(namespace).await?;
    let missing = publish::route_known(core, &topology, prepared)?;
    if missing.is_empty() {
        return Ok(topology.version);
    }
    if let Some(ids) = tx.add_lanes_apart(namespace, &missing).await? {
        core.lanes.insert(namespace, topology.version, missing.into_iter().zip(ids));
        if publish::route_known(core, &topology, prepared)?.is_empty() {
            return Ok(topology.version);
        }
    }
    // Another transaction is creating these lanes, or this one has. Lanes that only this transaction can see stay out of
    // the cache.
    let missing = publish::route_known(core, &topology, prepared)?;
    let ids = tx.add_lanes(namespace, &missing).await?;
    let own: HashMap<LaneKey, i64> = missing.into_iter().zip(ids).collect();
    core.lanes.look_up(&topology, |lane_id| {
        publish::route_with(core, &topology, prepared, &|key| own.get(key).copied().or_else(|| lane_id(key)))
    })?;
    Ok(topology.version)
}
