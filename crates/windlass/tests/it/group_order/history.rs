//! A recorded history of groups: what was published, and how it was handled.
//!
//! All times come from one clock of the test, and no two are equal. A call is recorded with the times before and after
//! it; its effect lies between the two.

use std::sync::Mutex;
use std::time::{Duration, Instant};

/// Microseconds since the test began.
pub type Time = u64;

/// The clock of a history.
pub struct Stopwatch {
    begun: Instant,
    last: Mutex<Time>,
}

impl Stopwatch {
    pub fn start() -> Stopwatch {
        Stopwatch { begun: Instant::now(), last: Mutex::new(0) }
    }

    /// Returns a time later than all earlier ones.
    pub fn now(&self) -> Time {
        let mut last = self.last.lock().unwrap();
        *last = micros(self.begun.elapsed()).max(*last + 1);
        *last
    }
}

pub fn micros(duration: Duration) -> Time {
    duration.as_micros() as Time
}

/// A published event. Its index in [`History::events`] is its number.
#[derive(Debug, Clone)]
pub struct Event {
    pub group: usize,
    pub transaction: usize,
    /// Its index in the transaction.
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

/// An attempt: a delivery that a worker claimed.
#[derive(Debug, Clone)]
pub struct Attempt {
    /// The index in [`History::subscriptions`].
    pub subscription: usize,
    pub event: usize,
    /// The number of the claim. Deliveries of one claim have one lease.
    pub claim: usize,
    /// Its index in the claim.
    pub position: usize,
    /// Before the claim was called.
    pub claim_called: Time,
    /// After it returned.
    pub claimed: Time,
    /// `None`: the worker crashed and reported nothing.
    pub end: Option<AttemptEnd>,
}

/// A worker's report.
#[derive(Debug, Clone, Copy)]
pub struct AttemptEnd {
    pub called: Time,
    pub returned: Time,
    pub result: AttemptResult,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AttemptResult {
    Completed,
    Dead,
    /// The event failed or was snoozed, and is due again after this time.
    Delayed(Time),
    Released,
    /// The lease was not valid, and the report changed nothing.
    Lost,
}

/// A redriven dead letter.
#[derive(Debug, Clone)]
pub struct Redrive {
    pub subscription: usize,
    pub event: usize,
    /// The number of the call. A call is one transaction.
    pub call: usize,
    /// Its index among the events of the call, by id.
    pub position: usize,
    pub called: Time,
    pub returned: Time,
}

/// A call that resets an event, which may or may not be processing.
#[derive(Debug, Clone)]
pub struct Reset {
    pub subscription: usize,
    pub event: usize,
    pub called: Time,
    pub returned: Time,
}

#[derive(Debug, Clone, Default)]
pub struct History {
    /// The lease duration.
    pub lease: Time,
    /// The group failure policy is `continue`: later events do not wait for a retry.
    pub continues: bool,
    pub events: Vec<Event>,
    pub subscriptions: Vec<Subscription>,
    pub attempts: Vec<Attempt>,
    pub redrives: Vec<Redrive>,
    pub resets: Vec<Reset>,
}

impl History {
    /// All records of an event, one per line.
    pub fn of_event(&self, event: usize) -> String {
        let mut lines = vec![format!("  event {event}: {:?}", self.events.get(event))];
        let attempts = self.attempts.iter().filter(|attempt| attempt.event == event);
        lines.extend(attempts.map(|attempt| format!("    {attempt:?}")));
        lines.extend(self.redrives.iter().filter(|redrive| redrive.event == event).map(|it| format!("    {it:?}")));
        lines.extend(self.resets.iter().filter(|reset| reset.event == event).map(|it| format!("    {it:?}")));
        lines.join("\n")
    }
}
