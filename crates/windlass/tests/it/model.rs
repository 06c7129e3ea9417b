//! Model test: runs random histories on the queue and on an in-memory reference, and compares the states.
//!
//! A failure prints its seed. `WINDLASS_MODEL_SEED` replays a history, `WINDLASS_MODEL_RUNS` sets the number of
//! histories.

mod reference;

use std::collections::{BTreeMap, HashSet};
use std::sync::LazyLock;
use std::time::Duration;

use fastrand::Rng;
use windlass::{
    Action, Backoff, ClaimRequest, Clock, DeadLetterFilter, Delivery, Error, ExhaustedPolicy, Finished,
    GroupFailurePolicy, History, LeasedEvent, ListFilter, NamespacePolicy, NewEvent, Outcome, Policy, PolicyOverrides,
    Queue, Report, SubscriptionSpec, TestClock, UnhandledPolicy,
};

use self::reference::{ClaimFilter, Event, ExpectedFinish, Reference, Reporter, State};
use crate::bed::{Bed, run};
use crate::support::*;
use windlass_testkit::Kind;

const STEPS: usize = 60;
const WORKERS: [&str; 2] = ["w1", "w2"];
/// Each subscription with its type pattern.
const SUBSCRIPTIONS: &[(&str, &str)] = &[("main", "*"), ("audit", "a*")];
/// Half of the histories begin with an event of each of these tag sets: more lanes than a claim reads one by one.
static TAG_SETS: LazyLock<Vec<[&str; 2]>> =
    LazyLock::new(|| (0..40).map(|n| ["x", &*format!("set-{n}").leak()]).collect());
/// The type whose completed events are not kept.
const UNKEPT_TYPE: &str = "c";

#[test]
fn sqlite_agrees_with_the_reference() {
    run_histories(Kind::Sqlite, 150);
}

#[test]
fn postgres_agrees_with_the_reference() {
    run_histories(Kind::Postgres, 20);
}

/// The number of histories per database.
const HISTORIES_PER_DATABASE: usize = 50;

fn run_histories(kind: Kind, usual: u64) {
    let number = |name: &str| std::env::var(name).ok().map(|text| text.parse::<u64>().expect("a number"));
    let replayed = number("WINDLASS_MODEL_SEED");
    let runs = number("WINDLASS_MODEL_RUNS").unwrap_or(if replayed.is_some() { 1 } else { usual });
    let first = replayed.unwrap_or_else(|| fastrand::u64(..1 << 32));
    for seeds in (first..first + runs).collect::<Vec<_>>().chunks(HISTORIES_PER_DATABASE) {
        run(kind, async |bed: &Bed| {
            for seed in seeds {
                let hint = ReplayHintOnPanic(*seed);
                RandomHistory::new(bed, *seed).await.run().await;
                drop(hint);
            }
        });
    }
}

/// Prints how to replay the history if it fails.
struct ReplayHintOnPanic(u64);

impl Drop for ReplayHintOnPanic {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("replay this history with WINDLASS_MODEL_SEED={}", self.0);
        }
    }
}

/// One history: the queue, the reference, and the claimed deliveries.
struct RandomHistory<'a> {
    bed: &'a Bed,
    rng: Rng,
    clock: Clock,
    test_clock: TestClock,
    namespace: String,
    /// One queue, or two that stand for two processes.
    queues: Vec<Queue>,
    reference: Reference,
    /// All claimed deliveries, with their workers.
    claimed: Vec<(Delivery, &'static str)>,
    /// The number of events with a deadline.
    deadlines: u32,
    /// A log of all steps, which is printed on failure.
    steps: Vec<String>,
}

