//! The handlers of a node, and who handles what.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, RwLock};

use super::handler::{Events, Handler};
use crate::error::{Error, Result};

/// The handlers of a node; more may come while it runs.
#[derive(Default)]
pub(super) struct Handlers(RwLock<Book>);

#[derive(Default)]
struct Book {
    all: Vec<Arc<Handler>>,
    /// Those for each type that came up so far, by subscription.
    found: HashMap<String, HashMap<String, Found>>,
}

type Found = Arc<[Arc<Handler>]>;

/// So many types that came up are remembered for each subscription: they come from outside.
const FOUND_MAX: usize = 10_000;

impl Handlers {
    /// Refuses a second one of the same name.
    pub fn add(&self, handler: Handler) -> Result<()> {
        handler.check()?;
        let mut book = self.write();
        if book.all.iter().any(|known| known.id == handler.id && known.subscription == handler.subscription) {
            let problem = format!("'{}' is there already; give this one an id of its own", handler.id);
            return Err(Error::invalid("handler", problem));
        }
        book.all.push(Arc::new(handler));
        book.found.clear();
        Ok(())
    }

    /// All that are for such an event, in the order they were added.
    pub fn of(&self, subscription: &str, event_type: &str) -> Found {
        if let Some(found) = self.read().found.get(subscription).and_then(|of_it| of_it.get(event_type)) {
            return found.clone();
        }
        let mut book = self.write();
        let found = book.find(subscription, event_type);
        let of_it = book.found.entry(subscription.to_owned()).or_default();
        if of_it.len() < FOUND_MAX {
            of_it.insert(event_type.to_owned(), found.clone());
        }
        found
    }

    pub fn subscriptions(&self) -> BTreeSet<String> {
        self.read().all.iter().map(|handler| handler.subscription.clone()).collect()
    }

    /// The patterns of the types that they are for; `*` with one for all others. All subscriptions', or one's.
    pub fn patterns(&self, subscription: Option<&str>) -> BTreeSet<String> {
        let book = self.read();
        let of_it = book.all.iter().filter(|handler| subscription.is_none_or(|name| handler.subscription == name));
        of_it
            .map(|handler| match &handler.events {
                Events::Of(pattern) => pattern.clone(),
                Events::Others => "*".to_owned(),
            })
            .collect()
    }

    pub fn all(&self) -> Vec<Arc<Handler>> {
        self.read().all.clone()
    }

    fn read(&self) -> std::sync::RwLockReadGuard<'_, Book> {
        // No code that can panic runs under the lock.
        self.0.read().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    fn write(&self) -> std::sync::RwLockWriteGuard<'_, Book> {
        self.0.write().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

impl Book {
    fn find(&self, subscription: &str, event_type: &str) -> Found {
        let of_it = || self.all.iter().filter(|handler| handler.subscription == subscription);
        let found: Vec<_> = of_it().filter(|handler| handler.is_for(event_type)).cloned().collect();
        if !found.is_empty() {
            return found.into();
        }
        of_it().filter(|handler| handler.events == Events::Others).cloned().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn handler(event_type: &str) -> Handler {
        Handler::new(event_type, |_, _| async { Ok(()) })
    }

    fn ids(handlers: &Handlers, subscription: &str, event_type: &str) -> Vec<String> {
        handlers.of(subscription, event_type).iter().map(|handler| handler.id.clone()).collect()
    }

    #[test]
    fn each_type_reaches_its_own_handlers() {
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
    fn a_second_handler_of_one_name_is_refused() {
        let handlers = Handlers::default();
        handlers.add(handler("a")).unwrap();
        handlers.add(handler("a").subscription("audit")).unwrap();
        let error = handlers.add(handler("b").id("a")).unwrap_err();
        assert_eq!(error.to_string(), "handler: 'a' is there already; give this one an id of its own");
        for bad in [handler(""), handler("a*b"), handler("c").id(""), handler("c").subscription("a b")] {
            assert!(matches!(handlers.add(bad), Err(Error::Invalid { .. })));
        }
    }
}
