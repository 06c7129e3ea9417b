//! Broadcasts the activity of events to streams.
//!
//! While a namespace has readers, one task polls the database, so that readers see the activity of every process.
//! The task never waits for a reader: a slow reader receives the number of entries that it missed.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use axum::http::StatusCode;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, broadcast};
use windlass::{Action, Activity, ActivityCursor, Delivery, Queue, Result, Status};

use crate::error::ApiError;

/// How often the database is polled.
const POLL_INTERVAL: Duration = Duration::from_millis(250);
/// Pause after a failed poll.
const RETRY_DELAY: Duration = Duration::from_secs(2);
/// Maximum number of entries per poll. Readers receive the number of entries beyond it as missed.
const PAGE_MAX: usize = 1_000;
/// How many messages a reader may fall behind before it misses some.
const BUFFERED_MESSAGES_MAX: usize = 4_096;

/// Maximum length of an error message in the stream. The event's log has all of it.
const ERROR_BYTES_MAX: usize = 1 << 10;

/// A message to the readers of a namespace.
#[derive(Clone)]
pub(crate) enum StreamMessage {
    Activity(Arc<ActivityLine>),
    /// This many entries were left out.
    Missed(u64),
}

/// An activity and its JSON.
pub(crate) struct ActivityLine {
    pub activity: Activity,
    pub json: String,
}

impl ActivityLine {
    fn new(mut activity: Activity) -> Option<ActivityLine> {
        if let Some(error) = &mut activity.error_message {
            error.truncate(error.floor_char_boundary(ERROR_BYTES_MAX));
        }
        let json = serde_json::to_string(&activity).ok()?;
        Some(ActivityLine { activity, json })
    }
}

/// A subscription to the activity of a namespace. Holds a stream permit.
pub(crate) struct ActivityReader {
    pub messages: broadcast::Receiver<StreamMessage>,
    _permit: OwnedSemaphorePermit,
}

/// One broadcast channel for each namespace with readers.
#[derive(Clone)]
pub(crate) struct ActivityHub {
    feeds: Arc<Mutex<HashMap<String, broadcast::Sender<StreamMessage>>>>,
    permits: Arc<Semaphore>,
}

impl ActivityHub {
    pub fn new(readers_max: usize) -> ActivityHub {
        ActivityHub { feeds: Arc::default(), permits: Arc::new(Semaphore::new(readers_max)) }
    }

    /// Subscribes to the activity from now on; 429 if too many streams are open.
    pub async fn subscribe(&self, queue: &Queue) -> Result<ActivityReader, ApiError> {
        let permit = self.permits.clone().try_acquire_owned().map_err(|_| {
            let error = "too many open streams; try again later";
            ApiError::new(StatusCode::TOO_MANY_REQUESTS, "too_many_streams", error)
        })?;
        let existing = self.feeds().get(queue.namespace()).map(broadcast::Sender::subscribe);
        let messages = match existing {
            Some(messages) => messages,
            // The cursor is read before the response starts, so that the reader misses nothing after it.
            None => self.start_feed(queue, queue.activity_now().await?),
        };
        Ok(ActivityReader { messages, _permit: permit })
    }

    /// Starts a channel and its polling task at the cursor, unless another reader has started one meanwhile.
    fn start_feed(&self, queue: &Queue, cursor: ActivityCursor) -> broadcast::Receiver<StreamMessage> {
        match self.feeds().entry(queue.namespace().to_owned()) {
            Entry::Occupied(feed) => feed.get().subscribe(),
            Entry::Vacant(vacant) => {
                let (feed, messages) = broadcast::channel(BUFFERED_MESSAGES_MAX);
                vacant.insert(feed);
                tokio::spawn(self.clone().poll_activity(queue.clone(), cursor));
                messages
            }
        }
    }

    /// Publishes claims of this process immediately. Claims of other processes appear when their attempt ends.
    pub fn publish_claims(&self, namespace: &str, deliveries: &[Delivery]) {
        let Some(feed) = self.feeds().get(namespace).cloned() else { return };
        for line in deliveries.iter().filter_map(|delivery| ActivityLine::new(claim_activity(delivery))) {
            // The last reader may have disconnected.
            let _ = feed.send(StreamMessage::Activity(Arc::new(line)));
        }
    }

    async fn poll_activity(self, queue: Queue, mut cursor: ActivityCursor) {
        let page_max = PAGE_MAX.min(queue.limits().page_max);
        while let Some(feed) = self.active_feed(queue.namespace()) {
            let wait = match queue.activity(&mut cursor, page_max).await {
                Ok(page) => {
                    if page.missed > 0 {
                        let _ = feed.send(StreamMessage::Missed(page.missed));
                    }
                    for line in page.entries.into_iter().filter_map(ActivityLine::new) {
                        let _ = feed.send(StreamMessage::Activity(Arc::new(line)));
                    }
                    POLL_INTERVAL
                }
                Err(error) => {
                    tracing::warn!(%error, "cannot read the activity of events; retrying");
                    RETRY_DELAY
                }
            };
            drop(feed);
            tokio::time::sleep(wait).await;
        }
    }

    /// The channel of a namespace. A channel without readers is removed.
    fn active_feed(&self, namespace: &str) -> Option<broadcast::Sender<StreamMessage>> {
        let mut feeds = self.feeds();
        match feeds.get(namespace) {
            Some(feed) if feed.receiver_count() > 0 => Some(feed.clone()),
            _ => {
                feeds.remove(namespace);
                None
            }
        }
    }

    fn feeds(&self) -> std::sync::MutexGuard<'_, HashMap<String, broadcast::Sender<StreamMessage>>> {
        self.feeds.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn claim_activity(delivery: &Delivery) -> Activity {
    Activity {
        event_id: delivery.event.id,
        event_type: delivery.event.event_type.clone(),
        title: delivery.event.title.clone(),
        tags: delivery.event.tags.clone(),
        subscription: delivery.subscription.clone(),
        action: Action::Picked,
        status: Status::Processing,
        attempt: delivery.attempts,
        worker_id: Some(delivery.worker_id.clone()),
        error_message: None,
        created_at: delivery.picked_at,
    }
}
