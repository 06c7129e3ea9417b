//! What a database has to do for history: delete what is over, by rows and by months, and give and take files of it.

use async_trait::async_trait;

use crate::clock::Timestamp;
use crate::error::Result;
use crate::maintenance::archive::PastEvent;
use crate::maintenance::clock_check::Seen;
use crate::maintenance::history::HistoryFilter;
use crate::maintenance::months::Part;
use crate::maintenance::retention::{Ended, Leftover, Mark, Rules, Walk, WalkPosition};

/// A part of a walk.
#[derive(Debug, Clone, Default)]
pub(crate) struct EndedPage {
    /// In the order of the walk. On SQLite also what ended in the future, after a clock that went back.
    pub ended: Vec<Ended>,
    /// Where the next page begins.
    pub next: WalkPosition,
    /// There may be more before the instant asked about.
    pub more: bool,
}

/// What retention takes away in one transaction.
#[derive(Debug, Clone)]
pub(crate) struct Retain {
    /// Of the topology by which all this was decided.
    pub version: i64,
    /// How the walk goes on; `None` for leftovers.
    pub step: Option<MarkStep>,
    /// Deliveries whose time is over, if this was their last end; each but once.
    pub due: Vec<Ended>,
    /// Leftovers that are done with.
    pub settled: Vec<Leftover>,
    /// Leftovers to look at again: by the same rules then (`None`: never), or by others at any time.
    pub later: Vec<(Leftover, Option<Timestamp>)>,
    /// The hash of the rules by which all this was decided.
    pub rules: i64,
}

/// A mark that moves.
#[derive(Debug, Clone, Copy)]
pub(crate) struct MarkStep {
    pub walk: Walk,
    /// Where it stands now; nothing is done unless it does. `None`: there is none.
    pub from: Option<Mark>,
    pub to: Mark,
}

/// What retention took away.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct DeletedHistory {
    pub deliveries: usize,
    pub dead_letters: usize,
    pub events: usize,
}

/// What all namespaces of the database say about keeping.
pub(crate) struct AllRules {
    pub of: Vec<(String, Rules)>,
    /// Grows with every change of any of them.
    pub version: i64,
}

/// What may go of months.
#[cfg_attr(not(feature = "postgres"), allow(dead_code, reason = "only PostgreSQL has months"))]
pub(crate) struct ExpiredMonths {
    /// Whatever ended before this instant,
    pub before: Timestamp,
    /// unless it belongs to one of these namespaces.
    pub spared: Vec<String>,
    /// Of the rules by which that was decided.
    pub version: i64,
}

/// What became of a month that is over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(not(feature = "postgres"), allow(dead_code, reason = "only PostgreSQL has months"))]
pub(crate) enum DropOutcome {
    /// It is in the history no more.
    Dropped,
    /// Somebody uses the table; nobody shall wait for long.
    Busy,
    /// Too much of it must stay to be put aside in a moment.
    TooMuchStays,
    /// The rules have changed meanwhile.
    Outdated,
    /// This process may not.
    Refused,
}

/// What became of events from files.
#[derive(Debug, Clone, Default)]
pub(crate) struct Imported {
    pub events: u64,
    pub attempts: u64,
    pub known: u64,
    pub clashes: Vec<i64>,
}

#[async_trait]
pub(crate) trait HistoryStore {
    // -- retention

    /// How many deliveries one transaction of retention takes.
    fn retain_batch(&self) -> usize;

    /// The months, where history is kept by them.
    fn by_months(&self) -> Option<&dyn MonthStore> {
        None
    }

    /// What the database remembers of its clock; `None`: nothing yet.
    async fn seen(&self) -> Result<Option<Seen>>;

    /// Remembers that instead.
    async fn note_seen(&self, seen: Seen) -> Result<()>;

    /// How far a walk has come, for each keep.
    async fn marks(&self, namespace: &str, walk: Walk) -> Result<Vec<Mark>>;

    /// What a walk comes by next that ended before `until`. Costs as much as there is to see.
    async fn ended(
        &self,
        namespace: &str,
        walk: Walk,
        from: WalkPosition,
        until: Timestamp,
        limit: usize,
        now: Timestamp,
    ) -> Result<EndedPage>;

    /// Leftovers that must be looked at by these rules now.
    async fn leftovers(&self, namespace: &str, rules: i64, limit: usize, now: Timestamp) -> Result<Vec<Leftover>>;

    /// Deletes the dead letters among what is due, unless they were redriven, with their handler results; the attempts
    /// of every delivery that is neither live nor a dead letter nor has ended later; and events that nothing else refers
    /// to. `None`: the version or the mark is another by now, and nothing was done.
    async fn retain(&self, namespace: &str, retain: &Retain) -> Result<Option<DeletedHistory>>;

    // -- history in files

    /// The events of these deliveries, by id, with the attempts that `retain` would delete.
    async fn history_of(&self, namespace: &str, due: &[Ended]) -> Result<Vec<PastEvent>>;

    /// Events that match and are neither live nor dead letters, with all their attempts, by id, from after this id.
    async fn history_page(
        &self,
        namespace: &str,
        filter: &HistoryFilter,
        after: i64,
        limit: usize,
    ) -> Result<Vec<PastEvent>>;

    /// The largest id of an event of the namespace; 0 where it has none.
    async fn newest_event(&self, namespace: &str) -> Result<i64>;

    /// Stores events, unless their ids are taken, and attempts that are not there. Retention will look at all of them.
    async fn import_history(&self, namespace: &str, events: &[PastEvent]) -> Result<Imported>;
}

/// History by months, of the whole database: they are dropped as a whole.
#[async_trait]
pub(crate) trait MonthStore: Send + Sync {
    /// What each namespace of the database, and each of its subscriptions, says about keeping.
    async fn rules(&self) -> Result<AllRules>;

    /// The months that have a part of their own.
    async fn months(&self) -> Result<Vec<Part>>;

    /// Makes the part, if that is possible in a moment. Without one, its rows are kept all the same. There are none yet of
    /// one that lies ahead.
    async fn add_month(&self, part: Part, ahead: bool) -> Result<bool>;

    /// Takes the part out of the history, if that is possible in a moment. Kept are events that are live, dead letters or
    /// ended since `before`, attempts of deliveries that are, and all that belongs to the namespaces that are spared.
    async fn drop_month(&self, part: Part, over: &ExpiredMonths) -> Result<DropOutcome>;

    /// Deletes the parts that were taken out, also by somebody who did not come to that any more; how many. One that is in
    /// use is left for the next time.
    async fn finish_dropping(&self) -> Result<usize>;

    /// Deletes a batch of events of months that are over, or of none, which nothing refers to; how many. `None`: none of
    /// them has lost its attempts with a month since this was last asked.
    async fn delete_strays(&self, over: &ExpiredMonths) -> Result<Option<usize>>;
}
