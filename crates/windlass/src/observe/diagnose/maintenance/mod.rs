//! Assesses maintenance tasks, schedules, dead letters, lanes and tokens.
//!
//! Thresholds end in `_WARNING` and `_PROBLEM`, after the level of the finding.

use chrono::TimeDelta;

use super::format::{at_least, count, duration, list, number};
use super::work::ROWS_MAX;
use super::{Assessment, FindingLevel};
use crate::admin::tokens::Token;
use crate::clock::Timestamp;
use crate::maintenance::task::MaintenanceTaskView;

/// Delay of a task beyond its interval.
const TASK_LATE_WARNING: TimeDelta = TimeDelta::minutes(2);
const TASK_LATE_PROBLEM: TimeDelta = TimeDelta::hours(1);
/// Age of a namespace in use after which a missing maintenance record is reported.
const NEW_NAMESPACE_MAX: TimeDelta = TimeDelta::minutes(5);
/// Delay of a tick.
pub(crate) const TICK_LATE_WARNING: TimeDelta = TimeDelta::minutes(1);
const TICK_LATE_PROBLEM: TimeDelta = TimeDelta::minutes(15);
/// The period in which dead letters and failed ticks are counted.
pub(crate) const RECENT: TimeDelta = TimeDelta::hours(1);
const DEAD_LETTERS_WARNING: u64 = 100;
const LANES_NOTICE: u64 = 100_000;
const TOKEN_EXPIRY_WARNING: TimeDelta = TimeDelta::days(7);

/// A maintenance task of a namespace.
#[derive(Debug, Clone)]
pub(crate) struct MaintenanceTaskState {
    pub namespace: String,
    pub task: MaintenanceTaskView,
    /// A process runs the task until then at most.
    pub held_until: Option<Timestamp>,
}

/// A namespace that has lanes: something was published in it.
#[derive(Debug, Clone)]
pub(crate) struct NamespaceInUse {
    pub namespace: String,
    pub created_at: Timestamp,
}

/// Whether maintenance tasks run on time and succeed.
pub(crate) fn maintenance(tasks: &[MaintenanceTaskState], in_use: &[NamespaceInUse], now: Timestamp) -> Assessment {
    let failing = tasks.iter().filter_map(|fact| {
        let error = fact.task.error.as_ref()?;
        Some(format!("{} of '{}' fails: {error}", fact.task.task.as_str(), fact.namespace))
    });
    let late: Vec<(TimeDelta, &MaintenanceTaskState)> =
        tasks.iter().filter_map(|fact| Some((lateness(fact, now)?, fact))).collect();
    let longest = late.iter().map(|(late, _)| *late).max().unwrap_or_default();
    let late = late.iter().map(|(late, fact)| {
        format!("{} of '{}' is overdue by {}", fact.task.task.as_str(), fact.namespace, duration(*late))
    });
    let never = in_use.iter().filter(|used| now - used.created_at > NEW_NAMESPACE_MAX);
    let never = never.filter(|used| tasks.iter().all(|fact| fact.namespace != used.namespace));
    let never = never.map(|used| format!("no maintenance has run in '{}'", used.namespace));
    let faults: Vec<String> = failing.chain(late).chain(never).collect();
    if faults.is_empty() {
        return Assessment::ok(format!("no task is overdue or failing ({} known)", number(tasks.len() as u64)));
    }
    let level = if longest > TASK_LATE_PROBLEM { FindingLevel::Problem } else { FindingLevel::Warning };
    let advice = "run `windlass serve`, or a node in that namespace, and check its log; GET /stats/maintenance shows \
                  every task";
    Assessment::new(level, list(faults), advice)
}

/// By how much the task is overdue; `None` if it is on time or running. A due time far in the future was written by a
/// clock that has been set back since; such a task counts as on time.
fn lateness(fact: &MaintenanceTaskState, now: Timestamp) -> Option<TimeDelta> {
    let every = TimeDelta::milliseconds(i64::try_from(fact.task.every_ms).unwrap_or(i64::MAX / 4_000));
    let late = now - fact.task.next_at;
    let is_running = fact.held_until.is_some_and(|until| until > now);
    (!is_running && late > every + TASK_LATE_WARNING).then_some(late)
}

/// A schedule whose next tick is overdue.
#[derive(Debug, Clone)]
pub(crate) struct LateSchedule {
    pub namespace: String,
    pub name: String,
    pub next_at: Timestamp,
}

/// A tick whose event could not be published.
#[derive(Debug, Clone)]
pub(crate) struct FailedTick {
    pub namespace: String,
    pub schedule_id: String,
    pub tick_at: Timestamp,
    pub error: String,
}

