//! A recorded history of groups: what was published, and how it was handled.
//!
//! All times are those of one clock of the test, and no two of them are equal. A call is recorded with the time before it and
//! the time after it: whatever the call did was done between the two.

use std::sync::Mutex;
use std::time::{Duration, Instant};

/// Microseconds since the test began.
pub type Time = u64;

/// Draws times for one history.
pub struct Stopwatch {
    begun: Instant,
    last: Mutex<Time>,
}

impl Stopwatch {
    pub fn start() -> Stopwatch {
        Stopwatch { begun: Instant::now(), last: Mutex::new(0) }
    }

    /// Later than every time that was drawn before.
    pub fn now(&self) -> Time {
        let mut last = self.last.lock().unwrap();
        *last = micros(self.begun.elapsed()).max(*last + 1);
        *last
    }
}

pub fn micros(duration: Duration) -> Time {
    duration.as_micros() as Time
}

/// An event that was published. Its place in [`History::events`] is its number.
#[derive(Debug, Clone)]
pub struct Event {
    pub group: usize,
    pub transaction: usize,
    /// Its place in the transaction.
    pub position: usize,
    pub delay: Time,
    /// Before its transaction began.
    pub begun: Time,
    /// Before it was published.
    pub called: Time,
    /// Before the commit.
    pub committing: Time,
    /// After the commit. `None`: it was rolled back.
    pub committed: Option<Time>,
}

#[derive(Debug, Clone)]
pub struct Subscription {
    /// Before it was created.
    pub creating: Time,
    /// After it was created.
    pub created: Time,
}

/// A delivery that a worker claimed.
#[derive(Debug, Clone)]
pub struct Handling {
    /// Its place in [`History::subscriptions`].
    pub subscription: usize,
    pub event: usize,
    /// The number of the claim. Deliveries of one claim have one lease.
    pub claim: usize,
    /// Its place in the claim.
    pub position: usize,
    /// Before the claim was called.
    pub asked: Time,
    /// After it returned.
    pub claimed: Time,
    /// `None`: the worker stopped, and reported nothing.
    pub end: Option<End>,
}

/// A worker's report.
#[derive(Debug, Clone, Copy)]
pub struct End {
    pub called: Time,
    pub returned: Time,
    pub result: Ended,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ended {
    Completed,
    Dead,
    /// It failed or was snoozed, and is due again after this time.
    Delayed(Time),
    Released,
    /// The lease was not valid, and the report changed nothing.
    Lost,
}

/// A dead letter that was put back into the queue.
#[derive(Debug, Clone)]
pub struct Redrive {
    pub subscription: usize,
    pub event: usize,
    /// The number of the call, which is one transaction.
    pub call: usize,
    /// Its place among the events of the call, by id.
    pub position: usize,
    pub called: Time,
    pub returned: Time,
}

/// An attempt to take an event from its worker.
#[derive(Debug, Clone)]
pub struct Reset {
    pub subscription: usize,
    pub event: usize,
    pub called: Time,
    pub returned: Time,
}

#[derive(Debug, Clone, Default)]
pub struct History {
    /// How long a lease lasts.
    pub lease: Time,
    /// The policy of the groups is `continue`: an event that waits for a retry is passed.
    pub continues: bool,
    pub events: Vec<Event>,
    pub subscriptions: Vec<Subscription>,
    pub handlings: Vec<Handling>,
    pub redrives: Vec<Redrive>,
    pub resets: Vec<Reset>,
}

impl History {
    /// What was recorded of an event, one line for each.
    pub fn of_event(&self, event: usize) -> String {
        let mut lines = vec![format!("  event {event}: {:?}", self.events.get(event))];
        let handlings = self.handlings.iter().filter(|handling| handling.event == event);
        lines.extend(handlings.map(|handling| format!("    {handling:?}")));
        lines.extend(self.redrives.iter().filter(|redrive| redrive.event == event).map(|it| format!("    {it:?}")));
        lines.extend(self.resets.iter().filter(|reset| reset.event == event).map(|it| format!("    {it:?}")));
        lines.join("\n")
    }
}
