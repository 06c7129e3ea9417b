//! A queue in a few hundred lines: what the real one has to do, without a database.

use std::collections::HashMap;
use std::fmt;
use std::time::Duration;

use windlass::{
    Action, Attempt, Backoff, Delivery, DeliveryView, ExhaustedPolicy, GroupFailurePolicy, Lease, Outcome, Policy,
    Status, Timestamp, UnhandledPolicy,
};

use crate::support::after;

/// What was published, as far as it matters here.
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
    Free,
    Held {
        lease: Lease,
        worker: &'static str,
        picked: Timestamp,
        started: Option<Timestamp>,
        end: Timestamp,
    },
    Ended(Status),
    /// Completed and not kept.
    Forgotten,
}

/// One event for one subscription.
#[derive(Debug, Clone)]
pub struct Entry {
    pub event: Event,
    pub subscription: &'static str,
    pub state: State,
    /// When it may be taken, but for its group.
    pub due: Timestamp,
    /// When it is due in its group. A retry that blocks its group keeps it.
    place: Timestamp,
    /// It is its turn in its group; without a group, always.
    pub front: bool,
    pub expires: Option<Timestamp>,
    pub attempts: u32,
    limit: u32,
    pub retry_count: u32,
    pub max_retries: Option<u32>,
    /// There is a dead letter of it.
    pub dead: bool,
    pub trail: Vec<Action>,
    /// Ended attempts: whose, and what is on record.
    records: Vec<(Lease, &'static str, AttemptRecord)>,
}

/// How an attempt ended.
#[derive(Debug, Clone)]
pub struct AttemptRecord {
    pub action: Action,
    /// What the queue answered; only for reports of workers.
    pub answer: Option<Attempt>,
}

/// Who reports.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum By {
    Lease(Lease),
    Worker(&'static str),
}

/// What a report must be answered with.
#[derive(Debug, Clone, PartialEq)]
pub enum Expected {
    Applied { action: Action, retry_count: u32, next_retry_at: Option<Timestamp> },
    Repeated(Option<Attempt>),
    Lost,
    NotFound,
}

/// What is claimed.
#[derive(Debug, Clone)]
pub struct Wish {
    pub subscription: &'static str,
    pub types: &'static [&'static str],
    pub tags: &'static [&'static str],
}

fn type_matches(pattern: &str, event_type: &str) -> bool {
    pattern.strip_suffix('*').map_or(pattern == event_type, |prefix| event_type.starts_with(prefix))
}

impl Wish {
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
    /// Subscriptions, each with the type pattern it wants.
    pub subscriptions: &'static [(&'static str, &'static str)],
    /// The type whose completed events are not kept.
    pub forgotten_type: &'static str,
    pub entries: Vec<Entry>,
    keys: HashMap<&'static str, (i64, Timestamp)>,
}

impl Reference {
    pub fn new(
        now: Timestamp,
        policy: Policy,
        subscriptions: &'static [(&'static str, &'static str)],
        forgotten_type: &'static str,
    ) -> Reference {
        Reference { now, policy, subscriptions, forgotten_type, entries: Vec::new(), keys: HashMap::new() }
    }

