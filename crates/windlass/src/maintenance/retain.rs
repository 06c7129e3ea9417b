//! Deleting history whose time is over, row by row.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use crate::clock::Timestamp;
use crate::error::Result;
use crate::maintenance::archive::{Archive, blocking};
use crate::maintenance::clock_check::Seen;
use crate::maintenance::history::write;
use crate::maintenance::retention::{
    Ended, Leftover, Mark, Rules, Walk, WalkPosition, longest_ms, over_at, over_before, row_wise_after_ms,
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
    /// Events that nothing refers to any more.
    pub events: usize,
    /// It stopped before it was through, so as not to keep other upkeep waiting.
    pub more: bool,
    /// Nothing was deleted: history must be archived first and this process was not told where to, or the clock has leapt
    /// and is not believed for a day.
    pub withheld: bool,
}

impl RetentionReport {
    fn add(&mut self, taken: DeletedHistory) {
        self.deliveries += taken.deliveries;
        self.dead_letters += taken.dead_letters;
        self.events += taken.events;
    }
}

/// How many pages one call looks at.
const PAGES_MAX: usize = 200;

/// How many deliveries are archived before they are deleted.
const ARCHIVED_AT_ONCE: usize = 10_000;

/// How many pages without anything to delete pass before it is noted that they were seen.
const EMPTY_PAGES_MAX: usize = 20;

impl Queue {
    /// Deletes from this namespace's history what its policy no longer keeps: completed and cancelled deliveries, dead
    /// letters that are kept for a time, and events once nothing refers to them. Never a live event, and never a dead
    /// letter that is kept until somebody acts. Harmless when several processes do it at once.
    pub async fn retain_once(&self) -> Result<RetentionReport> {
        let topology = self.reload().await?;
        let now = self.store().now(self.now()).await?;
        let rules = Rules::of(&topology);
        let hash = rules.hash();
        if rules.archives() && self.core().archive.is_none() {
            tracing::info!(
                namespace = self.namespace(),
                "nothing is deleted: history must be archived first, and this process was not told where to; \
                 start a server with --archive-dir, or open the queue with archive_to"
            );
            return Ok(RetentionReport { withheld: true, ..RetentionReport::default() });
        }
        if !self.believes(now).await? {
            return Ok(RetentionReport { withheld: true, ..RetentionReport::default() });
        }
        // What is archived is read row by row, and may as well be deleted so.
        let longest_ms = match self.store().by_months() {
            Some(months) if !rules.archives() => longest_ms(&months.rules().await?.of),
            _ => None,
        };
        let (pending, done) = (Vec::new(), RetentionReport::default());
        let mut round = Round { queue: self, topology, rules, hash, now, longest_ms, pages: 0, pending, done };
        round.leftovers().await?;
        for walk in [Walk::DeadLetters, Walk::Attempts] {
            round.walk(walk).await?;
        }
        round.done.more = round.is_over();
        Ok(round.done)
    }

    /// Whether history may be deleted by this clock; if not, it has leapt.
    pub(crate) async fn believes(&self, now: Timestamp) -> Result<bool> {
        let before = self.store().seen().await?;
        let seen = Seen::next(before, now);
        if seen.is_news(before) {
            self.store().note_seen(seen).await?;
        }
        if let Some(resume_at) = seen.resume_at.filter(|_| seen.is_doubt(before)) {
            let last = seen.believed;
            tracing::warn!(%last, %now, %resume_at, "the clock is far past the last retention: nothing is deleted for a day");
        }
        Ok(seen.resume_at.is_none())
    }
}

struct Round<'a> {
    queue: &'a Queue,
    topology: Arc<Topology>,
    rules: Rules,
    hash: i64,
    now: Timestamp,
    /// After which time whole months are dropped.
    longest_ms: Option<u64>,
    pages: usize,
    /// What is to be done, in order, once it is in the archive.
    pending: Vec<Retain>,
    done: RetentionReport,
}

