//! Handlers: code for the events of one type, with its settings.

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

/// The timeout of a handler, unless set.
const TIMEOUT: Duration = Duration::from_secs(15 * 60);
/// The longest timeout: a week.
const TIMEOUT_MAX: Duration = crate::policy::LEASE_MAX;

pub(super) type HandlerFuture = Pin<Box<dyn Future<Output = Handled> + Send>>;

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
/// An `async fn(Envelope, Context) -> Handled` works as well as a closure:
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
    pub(super) events: HandledEvents,
    pub(super) subscription: String,
    pub(super) timeout: Duration,
    pub(super) work: Work,
}

/// Which events a handler receives.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum HandledEvents {
    /// Events of this type, or with this prefix if the pattern ends in `*`.
    Matching(String),
    /// Events that no other handler of the subscription matches.
    Others,
}

#[derive(Clone)]
pub(super) enum Work {
    Plain(Arc<dyn Fn(Envelope, Context) -> HandlerFuture + Send + Sync>),
    #[cfg(feature = "postgres")]
    InPgTx(Arc<dyn Fn(Envelope, PgTx) -> HandlerFuture + Send + Sync>),
    #[cfg(feature = "sqlite")]
    InSqliteTx(InSqliteTx),
}

#[cfg(feature = "sqlite")]
pub(super) type InSqliteTx = Arc<dyn Fn(&Envelope, &SqliteTx<'_>) -> Handled + Send + Sync>;

impl Handler {
    /// A handler for events of this type: an exact name, or a prefix ending in `*`.
    pub fn new<F, Fut>(event_type: impl Into<String>, work: F) -> Handler
    where
        F: Fn(Envelope, Context) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Handled> + Send + 'static,
    {
        let work = Work::Plain(Arc::new(move |event, cx| Box::pin(work(event, cx))));
        Handler::with(HandledEvents::Matching(event_type.into()), work)
    }

    /// A handler for events of the type [`EventType::NAME`] of `T`. A payload that cannot be deserialized as `T` is a
    /// temporary failure like any other error.
    pub fn typed<T, F, Fut>(work: F) -> Handler
    where
        T: EventType,
        F: Fn(T, Context) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Handled> + Send + 'static,
    {
        let deserialize = move |event: Envelope, cx| -> HandlerFuture {
            match event.payload::<T>() {
                Ok(payload) => Box::pin(work(payload, cx)),
                Err(error) => Box::pin(std::future::ready(Err(error.into()))),
            }
        };
        Handler::with(HandledEvents::Matching(T::NAME.to_owned()), Work::Plain(Arc::new(deserialize)))
    }

    /// A handler for events that no other handler of the node matches.
    pub fn for_others<F, Fut>(work: F) -> Handler
    where
        F: Fn(Envelope, Context) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Handled> + Send + 'static,
    {
        Handler::with(HandledEvents::Others, Work::Plain(Arc::new(move |event, cx| Box::pin(work(event, cx)))))
    }

    /// A handler that runs in a PostgreSQL transaction. Its writes and the completion of the event are committed
    /// together, or not at all.
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
    /// The node begins the transaction in the queue's database and ends it. An error, a panic, a timeout or a lost
    /// lease rolls it back; the handler may then run again. [`PgTx::publish`] publishes in the transaction. If an event
    /// has several such handlers, each has its own transaction, unless the policy sets
    /// [`share_transaction`](crate::Policy::share_transaction).
    #[cfg(feature = "postgres")]
    pub fn in_pg_tx<F, Fut>(event_type: impl Into<String>, work: F) -> Handler
    where
        F: Fn(Envelope, PgTx) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Handled> + Send + 'static,
    {
        let work = Work::InPgTx(Arc::new(move |event, tx| Box::pin(work(event, tx))));
        Handler::with(HandledEvents::Matching(event_type.into()), work)
    }

    /// Like [`Handler::in_pg_tx`], for events of the type [`EventType::NAME`] of `T`.
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
        let deserialize = move |event: Envelope, tx| -> HandlerFuture {
            match event.payload::<T>() {
                Ok(payload) => Box::pin(work(payload, tx)),
                Err(error) => Box::pin(std::future::ready(Err(error.into()))),
            }
        };
        Handler::with(HandledEvents::Matching(T::NAME.to_owned()), Work::InPgTx(Arc::new(deserialize)))
    }

    /// A handler that runs in an SQLite transaction. Its writes and the completion of the event are committed together,
    /// or not at all.
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
    /// The handler runs on the only thread that writes, and all other writes wait for it. Keep it short, and only read
    /// and write this database in it. It must not end the transaction. Its timeout has no effect. Everything else works
    /// like [`Handler::in_pg_tx`].
    #[cfg(feature = "sqlite")]
    pub fn in_sqlite_tx<F>(event_type: impl Into<String>, work: F) -> Handler
    where
        F: Fn(&Envelope, &SqliteTx<'_>) -> Handled + Send + Sync + 'static,
    {
        Handler::with(HandledEvents::Matching(event_type.into()), Work::InSqliteTx(Arc::new(work)))
    }

    /// Like [`Handler::in_sqlite_tx`], for events of the type [`EventType::NAME`] of `T`.
    #[cfg(feature = "sqlite")]
    pub fn typed_in_sqlite_tx<T, F>(work: F) -> Handler
    where
        T: EventType,
        F: Fn(T, &SqliteTx<'_>) -> Handled + Send + Sync + 'static,
    {
        let deserialize = move |event: &Envelope, tx: &SqliteTx<'_>| work(event.payload::<T>()?, tx);
        Handler::with(HandledEvents::Matching(T::NAME.to_owned()), Work::InSqliteTx(Arc::new(deserialize)))
    }

    fn with(events: HandledEvents, work: Work) -> Handler {
        let id = match &events {
            HandledEvents::Matching(pattern) => pattern.clone(),
            HandledEvents::Others => "others".to_owned(),
        };
        Handler { id, events, subscription: MAIN.to_owned(), timeout: TIMEOUT, work }
    }

    /// The handler's id, unique per subscription on the node; the event type unless set. If an event has several
    /// handlers, their results are stored under these ids, so keep them stable between versions of a program.
    pub fn id(mut self, id: impl Into<String>) -> Handler {
        self.id = id.into();
        self
    }

    /// The subscription whose deliveries the handler receives; `main` unless set.
    pub fn subscription(mut self, subscription: impl Into<String>) -> Handler {
        self.subscription = subscription.into();
        self
    }

    /// The handler is aborted and the event retried after this time; 15 minutes unless set.
    pub fn timeout(mut self, timeout: Duration) -> Handler {
        self.timeout = timeout;
        self
    }

    pub(super) fn check(&self) -> Result<()> {
        names::check("handler", &self.id)?;
        names::check_identifier("subscription", &self.subscription)?;
        if let HandledEvents::Matching(pattern) = &self.events {
            names::check_type_pattern("type", pattern)?;
        }
        if self.timeout.is_zero() || self.timeout > TIMEOUT_MAX {
            return Err(Error::invalid("timeout", format!("of handler '{}' must be from 1 ns to a week", self.id)));
        }
        Ok(())
    }

    pub(super) fn matches_type(&self, event_type: &str) -> bool {
        match &self.events {
            HandledEvents::Matching(pattern) => names::type_matches(pattern, event_type),
            HandledEvents::Others => false,
        }
    }

    pub(super) fn is_plain(&self) -> bool {
        matches!(self.work, Work::Plain(_))
    }
}