    /// The event that a key stands for just now.
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
                    state: State::Free,
                    due: event.due.max(self.now),
                    place: event.due.max(self.now),
                    front: false,
                    expires: event.expires,
                    attempts: 0,
                    limit: self.policy.max_attempts,
                    retry_count: 0,
                    max_retries: event.max_retries.or(self.policy.max_retries),
                    dead: false,
                    trail: Vec::new(),
                    records: Vec::new(),
                    event: event.clone(),
                };
                self.entries.push(entry);
                self.join(self.entries.len() - 1);
            }
        }
    }

    // -- groups

    fn live_members(&self, of: usize) -> Vec<usize> {
        let (subscription, group) = (self.entries[of].subscription, self.entries[of].event.group);
        let same = |entry: &Entry| entry.subscription == subscription && entry.event.group == group;
        let live = |entry: &Entry| matches!(entry.state, State::Free | State::Held { .. });
        let mut members: Vec<usize> =
            (0..self.entries.len()).filter(|at| same(&self.entries[*at]) && live(&self.entries[*at])).collect();
        members.sort_by_key(|at| self.entries[*at].event.id);
        members
    }

    fn passes(&self) -> bool {
        self.policy.group_failure == GroupFailurePolicy::Continue
    }

    fn join(&mut self, at: usize) {
        let members = if self.entries[at].event.group.is_some() { self.live_members(at) } else { Vec::new() };
        let alone = members.len() <= 1;
        self.entries[at].front = alone;
        let delayed = |entry: &Entry| entry.front && entry.place > self.now;
        if !alone && members.iter().any(|member| delayed(&self.entries[*member])) {
            self.choose(at);
        }
    }

    /// Chooses the front of a group, unless a delivery is at work: one that waits for its retry, or the first by due time.
    fn choose(&mut self, of: usize) {
        if self.entries[of].event.group.is_none() {
            return;
        }
        let members = self.live_members(of);
        if members.iter().any(|at| self.entries[*at].state != State::Free) {
            return;
        }
        let order = |at: &&usize| {
            let entry = &self.entries[**at];
            (!(entry.front && entry.due > entry.place), entry.place, entry.event.id)
        };
        let Some(front) = members.iter().min_by_key(order).copied() else { return };
        for at in members {
            let entry = &mut self.entries[at];
            if at == front && !entry.front {
                entry.due = entry.place;
            }
            entry.front = at == front;
        }
    }

    // -- the ways a delivery goes

    fn leave(&mut self, at: usize, status: Status, action: Action) {
        let entry = &mut self.entries[at];
        entry.state = State::Ended(status);
        entry.trail.push(action);
        entry.dead = matches!(status, Status::Failed | Status::Expired);
        self.choose(at);
    }

    fn stay(&mut self, at: usize, due: Timestamp, action: Action, passed: bool) {
        let entry = &mut self.entries[at];
        entry.state = State::Free;
        entry.due = due;
        entry.trail.push(action);
        if passed {
            entry.place = due;
            // It is chosen again if no other is due before.
            entry.front = entry.event.group.is_none();
        }
        self.choose(at);
    }

    fn record(&mut self, at: usize, action: Action) {
        if let State::Held { lease, worker, .. } = self.entries[at].state {
            self.entries[at].records.push((lease, worker, AttemptRecord { action, answer: None }));
        }
    }

    // -- claiming

    fn ran_out(&self, at: usize) -> bool {
        matches!(self.entries[at].state, State::Held { end, .. } if end <= self.now)
    }

    /// Those whose lease has run out and that such a claim may bring back.
    pub fn run_out(&self, wish: Option<&Wish>) -> Vec<usize> {
        let concerned = |entry: &Entry| wish.is_none_or(|wish| wish.matches(entry));
        (0..self.entries.len()).filter(|at| self.ran_out(*at) && concerned(&self.entries[*at])).collect()
    }

    pub fn sweep(&mut self, wish: Option<&Wish>) -> usize {
        let run_out = self.run_out(wish);
        run_out.iter().for_each(|at| self.abandon(*at));
        run_out.len()
    }

    pub fn abandon(&mut self, at: usize) {
        self.record(at, Action::Abandoned);
        let entry = &self.entries[at];
        if entry.attempts >= entry.limit {
            self.leave(at, Status::Failed, Action::Abandoned);
        } else {
            self.stay(at, entry.due, Action::Abandoned, false);
        }
    }

    /// What a claim may take, in the order it should.
    pub fn claimable(&self, wish: &Wish) -> Vec<usize> {
        let now = self.now;
        let horizon = after(now, Duration::from_millis(self.policy.deadline_horizon_ms.unwrap_or(u64::from(u32::MAX))));
        let free = |entry: &Entry| entry.state == State::Free && entry.front && entry.due <= now;
        let in_time = |entry: &Entry| entry.expires.is_none_or(|expires| expires > now);
        let mut found: Vec<usize> = (0..self.entries.len())
            .filter(|at| {
                let entry = &self.entries[*at];
                wish.matches(entry) && free(entry) && in_time(entry)
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
        entry.state = State::Held { lease: delivery.lease, worker, picked: now, started: None, end };
        entry.trail.push(Action::Picked);
    }

    // -- reports

    pub fn holds(&self, at: usize, by: By) -> bool {
        match (&self.entries[at].state, by) {
            (State::Held { lease, .. }, By::Lease(wanted)) => *lease == wanted,
            (State::Held { worker, .. }, By::Worker(wanted)) => *worker == wanted,
            _ => false,
        }
    }

    pub fn finish(&mut self, at: usize, by: By, outcome: &Outcome) -> Expected {
        if self.entries[at].state == State::Forgotten {
            return Expected::NotFound;
        }
        if !self.holds(at, by) {
            return self.look_up(at, by, outcome);
        }
        let before = self.entries[at].clone();
        let (action, next_retry_at) = self.end(at, outcome);
        if let State::Held { lease, worker, .. } = before.state {
            self.entries[at].records.push((lease, worker, AttemptRecord { action, answer: None }));
        }
        Expected::Applied { action, retry_count: self.entries[at].retry_count, next_retry_at }
    }

    /// Keeps what the queue answered, to compare it with what it answers later.
    pub fn keep_answer(&mut self, at: usize, answer: Attempt) {
        self.entries[at].records.last_mut().expect("it was just recorded").2.answer = Some(answer);
    }

    fn look_up(&self, at: usize, by: By, outcome: &Outcome) -> Expected {
        let mut records = self.entries[at].records.iter().rev();
        let own = records.find(|(lease, worker, _)| match by {
            By::Lease(wanted) => *lease == wanted,
            By::Worker(wanted) => *worker == wanted,
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
            Some((_, _, record)) if same(record.action) => Expected::Repeated(record.answer.clone()),
            _ => Expected::Lost,
        }
    }

    /// Ends the attempt of a delivery that is held: what is logged, and when it is tried again.
    fn end(&mut self, at: usize, outcome: &Outcome) -> (Action, Option<Timestamp>) {
        match outcome {
            Outcome::Done => {
                self.leave(at, Status::Completed, Action::Completed);
                if self.entries[at].event.event_type == self.forgotten_type {
                    self.entries[at].state = State::Forgotten;
                }
                (Action::Completed, None)
            }
            Outcome::DoneWithErrors => {
                self.leave(at, Status::CompletedWithErrors, Action::CompletedWithErrors);
                (Action::CompletedWithErrors, None)
            }
            Outcome::Retry { after: delay } => self.fail(at, *delay),
            Outcome::Dead { .. } => self.give_up(at),
            Outcome::Snooze { delay } => {
                let due = after(self.now, *delay);
                self.entries[at].limit += 1;
                self.stay(at, due, Action::Snoozed, self.passes());
                (Action::Snoozed, Some(due))
            }
            Outcome::Release => {
                let due = self.entries[at].due;
                self.entries[at].limit += 1;
                self.stay(at, due, Action::Released, false);
                (Action::Released, Some(due))
            }
            Outcome::Unhandled => self.unhandled(at),
            _ => unreachable!("no other outcome is reported"),
        }
    }

    fn fail(&mut self, at: usize, delay: Option<Duration>) -> (Action, Option<Timestamp>) {
        let entry = &self.entries[at];
        if entry.max_retries.is_some_and(|max| entry.retry_count + 1 >= max) {
            return self.give_up(at);
        }
        if entry.attempts >= entry.limit {
            return self.bury_failed(at);
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
        self.stay(at, due, Action::Failed, self.passes());
        (Action::Failed, Some(due))
    }

    fn give_up(&mut self, at: usize) -> (Action, Option<Timestamp>) {
        if self.policy.exhausted == ExhaustedPolicy::DeadLetter {
            return self.bury_failed(at);
        }
        self.leave(at, Status::CompletedWithErrors, Action::CompletedWithErrors);
        (Action::CompletedWithErrors, None)
    }

    fn bury_failed(&mut self, at: usize) -> (Action, Option<Timestamp>) {
        self.entries[at].retry_count += 1;
        self.leave(at, Status::Failed, Action::Failed);
        (Action::Failed, None)
    }

    fn unhandled(&mut self, at: usize) -> (Action, Option<Timestamp>) {
        let entry = &self.entries[at];
        if self.policy.unhandled == UnhandledPolicy::DeadLetter || entry.attempts >= entry.limit {
            self.leave(at, Status::Failed, Action::Failed);
            return (Action::Failed, None);
        }
        let due = after(self.now, self.policy.lease());
        self.stay(at, due, Action::Released, false);
        (Action::Released, Some(due))
    }

    pub fn start(&mut self, at: usize) -> Timestamp {
        let now = self.now;
        let entry = &mut self.entries[at];
        let State::Held { started, .. } = &mut entry.state else { unreachable!("it is held") };
        if started.is_none() {
            entry.trail.push(Action::Started);
        }
        *started.get_or_insert(now)
    }

    pub fn extend(&mut self, at: usize, lease: Duration) -> Timestamp {
        let until = after(self.now, lease);
        if let State::Held { end, .. } = &mut self.entries[at].state {
            *end = until;
        }
        until
    }

    // -- by hand and by time

    /// Cancels what waits of an event; how many.
    pub fn cancel(&mut self, event_id: i64) -> usize {
        let waits = |entry: &Entry| entry.event.id == event_id && entry.state == State::Free;
        let waiting: Vec<usize> = (0..self.entries.len()).filter(|at| waits(&self.entries[*at])).collect();
        for at in &waiting {
            self.leave(*at, Status::Cancelled, Action::Cancelled);
        }
        waiting.len()
    }

    /// Whether it could be reset.
    pub fn reset(&mut self, at: usize) -> bool {
        if let State::Held { .. } = self.entries[at].state {
            self.record(at, Action::Reset);
            let due = self.entries[at].due;
            self.stay(at, due, Action::Reset, false);
            return true;
        }
        let dead = self.entries[at].dead;
        if dead {
            self.redrive(at);
        }
        dead
    }

    fn redrive(&mut self, at: usize) {
        let now = self.now;
        let entry = &mut self.entries[at];
        entry.dead = false;
        entry.state = State::Free;
        (entry.due, entry.place) = (now, now);
        entry.expires = entry.expires.filter(|expires| *expires > now);
        entry.limit = entry.attempts + self.policy.max_attempts;
        entry.retry_count = 0;
        entry.trail.push(Action::Redriven);
        self.join(at);
    }

    pub fn redrive_all(&mut self, event_id: Option<i64>) -> usize {
        let wanted = |entry: &Entry| entry.dead && event_id.is_none_or(|id| id == entry.event.id);
        let mut letters: Vec<usize> = (0..self.entries.len()).filter(|at| wanted(&self.entries[*at])).collect();
        // The order matters only to groups, where it must not: see `model.rs`.
        letters.sort_by_key(|at| self.entries[*at].event.id);
        for at in &letters {
            self.redrive(*at);
        }
        letters.len()
    }

    pub fn purge_all(&mut self) -> usize {
        let letters = self.entries.iter_mut().filter(|entry| entry.dead);
        letters.map(|entry| entry.dead = false).count()
    }

    pub fn expire(&mut self) -> usize {
        let now = self.now;
        let late = |entry: &Entry| entry.state == State::Free && entry.expires.is_some_and(|expires| expires <= now);
        let expired: Vec<usize> = (0..self.entries.len()).filter(|at| late(&self.entries[*at])).collect();
        for at in &expired {
            self.leave(*at, Status::Expired, Action::Expired);
        }
        expired.len()
    }

    // -- what is shown

    pub fn at(&self, event_id: i64, subscription: &str) -> Option<usize> {
        self.entries.iter().position(|entry| entry.event.id == event_id && entry.subscription == subscription)
    }

    /// Compares a view with what it should show.
    pub fn assert_shown(&self, at: usize, view: &DeliveryView, done: &[String]) {
        let entry = &self.entries[at];
        let (mut status, mut worker_id, mut picked_at, mut started_at, mut lease_expires_at) =
            (Status::Pending, None, None, None, None);
        match &entry.state {
            State::Held { worker, picked, started, end, .. } => {
                status = Status::Processing;
                (worker_id, picked_at) = (Some((*worker).to_owned()), Some(*picked));
                (started_at, lease_expires_at) = (*started, Some(*end));
            }
            State::Ended(ended) => status = *ended,
            State::Free | State::Forgotten => {}
        }
        let ready_at = (entry.state == State::Free && entry.front).then_some(entry.due);
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
            // Not modelled.
            error_message: view.error_message.clone(),
            updated_at: view.updated_at,
        };
        assert_eq!(*view, expected, "{entry:#?}\n{}", done.join("\n"));
    }
}
