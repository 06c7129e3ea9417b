//! Windlass as a library: events are handled by a node, or claimed and finished in loops.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use tokio::task::JoinSet;
use windlass::{
    ClaimRequest, Envelope, Handled, Handler, HandlerError, LeasedEvent, NewEvent, Node, Outcome, Queue, Report,
    RunningNode, Status, SubscriptionSpec, Timestamp,
};

use super::payload::{EventShape, NumberedPayload, TYPE};
use super::tally::Tally;
use crate::AnyError;
use crate::compare::protocol::{Open, Variant};

/// The node's `concurrency` with the highest drain rate.
const TUNED_CONCURRENCY: usize = 3_000;
const LOOPS: usize = 4;
const LOOP_BATCH: usize = 500;
/// How long an idle loop waits in a claim.
const LOOP_WAIT: Duration = Duration::from_millis(100);

/// Cheap to clone.
#[derive(Clone)]
pub struct Embedded {
    queue: Queue,
    variant: Variant,
    subscriptions: usize,
    started: Timestamp,
    /// The number of deliveries whose handler succeeded, to compare with the history.
    handled: Arc<AtomicU64>,
}

pub struct Workers {
    embedded: Embedded,
    tally: Arc<Tally>,
    running: RunningWorkers,
}

enum RunningWorkers {
    Node(Box<RunningNode>),
    Loops { stopping: Arc<AtomicBool>, tasks: JoinSet<Result<(), AnyError>> },
}

impl Embedded {
    pub async fn open(open: &Open) -> Result<Embedded, AnyError> {
        let queue = Queue::open(&open.url).await?;
        for n in 1..open.subscriptions {
            queue.add_subscription(SubscriptionSpec::new(subscription(n))).await?;
        }
        let started = queue.clock().now();
        let (variant, subscriptions) = (open.variant, open.subscriptions.max(1));
        if variant == Variant::Loops && subscriptions > 1 {
            return Err("loops claim for one subscription".into());
        }
        Ok(Embedded { queue, variant, subscriptions, started, handled: Arc::default() })
    }

    pub fn subscriptions(&self) -> usize {
        self.subscriptions
    }

    pub fn about(&self) -> String {
        let workers = match self.variant {
            Variant::Recommended => "a node with its defaults (10 handlers at once)".to_owned(),
            Variant::Tuned => format!("a node with {TUNED_CONCURRENCY} handlers at once"),
            Variant::Loops => format!("{LOOPS} loops that claim and finish up to {LOOP_BATCH} at once, without a node"),
        };
        format!("{workers}; every event and every attempt stays in the history")
    }

    pub async fn publish(&self, events: Vec<NumberedPayload>, shape: EventShape) -> Result<(), AnyError> {
        let mut new = events.iter().map(|event| new_event(event, shape)).collect::<windlass::Result<Vec<_>>>()?;
        match (new.len(), new.pop()) {
            (1, Some(one)) => drop(self.queue.publish(one).await?),
            (_, last) => drop(self.queue.publish_all(new.into_iter().chain(last).collect()).await?),
        }
        Ok(())
    }

    pub async fn start(&self, tally: Arc<Tally>) -> Result<Workers, AnyError> {
        let running = match self.variant {
            Variant::Recommended => RunningWorkers::Node(Box::new(self.node(&tally).start().await?)),
            Variant::Tuned => {
                RunningWorkers::Node(Box::new(self.node(&tally).concurrency(TUNED_CONCURRENCY).start().await?))
            }
            Variant::Loops => self.loops(&tally),
        };
        Ok(Workers { embedded: self.clone(), tally, running })
    }

    /// One handler per subscription.
    fn node(&self, tally: &Arc<Tally>) -> Node {
        let handler = |tally: Arc<Tally>| {
            Handler::new(TYPE, move |event: Envelope, _| std::future::ready(handle(&tally, &event)))
        };
        let node = Node::new(&self.queue, "bench").handler(handler(tally.clone()));
        (1..self.subscriptions).fold(node, |node, n| {
            node.handler(handler(tally.clone()).subscription(subscription(n)).id(subscription(n)))
        })
    }

    fn loops(&self, tally: &Arc<Tally>) -> RunningWorkers {
        let stopping = Arc::new(AtomicBool::new(false));
        let mut tasks = JoinSet::new();
        for n in 0..LOOPS {
            let claim = ClaimRequest::new(format!("bench:{n}")).max(LOOP_BATCH).wait(LOOP_WAIT);
            tasks.spawn(claim_and_finish(self.queue.clone(), claim, tally.clone(), stopping.clone()));
        }
        RunningWorkers::Loops { stopping, tasks }
    }

    /// Checks that the history has exactly the deliveries whose handler succeeded.
    async fn check(&self) -> Result<(), AnyError> {
        let stats = self.queue.stats(self.started).await?;
        let completed: u64 = stats.iter().filter(|row| row.status == Status::Completed).map(|row| row.count).sum();
        let handled = self.handled.load(Ordering::Relaxed);
        match completed == handled {
            true => Ok(()),
            false => Err(format!("{handled} were handled, and {completed} are completed").into()),
        }
    }

    pub async fn close(&self) -> Result<(), AnyError> {
        let checked = self.check().await;
        self.queue.close().await;
        checked
    }
}

impl Workers {
    pub async fn stop(self) -> Result<(), AnyError> {
        match self.running {
            RunningWorkers::Node(node) => node.stop().await,
            RunningWorkers::Loops { stopping, mut tasks } => {
                stopping.store(true, Ordering::Relaxed);
                while let Some(done) = tasks.join_next().await {
                    done??;
                }
            }
        }
        self.embedded.handled.fetch_add(self.tally.done(), Ordering::Relaxed);
        Ok(())
    }
}

fn new_event(event: &NumberedPayload, shape: EventShape) -> windlass::Result<NewEvent> {
    let new = NewEvent::new(TYPE).payload(event)?;
    let new = shape.tag(event.n).into_iter().fold(new, |new, tag| new.tags([tag]));
    Ok(shape.group(event.n).into_iter().fold(new, NewEvent::group))
}

/// The default subscription for 0, additional ones for other numbers.
fn subscription(n: usize) -> String {
    if n == 0 { "main".to_owned() } else { format!("also-{n}") }
}

fn handle(tally: &Tally, event: &Envelope) -> Handled {
    let payload: NumberedPayload = event.payload()?;
    match tally.handle(&payload, event.attempt()) {
        true => Ok(()),
        false => Err(HandlerError::retry_after(Duration::ZERO, "fails at its first attempt")),
    }
}

async fn claim_and_finish(
    queue: Queue,
    claim: ClaimRequest,
    tally: Arc<Tally>,
    stopping: Arc<AtomicBool>,
) -> Result<(), AnyError> {
    while !stopping.load(Ordering::Relaxed) {
        let claimed = queue.claim(claim.clone()).await?;
        let mut reports = Vec::with_capacity(claimed.len());
        for delivery in &claimed {
            let payload: NumberedPayload = delivery.event.payload()?;
            let report = match tally.handle(&payload, delivery.attempts) {
                true => Report::done(),
                false => Report::new(Outcome::Retry { after: Some(Duration::ZERO) }),
            };
            reports.push((LeasedEvent::from(delivery), report));
        }
        for finished in queue.finish_all(reports).await? {
            if finished?.is_lost() {
                return Err("a lease was lost".into());
            }
        }
    }
    Ok(())
}
