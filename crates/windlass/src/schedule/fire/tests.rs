//! Schedules that change between the read of due schedules and their firing.

use super::*;
use crate::clock::TestClock;
use crate::event::NewEvent;
use crate::schedule::NewSchedule;

impl Queue {
    /// Reads due schedules, runs `between`, and fires them. Returns the number of events.
    async fn read_then_fire(&self, between: impl AsyncFnOnce()) -> usize {
        let due = self
            .store()
            .due_schedules(self.namespace(), None, SCHEDULES_PER_READ, BATCH_BYTES_MAX, self.now())
            .await
            .unwrap();
        assert_eq!(due.schedules.len(), 1);
        between().await;
        let mut progress = FireProgress::default();
        self.fire_due(due, &mut progress).await.unwrap();
        assert_eq!(progress.retry_in, (progress.fired == 0).then_some(CONTENDED_DELAY));
        progress.fired
    }

    /// Expects an empty queue that uses this clock.
    pub(crate) async fn changed_schedules_do_not_fire(&self, clock: &TestClock) {
        let new = |event: &str| NewSchedule::new("a", "* * * * *", NewEvent::new(event));
        let id = self.add_schedule(new("old")).await.unwrap().id;
        let minute = Duration::from_secs(60);
        clock.advance(minute);
        assert_eq!(self.read_then_fire(async || {}).await, 1);
        clock.advance(minute);
        // The change keeps the next tick.
        assert_eq!(self.read_then_fire(async || drop(self.put_schedule(&id, new("new")).await.unwrap())).await, 0);
        assert_eq!(self.read_then_fire(async || drop(self.run_schedule(&id).await.unwrap())).await, 0);
        let events = self.list(crate::ListFilter::default()).await.unwrap().items;
        assert_eq!(events.iter().filter(|view| view.event.event_type == "new").count(), 1);
        assert_eq!(self.read_then_fire(async || {}).await, 1);
        clock.advance(minute);
        assert_eq!(self.read_then_fire(async || drop(self.pause_schedule(&id).await.unwrap())).await, 0);
        self.resume_schedule(&id).await.unwrap();
        clock.advance(minute);
        assert_eq!(self.read_then_fire(async || self.remove_schedule(&id).await.unwrap()).await, 0);
        assert_eq!(self.list(crate::ListFilter::default()).await.unwrap().total, 3);
    }
}

#[cfg(feature = "sqlite")]
#[tokio::test]
async fn schedule_changed_after_the_read_does_not_fire() {
    let (clock, test_clock) = crate::Clock::test("2025-12-24T10:30:00Z".parse().unwrap());
    let queue = Queue::options("sqlite::memory:").clock(clock).open().await.unwrap();
    queue.changed_schedules_do_not_fire(&test_clock).await;
}
