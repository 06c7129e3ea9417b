//! An in-memory reference of the queue: the expected states and results, without a database.

use std::collections::HashMap;
use std::fmt;
use std::time::Duration;

use windlass::{
    Action, Attempt, Backoff, Delivery, DeliveryView, ExhaustedPolicy, GroupFailurePolicy, Lease, Outcome, Policy,
    Status, Timestamp, UnhandledPolicy,
};

use crate::support::after;

/// The fields of a published event that affect its delivery.
#[derive(Debug, Clone)]
pub struct Event {
    pub id: i64,
    pub event_type: &'static str,
    pub tags: &'static [&'static str],
    pub priority: i16,
    pub group: Option<&'static str>,
    pub key: Option<&'static str>,
    pub due: Timestamp,
    pub expires: Option<Timestamp>,
    pub max_retries: Option<u32>,
}

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Event { id, event_type, tags, priority, .. } = self;
        write!(f, "[{id} {event_type} {tags:?} {priority} due {}", self.due.format("%T%.6f"))?;
        let options = [
            self.expires.map(|at| format!("expires {}", at.format("%T%.6f"))),
            self.max_retries.map(|n| format!("retries {n}")),
        ];
        options.iter().flatten().try_for_each(|option| write!(f, " {option}"))?;
        let names = [self.group.map(|name| format!("group {name}")), self.key.map(|name| format!("key {name}"))];
        names.iter().flatten().try_for_each(|name| write!(f, " {name}"))?;
        f.write_str("]")
    }
}

#[derive(Debug, Clone, PartialEq)]
pub enum State {
    Pending,
    Processing {
        lease: Lease,
        worker: &'static str,
        picked: Timestamp,
        started: Option<Timestamp>,
        end: Timestamp,
    },
    Finished(Status),
    /// Completed and not kept.
    Deleted,
}

/// A delivery: one event for one subscription.
#[derive(Debug, Clone)]
pub struct Entry {
    pub event: Event,
    pub subscription: &'static str,
    pub state: State,
    /// When it may be claimed, apart from its group.
    pub due: Timestamp,
    /// Its due time within its group. A retry that blocks its group does not change it.
    group_due: Timestamp,
    /// Whether it is the next delivery of its group. Always true without a group.
    pub is_front: bool,
    pub expires: Option<Timestamp>,
    pub attempts: u32,
    limit: u32,
    pub retry_count: u32,
    pub max_retries: Option<u32>,
    /// Whether it has a dead letter.
    pub is_dead: bool,
    pub trail: Vec<Action>,
    /// Finished attempts: lease, worker and record.
    records: Vec<(Lease, &'static str, AttemptRecord)>,
}

/// The end of an attempt.
#[derive(Debug, Clone)]
pub struct AttemptRecord {
    pub action: Action,
    /// The result that the queue returned to the worker, if it reported.
    pub result: Option<Attempt>,
}

/// How a worker identifies itself in a report.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Reporter {
    Lease(Lease),
    Worker(&'static str),
}

/// The expected result of a report.
#[derive(Debug, Clone, PartialEq)]
pub enum ExpectedFinish {
    Applied { action: Action, retry_count: u32, next_retry_at: Option<Timestamp> },
    Repeated(Option<Attempt>),
    Lost,
    NotFound,
}

/// The filter of a claim.
#[derive(Debug, Clone)]
pub struct ClaimFilter {
    pub subscription: &'static str,
    pub types: &'static [&'static str],
    pub tags: &'static [&'static str],
}

fn type_matches(pattern: &str, event_type: &str) -> bool {
    pattern.strip_suffix('*').map_or(pattern == event_type, |prefix| event_type.starts_with(prefix))
}

impl ClaimFilter {
    fn matches(&self, entry: &Entry) -> bool {
        let event = &entry.event;
        entry.subscription == self.subscription
            && (self.types.is_empty() || self.types.iter().any(|pattern| type_matches(pattern, event.event_type)))
            && (self.tags.is_empty() || self.tags.iter().any(|tag| event.tags.contains(tag)))
    }
}

#[derive(Debug, Clone)]
pub struct Reference {
    pub now: Timestamp,
    pub policy: Policy,
    /// Each subscription with its type pattern.
    pub subscriptions: &'static [(&'static str, &'static str)],
    /// The type whose completed events are not kept.
    pub unkept_type: &'static str,
    pub entries: Vec<Entry>,
    keys: HashMap<&'static str, (i64, Timestamp)>,
}

