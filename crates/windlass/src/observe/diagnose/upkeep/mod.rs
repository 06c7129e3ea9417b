//! What to think of upkeep, schedules, dead letters, lanes and tokens.

use chrono::TimeDelta;

use super::say::{at_least, count, number, some, span};
use super::work::FOUND_MAX;
use super::{Assessment, FindingLevel};
use crate::admin::tokens::Token;
use crate::clock::Timestamp;
use crate::maintenance::task::MaintenanceTaskView;

/// A task may be so late beyond one turn.
const DUTY_LATE_MAX: TimeDelta = TimeDelta::minutes(2);
const DUTY_LATE_BAD: TimeDelta = TimeDelta::hours(1);
/// A namespace in use for so long must have been looked after.
const NEW_MAX: TimeDelta = TimeDelta::minutes(5);
/// A tick may be so late.
pub(crate) const TICK_LATE_MAX: TimeDelta = TimeDelta::minutes(1);
const TICK_LATE_BAD: TimeDelta = TimeDelta::minutes(15);
/// So far back dead letters and ticks that failed are looked for.
pub(crate) const LATELY: TimeDelta = TimeDelta::hours(1);
const DEAD_MANY: u64 = 100;
const LANES_MANY: u64 = 100_000;
const TOKEN_SOON: TimeDelta = TimeDelta::days(7);

/// A task of a namespace.
#[derive(Debug, Clone)]
pub(crate) struct MaintenanceFact {
    pub namespace: String,
    pub task: MaintenanceTaskView,
    /// Until then somebody is at it.
    pub held_until: Option<Timestamp>,
}

/// A namespace in which something was ever published.
#[derive(Debug, Clone)]
pub(crate) struct InUse {
    pub namespace: String,
    pub created_at: Timestamp,
}

/// Whether upkeep is done, and works.
pub(crate) fn upkeep(tasks: &[MaintenanceFact], in_use: &[InUse], now: Timestamp) -> Assessment {
    let failing = tasks.iter().filter_map(|fact| {
        let error = fact.task.error.as_ref()?;
        Some(format!("{} of '{}' fails: {error}", fact.task.task.as_str(), fact.namespace))
    });
    let late: Vec<(TimeDelta, &MaintenanceFact)> =
        tasks.iter().filter_map(|fact| Some((lateness(fact, now)?, fact))).collect();
    let longest = late.iter().map(|(late, _)| *late).max().unwrap_or_default();
    let late = late.iter().map(|(late, fact)| {
        format!("{} of '{}' is overdue by {}", fact.task.task.as_str(), fact.namespace, span(*late))
    });
    let never = in_use.iter().filter(|used| now - used.created_at > NEW_MAX);
    let never = never.filter(|used| tasks.iter().all(|fact| fact.namespace != used.namespace));
    let never = never.map(|used| format!("nobody ever saw to '{}'", used.namespace));
    let amiss: Vec<String> = failing.chain(late).chain(never).collect();
    if amiss.is_empty() {
        return Assessment::ok(format!("nothing is overdue or fails ({} known)", number(tasks.len() as u64)));
    }
    let level = if longest > DUTY_LATE_BAD { FindingLevel::Problem } else { FindingLevel::Warning };
    let advice = "run `windlass serve`, or a node in that namespace, and see its log; GET /stats/maintenance shows \
                  every task";
    Assessment::new(level, some(amiss), advice)
}

/// By how much it is late, if nobody is at it. One that lies too far ahead was written by a clock that has been put back
/// since: it is due, but since when nobody knows.
fn lateness(fact: &MaintenanceFact, now: Timestamp) -> Option<TimeDelta> {
    let every = TimeDelta::milliseconds(i64::try_from(fact.task.every_ms).unwrap_or(i64::MAX / 4_000));
    let late = now - fact.task.next_at;
    let busy = fact.held_until.is_some_and(|until| until > now);
    (!busy && late > every + DUTY_LATE_MAX).then_some(late)
}

/// A schedule whose tick is long due.
#[derive(Debug, Clone)]
pub(crate) struct LateSchedule {
    pub namespace: String,
    pub name: String,
    pub next_at: Timestamp,
}

/// A tick without an event.
#[derive(Debug, Clone)]
pub(crate) struct FailedTick {
    pub namespace: String,
    pub schedule_id: String,
    pub tick_at: Timestamp,
    pub error: String,
}

