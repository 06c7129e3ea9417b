//! How this store keeps schedules: each call goes to the file of its verb.

use std::time::Duration;

use async_trait::async_trait;

use super::{SqliteStore, fire, reschedule, schedule};
use crate::clock::Timestamp;
use crate::error::Result;
use crate::observe::inspect::Page;
use crate::schedule::{ScheduleFilter, ScheduleFire, ScheduleView};
use crate::store::{
    DueSchedules, FireOutcomes, Firing, PreparedEvent, PreparedSchedule, PutOutcome, Rescheduled, SchedulePosition,
    ScheduleStore, SchedulesAhead,
};

#[async_trait]
impl ScheduleStore for SqliteStore {
    async fn count_schedules(&self, namespace: &str) -> Result<u64> {
        let namespace = namespace.to_owned();
        self.read(move |conn| schedule::count_all(conn, &namespace)).await
    }

    async fn add_schedule(
        &self,
        namespace: &str,
        new: &PreparedSchedule,
        now: Option<Timestamp>,
    ) -> Result<PutOutcome> {
        let (namespace, new) = (namespace.to_owned(), new.clone());
        self.write(now, move |conn, now| schedule::add(conn, &namespace, &new, now)).await
    }

    async fn put_schedule(
        &self,
        namespace: &str,
        new: &PreparedSchedule,
        now: Option<Timestamp>,
    ) -> Result<PutOutcome> {
        let (namespace, new) = (namespace.to_owned(), new.clone());
        self.write(now, move |conn, now| schedule::replace(conn, &namespace, &new, now)).await
    }

    async fn declare_schedule(
        &self,
        namespace: &str,
        new: &PreparedSchedule,
        now: Option<Timestamp>,
    ) -> Result<PutOutcome> {
        let (namespace, new) = (namespace.to_owned(), new.clone());
        self.write(now, move |conn, now| schedule::declare(conn, &namespace, &new, now)).await
    }

    async fn pause_schedule(&self, namespace: &str, schedule_id: &str, now: Option<Timestamp>) -> Result<bool> {
        let (namespace, id) = (namespace.to_owned(), schedule_id.to_owned());
        self.write(now, move |conn, now| schedule::pause(conn, &namespace, &id, now)).await
    }

    async fn resume_schedule(
        &self,
        namespace: &str,
        schedule_id: &str,
        updated_at: Timestamp,
        next_at: Option<Timestamp>,
        now: Option<Timestamp>,
    ) -> Result<bool> {
        let (namespace, id) = (namespace.to_owned(), schedule_id.to_owned());
        self.write(now, move |conn, now| schedule::resume(conn, &namespace, &id, updated_at, next_at, now)).await
    }

    async fn remove_schedule(&self, namespace: &str, schedule_id: &str) -> Result<bool> {
        let (namespace, id) = (namespace.to_owned(), schedule_id.to_owned());
        self.write(None, move |conn, _| schedule::remove(conn, &namespace, &id)).await
    }

    async fn schedule(&self, namespace: &str, schedule_id: &str) -> Result<Option<ScheduleView>> {
        let (namespace, id) = (namespace.to_owned(), schedule_id.to_owned());
        self.read(move |conn| schedule::one(conn, &namespace, &id)).await
    }

    async fn schedules(&self, namespace: &str, filter: &ScheduleFilter) -> Result<Page<ScheduleView>> {
        let (namespace, filter) = (namespace.to_owned(), filter.clone());
        self.read(move |conn| schedule::list(conn, &namespace, &filter)).await
    }

    async fn schedule_fires(
        &self,
        namespace: &str,
        schedule_id: &str,
        before: Option<Timestamp>,
        limit: usize,
    ) -> Result<Vec<ScheduleFire>> {
        let (namespace, id) = (namespace.to_owned(), schedule_id.to_owned());
        self.read(move |conn| schedule::fires(conn, &namespace, &id, before, limit)).await
    }

    async fn next_ticks(&self, now: Option<Timestamp>) -> Result<Vec<(String, Duration)>> {
        let now = self.now(now);
        self.read(move |conn| schedule::next_ticks(conn, now)).await
    }

    async fn due_schedules(
        &self,
        namespace: &str,
        after: Option<&SchedulePosition>,
        limit: usize,
        bytes: usize,
        now: Option<Timestamp>,
    ) -> Result<DueSchedules> {
        let (namespace, after, now) = (namespace.to_owned(), after.cloned(), SqliteStore::now(self, now));
        self.read(move |conn| schedule::due(conn, &namespace, after, limit, bytes, now)).await
    }

    async fn schedules_from_the_future(
        &self,
        namespace: &str,
        after: &str,
        limit: usize,
        now: Option<Timestamp>,
    ) -> Result<SchedulesAhead> {
        let (namespace, after, now) = (namespace.to_owned(), after.to_owned(), SqliteStore::now(self, now));
        self.read(move |conn| reschedule::ahead(conn, &namespace, &after, limit, now)).await
    }

    async fn reschedule(&self, namespace: &str, schedules: &[Rescheduled], now: Option<Timestamp>) -> Result<usize> {
        let (namespace, schedules) = (namespace.to_owned(), schedules.to_vec());
        self.write(now, move |conn, now| reschedule::move_back(conn, &namespace, &schedules, now)).await
    }

    async fn fire(
        &self,
        namespace: &str,
        version: i64,
        firings: &[Firing],
        events: &[PreparedEvent],
        manual: bool,
        now: Option<Timestamp>,
    ) -> Result<FireOutcomes> {
        let (namespace, firings, events) = (namespace.to_owned(), firings.to_vec(), events.to_vec());
        self.write(now, move |conn, now| fire::fire(conn, &namespace, version, &firings, &events, manual, now)).await
    }
}