impl<'a> RandomHistory<'a> {
    async fn new(bed: &'a Bed, seed: u64) -> RandomHistory<'a> {
        let mut rng = Rng::with_seed(seed);
        let (clock, test_clock) = Clock::test("2025-12-24T10:30:00Z".parse().unwrap());
        let base = policy(&mut rng);
        let unkept = PolicyOverrides { history: Some(History::None), ..Default::default() };
        let policy = NamespacePolicy { base: base.clone(), types: [(UNKEPT_TYPE.to_owned(), unkept)].into() };
        let namespace = format!("seed-{seed}");
        let mut queues = Vec::new();
        for _ in 0..rng.usize(1..=2) {
            queues.push(open(bed, &clock, &namespace).await);
        }
        let queue = queues[0].put_namespace(&namespace, Some(policy), None).await.unwrap();
        queue.add_subscription(SubscriptionSpec::new("audit").types(["a*"])).await.unwrap();
        let reference = Reference::new(clock.now(), base, SUBSCRIPTIONS, UNKEPT_TYPE);
        let steps = vec![format!("{:?}, {} queues", reference.policy, queues.len())];
        RandomHistory {
            bed,
            rng,
            clock,
            test_clock,
            namespace,
            queues,
            reference,
            claimed: Vec::new(),
            deadlines: 0,
            steps,
        }
    }

    async fn run(mut self) {
        if self.rng.bool() {
            self.publish_tag_sets().await;
        }
        for step in 0..STEPS {
            self.step().await;
            if step % 5 == 0 {
                self.compare_events().await;
            }
            // No two steps have the same timestamp, so that the order of the log is defined.
            self.advance(MICRO);
        }
        self.compare_events().await;
        self.compare_logs().await;
    }

    async fn step(&mut self) {
        match self.rng.u8(..100) {
            0..25 => self.publish().await,
            25..50 => self.claim().await,
            50..72 => self.finish().await,
            72..75 => self.start().await,
            75..79 => self.extend().await,
            79..82 => self.cancel().await,
            82..85 => self.reset().await,
            85..87 => self.redrive().await,
            87..88 => self.purge().await,
            88..89 => self.release_expired().await,
            89..91 => self.expire().await,
            91..93 => self.reopen().await,
            _ => self.pass_time(),
        }
    }

    fn record_step(&mut self, step: String) {
        self.steps.push(format!("{} {step}", self.clock.now().format("%T%.6f")));
    }

    fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.rng.usize(..from.len())]
    }

    fn queue(&mut self) -> Queue {
        let at = self.rng.usize(..self.queues.len());
        self.queues[at].clone()
    }

    fn fail(&self, why: &str) -> ! {
        panic!("{why}\n{}", self.steps.join("\n"))
    }

    // -- time

    fn advance(&mut self, by: Duration) {
        self.test_clock.advance(by);
        self.reference.now = self.clock.now();
    }

    /// Advances the clock by some seconds, to the next change of a state, or to just before it.
    fn pass_time(&mut self) {
        let by = [MICRO, secs(1), secs(4), secs(10), secs(20), secs(31)];
        let now = self.reference.now;
        let timestamps = self.reference.entries.iter().flat_map(|entry| {
            let end = match entry.state {
                State::Processing { end, .. } => Some(end),
                _ => None,
            };
            [Some(entry.due), entry.expires, end]
        });
        let coming: Vec<_> = timestamps.flatten().filter(|at| *at > now).collect();
        if coming.is_empty() || self.rng.bool() {
            let by = self.pick(&by);
            self.advance(by);
        } else {
            let until = (self.pick(&coming) - now).to_std().unwrap();
            let early = self.rng.bool();
            self.advance(if early { until - MICRO } else { until });
        }
        self.record_step("is the time now".to_owned());
    }

    // -- publish, claim and finish

    async fn publish(&mut self) {
        let events = (0..self.rng.usize(1..4)).map(|_| self.event()).collect();
        self.publish_events(events).await;
    }

    async fn publish_events(&mut self, events: Vec<(NewEvent, Event)>) {
        let queue = self.queue();
        let (events, expected): (Vec<NewEvent>, Vec<Event>) = events.into_iter().unzip();
        let published = queue.publish_all(events).await.unwrap();
        for (published, event) in published.iter().zip(expected) {
            let event = Event { id: published.event.id, ..event };
            let first = event.key.and_then(|key| self.reference.of_key(key));
            self.record_step(format!("publish {event}, a duplicate: {}", first.is_some()));
            assert_eq!(published.duplicate, first.is_some());
            match first {
                Some(id) => assert_eq!(event.id, id),
                None => self.reference.publish(event),
            }
        }
    }

    async fn publish_tag_sets(&mut self) {
        for tags in TAG_SETS.iter() {
            let (new, event) = self.event();
            self.publish_events(vec![(new.tags(*tags), Event { tags, ..event })]).await;
            self.advance(MICRO);
        }
    }

    fn event(&mut self) -> (NewEvent, Event) {
        let now = self.reference.now;
        let mut event = Event {
            id: 0,
            event_type: self.pick(&["a", "a.b", "b", UNKEPT_TYPE]),
            tags: self.pick(&[&[], &[], &["x"], &["x", "y"]]),
            priority: self.pick(&[0, 0, 0, 1, -1]),
            group: self.pick(&[None, None, Some("g"), Some("h")]),
            key: self.pick(&[None, None, None, Some("k"), Some("l")]),
            due: now,
            expires: None,
            max_retries: self.pick(&[None, None, None, Some(1)]),
        };
        if event.key.is_some() {
            // A key belongs to one type and payload.
            event.event_type = "b";
        }
        let mut new = NewEvent::new(event.event_type).tags(event.tags).priority(event.priority);
        if let Some(delay) = self.pick(&[None, None, None, Some(5), Some(15)]) {
            event.due = after(now, secs(delay));
            new = if self.rng.bool() { new.delay(secs(delay)) } else { new.run_at(event.due) };
        }
        if let Some(seconds) = self.pick(&[None, None, None, Some(3), Some(40)]) {
            // Deadlines differ, because the order of equal ones is not defined.
            self.deadlines += 1;
            let expires = after(event.due, secs(seconds) + self.deadlines * MICRO);
            event.expires = Some(expires);
            new = new.expires_at(expires);
        }
        if let Some(group) = event.group {
            new = new.group(group);
        }
        if let Some(key) = event.key {
            new = new.key(key);
        }
        if let Some(max_retries) = event.max_retries {
            new = new.max_retries(max_retries);
        }
        (new, event)
    }

    async fn claim(&mut self) {
        let queue = self.queue();
        let filter = ClaimFilter {
            subscription: self.pick(&["main", "main", "audit"]),
            types: self.pick(&[&[], &[], &["a"], &["a*"], &["b", "c"]]),
            tags: self.pick(&[&[], &[], &["x"], &["y"]]),
        };
        let (worker, max) = (self.pick(&WORKERS), self.pick(&[1, 1, 3, 100]));
        let own_lease = self.pick(&[None, None, Some(secs(3))]);
        let mut request = ClaimRequest::new(worker).subscription(filter.subscription).max(max);
        request = request.types(filter.types.iter().copied()).tags(filter.tags.iter().copied());
        if let Some(lease) = own_lease {
            request = request.lease(lease);
        }
        let mut after_release = self.reference.clone();
        after_release.release_expired(Some(&filter));
        // The claim may have to release expired leases first, which takes time.
        if !after_release.claimable(&filter).is_empty() {
            request = request.wait(secs(20));
        }
        let claimed = queue.claim(request).await.unwrap();
        self.record_step(format!("{worker} claims {max} of {filter:?}: {:?}", ids(&claimed)));
        self.apply_releases(&queue, &claimed).await;
        self.check_claim(&filter, max, &claimed);
        let end = after(self.reference.now, own_lease.unwrap_or(self.reference.policy.lease()));
        for delivery in claimed {
            let at = self.reference.at(delivery.event.id, &delivery.subscription).unwrap();
            self.reference.claim(at, &delivery, worker, end);
            let entry = &self.reference.entries[at];
            assert_eq!((delivery.attempts, delivery.retry_count), (entry.attempts, entry.retry_count));
            assert_eq!((delivery.max_retries, delivery.lease_expires_at), (entry.max_retries, end));
            assert_eq!(delivery.event.event_type, entry.event.event_type);
            self.claimed.push((delivery, worker));
        }
    }

    /// Applies the releases of a claim to the reference. A claim releases all expired leases of the namespace, unless
    /// none of its own subscription has expired.
    async fn apply_releases(&mut self, queue: &Queue, claimed: &[Delivery]) {
        let claimed: HashSet<(i64, &str)> = claimed.iter().map(|one| (one.event.id, &*one.subscription)).collect();
        let (mut released, expired) = (Vec::new(), self.reference.expired_leases(None));
        for at in &expired {
            let entry = &self.reference.entries[*at];
            let view = view_of(queue, entry.event.id, entry.subscription).await;
            let State::Processing { picked, .. } = entry.state else { unreachable!("it is processing") };
            if claimed.contains(&(entry.event.id, entry.subscription)) || view.picked_at != Some(picked) {
                released.push(*at);
            }
        }
        if self.queues.len() == 1 && !released.is_empty() && released != expired {
            self.fail("only some of the expired leases were released");
        }
        released.into_iter().for_each(|at| self.reference.abandon(at));
    }

    /// With one process, a claim returns the first deliveries in order. With two, a process may pass over deliveries
    /// that the other one returned to the queue, but it returns them before an empty result.
    fn check_claim(&self, filter: &ClaimFilter, max: usize, claimed: &[Delivery]) {
        let claimable = self.reference.claimable(filter);
        let expected: Vec<i64> = claimable.iter().map(|at| self.reference.entries[*at].event.id).collect();
        let claimed = ids(claimed);
        let is_valid = match self.queues.len() {
            1 => claimed == expected[..max.min(expected.len())],
            _ => {
                let distinct: HashSet<&i64> = claimed.iter().collect();
                distinct.len() == claimed.len()
                    && claimed.len() <= max
                    && claimed.is_empty() == expected.is_empty()
                    && claimed.iter().all(|id| expected.contains(id))
            }
        };
        if !is_valid {
            self.fail(&format!("claimed {claimed:?}, but claimable were {expected:?}"));
        }
    }

    /// Picks a recently claimed delivery, and how the caller identifies itself: by lease or by worker.
    fn pick_claimed(&mut self) -> Option<(usize, LeasedEvent, Reporter)> {
        let from = self.claimed.len().checked_sub(1)?.saturating_sub(self.rng.usize(..8));
        let at = self.rng.usize(from..self.claimed.len());
        let (delivery, worker) = self.claimed[at].clone();
        let id = delivery.event.id;
        let (leased, by) = match self.rng.u8(..3) {
            0 => (LeasedEvent::from(&delivery), Reporter::Lease(delivery.lease)),
            1 => (
                LeasedEvent::by_lease(id, delivery.lease).of_subscription(&delivery.subscription),
                Reporter::Lease(delivery.lease),
            ),
            _ => (LeasedEvent::by_worker(id, worker).of_subscription(&delivery.subscription), Reporter::Worker(worker)),
        };
        Some((self.reference.at(id, &delivery.subscription).unwrap(), leased, by))
    }

    async fn finish(&mut self) {
        let queue = self.queue();
        let Some((at, leased, by)) = self.pick_claimed() else { return };
        let outcomes = [
            Outcome::Done,
            Outcome::Done,
            Outcome::DoneWithErrors,
            Outcome::Retry { after: None },
            Outcome::Retry { after: None },
            Outcome::Retry { after: Some(secs(2)) },
            Outcome::Snooze { delay: secs(6) },
            Outcome::Release,
            Outcome::Dead { reason: "never".into() },
            Outcome::Unhandled,
        ];
        let outcome = outcomes[self.rng.usize(..outcomes.len())].clone();
        let entry = &self.reference.entries[at];
        self.record_step(format!("finish {} of {} by {by:?}: {outcome:?}", entry.event.id, entry.subscription));
        let result = queue.finish(leased, Report::new(outcome.clone())).await;
        let expected = self.reference.finish(at, by, &outcome);
        match (&result, &expected) {
            (Ok(Finished::Applied(attempt)), ExpectedFinish::Applied { action, retry_count, next_retry_at }) => {
                assert_eq!(attempt.action, *action);
                assert_eq!((attempt.retry_count, attempt.next_retry_at), (*retry_count, *next_retry_at));
                assert_eq!(attempt.attempt, self.reference.entries[at].attempts);
                self.reference.store_result(at, attempt.clone());
            }
            (Ok(Finished::Repeated(attempt)), ExpectedFinish::Repeated(before)) => {
                assert_eq!(Some(attempt), before.as_ref())
            }
            (Ok(Finished::Lost), ExpectedFinish::Lost)
            | (Err(Error::EventNotFound { .. }), ExpectedFinish::NotFound) => {}
            _ => self.fail(&format!("returned {result:?}, expected {expected:?}")),
        }
    }

    async fn start(&mut self) {
        let queue = self.queue();
        let Some((at, leased, by)) = self.pick_claimed() else { return };
        self.record_step(format!("start {} by {by:?}", self.reference.entries[at].event.id));
        let result = queue.start(leased).await.unwrap_or(None);
        let expected = self.reference.holds(at, by).then(|| self.reference.start(at));
        assert_eq!(result, expected);
    }

    async fn extend(&mut self) {
        let queue = self.queue();
        let Some((at, leased, by)) = self.pick_claimed() else { return };
        let lease = self.pick(&[None, Some(secs(1)), Some(secs(25))]);
        self.record_step(format!("extend {} by {by:?} to {lease:?}", self.reference.entries[at].event.id));
        let result = queue.extend(leased, lease).await.unwrap_or(None);
        let lease = lease.unwrap_or(self.reference.policy.lease());
        let expected = self.reference.holds(at, by).then(|| self.reference.extend(at, lease));
        assert_eq!(result, expected);
    }

    // -- administration and maintenance

    fn pick_entry(&mut self) -> Option<usize> {
        let kept = |at: &usize| self.reference.entries[*at].state != State::Deleted;
        let kept: Vec<usize> = (0..self.reference.entries.len()).filter(kept).collect();
        (!kept.is_empty()).then(|| self.pick(&kept))
    }

    async fn cancel(&mut self) {
        let queue = self.queue();
        let Some(at) = self.pick_entry() else { return };
        let id = self.reference.entries[at].event.id;
        self.record_step(format!("cancel {id}"));
        let canceled = queue.cancel(id, None).await;
        match self.reference.cancel(id) {
            0 => assert_eq!(canceled.unwrap_err().code(), "wrong_status"),
            count => assert_eq!(canceled, Ok(count)),
        }
    }

    async fn reset(&mut self) {
        let queue = self.queue();
        let Some(at) = self.pick_entry() else { return };
        let (id, subscription) = (self.reference.entries[at].event.id, self.reference.entries[at].subscription);
        self.record_step(format!("reset {id} of {subscription}"));
        let reset = queue.reset(id, subscription, "test").await;
        match self.reference.reset(at) {
            true => assert_eq!(reset, Ok(())),
            false => assert_eq!(reset.unwrap_err().code(), "wrong_status"),
        }
    }

    async fn redrive(&mut self) {
        let queue = self.queue();
        let only = if self.rng.bool() { self.pick_entry().map(|at| self.reference.entries[at].event.id) } else { None };
        self.record_step(format!("redrive {only:?}"));
        let filter = DeadLetterFilter { event_ids: only.into_iter().collect(), ..Default::default() };
        assert_eq!(queue.redrive(filter).await, Ok(self.reference.redrive_all(only)));
    }

    async fn purge(&mut self) {
        self.record_step("purge".to_owned());
        let purged = self.queue().purge(DeadLetterFilter::default()).await;
        assert_eq!(purged, Ok(self.reference.purge_all()));
    }

    async fn release_expired(&mut self) {
        self.record_step("release expired leases".to_owned());
        assert_eq!(self.queue().release_expired_once().await, Ok(self.reference.release_expired(None)));
    }

    async fn expire(&mut self) {
        self.record_step("expire".to_owned());
        assert_eq!(self.queue().expire_once().await, Ok(self.reference.expire()));
    }

    /// Replaces a queue by a new one without closing it, as after a crash.
    async fn reopen(&mut self) {
        self.record_step("reopen".to_owned());
        let at = self.rng.usize(..self.queues.len());
        self.queues[at] = open(self.bed, &self.clock, &self.namespace).await;
    }

    // -- comparisons

    async fn compare_events(&mut self) {
        let page = self.queue().list(ListFilter { limit: 1_000, ..Default::default() }).await.unwrap();
        let mut shown = HashSet::new();
        for view in &page.items {
            for delivery in &view.deliveries {
                let at = self.reference.at(view.event.id, &delivery.subscription).unwrap();
                self.reference.assert_shown(at, delivery, &self.steps);
                shown.insert(at);
            }
        }
        let kept = |at: &usize| self.reference.entries[*at].state != State::Deleted;
        assert_eq!(shown, (0..self.reference.entries.len()).filter(kept).collect());
    }

    async fn compare_logs(&mut self) {
        let queue = self.queue();
        let kept = self.reference.entries.iter().filter(|entry| entry.state != State::Deleted);
        let events: BTreeMap<i64, ()> = kept.map(|entry| (entry.event.id, ())).collect();
        for id in events.into_keys() {
            let log = queue.log(id).await.unwrap();
            for (subscription, _) in SUBSCRIPTIONS {
                let Some(at) = self.reference.at(id, subscription) else { continue };
                let own = log.iter().filter(|entry| entry.subscription == *subscription);
                let trail: Vec<Action> = own.map(|entry| entry.action).collect();
                if trail != self.reference.entries[at].trail {
                    self.fail(&format!("event {id} of {subscription}: the log says {trail:?}"));
                }
            }
        }
    }
}

async fn open(bed: &Bed, clock: &Clock, namespace: &str) -> Queue {
    let queue = Queue::options(&bed.database.url).clock(clock.clone()).open().await.unwrap();
    queue.in_namespace(namespace).unwrap()
}

fn policy(rng: &mut Rng) -> Policy {
    Policy {
        lease_ms: 10_000,
        max_retries: [None, Some(0), Some(2), Some(3)][rng.usize(..4)],
        backoff: [Backoff::None, Backoff::Lease, Backoff::Fixed { delay_ms: 20_000 }][rng.usize(..3)].clone(),
        exhausted: [ExhaustedPolicy::DeadLetter, ExhaustedPolicy::CompleteWithErrors][rng.usize(..2)],
        unhandled: [UnhandledPolicy::Retry, UnhandledPolicy::DeadLetter][rng.usize(..2)],
        max_attempts: [2, 3, 20][rng.usize(..3)],
        history: History::Keep,
        group_failure: [GroupFailurePolicy::Block, GroupFailurePolicy::Continue][rng.usize(..2)],
        share_transaction: false,
        deadline_horizon_ms: [None, Some(5_000)][rng.usize(..2)],
        key_window_ms: 30_000,
        expires_after_ms: None,
        ..Policy::default()
    }
}
