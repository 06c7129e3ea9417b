//! How long events take from their publisher to their handler.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::time::{sleep, sleep_until};
use windlass::{Envelope, Handled, Queue};

use super::report::Delays;
use crate::AnyError;
use crate::latency::Latencies;
use crate::order::{Order, order};
use crate::store::Backend;

/// Events per second.
const RATE: u32 = 50;
/// How long the last ones may take.
const LAST: Duration = Duration::from_secs(1);

#[derive(Default)]
pub struct Stopwatch(Mutex<Vec<Lap>>);

/// One event.
#[derive(Clone, Copy, Default)]
struct Lap {
    called: Option<Instant>,
    returned: Option<Instant>,
    started: Option<Instant>,
}

impl Stopwatch {
    /// For as many as are published in this time.
    pub fn new(time: Duration) -> Arc<Stopwatch> {
        let events = time.as_secs() as usize * RATE as usize;
        Arc::new(Stopwatch(Mutex::new(vec![Lap::default(); events])))
    }

    fn laps(&self) -> MutexGuard<'_, Vec<Lap>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The handler of an event has begun.
    pub fn start(&self, event: &Envelope) -> Handled {
        let now = Instant::now();
        let order: Order = event.payload()?;
        let again = self.laps()[order.order_id].started.replace(now);
        assert!(again.is_none(), "every event once");
        Ok(())
    }

    /// Publishes the events one after another, and waits for the last to be handled.
    pub async fn run(self: Arc<Stopwatch>, queue: Queue, event_type: &'static str) -> Result<(), AnyError> {
        let (begun, events) = (tokio::time::Instant::now(), self.laps().len());
        for n in 0..events {
            sleep_until(begun + moment(n)).await;
            let event = order(event_type, n)?;
            self.laps()[n].called = Some(Instant::now());
            queue.publish(event).await?;
            self.laps()[n].returned = Some(Instant::now());
        }
        let waited = Instant::now();
        while waited.elapsed() < LAST && self.laps().iter().any(|lap| lap.started.is_none()) {
            sleep(Duration::from_millis(1)).await;
        }
        Ok(())
    }

    /// Who was not handled has waited until now.
    pub fn delays(&self, store: Backend, case: &'static str) -> Option<Delays> {
        let (mut of_call, mut of_return) = (Latencies::new("from call"), Latencies::new("from return"));
        let (laps, now) = (self.laps(), Instant::now());
        for lap in laps.iter() {
            let started = lap.started.unwrap_or(now);
            of_call.add(started - lap.called?);
            // A handler may begin before its publisher has heard: that is no delay.
            of_return.add(started.saturating_duration_since(lap.returned?));
        }
        let handled = laps.iter().filter(|lap| lap.started.is_some()).count();
        let (from_call, from_return) = (of_call.percentiles()?, of_return.percentiles()?);
        Some(Delays { store: store.name(), case, events: laps.len(), handled, from_call, from_return })
    }
}

/// When to publish: not quite regularly, since what else happens at intervals is to be met at any point of them.
fn moment(n: usize) -> Duration {
    const GOLDEN: f64 = 0.618_033_988_749_895;
    let n = n as f64;
    Duration::from_secs(1).mul_f64((n + (n * GOLDEN).fract()) / f64::from(RATE))
}
