//! Code for events of one type.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use super::context::Context;
use super::envelope::Envelope;
use super::error::Handled;
use crate::error::{Error, Result};
use crate::event::names;
use crate::event::typed::EventType;
use crate::topology::MAIN;

#[cfg(feature = "postgres")]
use super::tx::PgTx;
#[cfg(feature = "sqlite")]
use super::tx::SqliteTx;

/// Without a timeout of its own, a handler is cut off after this long.
const TIMEOUT: Duration = Duration::from_secs(15 * 60);
/// The longest timeout: a week.
const TIMEOUT_MAX: Duration = crate::policy::LEASE_MAX;

pub(super) type Running = Pin<Box<dyn Future<Output = Handled> + Send>>;

/// Code for the events of one type, with its settings.
///
/// ```
/// # use std::time::Duration;
/// use windlass::Handler;
///
/// let mail = Handler::new("user.created", |event, _cx| async move {
///     let user: serde_json::Value = event.payload()?;
///     println!("welcome, {}", user["name"]);
///     Ok(())
/// })
/// .id("welcome-mail")
/// .timeout(Duration::from_secs(30));
/// ```
///
/// An `async fn(Envelope, Context) -> Handled` is as good as a closure:
///
/// ```
/// use windlass::{Context, Envelope, Handled, Handler};
///
/// async fn welcome(event: Envelope, cx: Context) -> Handled {
///     cx.emit("user.welcomed", &event.id).await?;
///     Ok(())
/// }
///
/// let mail = Handler::new("user.created", welcome).id("welcome-mail");
/// ```
#[derive(Clone)]
pub struct Handler {
    pub(super) id: String,
    pub(super) events: Events,
    pub(super) subscription: String,
    pub(super) timeout: Duration,
    pub(super) work: Work,
}

/// Which events a handler is for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Events {
    /// Of this type, or with this prefix if it ends in `*`.
    Of(String),
    /// Those that no other handler of the subscription is for.
    Others,
}

#[derive(Clone)]
pub(super) enum Work {
    Plain(Arc<dyn Fn(Envelope, Context) -> Running + Send + Sync>),
    #[cfg(feature = "postgres")]
    InPgTx(Arc<dyn Fn(Envelope, PgTx) -> Running + Send + Sync>),
    #[cfg(feature = "sqlite")]
    InSqliteTx(InSqliteTx),
}

