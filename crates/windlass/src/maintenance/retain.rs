//! Deletes history that exceeds its retention, row by row. Whole months are dropped by `partitions`.
//!
//! Start at [`Queue::retain_once`]. The rules are in `retention`, the SQL in the store.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use crate::clock::Timestamp;
use crate::error::Result;
use crate::maintenance::archive::{Archive, blocking};
use crate::maintenance::clock_check::ClockCheck;
use crate::maintenance::history::write;
use crate::maintenance::retention::{
    EndedDelivery, RetentionLeftover, RetentionMark, RetentionRules, RetentionWalk, WalkPosition, delete_at,
    delete_before, delete_rows_after_ms, longest_keep_ms,
};
use crate::queue::Queue;
use crate::store::{DeletedHistory, EndedPage, MarkStep, Retain};
use crate::topology::Topology;

/// What retention deleted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct RetentionReport {
    /// Deliveries whose attempts were deleted.
    pub deliveries: usize,
    /// Dead letters that were deleted.
    pub dead_letters: usize,
    /// Events that were deleted because nothing refers to them.
    pub events: usize,
    /// There is more to delete. The run ended early so as not to delay other maintenance tasks.
    pub more: bool,
    /// Nothing was deleted: either history must be archived first and this process has no archive directory, or the
    /// clock jumped and is not trusted for a day.
    pub withheld: bool,
}

impl RetentionReport {
    fn add(&mut self, deleted: DeletedHistory) {
        self.deliveries += deleted.deliveries;
        self.dead_letters += deleted.dead_letters;
        self.events += deleted.events;
    }
}

/// How many pages one call reads.
const PAGES_MAX: usize = 200;

/// How many deliveries are archived together before they are deleted.
const ARCHIVE_BATCH: usize = 10_000;

/// After this many pages without anything to delete, the progress is stored.
const EMPTY_PAGES_PER_MARK: usize = 20;

impl Queue {
    /// Deletes history of this namespace that exceeds the retention of its policy: completed and canceled deliveries,
    /// dead letters with a finite retention, and events that nothing refers to. Pending and processing events, and dead
    /// letters that are kept forever, are never deleted. Several processes may do this concurrently.
    pub async fn retain_once(&self) -> Result<RetentionReport> {
        let topology = self.reload().await?;
        let now = self.store().now(self.now()).await?;
        let rules = RetentionRules::of(&topology);
        let hash = rules.hash();
        if rules.archives() && self.core().archive.is_none() {
            tracing::info!(
                namespace = self.namespace(),
                "retention is on hold: history must be archived first, but this process has no archive directory; \
                 start a server with --archive-dir, or open the queue with archive_to"
            );
            return Ok(RetentionReport { withheld: true, ..RetentionReport::default() });
        }
        if !self.trusts_clock(now).await? {
            return Ok(RetentionReport { withheld: true, ..RetentionReport::default() });
        }
        // Archived history is read row by row, so it is deleted row by row as well.
        let longest_keep_ms = match self.store().by_months() {
            Some(months) if !rules.archives() => longest_keep_ms(&months.rules().await?.of),
            _ => None,
        };
        let (planned, report) = (Vec::new(), RetentionReport::default());
        let mut run =
            RetentionRun { queue: self, topology, rules, hash, now, longest_keep_ms, pages: 0, planned, report };
        run.delete_leftovers().await?;
        for walk in [RetentionWalk::DeadLetters, RetentionWalk::Attempts] {
            run.walk(walk).await?;
        }
        run.report.more = run.is_at_limit();
        Ok(run.report)
    }

    /// Whether the database clock may be used to delete history; see [`ClockCheck`].
    pub(crate) async fn trusts_clock(&self, now: Timestamp) -> Result<bool> {
        let previous = self.store().clock_check().await?;
        let check = ClockCheck::next(previous, now);
        if check.must_be_stored(previous) {
            self.store().record_clock_check(check).await?;
        }
        if let Some(resume_at) = check.resume_at.filter(|_| check.starts_hold(previous)) {
            let last = check.trusted;
            tracing::warn!(%last, %now, %resume_at, "the clock is far past the last check; retention deletes nothing for a day");
        }
        Ok(check.resume_at.is_none())
    }
}

