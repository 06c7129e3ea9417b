//! The handlers of a node, and the lookup of handlers by subscription and event type.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, RwLock};

use super::handler::{HandledEvents, Handler};
use crate::error::{Error, Result};

/// The handlers of a node. More can be added while the node runs.
#[derive(Default)]
pub(super) struct Handlers(RwLock<HandlerIndex>);

#[derive(Default)]
struct HandlerIndex {
    all: Vec<Arc<Handler>>,
    /// Cached lookups, by subscription and event type.
    by_type: HashMap<String, HashMap<String, MatchingHandlers>>,
}

type MatchingHandlers = Arc<[Arc<Handler>]>;

/// The most event types cached per subscription. Types come from producers, so their number is not bounded.
const CACHED_TYPES_MAX: usize = 10_000;

impl Handlers {
    /// Fails if the subscription already has a handler with the same id.
    pub fn add(&self, handler: Handler) -> Result<()> {
        handler.check()?;
        let mut index = self.write();
        if index.all.iter().any(|existing| existing.id == handler.id && existing.subscription == handler.subscription) {
            let problem = format!("'{}' is already registered; set a different id", handler.id);
            return Err(Error::invalid("handler", problem));
        }
        index.all.push(Arc::new(handler));
        index.by_type.clear();
        Ok(())
    }

    /// The handlers for an event of this type, in the order they were added.
    pub fn find(&self, subscription: &str, event_type: &str) -> MatchingHandlers {
        if let Some(cached) = self.read().by_type.get(subscription).and_then(|by_type| by_type.get(event_type)) {
            return cached.clone();
        }
        let mut index = self.write();
        let found = index.find(subscription, event_type);
        let by_type = index.by_type.entry(subscription.to_owned()).or_default();
        if by_type.len() < CACHED_TYPES_MAX {
            by_type.insert(event_type.to_owned(), found.clone());
        }
        found
    }

    pub fn subscriptions(&self) -> BTreeSet<String> {
        self.read().all.iter().map(|handler| handler.subscription.clone()).collect()
    }

    /// The type patterns of all handlers, or of those of one subscription. A handler for other events has the pattern
    /// `*`.
    pub fn patterns(&self, subscription: Option<&str>) -> BTreeSet<String> {
        let index = self.read();
        let handlers = index.all.iter().filter(|handler| subscription.is_none_or(|name| handler.subscription == name));
        handlers
            .map(|handler| match &handler.events {
                HandledEvents::Matching(pattern) => pattern.clone(),
                HandledEvents::Others => "*".to_owned(),
            })
            .collect()
    }

    pub fn all(&self) -> Vec<Arc<Handler>> {
        self.read().all.clone()
    }

    fn read(&self) -> std::sync::RwLockReadGuard<'_, HandlerIndex> {
        // No code that can panic runs while the lock is held.
        self.0.read().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    fn write(&self) -> std::sync::RwLockWriteGuard<'_, HandlerIndex> {
        self.0.write().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

impl HandlerIndex {
    fn find(&self, subscription: &str, event_type: &str) -> MatchingHandlers {
        let handlers = || self.all.iter().filter(|handler| handler.subscription == subscription);
        let found: Vec<_> = handlers().filter(|handler| handler.matches_type(event_type)).cloned().collect();
        if !found.is_empty() {
            return found.into();
        }
        handlers().filter(|handler| handler.events == HandledEvents::Others).cloned().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn handler(event_type: &str) -> Handler {
        Handler::new(event_type, |_, _| async { Ok(()) })
    }

    fn ids(handlers: &Handlers, subscription: &str, event_type: &str) -> Vec<String> {
        handlers.find(subscription, event_type).iter().map(|handler| handler.id.clone()).collect()
    }

    #[test]
    fn event_types_reach_their_handlers() {
        let handlers = Handlers::default();
        let others = Handler::for_others(|_, _| async { Ok(()) });
        for handler in [
            handler("order.paid"),
            handler("order.paid").id("second"),
            handler("order.*"),
            handler("user.created"),
            handler("order.paid").id("audit").subscription("audit"),
            others,
        ] {
            handlers.add(handler).unwrap();
        }
        assert_eq!(ids(&handlers, "main", "order.paid"), ["order.paid", "second", "order.*"]);
        assert_eq!(ids(&handlers, "main", "order.sent"), ["order.*"]);
        assert_eq!(ids(&handlers, "main", "user.created"), ["user.created"]);
        assert_eq!(ids(&handlers, "main", "anything"), ["others"]);
        assert_eq!(ids(&handlers, "audit", "order.paid"), ["audit"]);
        assert!(ids(&handlers, "audit", "anything").is_empty());
        handlers.add(handler("anything")).unwrap();
        assert_eq!(ids(&handlers, "main", "anything"), ["anything"]);
    }

    #[test]
    fn duplicate_handler_id_is_rejected() {
        let handlers = Handlers::default();
        handlers.add(handler("a")).unwrap();
        handlers.add(handler("a").subscription("audit")).unwrap();
        let error = handlers.add(handler("b").id("a")).unwrap_err();
        assert_eq!(error.to_string(), "handler: 'a' is already registered; set a different id");
        for bad in [handler(""), handler("a*b"), handler("c").id(""), handler("c").subscription("a b")] {
            assert!(matches!(handlers.add(bad), Err(Error::Invalid { .. })));
        }
    }
}
