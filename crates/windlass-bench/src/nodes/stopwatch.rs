//! Measures the latency from the publisher to the handler.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::time::{sleep, sleep_until};
use windlass::{Envelope, Handled, Queue};

use super::report::Delays;
use crate::AnyError;
use crate::event::{Order, order};
use crate::latency::Latencies;
use crate::store::Backend;

/// Events per second.
const EVENTS_PER_SECOND: u32 = 50;
/// How long to wait for the last events.
const LAST_EVENT_TIMEOUT: Duration = Duration::from_secs(1);

#[derive(Default)]
pub struct Stopwatch(Mutex<Vec<EventTimes>>);

/// The times of one event.
#[derive(Clone, Copy, Default)]
struct EventTimes {
    called: Option<Instant>,
    returned: Option<Instant>,
    started: Option<Instant>,
}

impl Stopwatch {
    /// For the number of events published in `time`.
    pub fn new(time: Duration) -> Arc<Stopwatch> {
        let events = time.as_secs() as usize * EVENTS_PER_SECOND as usize;
        Arc::new(Stopwatch(Mutex::new(vec![EventTimes::default(); events])))
    }

    fn times(&self) -> MutexGuard<'_, Vec<EventTimes>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Called when the handler of an event starts.
    pub fn start(&self, event: &Envelope) -> Handled {
        let now = Instant::now();
        let order: Order = event.payload()?;
        let previous = self.times()[order.order_id].started.replace(now);
        assert!(previous.is_none(), "every event once");
        Ok(())
    }

    /// Publishes the events one after another and waits for the last to be handled.
    pub async fn run(self: Arc<Stopwatch>, queue: Queue, event_type: &'static str) -> Result<(), AnyError> {
        let (started, events) = (tokio::time::Instant::now(), self.times().len());
        for n in 0..events {
            sleep_until(started + publish_time(n)).await;
            let event = order(event_type, n)?;
            self.times()[n].called = Some(Instant::now());
            queue.publish(event).await?;
            self.times()[n].returned = Some(Instant::now());
        }
        let waited = Instant::now();
        while waited.elapsed() < LAST_EVENT_TIMEOUT && self.times().iter().any(|event| event.started.is_none()) {
            sleep(Duration::from_millis(1)).await;
        }
        Ok(())
    }

    /// Events that were not handled count as delayed until now.
    pub fn delays(&self, store: Backend, case: &'static str) -> Option<Delays> {
        let (mut of_call, mut of_return) = (Latencies::new("from call"), Latencies::new("from return"));
        let (times, now) = (self.times(), Instant::now());
        for event in times.iter() {
            let started = event.started.unwrap_or(now);
            of_call.add(started - event.called?);
            // A handler may start before the publisher's call returns; the delay is zero then.
            of_return.add(started.saturating_duration_since(event.returned?));
        }
        let handled = times.iter().filter(|event| event.started.is_some()).count();
        let (from_call, from_return) = (of_call.percentiles()?, of_return.percentiles()?);
        Some(Delays { store: store.name(), case, events: times.len(), handled, from_call, from_return })
    }
}

/// The publish time of event `n`: slightly irregular, so that events do not synchronize with periodic work.
fn publish_time(n: usize) -> Duration {
    const GOLDEN: f64 = 0.618_033_988_749_895;
    let n = n as f64;
    Duration::from_secs(1).mul_f64((n + (n * GOLDEN).fract()) / f64::from(EVENTS_PER_SECOND))
}
