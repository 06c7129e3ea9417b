//! Nodes and their handlers, on both stores. This file has the helpers that the tests share.

use std::sync::{Arc, Mutex};

use windlass::{Backoff, Handled, NewEvent, Node, Policy, Queue, RunningNode, Status};

use crate::bed::Bed;
use crate::support::*;

mod changes;
mod concurrency;
mod faults;
mod handlers;
mod maintenance;
mod outcomes;
mod restart;
mod results;
mod settings;
mod stop;
mod transactions;

/// Lines that handlers wrote, in order.
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
        self.lines().iter().filter(|written| *written == line).count()
    }

    /// Waits until there are at least `count` lines.
    pub async fn wait(&self, count: usize) {
        eventually(&format!("{count} lines, not {:?}", self.lines()), async || self.lines().len() >= count).await;
    }
}

/// A policy with five retries and no backoff.
pub fn immediate_retries() -> Policy {
    Policy { backoff: Backoff::None, max_retries: Some(5), ..Policy::default() }
}

/// Creates the namespace `ns` on a queue with the real clock.
pub async fn real_time_namespace(bed: &Bed, policy: Policy) -> Queue {
    bed.real_time_queue().await.put_namespace("ns", Some(policy.into()), None).await.unwrap()
}

pub async fn start(node: Node) -> RunningNode {
    node.start().await.expect("the node starts")
}

pub async fn wait_for_status(queue: &Queue, event_id: i64, expected: Status) {
    let has_status = async || queue.get(event_id).await.is_ok_and(|view| view.deliveries[0].status == expected);
    eventually(&format!("event {event_id} is {expected}"), has_status).await;
}

/// An event with a number as its payload.
pub fn numbered(event_type: &str, n: usize) -> NewEvent {
    NewEvent::new(event_type).payload(&n).unwrap()
}

pub fn fail() -> Handled {
    Err("no luck")?
}