/// Whether schedules fire in time. Those that are late for longest come first.
pub(crate) fn schedules(late: &[LateSchedule], failed: &[FailedTick], now: Timestamp) -> Assessment {
    if late.is_empty() && failed.is_empty() {
        return Assessment::ok("every tick that was due has fired");
    }
    let longest = late.iter().map(|late| now - late.next_at).max().unwrap_or_default();
    let level = if longest > TICK_LATE_BAD { FindingLevel::Problem } else { FindingLevel::Warning };
    let mut parts = Vec::new();
    if !late.is_empty() {
        let named =
            |late: &LateSchedule| format!("'{}' in '{}' by {}", late.name, late.namespace, span(now - late.next_at));
        let found = at_least(late.len(), FOUND_MAX);
        parts.push(format!("{found} late: {}", some(late.iter().map(named))));
    }
    if !failed.is_empty() {
        let named = |tick: &FailedTick| {
            let at = tick.tick_at.format("%H:%M:%SZ");
            format!("{at} of {} in '{}': {}", tick.schedule_id, tick.namespace, tick.error)
        };
        let ticks = if failed.len() == 1 { "tick" } else { "ticks" };
        let found = at_least(failed.len(), FOUND_MAX);
        parts.push(format!("{found} {ticks} without an event within the hour: {}", some(failed.iter().map(named))));
    }
    let advice = "schedules are fired by `windlass serve` and by nodes: see that one runs, and its log; \
                  GET /schedules/{id}/fires shows what each tick came to";
    Assessment::new(level, parts.join("; "), advice)
}

/// How many were given up within the hour, by namespace, counted up to [`FOUND_MAX`].
pub(crate) fn dead_letters(lately: &[(String, u64)]) -> Assessment {
    let total: u64 = lately.iter().map(|(_, dead)| dead).sum();
    let Some((worst, most)) = lately.iter().max_by_key(|(_, dead)| dead).filter(|_| total > 0) else {
        return Assessment::ok("none within the hour");
    };
    let named = |(namespace, dead): &(String, u64)| {
        format!("{} in '{namespace}'", at_least(usize::try_from(*dead).unwrap_or(FOUND_MAX), FOUND_MAX))
    };
    let level = if *most >= DEAD_MANY { FindingLevel::Warning } else { FindingLevel::Notice };
    let summary = format!("given up within the hour: {}", some(lately.iter().map(named)));
    let advice = format!(
        "`windlass dead-letters list --namespace {worst}` shows why; once the cause is gone, `windlass dead-letters \
         redrive --all --namespace {worst}` brings them back"
    );
    Assessment::new(level, summary, advice)
}

/// How many lanes each namespace has.
pub(crate) fn lanes(lanes: &[(String, u64)]) -> Assessment {
    let many: Vec<&(String, u64)> = lanes.iter().filter(|(_, lanes)| *lanes >= LANES_MANY).collect();
    if many.is_empty() {
        let most = lanes.iter().map(|(_, lanes)| *lanes).max().unwrap_or(0);
        return Assessment::ok(format!("no namespace has more than {}", number(most)));
    }
    let named = |(namespace, lanes): &&(String, u64)| format!("{} in '{namespace}'", number(*lanes));
    let advice = "each combination of type, tags and priority is a lane; claims that filter by type or tag keep a list of \
                  them in memory. Keep ids out of types and tags, and in payloads. Lanes without deliveries are removed";
    Assessment::new(FindingLevel::Notice, some(many.iter().map(named)), advice)
}

/// Tokens that have ended, or soon will.
pub(crate) fn tokens(tokens: &[Token], now: Timestamp) -> Assessment {
    let (expired, valid): (Vec<&Token>, Vec<&Token>) = tokens.iter().partition(|token| token.is_expired(now));
    let soon = |token: &&Token| token.expires_at.is_some_and(|at| at - now <= TOKEN_SOON);
    let soon: Vec<&Token> = valid.into_iter().filter(soon).collect();
    if let Some(first) = soon.first() {
        let named = |token: &&Token| {
            let left = token.expires_at.map_or_else(TimeDelta::zero, |at| at - now);
            format!("{} \"{}\" in {}", token.token_id, token.name, span(left))
        };
        let verb = if soon.len() == 1 { "expires" } else { "expire" };
        let summary = format!("{} {verb} soon: {}", soon.len(), some(soon.iter().map(named)));
        let advice = format!(
            "make another (`windlass token create`), put it where the old one is used, then `windlass token revoke {}`",
            first.token_id
        );
        return Assessment::new(FindingLevel::Warning, summary, advice);
    }
    if let Some(first) = expired.first() {
        let names = some(expired.iter().map(|token| format!("{} \"{}\"", token.token_id, token.name)));
        let summary = format!("{} of {} expired: {names}", expired.len(), count(tokens.len() as u64, "token"));
        return Assessment::new(FindingLevel::Notice, summary, format!("`windlass token revoke {}`", first.token_id));
    }
    Assessment::ok(format!("{}, none about to expire", count(tokens.len() as u64, "token")))
}

#[cfg(test)]
mod tests;
