//! What happens to events, told to whoever listens. It is read from the database while somebody
//! does, so that it tells every process's doings, and never waits for a reader.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use axum::http::StatusCode;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, broadcast};
use windlass::{Action, Activity, ActivityCursor, Delivery, Queue, Result, Status};

use crate::error::ApiError;

/// How often the database is asked what is new.
const EVERY: Duration = Duration::from_millis(250);
/// After a failure.
const RETRY: Duration = Duration::from_secs(2);
/// The most that is told of at once; beyond it, readers are told how much they missed.
const PAGE: usize = 1_000;
/// How far a reader may fall behind before it misses something.
const BEHIND_MAX: usize = 4_096;

/// What is told of an error; the event's log has the whole of it.
const ERROR_BYTES_MAX: usize = 1 << 10;

/// Something to tell.
#[derive(Clone)]
pub(crate) enum Told {
    Happened(Arc<Line>),
    /// So many happenings were too many to tell.
    Missed(u64),
}

/// Something that happened, and how it is told.
pub(crate) struct Line {
    pub activity: Activity,
    pub json: String,
}

impl Line {
    fn new(mut activity: Activity) -> Option<Line> {
        if let Some(error) = &mut activity.error_message {
            error.truncate(error.floor_char_boundary(ERROR_BYTES_MAX));
        }
        let json = serde_json::to_string(&activity).ok()?;
        Some(Line { activity, json })
    }
}

/// A reader's end, and its place among the readers.
pub(crate) struct Reader {
    pub told: broadcast::Receiver<Told>,
    _place: OwnedSemaphorePermit,
}

/// One feed for each namespace that somebody reads.
#[derive(Clone)]
pub(crate) struct Hub {
    feeds: Arc<Mutex<HashMap<String, broadcast::Sender<Told>>>>,
    places: Arc<Semaphore>,
}

impl Hub {
    pub fn new(readers_max: usize) -> Hub {
        Hub { feeds: Arc::default(), places: Arc::new(Semaphore::new(readers_max)) }
    }

    /// Tells of what happens from now on.
    pub async fn listen(&self, queue: &Queue) -> Result<Reader, ApiError> {
        let place = self.places.clone().try_acquire_owned().map_err(|_| {
            let error = "as many streams are open as there may be; try again later";
            ApiError::new(StatusCode::TOO_MANY_REQUESTS, "too_many_streams", error)
        })?;
        let read_already = self.feeds().get(queue.namespace()).map(broadcast::Sender::subscribe);
        let told = match read_already {
            Some(told) => told,
            // The cursor is set before the answer begins: whoever reads from here on misses nothing.
            None => self.feed(queue, queue.activity_now().await?),
        };
        Ok(Reader { told, _place: place })
    }

    /// A feed that begins at the cursor, unless somebody else has begun one meanwhile.
    fn feed(&self, queue: &Queue, cursor: ActivityCursor) -> broadcast::Receiver<Told> {
        match self.feeds().entry(queue.namespace().to_owned()) {
            Entry::Occupied(feed) => feed.get().subscribe(),
            Entry::Vacant(none) => {
                let (feed, told) = broadcast::channel(BEHIND_MAX);
                none.insert(feed);
                tokio::spawn(self.clone().tell(queue.clone(), cursor));
                told
            }
        }
    }

    /// Claims made here are told at once; those of other processes when their attempt ends.
    pub fn picked(&self, namespace: &str, deliveries: &[Delivery]) {
        let Some(feed) = self.feeds().get(namespace).cloned() else { return };
        for line in deliveries.iter().filter_map(|delivery| Line::new(picked(delivery))) {
            // Nobody may be listening any more.
            let _ = feed.send(Told::Happened(Arc::new(line)));
        }
    }

    async fn tell(self, queue: Queue, mut cursor: ActivityCursor) {
        let page_max = PAGE.min(queue.limits().page_max);
        while let Some(feed) = self.still_heard(queue.namespace()) {
            let wait = match queue.activity(&mut cursor, page_max).await {
                Ok(page) => {
                    if page.missed > 0 {
                        let _ = feed.send(Told::Missed(page.missed));
                    }
                    for line in page.entries.into_iter().filter_map(Line::new) {
                        let _ = feed.send(Told::Happened(Arc::new(line)));
                    }
                    EVERY
                }
                Err(error) => {
                    tracing::warn!(%error, "the stream cannot be read; trying again");
                    RETRY
                }
            };
            drop(feed);
            tokio::time::sleep(wait).await;
        }
    }

    /// The feed; without any reader it is taken down.
    fn still_heard(&self, namespace: &str) -> Option<broadcast::Sender<Told>> {
        let mut feeds = self.feeds();
        match feeds.get(namespace) {
            Some(feed) if feed.receiver_count() > 0 => Some(feed.clone()),
            _ => {
                feeds.remove(namespace);
                None
            }
        }
    }

    fn feeds(&self) -> std::sync::MutexGuard<'_, HashMap<String, broadcast::Sender<Told>>> {
        self.feeds.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn picked(delivery: &Delivery) -> Activity {
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