impl Reference {
    pub fn new(
        now: Timestamp,
        policy: Policy,
        subscriptions: &'static [(&'static str, &'static str)],
        unkept_type: &'static str,
    ) -> Reference {
        Reference { now, policy, subscriptions, unkept_type, entries: Vec::new(), keys: HashMap::new() }
    }

    /// The event that currently has this key.
    pub fn of_key(&self, key: &str) -> Option<i64> {
        self.keys.get(key).filter(|(_, until)| *until > self.now).map(|(id, _)| *id)
    }

    pub fn publish(&mut self, event: Event) {
        if let Some(key) = event.key {
            self.keys.insert(key, (event.id, after(self.now, Duration::from_millis(self.policy.key_window_ms))));
        }
        for (subscription, pattern) in self.subscriptions {
            if type_matches(pattern, event.event_type) {
                let entry = Entry {
                    subscription,
                    state: State::Pending,
                    due: event.due.max(self.now),
                    group_due: event.due.max(self.now),
                    is_front: false,
                    expires: event.expires,
                    attempts: 0,
                    limit: self.policy.max_attempts,
                    retry_count: 0,
                    max_retries: event.max_retries.or(self.policy.max_retries),
                    is_dead: false,
                    trail: Vec::new(),
                    records: Vec::new(),
                    event: event.clone(),
                };
                self.entries.push(entry);
                self.join_group(self.entries.len() - 1);
            }
        }
    }

    // -- groups

    fn unfinished_members(&self, of: usize) -> Vec<usize> {
        let (subscription, group) = (self.entries[of].subscription, self.entries[of].event.group);
        let same = |entry: &Entry| entry.subscription == subscription && entry.event.group == group;
        let is_unfinished = |entry: &Entry| matches!(entry.state, State::Pending | State::Processing { .. });
        let mut members: Vec<usize> = (0..self.entries.len())
            .filter(|at| same(&self.entries[*at]) && is_unfinished(&self.entries[*at]))
            .collect();
        members.sort_by_key(|at| self.entries[*at].event.id);
        members
    }

    fn group_continues(&self) -> bool {
        self.policy.group_failure == GroupFailurePolicy::Continue
    }

    fn join_group(&mut self, at: usize) {
        let members = if self.entries[at].event.group.is_some() { self.unfinished_members(at) } else { Vec::new() };
        let alone = members.len() <= 1;
        self.entries[at].is_front = alone;
        let delayed = |entry: &Entry| entry.is_front && entry.group_due > self.now;
        if !alone && members.iter().any(|member| delayed(&self.entries[*member])) {
            self.choose_front(at);
        }
    }

    /// Chooses the front of a group unless one of its deliveries is processing: the one that waits for its retry, or
    /// else the first by due time.
    fn choose_front(&mut self, of: usize) {
        if self.entries[of].event.group.is_none() {
            return;
        }
        let members = self.unfinished_members(of);
        if members.iter().any(|at| self.entries[*at].state != State::Pending) {
            return;
        }
        let order = |at: &&usize| {
            let entry = &self.entries[**at];
            (!(entry.is_front && entry.due > entry.group_due), entry.group_due, entry.event.id)
        };
        let Some(front) = members.iter().min_by_key(order).copied() else { return };
        for at in members {
            let entry = &mut self.entries[at];
            if at == front && !entry.is_front {
                entry.due = entry.group_due;
            }
            entry.is_front = at == front;
        }
    }

    // -- transitions of a delivery

    fn finish_delivery(&mut self, at: usize, status: Status, action: Action) {
        let entry = &mut self.entries[at];
        entry.state = State::Finished(status);
        entry.trail.push(action);
        entry.is_dead = matches!(status, Status::Failed | Status::Expired);
        self.choose_front(at);
    }

    fn return_to_queue(&mut self, at: usize, due: Timestamp, action: Action, yields: bool) {
        let entry = &mut self.entries[at];
        entry.state = State::Pending;
        entry.due = due;
        entry.trail.push(action);
        if yields {
            entry.group_due = due;
            // It becomes the front again if no other delivery is due before.
            entry.is_front = entry.event.group.is_none();
        }
        self.choose_front(at);
    }