/// One call of [`Queue::retain_once`].
struct RetentionRun<'a> {
    queue: &'a Queue,
    topology: Arc<Topology>,
    rules: RetentionRules,
    hash: i64,
    now: Timestamp,
    /// The age at which whole months are dropped, if they are.
    longest_keep_ms: Option<u64>,
    pages: usize,
    /// Deletions to carry out in order, after archiving.
    planned: Vec<Retain>,
    report: RetentionReport,
}

impl RetentionRun<'_> {
    fn is_at_limit(&self) -> bool {
        self.pages >= PAGES_MAX
    }

    async fn walk(&mut self, walk: RetentionWalk) -> Result<()> {
        let marks = self.queue.store().marks(self.queue.namespace(), walk).await?;
        for keep_ms in self.rules.keep_durations_ms(walk) {
            let mark = marks.iter().find(|mark| mark.keep_ms == keep_ms).copied();
            self.walk_for(walk, keep_ms, mark).await?;
        }
        Ok(())
    }

    /// Continues from the mark. Starts over if the rules have changed, or if the clock is now before the mark.
    async fn walk_for(&mut self, walk: RetentionWalk, keep_ms: u64, mut mark: Option<RetentionMark>) -> Result<()> {
        let until = delete_before(self.now, delete_rows_after_ms(walk, keep_ms, self.longest_keep_ms));
        let is_valid =
            |mark: &RetentionMark| mark.rules == self.hash && mark.position.at <= self.now.timestamp_micros();
        let mut position = mark.filter(is_valid).map_or(WalkPosition::default(), |mark| mark.position);
        let mut empty_pages = 0;
        while !self.is_at_limit() {
            let page = self.page(walk, position, until).await?;
            let (due, later) = self.split(keep_ms, until, &page);
            position = page.next;
            let is_empty = due.is_empty() && later.is_empty();
            empty_pages = if is_empty { empty_pages + 1 } else { 0 };
            if is_empty && page.more && empty_pages % EMPTY_PAGES_PER_MARK != 0 {
                continue;
            }
            let to = RetentionMark { keep_ms, rules: self.hash, position };
            if mark != Some(to) {
                let step = Some(MarkStep { walk, from: mark, to });
                self.plan(step, due, Vec::new(), later);
                mark = Some(to);
                if self.is_batch_full() && !self.carry_out().await? {
                    return Ok(());
                }
            }
            if !page.more {
                break;
            }
        }
        self.carry_out().await.map(drop)
    }

    async fn page(&mut self, walk: RetentionWalk, position: WalkPosition, until: Timestamp) -> Result<EndedPage> {
        self.pages += 1;
        let (store, namespace) = (self.queue.store(), self.queue.namespace());
        store.ended(namespace, walk, position, until, store.retain_batch(), self.now).await
    }

    /// Splits a page into deliveries to delete and leftovers. On SQLite a page may contain deliveries that ended after
    /// `until`, because the clock moved back. They become leftovers, since the walk does not visit them again.
    fn split(
        &self,
        keep_ms: u64,
        until: Timestamp,
        page: &EndedPage,
    ) -> (Vec<EndedDelivery>, Vec<(RetentionLeftover, Option<Timestamp>)>) {
        let mut due: BTreeMap<(i64, &str), &EndedDelivery> = BTreeMap::new();
        let mut later = Vec::new();
        for ended in &page.ended {
            let keep = self.rules.keep_ms(ended.status, &ended.subscription, &ended.event_type);
            if keep != Some(keep_ms) {
                continue;
            }
            if ended.at >= until {
                let leftover = RetentionLeftover {
                    event_id: ended.event_id,
                    subscription: ended.subscription.clone(),
                    since: ended.at,
                };
                later.push((leftover, delete_at(ended.at, keep)));
            } else {
                due.entry((ended.event_id, &ended.subscription))
                    .and_modify(|last| *last = if ended.at > last.at { ended } else { last })
                    .or_insert(ended);
            }
        }
        (due.into_values().cloned().collect(), later)
    }

    /// The types of events, without events that are deleted.
    async fn event_types(&self, event_ids: impl Iterator<Item = i64>) -> Result<HashMap<i64, String>> {
        let event_ids: Vec<i64> = event_ids.collect();
        if event_ids.is_empty() {
            return Ok(HashMap::new());
        }
        let heads = self.queue.store().heads(self.queue.namespace(), &event_ids).await?;
        Ok(heads.into_iter().map(|head| (head.event_id, head.event_type)).collect())
    }

    async fn delete_leftovers(&mut self) -> Result<()> {
        let (store, namespace) = (self.queue.store(), self.queue.namespace());
        while !self.is_at_limit() {
            self.pages += 1;
            let limit = store.retain_batch();
            let found = store.leftovers(namespace, self.hash, limit, self.now).await?;
            let is_last = found.len() < limit;
            if found.is_empty() {
                return Ok(());
            }
            let types = self.event_types(found.iter().map(|leftover| leftover.event_id)).await?;
            let (mut due, mut settled, mut later) = (Vec::new(), Vec::new(), Vec::new());
            for leftover in found {
                let event_type = types.get(&leftover.event_id);
                let keep = event_type.and_then(|found| self.rules.keep_ms(None, &leftover.subscription, found));
                let at = delete_at(leftover.since, keep);
                // Attempts of a deleted event may be left.
                if event_type.is_none() || at.is_some_and(|at| at <= self.now) {
                    due.push(self.ended(&leftover));
                    settled.push(leftover);
                } else {
                    later.push((leftover, at));
                }
            }
            self.plan(None, due, settled, later);
            if !self.carry_out().await? || is_last {
                return Ok(());
            }
        }
        Ok(())
    }

    fn ended(&self, leftover: &RetentionLeftover) -> EndedDelivery {
        let RetentionLeftover { event_id, subscription, since } = leftover.clone();
        EndedDelivery { event_id, subscription_id: 0, subscription, event_type: String::new(), status: None, at: since }
    }

    fn plan(
        &mut self,
        step: Option<MarkStep>,
        due: Vec<EndedDelivery>,
        settled: Vec<RetentionLeftover>,
        later: Vec<(RetentionLeftover, Option<Timestamp>)>,
    ) {
        let version = self.topology.version;
        self.planned.push(Retain { version, step, due, settled, later, rules: self.hash });
    }

    /// Whether to carry out the planned deletions now. With an archive, larger batches make larger files.
    fn is_batch_full(&self) -> bool {
        let due: usize = self.planned.iter().map(|retain| retain.due.len()).sum();
        !self.rules.archives() || due >= ARCHIVE_BATCH
    }

    /// Archives and deletes. Returns `false` if another process moved the mark or the policy changed.
    async fn carry_out(&mut self) -> Result<bool> {
        let planned = std::mem::take(&mut self.planned);
        if self.rules.archives() {
            self.archive(&planned).await?;
        }
        for retain in &planned {
            match self.queue.store().retain(self.queue.namespace(), retain).await? {
                Some(deleted) => self.report.add(deleted),
                None => return Ok(false),
            }
        }
        Ok(true)
    }

    /// Writes the history that will be deleted to files. The files are durable when this returns.
    async fn archive(&self, planned: &[Retain]) -> Result<()> {
        let Some(folder) = &self.queue.core().archive else { return Ok(()) };
        let mut archive = Archive::new(folder, self.queue.namespace(), self.now);
        for due in planned.iter().map(|retain| &retain.due).filter(|due| !due.is_empty()) {
            let events = self.queue.store().history_of(self.queue.namespace(), due).await?;
            archive = write(archive, events).await?;
        }
        blocking(move || archive.close()).await.map(drop)
    }
}
