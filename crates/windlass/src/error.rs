//! The error type of the library. Each error has a stable code.

/// A result with this library's [`Error`].
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// An error of this library.
///
/// Concurrent calls share a commit, so an error is cheap to clone for all of them.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// An argument is invalid; nothing was changed.
    #[error("{field}: {problem}")]
    Invalid {
        /// The field, as the caller knows it.
        field: &'static str,
        /// What is wrong with the value, and what is allowed.
        problem: String,
    },
    /// A value is larger than its limit; nothing was changed.
    #[error("{field} is {size} bytes; the limit is {max} bytes")]
    TooLarge {
        /// The field, as the caller knows it.
        field: &'static str,
        /// Its size in bytes.
        size: usize,
        /// The largest size in bytes.
        max: usize,
    },
    /// One item of a list is invalid; nothing was changed.
    #[error("{what}[{index}]: {error}")]
    InItem {
        /// The name of the list, as the caller knows it.
        what: &'static str,
        /// The index of the item, from 0.
        index: usize,
        /// What is wrong with the item.
        error: Box<Error>,
    },
    /// The namespace does not exist.
    #[error("namespace '{namespace}' does not exist; create it first")]
    NamespaceNotFound {
        /// Its name.
        namespace: String,
    },
    /// The subscription does not exist in its namespace.
    #[error("subscription '{subscription}' does not exist in namespace '{namespace}'")]
    SubscriptionNotFound {
        /// The namespace that was searched.
        namespace: String,
        /// The subscription's name.
        subscription: String,
    },
    /// The event does not exist in the namespace, or has no delivery for the subscription.
    #[error("event {event_id} does not exist in namespace '{namespace}'")]
    EventNotFound {
        /// The namespace that was searched.
        namespace: String,
        /// The event's id.
        event_id: i64,
    },
    /// The node is not registered in the namespace.
    #[error("node '{node_id}' is not registered in namespace '{namespace}'")]
    NodeNotFound {
        /// The namespace that was searched.
        namespace: String,
        /// The node's id.
        node_id: String,
    },
    /// The schedule does not exist in the namespace.
    #[error("schedule '{schedule_id}' does not exist in namespace '{namespace}'")]
    ScheduleNotFound {
        /// The namespace that was searched.
        namespace: String,
        /// The schedule's id.
        schedule_id: String,
    },
    /// The API token does not exist.
    #[error("token '{token_id}' does not exist")]
    TokenNotFound {
        /// The token's id.
        token_id: String,
    },
    /// The key was used within its window for an event with another type or payload; nothing was stored.
    ///
    /// Transactions that are open at the same time do not see each other's keys. Of their events with one key, the
    /// first to be routed after its commit is kept. The others are dropped, or become dead letters with the reason
    /// `key_conflict` if their type or payload differ.
    #[error("key: '{key}' was used for {}, which has another type or payload", used_for(.event_id))]
    KeyConflict {
        /// The key.
        key: String,
        /// The first event with this key; `None`: an earlier event of the same call.
        event_id: Option<i64>,
    },
    /// An object with this name already exists.
    #[error("{what} '{name}' exists already")]
    Exists {
        /// The kind of object.
        what: &'static str,
        /// Its name.
        name: String,
    },
    /// The event is not in a state that allows this.
    #[error("event {event_id} is {status}; it can be {action} only while {allowed}")]
    WrongStatus {
        /// The event's id.
        event_id: i64,
        /// Its status now.
        status: &'static str,
        /// The requested action, as a participle.
        action: &'static str,
        /// The statuses that allow the action.
        allowed: &'static str,
    },
    /// Claims of this process use, or used in the last half minute, the maximum number of different filters.
    #[error("claims with {max} different filters are under way; use fewer, or try again later")]
    TooManyFilters {
        /// The maximum number of filters.
        max: usize,
    },
    /// The database URL is invalid, or this build does not include the database.
    #[error("database URL '{url}': {problem}")]
    DatabaseUrl {
        /// The URL, without its password.
        url: String,
        /// What is wrong with it.
        problem: String,
    },
    /// The database cannot be reached, or the connection was lost during the call. The call may or may not have been
    /// committed. Finishing again is safe; publishing again is safe with a key.
    #[error("the database cannot be reached: {detail}")]
    DatabaseUnavailable {
        /// The driver's error message.
        detail: String,
    },
    /// Another process held the database's write lock for too long.
    #[error("the database is locked by another process: {detail}")]
    DatabaseLocked {
        /// The driver's error message.
        detail: String,
    },
    /// The database, or its file, is read-only.
    #[error("the database is read-only: {detail}")]
    DatabaseReadOnly {
        /// The driver's error message.
        detail: String,
    },
    /// The database has no space left.
    #[error("the database is full: {detail}")]
    DatabaseFull {
        /// The driver's error message.
        detail: String,
    },
    /// The database was migrated by a newer Windlass.
    #[error("the database has schema version {found}, but this build knows only up to {known}; upgrade windlass")]
    SchemaTooNew {
        /// The database's version.
        found: i64,
        /// The newest version this build knows.
        known: i64,
    },
    /// The database needs a migration, and the queue was opened without migrating.
    #[error("the database has schema version {found}, but version {known} is needed; run `windlass migrate up`")]
    SchemaTooOld {
        /// The database's version; 0 without a schema.
        found: i64,
        /// The version this build needs.
        known: i64,
    },
    /// The database rejected the data: a value is out of range or violates a constraint.
    #[error("database error: {detail}")]
    DataRefused {
        /// The driver's error message.
        detail: String,
    },
    /// Any other database error.
    #[error("database error: {detail}")]
    Database {
        /// The driver's error message.
        detail: String,
    },
    /// An archive file of history cannot be written or read.
    #[error("the archive '{path}': {detail}")]
    Archive {
        /// The file or folder.
        path: String,
        /// What went wrong.
        detail: String,
    },
    /// The operating system provided no random bytes for a secret.
    #[error("the operating system gives no random bytes: {detail}")]
    RandomUnavailable {
        /// The operating system's error message.
        detail: String,
    },
    /// The queue was closed.
    #[error("the queue is closed")]
    Closed,
}