    fn record(&mut self, at: usize, action: Action) {
        if let State::Processing { lease, worker, .. } = self.entries[at].state {
            self.entries[at].records.push((lease, worker, AttemptRecord { action, result: None }));
        }
    }

    // -- claiming

    fn lease_is_expired(&self, at: usize) -> bool {
        matches!(self.entries[at].state, State::Processing { end, .. } if end <= self.now)
    }

    /// The deliveries with an expired lease that match the filter.
    pub fn expired_leases(&self, filter: Option<&ClaimFilter>) -> Vec<usize> {
        let matches = |entry: &Entry| filter.is_none_or(|filter| filter.matches(entry));
        (0..self.entries.len()).filter(|at| self.lease_is_expired(*at) && matches(&self.entries[*at])).collect()
    }

    pub fn release_expired(&mut self, filter: Option<&ClaimFilter>) -> usize {
        let expired = self.expired_leases(filter);
        expired.iter().for_each(|at| self.abandon(*at));
        expired.len()
    }

    pub fn abandon(&mut self, at: usize) {
        self.record(at, Action::Abandoned);
        let entry = &self.entries[at];
        if entry.attempts >= entry.limit {
            self.finish_delivery(at, Status::Failed, Action::Abandoned);
        } else {
            self.return_to_queue(at, entry.due, Action::Abandoned, false);
        }
    }

    /// The deliveries that a claim may return, in order.
    pub fn claimable(&self, filter: &ClaimFilter) -> Vec<usize> {
        let now = self.now;
        let horizon = after(now, Duration::from_millis(self.policy.deadline_horizon_ms.unwrap_or(u64::from(u32::MAX))));
        let is_ready = |entry: &Entry| entry.state == State::Pending && entry.is_front && entry.due <= now;
        let in_time = |entry: &Entry| entry.expires.is_none_or(|expires| expires > now);
        let mut found: Vec<usize> = (0..self.entries.len())
            .filter(|at| {
                let entry = &self.entries[*at];
                filter.matches(entry) && is_ready(entry) && in_time(entry)
            })
            .collect();
        found.sort_by_key(|at| {
            let entry = &self.entries[*at];
            match entry.expires.filter(|expires| *expires <= horizon) {
                Some(expires) => (0, 0, expires, entry.event.id),
                None => (1, -i32::from(entry.event.priority), entry.due, entry.event.id),
            }
        });
        found
    }

    pub fn claim(&mut self, at: usize, delivery: &Delivery, worker: &'static str, end: Timestamp) {
        let now = self.now;
        let entry = &mut self.entries[at];
        entry.attempts += 1;
        entry.state = State::Processing { lease: delivery.lease, worker, picked: now, started: None, end };
        entry.trail.push(Action::Picked);
    }

    // -- reports

    pub fn holds(&self, at: usize, by: Reporter) -> bool {
        match (&self.entries[at].state, by) {
            (State::Processing { lease, .. }, Reporter::Lease(wanted)) => *lease == wanted,
            (State::Processing { worker, .. }, Reporter::Worker(wanted)) => *worker == wanted,
            _ => false,
        }
    }

    pub fn finish(&mut self, at: usize, by: Reporter, outcome: &Outcome) -> ExpectedFinish {
        if self.entries[at].state == State::Deleted {
            return ExpectedFinish::NotFound;
        }
        if !self.holds(at, by) {
            return self.find_repeated(at, by, outcome);
        }
        let before = self.entries[at].clone();
        let (action, next_retry_at) = self.apply_outcome(at, outcome);
        if let State::Processing { lease, worker, .. } = before.state {
            self.entries[at].records.push((lease, worker, AttemptRecord { action, result: None }));
        }
        ExpectedFinish::Applied { action, retry_count: self.entries[at].retry_count, next_retry_at }
    }

    /// Stores the result that the queue returned, to compare it with repeated results.
    pub fn store_result(&mut self, at: usize, result: Attempt) {
        self.entries[at].records.last_mut().expect("it was just recorded").2.result = Some(result);
    }

