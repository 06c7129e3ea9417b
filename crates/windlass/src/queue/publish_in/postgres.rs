//! Publishing in a transaction of sqlx.

use std::pin::Pin;

use sqlx::{PgConnection, Postgres};

use super::{PublishIn, only, published, sealed, wrong_database};
use crate::error::Result;
use crate::event::NewEvent;
use crate::node::PgTx;
use crate::observe::trace;
use crate::queue::Queue;
use crate::queue::publish::{self, Published};
use crate::store::PreparedEvent;
use crate::store::postgres::arrive;

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

impl sealed::Sealed for &mut PgTx {}

impl<'c> PublishIn for &'c mut PgTx {
    type Answer<T> = <&'c mut PgConnection as PublishIn>::Answer<T>;

    fn one(self, queue: &Queue, event: NewEvent) -> Self::Answer<Published> {
        PublishIn::one(&mut **self, queue, event)
    }

    fn all(self, queue: &Queue, events: Vec<NewEvent>) -> Self::Answer<Vec<Published>> {
        PublishIn::all(&mut **self, queue, events)
    }
}

async fn publish_in(queue: &Queue, tx: &mut PgConnection, mut events: Vec<NewEvent>) -> Result<Vec<Published>> {
    queue.store().postgres().ok_or_else(|| wrong_database("PostgreSQL", "SQLite"))?;
    arrive::check_transaction(tx)?;
    queue.check_events(&events)?;
    trace::add_trace_context(&mut events);
    let topology = queue.topology().await?;
    let (core, namespace) = (queue.core(), queue.namespace());
    let prepared: Vec<PreparedEvent> = events.into_iter().map(publish::unrouted).collect();
    let stored = arrive::publish_in(tx, namespace, &prepared, core.clock.overridden()).await?;
    let mut published = published(prepared.into_iter().zip(stored), namespace, Some(&topology));
    let first = publish::duplicates(&published);
    if !first.is_empty() {
        publish::replace_duplicates(&mut published, arrive::events(tx, namespace, &first).await?.into_iter());
    }
    Ok(published)
}