#[cfg(feature = "sqlite")]
pub(super) type InSqliteTx = Arc<dyn Fn(&Envelope, &SqliteTx<'_>) -> Handled + Send + Sync>;

impl Handler {
    /// For events of this type: an exact name, or a prefix ending in `*`.
    pub fn new<F, Fut>(event_type: impl Into<String>, work: F) -> Handler
    where
        F: Fn(Envelope, Context) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Handled> + Send + 'static,
    {
        let work = Work::Plain(Arc::new(move |event, cx| Box::pin(work(event, cx))));
        Handler::of(Events::Of(event_type.into()), work)
    }

    /// For events of the type that `T` stands for. A payload that is no `T` is a failure as any other.
    pub fn typed<T, F, Fut>(work: F) -> Handler
    where
        T: EventType,
        F: Fn(T, Context) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Handled> + Send + 'static,
    {
        let read = move |event: Envelope, cx| -> Running {
            match event.payload::<T>() {
                Ok(payload) => Box::pin(work(payload, cx)),
                Err(error) => Box::pin(std::future::ready(Err(error.into()))),
            }
        };
        Handler::of(Events::Of(T::NAME.to_owned()), Work::Plain(Arc::new(read)))
    }

    /// For events that no other handler of the node is for.
    pub fn for_others<F, Fut>(work: F) -> Handler
    where
        F: Fn(Envelope, Context) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Handled> + Send + 'static,
    {
        Handler::of(Events::Others, Work::Plain(Arc::new(move |event, cx| Box::pin(work(event, cx)))))
    }

    /// In a PostgreSQL transaction: what it writes and the completion of the event commit together, or neither does.
    ///
    /// ```
    /// use windlass::{Handler, sqlx};
    ///
    /// let book = Handler::in_pg_tx("payment.received", |event, mut tx| async move {
    ///     let amount: i64 = event.payload()?;
    ///     let book = sqlx::query("INSERT INTO entries (event_id, amount) VALUES ($1, $2)");
    ///     book.bind(event.id).bind(amount).execute(&mut *tx).await?;
    ///     Ok(())
    /// });
    /// ```
    ///
    /// The node begins the transaction, in the queue's database, and ends it. An error, a panic, a timeout or a lost lease
    /// roll it back; then the handler may run again. [`PgTx::publish`] publishes in it. Of several such handlers each has a transaction of its own, unless the policy says
    /// [`share_transaction`](crate::Policy::share_transaction).
    #[cfg(feature = "postgres")]
    pub fn in_pg_tx<F, Fut>(event_type: impl Into<String>, work: F) -> Handler
    where
        F: Fn(Envelope, PgTx) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Handled> + Send + 'static,
    {
        let work = Work::InPgTx(Arc::new(move |event, tx| Box::pin(work(event, tx))));
        Handler::of(Events::Of(event_type.into()), work)
    }

    /// As [`Handler::in_pg_tx`], for events of the type that `T` stands for.
    ///
    /// ```
    /// # #[derive(serde::Serialize, serde::Deserialize)]
    /// # struct Payment { amount: i64 }
    /// # impl windlass::EventType for Payment { const NAME: &str = "payment.received"; }
    /// use windlass::{Handler, PgTx, sqlx};
    ///
    /// let book = Handler::typed_in_pg_tx(|payment: Payment, mut tx: PgTx| async move {
    ///     let book = sqlx::query("INSERT INTO entries (event_id, amount) VALUES ($1, $2)");
    ///     let event_id = tx.context().event().id;
    ///     book.bind(event_id).bind(payment.amount).execute(&mut *tx).await?;
    ///     tx.emit("payment.booked", &event_id).await?;
    ///     Ok(())
    /// });
    /// ```
    #[cfg(feature = "postgres")]
    pub fn typed_in_pg_tx<T, F, Fut>(work: F) -> Handler
    where
        T: EventType,
        F: Fn(T, PgTx) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Handled> + Send + 'static,
    {
        let read = move |event: Envelope, tx| -> Running {
            match event.payload::<T>() {
                Ok(payload) => Box::pin(work(payload, tx)),
                Err(error) => Box::pin(std::future::ready(Err(error.into()))),
            }
        };
        Handler::of(Events::Of(T::NAME.to_owned()), Work::InPgTx(Arc::new(read)))
    }

    /// In an SQLite transaction: what it writes and the completion of the event commit together, or neither does.
    ///
    /// ```
    /// use windlass::Handler;
    ///
    /// let book = Handler::in_sqlite_tx("payment.received", |event, tx| {
    ///     let amount: i64 = event.payload()?;
    ///     tx.execute("INSERT INTO entries (event_id, amount) VALUES (?1, ?2)", (event.id, amount))?;
    ///     Ok(())
    /// });
    /// ```
    ///
    /// It runs on the one thread that writes, and everything else waits for it: keep it short, and do nothing in it
    /// but read and write this database. It must not end the transaction. Its timeout has no effect. All else is as it is
    /// with [`Handler::in_pg_tx`].
    #[cfg(feature = "sqlite")]
    pub fn in_sqlite_tx<F>(event_type: impl Into<String>, work: F) -> Handler
    where
        F: Fn(&Envelope, &SqliteTx<'_>) -> Handled + Send + Sync + 'static,
    {
        Handler::of(Events::Of(event_type.into()), Work::InSqliteTx(Arc::new(work)))
    }

    /// As [`Handler::in_sqlite_tx`], for events of the type that `T` stands for.
    #[cfg(feature = "sqlite")]
    pub fn typed_in_sqlite_tx<T, F>(work: F) -> Handler
    where
        T: EventType,
        F: Fn(T, &SqliteTx<'_>) -> Handled + Send + Sync + 'static,
    {
        let read = move |event: &Envelope, tx: &SqliteTx<'_>| work(event.payload::<T>()?, tx);
        Handler::of(Events::Of(T::NAME.to_owned()), Work::InSqliteTx(Arc::new(read)))
    }

    fn of(events: Events, work: Work) -> Handler {
        let id = match &events {
            Events::Of(pattern) => pattern.clone(),
            Events::Others => "others".to_owned(),
        };
        Handler { id, events, subscription: MAIN.to_owned(), timeout: TIMEOUT, work }
    }

    /// Its name, unique on the node for its subscription; the event type unless set. What several handlers of one event have done is
    /// remembered by these names, so that they should stay the same from one version of a program to the next.
    pub fn id(mut self, id: impl Into<String>) -> Handler {
        self.id = id.into();
        self
    }

    /// For deliveries of another subscription than `main`.
    pub fn subscription(mut self, subscription: impl Into<String>) -> Handler {
        self.subscription = subscription.into();
        self
    }

    /// It is cut off, and the event tried again, after this long; 15 minutes unless set.
    pub fn timeout(mut self, timeout: Duration) -> Handler {
        self.timeout = timeout;
        self
    }

    pub(super) fn check(&self) -> Result<()> {
        names::check("handler", &self.id)?;
        names::check_identifier("subscription", &self.subscription)?;
        if let Events::Of(pattern) = &self.events {
            names::check_type_pattern("type", pattern)?;
        }
        if self.timeout.is_zero() || self.timeout > TIMEOUT_MAX {
            return Err(Error::invalid("timeout", format!("of handler '{}' must be from 1 ns to a week", self.id)));
        }
        Ok(())
    }

    pub(super) fn is_for(&self, event_type: &str) -> bool {
        match &self.events {
            Events::Of(pattern) => names::type_matches(pattern, event_type),
            Events::Others => false,
        }
    }

    pub(super) fn is_plain(&self) -> bool {
        matches!(self.work, Work::Plain(_))
    }
}