    fn find_repeated(&self, at: usize, by: Reporter, outcome: &Outcome) -> ExpectedFinish {
        let mut records = self.entries[at].records.iter().rev();
        let own = records.find(|(lease, worker, _)| match by {
            Reporter::Lease(wanted) => *lease == wanted,
            Reporter::Worker(wanted) => *worker == wanted,
        });
        let same = |action: Action| match outcome {
            Outcome::Done => action == Action::Completed,
            Outcome::DoneWithErrors => action == Action::CompletedWithErrors,
            Outcome::Retry { .. } | Outcome::Dead { .. } => {
                action == Action::Failed || action == Action::CompletedWithErrors
            }
            Outcome::Snooze { .. } => action == Action::Snoozed,
            Outcome::Release => action == Action::Released,
            Outcome::Unhandled => action == Action::Failed || action == Action::Released,
            _ => unreachable!("no other outcome is reported"),
        };
        match own {
            Some((_, _, record)) if same(record.action) => ExpectedFinish::Repeated(record.result.clone()),
            _ => ExpectedFinish::Lost,
        }
    }

    /// Finishes the attempt of a processing delivery. Returns the logged action and the time of the next attempt.
    fn apply_outcome(&mut self, at: usize, outcome: &Outcome) -> (Action, Option<Timestamp>) {
        match outcome {
            Outcome::Done => {
                self.finish_delivery(at, Status::Completed, Action::Completed);
                if self.entries[at].event.event_type == self.unkept_type {
                    self.entries[at].state = State::Deleted;
                }
                (Action::Completed, None)
            }
            Outcome::DoneWithErrors => {
                self.finish_delivery(at, Status::CompletedWithErrors, Action::CompletedWithErrors);
                (Action::CompletedWithErrors, None)
            }
            Outcome::Retry { after: delay } => self.fail(at, *delay),
            Outcome::Dead { .. } => self.exhaust(at),
            Outcome::Snooze { delay } => {
                let due = after(self.now, *delay);
                self.entries[at].limit += 1;
                self.return_to_queue(at, due, Action::Snoozed, self.group_continues());
                (Action::Snoozed, Some(due))
            }
            Outcome::Release => {
                let due = self.entries[at].due;
                self.entries[at].limit += 1;
                self.return_to_queue(at, due, Action::Released, false);
                (Action::Released, Some(due))
            }
            Outcome::Unhandled => self.unhandled(at),
            _ => unreachable!("no other outcome is reported"),
        }
    }

    fn fail(&mut self, at: usize, delay: Option<Duration>) -> (Action, Option<Timestamp>) {
        let entry = &self.entries[at];
        if entry.max_retries.is_some_and(|max| entry.retry_count + 1 >= max) {
            return self.exhaust(at);
        }
        if entry.attempts >= entry.limit {
            return self.dead_letter(at);
        }
        let lease = self.policy.lease();
        let wait = delay.unwrap_or(match self.policy.backoff {
            Backoff::None => Duration::ZERO,
            Backoff::Lease => lease,
            Backoff::Fixed { delay_ms } => Duration::from_millis(delay_ms),
            Backoff::Exponential { .. } => unreachable!("not used here"),
        });
        let due = after(self.now, wait);
        self.entries[at].retry_count += 1;
        self.return_to_queue(at, due, Action::Failed, self.group_continues());
        (Action::Failed, Some(due))
    }

    fn exhaust(&mut self, at: usize) -> (Action, Option<Timestamp>) {
        if self.policy.exhausted == ExhaustedPolicy::DeadLetter {
            return self.dead_letter(at);
        }
        self.finish_delivery(at, Status::CompletedWithErrors, Action::CompletedWithErrors);
        (Action::CompletedWithErrors, None)
    }

    fn dead_letter(&mut self, at: usize) -> (Action, Option<Timestamp>) {
        self.entries[at].retry_count += 1;
        self.finish_delivery(at, Status::Failed, Action::Failed);
        (Action::Failed, None)
    }

    fn unhandled(&mut self, at: usize) -> (Action, Option<Timestamp>) {
        let entry = &self.entries[at];
        if self.policy.unhandled == UnhandledPolicy::DeadLetter || entry.attempts >= entry.limit {
            self.finish_delivery(at, Status::Failed, Action::Failed);
            return (Action::Failed, None);
        }
        let due = after(self.now, self.policy.lease());
        self.return_to_queue(at, due, Action::Released, false);
        (Action::Released, Some(due))
    }

    pub fn start(&mut self, at: usize) -> Timestamp {
        let now = self.now;
        let entry = &mut self.entries[at];
        let State::Processing { started, .. } = &mut entry.state else { unreachable!("it is processing") };
        if started.is_none() {
            entry.trail.push(Action::Started);
        }
        *started.get_or_insert(now)
    }