impl Round<'_> {
    fn is_over(&self) -> bool {
        self.pages >= PAGES_MAX
    }

    async fn walk(&mut self, walk: Walk) -> Result<()> {
        let marks = self.queue.store().marks(self.queue.namespace(), walk).await?;
        for keep_ms in self.rules.keeps(walk) {
            let mark = marks.iter().find(|mark| mark.keep_ms == keep_ms).copied();
            self.walk_for(walk, keep_ms, mark).await?;
        }
        Ok(())
    }

    /// Goes on from the mark, or from the beginning where the rules were others, or the clock has gone back behind it.
    async fn walk_for(&mut self, walk: Walk, keep_ms: u64, mut mark: Option<Mark>) -> Result<()> {
        let until = over_before(self.now, row_wise_after_ms(walk, keep_ms, self.longest_ms));
        let is_good = |mark: &Mark| mark.rules == self.hash && mark.place.at <= self.now.timestamp_micros();
        let mut place = mark.filter(is_good).map_or(WalkPosition::default(), |mark| mark.place);
        let mut empty = 0;
        while !self.is_over() {
            let page = self.page(walk, place, until).await?;
            let (due, later) = self.sort(keep_ms, until, &page);
            place = page.next;
            let nothing = due.is_empty() && later.is_empty();
            empty = if nothing { empty + 1 } else { 0 };
            if nothing && page.more && empty % EMPTY_PAGES_MAX != 0 {
                continue;
            }
            let to = Mark { keep_ms, rules: self.hash, place };
            if mark != Some(to) {
                let step = Some(MarkStep { walk, from: mark, to });
                self.plan(step, due, Vec::new(), later);
                mark = Some(to);
                if self.is_enough() && !self.carry_out().await? {
                    return Ok(());
                }
            }
            if !page.more {
                break;
            }
        }
        self.carry_out().await.map(drop)
    }

    async fn page(&mut self, walk: Walk, place: WalkPosition, until: Timestamp) -> Result<EndedPage> {
        self.pages += 1;
        let (store, namespace) = (self.queue.store(), self.queue.namespace());
        store.ended(namespace, walk, place, until, store.retain_batch(), self.now).await
    }

    /// What of a page is over by this keep, and what a later look must find since the walk does not come by again.
    fn sort(
        &self,
        keep_ms: u64,
        until: Timestamp,
        page: &EndedPage,
    ) -> (Vec<Ended>, Vec<(Leftover, Option<Timestamp>)>) {
        let mut due: BTreeMap<(i64, &str), &Ended> = BTreeMap::new();
        let mut later = Vec::new();
        for ended in &page.ended {
            let keep = self.rules.keep_ms(ended.status, &ended.subscription, &ended.event_type);
            if keep != Some(keep_ms) {
                continue;
            }
            if ended.at >= until {
                let leftover =
                    Leftover { event_id: ended.event_id, subscription: ended.subscription.clone(), since: ended.at };
                later.push((leftover, over_at(ended.at, keep)));
            } else {
                due.entry((ended.event_id, &ended.subscription))
                    .and_modify(|last| *last = if ended.at > last.at { ended } else { last })
                    .or_insert(ended);
            }
        }
        (due.into_values().cloned().collect(), later)
    }

    /// The types of events; an event that is gone has none.
    async fn types(&self, event_ids: impl Iterator<Item = i64>) -> Result<HashMap<i64, String>> {
        let event_ids: Vec<i64> = event_ids.collect();
        if event_ids.is_empty() {
            return Ok(HashMap::new());
        }
        let heads = self.queue.store().heads(self.queue.namespace(), &event_ids).await?;
        Ok(heads.into_iter().map(|head| (head.event_id, head.event_type)).collect())
    }

    async fn leftovers(&mut self) -> Result<()> {
        let (store, namespace) = (self.queue.store(), self.queue.namespace());
        while !self.is_over() {
            self.pages += 1;
            let limit = store.retain_batch();
            let found = store.leftovers(namespace, self.hash, limit, self.now).await?;
            let last = found.len() < limit;
            if found.is_empty() {
                return Ok(());
            }
            let types = self.types(found.iter().map(|leftover| leftover.event_id)).await?;
            let (mut due, mut settled, mut later) = (Vec::new(), Vec::new(), Vec::new());
            for leftover in found {
                let event_type = types.get(&leftover.event_id);
                let keep = event_type.and_then(|found| self.rules.keep_ms(None, &leftover.subscription, found));
                let at = over_at(leftover.since, keep);
                // Of an event that is gone there may be attempts left.
                if event_type.is_none() || at.is_some_and(|at| at <= self.now) {
                    due.push(self.end_of(&leftover));
                    settled.push(leftover);
                } else {
                    later.push((leftover, at));
                }
            }
            self.plan(None, due, settled, later);
            if !self.carry_out().await? || last {
                return Ok(());
            }
        }
        Ok(())
    }

    fn end_of(&self, leftover: &Leftover) -> Ended {
        let Leftover { event_id, subscription, since } = leftover.clone();
        Ended { event_id, subscription_id: 0, subscription, event_type: String::new(), status: None, at: since }
    }

    fn plan(
        &mut self,
        step: Option<MarkStep>,
        due: Vec<Ended>,
        settled: Vec<Leftover>,
        later: Vec<(Leftover, Option<Timestamp>)>,
    ) {
        let version = self.topology.version;
        self.pending.push(Retain { version, step, due, settled, later, rules: self.hash });
    }

    /// Files are the better the larger they are; without an archive there is nothing to wait for.
    fn is_enough(&self) -> bool {
        let due: usize = self.pending.iter().map(|retain| retain.due.len()).sum();
        !self.rules.archives() || due >= ARCHIVED_AT_ONCE
    }

    /// Whether all was done; if not, somebody else was at it, or the policy has changed.
    async fn carry_out(&mut self) -> Result<bool> {
        let pending = std::mem::take(&mut self.pending);
        if self.rules.archives() {
            self.archive(&pending).await?;
        }
        for retain in &pending {
            match self.queue.store().retain(self.queue.namespace(), retain).await? {
                Some(taken) => self.done.add(taken),
                None => return Ok(false),
            }
        }
        Ok(true)
    }

    /// When this returns, all that is about to be deleted is safe.
    async fn archive(&self, pending: &[Retain]) -> Result<()> {
        let Some(folder) = &self.queue.core().archive else { return Ok(()) };
        let mut archive = Archive::new(folder, self.queue.namespace(), self.now);
        for due in pending.iter().map(|retain| &retain.due).filter(|due| !due.is_empty()) {
            let events = self.queue.store().history_of(self.queue.namespace(), due).await?;
            archive = write(archive, events).await?;
        }
        blocking(move || archive.close()).await.map(drop)
    }
}