/// Whether schedules fire on time. `late` has the most overdue first.
pub(crate) fn schedules(late: &[LateSchedule], failed: &[FailedTick], now: Timestamp) -> Assessment {
    if late.is_empty() && failed.is_empty() {
        return Assessment::ok("every due tick has fired");
    }
    let longest = late.iter().map(|late| now - late.next_at).max().unwrap_or_default();
    let level = if longest > TICK_LATE_PROBLEM { FindingLevel::Problem } else { FindingLevel::Warning };
    let mut parts = Vec::new();
    if !late.is_empty() {
        let named = |late: &LateSchedule| {
            format!("'{}' in '{}' by {}", late.name, late.namespace, duration(now - late.next_at))
        };
        let found = at_least(late.len(), ROWS_MAX);
        parts.push(format!("{found} late: {}", list(late.iter().map(named))));
    }
    if !failed.is_empty() {
        let named = |tick: &FailedTick| {
            let at = tick.tick_at.format("%H:%M:%SZ");
            format!("{at} of {} in '{}': {}", tick.schedule_id, tick.namespace, tick.error)
        };
        let ticks = if failed.len() == 1 { "tick" } else { "ticks" };
        let found = at_least(failed.len(), ROWS_MAX);
        parts.push(format!("{found} {ticks} without an event within the hour: {}", list(failed.iter().map(named))));
    }
    let advice = "`windlass serve` and nodes fire schedules: check that one runs, and its log; \
                  GET /schedules/{id}/fires shows the result of each tick";
    Assessment::new(level, parts.join("; "), advice)
}

/// Dead letters of the last hour by namespace, counted up to [`ROWS_MAX`].
pub(crate) fn dead_letters(recent: &[(String, u64)]) -> Assessment {
    let total: u64 = recent.iter().map(|(_, dead)| dead).sum();
    let Some((worst, most)) = recent.iter().max_by_key(|(_, dead)| dead).filter(|_| total > 0) else {
        return Assessment::ok("none within the hour");
    };
    let named = |(namespace, dead): &(String, u64)| {
        format!("{} in '{namespace}'", at_least(usize::try_from(*dead).unwrap_or(ROWS_MAX), ROWS_MAX))
    };
    let level = if *most >= DEAD_LETTERS_WARNING { FindingLevel::Warning } else { FindingLevel::Notice };
    let summary = format!("dead-lettered within the hour: {}", list(recent.iter().map(named)));
    let advice = format!(
        "`windlass dead-letters list --namespace {worst}` shows why; once the cause is fixed, `windlass dead-letters \
         redrive --all --namespace {worst}` makes them pending again"
    );
    Assessment::new(level, summary, advice)
}

/// The number of lanes of each namespace.
pub(crate) fn lanes(lanes: &[(String, u64)]) -> Assessment {
    let many: Vec<&(String, u64)> = lanes.iter().filter(|(_, lanes)| *lanes >= LANES_NOTICE).collect();
    if many.is_empty() {
        let most = lanes.iter().map(|(_, lanes)| *lanes).max().unwrap_or(0);
        return Assessment::ok(format!("no namespace has more than {}", number(most)));
    }
    let named = |(namespace, lanes): &&(String, u64)| format!("{} in '{namespace}'", number(*lanes));
    let advice = "each combination of type, tags and priority is a lane; claims that filter by type or tag keep a list of \
                  them in memory. Keep ids out of types and tags, and in payloads. Lanes without deliveries are removed";
    Assessment::new(FindingLevel::Notice, list(many.iter().map(named)), advice)
}

/// Tokens that have expired or expire soon.
pub(crate) fn tokens(tokens: &[Token], now: Timestamp) -> Assessment {
    let (expired, valid): (Vec<&Token>, Vec<&Token>) = tokens.iter().partition(|token| token.is_expired(now));
    let soon = |token: &&Token| token.expires_at.is_some_and(|at| at - now <= TOKEN_EXPIRY_WARNING);
    let soon: Vec<&Token> = valid.into_iter().filter(soon).collect();
    if let Some(first) = soon.first() {
        let named = |token: &&Token| {
            let left = token.expires_at.map_or_else(TimeDelta::zero, |at| at - now);
            format!("{} \"{}\" in {}", token.token_id, token.name, duration(left))
        };
        let verb = if soon.len() == 1 { "expires" } else { "expire" };
        let summary = format!("{} {verb} soon: {}", soon.len(), list(soon.iter().map(named)));
        let advice = format!(
            "create a new one (`windlass token create`), replace the old one where it is used, then `windlass token revoke {}`",
            first.token_id
        );
        return Assessment::new(FindingLevel::Warning, summary, advice);
    }
    if let Some(first) = expired.first() {
        let names = list(expired.iter().map(|token| format!("{} \"{}\"", token.token_id, token.name)));
        let summary = format!("{} of {} expired: {names}", expired.len(), count(tokens.len() as u64, "token"));
        return Assessment::new(FindingLevel::Notice, summary, format!("`windlass token revoke {}`", first.token_id));
    }
    Assessment::ok(format!("{}, none about to expire", count(tokens.len() as u64, "token")))
}

#[cfg(test)]
mod tests;
