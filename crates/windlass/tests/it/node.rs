//! Nodes: handlers at work, on both stores.

use std::sync::{Arc, Mutex};

use windlass::{Backoff, Handled, NewEvent, Node, Policy, Queue, RunningNode, Status};

use crate::bed::Bed;
use crate::support::*;

mod changes;
mod concurrency;
mod faults;
mod handlers;
mod outcomes;
mod restart;
mod results;
mod settings;
mod stop;
mod transactions;
mod upkeep;

/// What handlers wrote down, in order.
#[derive(Clone, Default)]
pub struct Ledger(Arc<Mutex<Vec<String>>>);

impl Ledger {
    pub fn write(&self, line: impl Into<String>) {
        self.0.lock().unwrap().push(line.into());
    }

    pub fn lines(&self) -> Vec<String> {
        self.0.lock().unwrap().clone()
    }

    pub fn count(&self, line: &str) -> usize {
        self.lines().iter().filter(|known| *known == line).count()
    }

    /// Waits until there are so many.
    pub async fn wait(&self, count: usize) {
        eventually(&format!("{count} lines, not {:?}", self.lines()), async || self.lines().len() >= count).await;
    }
}

/// Retries at once.
pub fn brisk() -> Policy {
    Policy { backoff: Backoff::None, max_retries: Some(5), ..Policy::default() }
}

/// A namespace in real time.
pub async fn real(bed: &Bed, policy: Policy) -> Queue {
    bed.real_time().await.put_namespace("ns", Some(policy.into()), None).await.unwrap()
}

pub async fn start(node: Node) -> RunningNode {
    node.start().await.expect("the node starts")
}

pub async fn until(queue: &Queue, event_id: i64, expected: Status) {
    let so = async || queue.get(event_id).await.is_ok_and(|view| view.deliveries[0].status == expected);
    eventually(&format!("event {event_id} is {expected}"), so).await;
}

/// A payload with a number.
pub fn numbered(event_type: &str, n: usize) -> NewEvent {
    NewEvent::new(event_type).payload(&n).unwrap()
}

pub fn fail() -> Handled {
    Err("no luck")?
}