    pub fn extend(&mut self, at: usize, lease: Duration) -> Timestamp {
        let until = after(self.now, lease);
        if let State::Processing { end, .. } = &mut self.entries[at].state {
            *end = until;
        }
        until
    }

    // -- administration and maintenance

    /// Cancels the pending deliveries of an event, and returns their number.
    pub fn cancel(&mut self, event_id: i64) -> usize {
        let is_pending = |entry: &Entry| entry.event.id == event_id && entry.state == State::Pending;
        let waiting: Vec<usize> = (0..self.entries.len()).filter(|at| is_pending(&self.entries[*at])).collect();
        for at in &waiting {
            self.finish_delivery(*at, Status::Cancelled, Action::Cancelled);
        }
        waiting.len()
    }

    /// Returns whether the delivery could be reset.
    pub fn reset(&mut self, at: usize) -> bool {
        if let State::Processing { .. } = self.entries[at].state {
            self.record(at, Action::Reset);
            let due = self.entries[at].due;
            self.return_to_queue(at, due, Action::Reset, false);
            return true;
        }
        let dead = self.entries[at].is_dead;
        if dead {
            self.redrive(at);
        }
        dead
    }

    fn redrive(&mut self, at: usize) {
        let now = self.now;
        let entry = &mut self.entries[at];
        entry.is_dead = false;
        entry.state = State::Pending;
        (entry.due, entry.group_due) = (now, now);
        entry.expires = entry.expires.filter(|expires| *expires > now);
        entry.limit = entry.attempts + self.policy.max_attempts;
        entry.retry_count = 0;
        entry.trail.push(Action::Redriven);
        self.join_group(at);
    }

    pub fn redrive_all(&mut self, event_id: Option<i64>) -> usize {
        let wanted = |entry: &Entry| entry.is_dead && event_id.is_none_or(|id| id == entry.event.id);
        let mut letters: Vec<usize> = (0..self.entries.len()).filter(|at| wanted(&self.entries[*at])).collect();
        // The order matters only within groups.
        letters.sort_by_key(|at| self.entries[*at].event.id);
        for at in &letters {
            self.redrive(*at);
        }
        letters.len()
    }

    pub fn purge_all(&mut self) -> usize {
        let letters = self.entries.iter_mut().filter(|entry| entry.is_dead);
        letters.map(|entry| entry.is_dead = false).count()
    }

    pub fn expire(&mut self) -> usize {
        let now = self.now;
        let late = |entry: &Entry| entry.state == State::Pending && entry.expires.is_some_and(|expires| expires <= now);
        let expired: Vec<usize> = (0..self.entries.len()).filter(|at| late(&self.entries[*at])).collect();
        for at in &expired {
            self.finish_delivery(*at, Status::Expired, Action::Expired);
        }
        expired.len()
    }

    // -- views

    pub fn at(&self, event_id: i64, subscription: &str) -> Option<usize> {
        self.entries.iter().position(|entry| entry.event.id == event_id && entry.subscription == subscription)
    }

    /// Compares a view with the expected one.
    pub fn assert_shown(&self, at: usize, view: &DeliveryView, steps: &[String]) {
        let entry = &self.entries[at];
        let (mut status, mut worker_id, mut picked_at, mut started_at, mut lease_expires_at) =
            (Status::Pending, None, None, None, None);
        match &entry.state {
            State::Processing { worker, picked, started, end, .. } => {
                status = Status::Processing;
                (worker_id, picked_at) = (Some((*worker).to_owned()), Some(*picked));
                (started_at, lease_expires_at) = (*started, Some(*end));
            }
            State::Finished(finished) => status = *finished,
            State::Pending | State::Deleted => {}
        }
        let ready_at = (entry.state == State::Pending && entry.is_front).then_some(entry.due);
        let expected = DeliveryView {
            subscription: entry.subscription.to_owned(),
            status,
            attempts: entry.attempts,
            retry_count: entry.retry_count,
            max_retries: entry.max_retries,
            ready_at,
            next_retry_at: ready_at.filter(|_| entry.retry_count > 0),
            worker_id,
            picked_at,
            started_at,
            lease_expires_at,
            // Not modeled.
            error_message: view.error_message.clone(),
            updated_at: view.updated_at,
        };
        assert_eq!(*view, expected, "{entry:#?}\n{}", steps.join("\n"));
    }
}