impl Error {
    /// A machine-readable code, stable across versions.
    pub fn code(&self) -> &'static str {
        match self {
            Error::Invalid { .. } => "invalid",
            Error::TooLarge { .. } => "too_large",
            Error::InItem { error, .. } => error.code(),
            Error::NamespaceNotFound { .. } => "namespace_not_found",
            Error::SubscriptionNotFound { .. } => "subscription_not_found",
            Error::EventNotFound { .. } => "event_not_found",
            Error::NodeNotFound { .. } => "node_not_found",
            Error::ScheduleNotFound { .. } => "schedule_not_found",
            Error::TokenNotFound { .. } => "token_not_found",
            Error::KeyConflict { .. } => "key_conflict",
            Error::Exists { .. } => "exists",
            Error::WrongStatus { .. } => "wrong_status",
            Error::TooManyFilters { .. } => "too_many_filters",
            Error::DatabaseUrl { .. } => "database_url",
            Error::DatabaseUnavailable { .. } => "database_unavailable",
            Error::DatabaseLocked { .. } => "database_locked",
            Error::DatabaseReadOnly { .. } => "database_read_only",
            Error::DatabaseFull { .. } => "database_full",
            Error::SchemaTooNew { .. } => "schema_too_new",
            Error::SchemaTooOld { .. } => "schema_too_old",
            Error::DataRefused { .. } | Error::Database { .. } => "database",
            Error::Archive { .. } => "archive",
            Error::RandomUnavailable { .. } => "random_unavailable",
            Error::Closed => "closed",
        }
    }

    /// Whether the same call may succeed later without any change by the caller.
    pub fn is_temporary(&self) -> bool {
        matches!(self, Error::DatabaseUnavailable { .. } | Error::DatabaseLocked { .. } | Error::DatabaseFull { .. })
    }

    /// The error of the item, for [`Error::InItem`]; else the error itself.
    pub fn in_item(&self) -> &Error {
        match self {
            Error::InItem { error, .. } => error.in_item(),
            error => error,
        }
    }

    pub(crate) fn invalid(field: &'static str, problem: impl Into<String>) -> Error {
        Error::Invalid { field, problem: problem.into() }
    }
}

fn used_for(event_id: &Option<i64>) -> String {
    event_id.map_or_else(|| "another event of this call".to_owned(), |event_id| format!("event {event_id}"))
}

/// The message of a panic.
pub(crate) fn panic_text(panic: &(dyn std::any::Any + Send)) -> &str {
    let message = panic.downcast_ref::<&str>().copied();
    message.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("(no message)")
}
