//! What changes between reading and firing.

use super::*;
use crate::clock::TestClock;
use crate::event::NewEvent;
use crate::schedule::NewSchedule;

impl Queue {
    /// FireOutcomes with something in between; how many events came of it.
    async fn fire_what_was_read(&self, between: impl AsyncFnOnce()) -> usize {
        let due = self.store().due_schedules(self.namespace(), None, SCHEDULES, BYTES, self.now()).await.unwrap();
        assert_eq!(due.schedules.len(), 1);
        between().await;
        let mut progress = Progress::default();
        self.fire_due(due, &mut progress).await.unwrap();
        assert_eq!(progress.again_in, (progress.fired == 0).then_some(BY_OTHERS));
        progress.fired
    }

    /// On an empty queue, with the clock's hand.
    pub(crate) async fn leaves_alone_what_changed(&self, hand: &TestClock) {
        let new = |event: &str| NewSchedule::new("a", "* * * * *", NewEvent::new(event));
        let id = self.add_schedule(new("old")).await.unwrap().id;
        let minute = Duration::from_secs(60);
        hand.advance(minute);
        assert_eq!(self.fire_what_was_read(async || {}).await, 1);
        hand.advance(minute);
        // Its next tick stays the same.
        assert_eq!(self.fire_what_was_read(async || drop(self.put_schedule(&id, new("new")).await.unwrap())).await, 0);
        assert_eq!(self.fire_what_was_read(async || drop(self.run_schedule(&id).await.unwrap())).await, 0);
        let events = self.list(crate::ListFilter::default()).await.unwrap().items;
        assert_eq!(events.iter().filter(|view| view.event.event_type == "new").count(), 1);
        assert_eq!(self.fire_what_was_read(async || {}).await, 1);
        hand.advance(minute);
        assert_eq!(self.fire_what_was_read(async || drop(self.pause_schedule(&id).await.unwrap())).await, 0);
        self.resume_schedule(&id).await.unwrap();
        hand.advance(minute);
        assert_eq!(self.fire_what_was_read(async || self.remove_schedule(&id).await.unwrap()).await, 0);
        assert_eq!(self.list(crate::ListFilter::default()).await.unwrap().total, 3);
    }
}

#[cfg(feature = "sqlite")]
#[tokio::test]
async fn what_changed_since_it_was_read_is_left_alone() {
    let (clock, hand) = crate::Clock::test("2025-12-24T10:30:00Z".parse().unwrap());
    let queue = Queue::options("sqlite::memory:").clock(clock).open().await.unwrap();
    queue.leaves_alone_what_changed(&hand).await;
}
