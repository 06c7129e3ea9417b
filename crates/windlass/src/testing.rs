//! Helpers for tests of code that publishes and handles events. Requires the feature `testing`.
//!
//! [`TestQueue`] is a queue in memory with a clock that the test moves, and has assertions on published and completed
//! events. [`TestNode`] runs handlers until no delivery is ready.
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> windlass::Result<()> {
//! use std::time::Duration;
//! use windlass::testing::TestQueue;
//! use windlass::{NewEvent, Node, Status};
//!
//! let queue = TestQueue::new().await?;
//! let node = queue
//!     .start(Node::new(&queue, "under-test").on("order.paid", |event, cx| async move {
//!         if event.attempt() == 1 {
//!             Err("mail server unavailable")?;
//!         }
//!         cx.emit("mail.sent", &"thank you").await?;
//!         Ok(())
//!     }))
//!     .await?;
//!
//! let order = queue.publish(NewEvent::new("order.paid")).await?.event;
//! node.run_until_idle().await?;
//! assert_eq!(queue.status(order.id).await?, Status::Pending);
//!
//! // The retry is due after five minutes.
//! queue.advance(Duration::from_secs(300));
//! node.run_until_idle().await?;
//! assert_eq!(queue.status(order.id).await?, Status::Completed);
//! assert_eq!(queue.published("mail.sent").await?.len(), 1);
//! # Ok(())
//! # }
//! ```

use std::fmt::Debug;
use std::ops::Deref;
use std::time::Duration;

use crate::clock::{Clock, TestClock, Timestamp, from_micros};
use crate::error::{Error, Result};
use crate::event::Event;
use crate::event::delivery::Status;
use crate::event::typed::EventType;
use crate::node::{ManualNode, Node};
use crate::observe::inspect::{EventView, ListFilter};
use crate::queue::Queue;
use crate::topology::MAIN;

/// 2025-01-01T00:00:00Z.
const START_MICROS: i64 = 1_735_689_600_000_000;

/// A queue with a clock that stands still until the test moves it. Dereferences to [`Queue`].
pub struct TestQueue {
    queue: Queue,
    test_clock: TestClock,
}

impl Deref for TestQueue {
    type Target = Queue;

    fn deref(&self) -> &Queue {
        &self.queue
    }
}

impl TestQueue {
    /// An empty queue in memory, at 2025-01-01T00:00:00Z.
    #[cfg(feature = "sqlite")]
    pub async fn new() -> Result<TestQueue> {
        TestQueue::open("sqlite::memory:").await
    }

    /// A queue on the database at `url`, at 2025-01-01T00:00:00Z. The test must be the only user of the database.
    pub async fn open(url: &str) -> Result<TestQueue> {
        let (clock, test_clock) = Clock::test(from_micros(START_MICROS));
        let queue = Queue::options(url).clock(clock).open().await?;
        Ok(TestQueue { queue, test_clock })
    }

    /// The time of the test clock.
    pub fn now(&self) -> Timestamp {
        self.clock().now()
    }

    /// Advances the test clock.
    pub fn advance(&self, by: Duration) {
        self.test_clock.advance(by);
    }

    /// Starts a node that handles events only while the test calls [`TestNode::run_until_idle`].
    pub async fn start(&self, node: Node) -> Result<TestNode> {
        Ok(TestNode(node.start_manual().await?))
    }

    /// The stored events of this type, in publish order.
    pub async fn published(&self, event_type: &str) -> Result<Vec<Event>> {
        let views = self.views(ListFilter { types: vec![event_type.to_owned()], ..Default::default() }).await?;
        Ok(views.into_iter().map(|view| view.event).collect())
    }

    /// The payloads of the stored events of this type, in publish order.
    pub async fn published_as<T: EventType>(&self) -> Result<Vec<T>> {
        self.published(T::NAME).await?.iter().map(Event::payload).collect()
    }

    /// The events of this type that are completed for the subscription `main`, in publish order.
    pub async fn completed(&self, event_type: &str) -> Result<Vec<Event>> {
        let filter =
            ListFilter { types: vec![event_type.to_owned()], status: Some(Status::Completed), ..Default::default() };
        Ok(self.views(filter).await?.into_iter().map(|view| view.event).collect())
    }

    /// The status of the event's delivery to the subscription `main`.
    pub async fn status(&self, event_id: i64) -> Result<Status> {
        self.status_of(event_id, MAIN).await
    }

    /// The status of the event's delivery to a subscription.
    pub async fn status_of(&self, event_id: i64, subscription: &str) -> Result<Status> {
        let view = self.get(event_id).await?;
        let found = view.delivery(subscription).map(|delivery| delivery.status);
        found.ok_or_else(|| Error::SubscriptionNotFound {
            namespace: self.namespace().to_owned(),
            subscription: subscription.to_owned(),
        })
    }

    /// The error of the event's last failed attempt.
    pub async fn last_error(&self, event_id: i64) -> Result<Option<String>> {
        Ok(self.log(event_id).await?.into_iter().rev().find_map(|entry| entry.error_message))
    }

    /// Panics unless exactly these events of the type were published, in this order.
    pub async fn assert_published<T: EventType + PartialEq + Debug>(&self, expected: &[T]) {
        match self.published_as::<T>().await {
            Ok(published) => assert_eq!(published, expected, "published events of type '{}'", T::NAME),
            Err(error) => panic!("cannot read the published events of type '{}': {error}", T::NAME),
        }
    }

    /// Panics unless every delivery of every event is completed. The message lists the others with their last errors.
    pub async fn assert_all_completed(&self) {
        let views = self.views(ListFilter::default()).await.expect("cannot list the events");
        let mut open = Vec::new();
        for view in views {
            for delivery in view.deliveries.iter().filter(|delivery| delivery.status != Status::Completed) {
                let (id, event_type, error) =
                    (view.event.id, &view.event.event_type, self.last_error(view.event.id).await);
                let error = error.ok().flatten().unwrap_or_default();
                open.push(format!(
                    "event {id} '{event_type}' for {}: {} {error}",
                    delivery.subscription, delivery.status
                ));
            }
        }
        assert!(open.is_empty(), "not completed:\n{}", open.join("\n"));
    }

    async fn views(&self, mut filter: ListFilter) -> Result<Vec<EventView>> {
        filter.limit = self.limits().page_max;
        let mut views: Vec<EventView> = Vec::new();
        loop {
            filter.offset = views.len();
            let page = self.list(filter.clone()).await?;
            views.extend(page.items);
            if views.len() as u64 >= page.total {
                views.sort_by_key(|view| view.event.id);
                return Ok(views);
            }
        }
    }
}

/// A node that handles events only while the test calls [`TestNode::run_until_idle`].
pub struct TestNode(ManualNode);

impl TestNode {
    /// Handles deliveries until none is ready, including those that become ready meanwhile. Returns how many it
    /// claimed.
    ///
    /// Delayed events and retries stay pending until the clock reaches their time: see [`TestQueue::advance`].
    pub async fn run_until_idle(&self) -> Result<usize> {
        self.0.run_until_idle().await
    }
}
