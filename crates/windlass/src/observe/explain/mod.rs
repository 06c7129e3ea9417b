//! Explains why a delivery is not running, in one sentence, with advice.
//!
//! The decision is in [`explain`], from facts that [`Queue::explain`] reads.

use chrono::{DateTime, SecondsFormat, Utc};
use serde::{Deserialize, Serialize};

use crate::clock::{Timestamp, after};
use crate::error::Result;
use crate::event::delivery::Status;
use crate::event::names;
use crate::observe::consumers::last_requested;
use crate::observe::inspect::DeliveryView;
use crate::queue::Queue;
use crate::store::{DeliveryState, GroupHead};
use crate::topology::Topology;

/// Why a delivery has its current status.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum WaitReason {
    /// It was published in a transaction and is not routed yet.
    Arrived,
    /// It is ready, and workers request such events.
    AboutToRun,
    /// A worker holds its lease.
    Running,
    /// Its lease has expired; it is about to be released.
    AbandonedSoon,
    /// It is not due yet.
    Scheduled,
    /// It failed and waits for its retry.
    Backoff,
    /// It waits for an earlier event of its group.
    BehindGroup,
    /// The namespace is paused.
    NamespacePaused,
    /// The subscription is paused.
    SubscriptionPaused,
    /// Its type is paused.
    TypePaused,
    /// It is ready, and no worker requests such events.
    NoWorker,
    /// Its deadline has passed; it is about to become EXPIRED.
    Expiring,
    /// It is completed.
    Completed,
    /// It is completed, with errors.
    CompletedWithErrors,
    /// It failed and is a dead letter.
    Failed,
    /// It was not started before its deadline.
    Expired,
    /// It was canceled.
    Cancelled,
}

/// Why a delivery is running, not running yet, or finished.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Explanation {
    /// The reason.
    pub reason: WaitReason,
    /// The explanation for people.
    pub sentence: String,
    /// When the state changes without intervention, if known.
    pub until: Option<DateTime<Utc>>,
    /// The earlier event of the group that it waits for.
    pub behind: Option<i64>,
    /// What can be done about it.
    pub advice: Option<String>,
}

impl Queue {
    /// Explains why the delivery of an event to a subscription is not running.
    pub async fn explain(&self, event_id: i64, subscription: &str) -> Result<Explanation> {
        self.topology_with(subscription).await?;
        // The cached topology may not include a recent pause.
        let topology = self.reload().await?;
        self.route_before_reading().await;
        let state = self.store().delivery_state(self.namespace(), subscription, event_id, self.now()).await?;
        let Some(state) = state else {
            let arrived_at = self.store().arrived_at(self.namespace(), event_id).await?;
            return arrived_at.map(explain_arrived).ok_or_else(|| self.event_not_found(event_id));
        };
        let last_requested = match state.delivery.status {
            Status::Pending => {
                let consumers = self.store().consumers(self.namespace()).await?;
                last_requested(&consumers, subscription, &state.event_type, &state.tags)
            }
            _ => None,
        };
        let paused = pause_reason(&topology, subscription, &state.event_type);
        Ok(explain(&Facts { state: &state, paused, last_requested }))
    }
}

/// The facts from which an explanation is derived.
struct Facts<'a> {
    state: &'a DeliveryState,
    paused: Option<WaitReason>,
    /// When a worker last requested such events.
    last_requested: Option<Timestamp>,
}

/// A consumer recorded within this time counts as active.
const CONSUMER_ACTIVE: std::time::Duration = std::time::Duration::from_secs(60);

fn pause_reason(topology: &Topology, subscription: &str, event_type: &str) -> Option<WaitReason> {
    let type_paused = topology.namespace.paused_types.iter().any(|pattern| names::type_matches(pattern, event_type));
    if topology.namespace.paused {
        Some(WaitReason::NamespacePaused)
    } else if topology.subscription(subscription).is_some_and(|found| found.paused) {
        Some(WaitReason::SubscriptionPaused)
    } else {
        type_paused.then_some(WaitReason::TypePaused)
    }
}

fn explain(facts: &Facts) -> Explanation {
    let delivery = &facts.state.delivery;
    match delivery.status {
        Status::Pending => explain_pending(facts),
        Status::Processing => explain_processing(delivery, facts.state.now),
        Status::Completed => explain_finished(WaitReason::Completed, delivery, "It was completed"),
        Status::CompletedWithErrors => {
            explain_finished(WaitReason::CompletedWithErrors, delivery, "It was completed, with errors,")
        }
        Status::Cancelled => explain_finished(WaitReason::Cancelled, delivery, "It was canceled"),
        Status::Failed => explain_dead(WaitReason::Failed, facts.state, "It was dead-lettered"),
        Status::Expired => {
            explain_dead(WaitReason::Expired, facts.state, "It was not started before its deadline and expired")
        }
    }
}

fn explain_arrived(arrived_at: Timestamp) -> Explanation {
    Explanation {
        advice: Some(
            "Start `windlass serve` or a node on this database, or check the log of those that run.".to_owned(),
        ),
        ..explanation(
            WaitReason::Arrived,
            format!("It was published at {} and is not routed to its subscriptions yet.", format_time(arrived_at)),
        )
    }
}

/// A pause is reported before a due time: only an operator ends a pause, while a due time passes by itself.
fn explain_pending(facts: &Facts) -> Explanation {
    let state = facts.state;
    let (now, delivery) = (state.now, &state.delivery);
    if let Some(deadline) = state.expires_at.filter(|deadline| *deadline <= now) {
        return explain_expiring(deadline);
    }
    let mut explanation = match (facts.paused, delivery.ready_at) {
        (Some(reason), _) => explain_paused(reason, state),
        (None, None) => match state.due_at.filter(|due_at| *due_at > now) {
            Some(due_at) => explain_delayed(delivery, due_at),
            None => explain_behind_group(state.ahead.as_ref(), now),
        },
        (None, Some(ready_at)) if ready_at > now => explain_delayed(delivery, ready_at),
        (None, Some(_)) => explain_ready(facts),
    };
    if let Some(deadline) = state.expires_at {
        explanation.sentence += &format!(" Unless it starts before {}, it expires.", format_time(deadline));
    }
    explanation
}

fn explain_expiring(deadline: Timestamp) -> Explanation {
    Explanation {
        advice: Some("If it is still needed, redrive it once it is a dead letter.".to_owned()),
        ..explanation(
            WaitReason::Expiring,
            format!(
                "Its deadline, {}, has passed before it was started: it is about to become EXPIRED.",
                format_time(deadline)
            ),
        )
    }
}

fn explain_paused(reason: WaitReason, state: &DeliveryState) -> Explanation {
    let (cause, advice) = match reason {
        WaitReason::NamespacePaused => ("The namespace is paused".to_owned(), "Resume the namespace."),
        WaitReason::SubscriptionPaused => {
            let subscription = &state.delivery.subscription;
            (format!("The subscription '{subscription}' is paused"), "Resume the subscription.")
        }
        _ => (format!("Events of the type '{}' are paused", state.event_type), "Resume the type."),
    };
    let later = state.delivery.ready_at.filter(|ready_at| *ready_at > state.now);
    let then = later.map(|ready_at| format!(" It is not due before {} anyway.", format_time(ready_at)));
    Explanation {
        advice: Some(advice.to_owned()),
        ..explanation(reason, format!("{cause}: nothing can be claimed.{}", then.unwrap_or_default()))
    }
}

fn explain_behind_group(ahead: Option<&GroupHead>, now: Timestamp) -> Explanation {
    let Some(ahead) = ahead else {
        return explanation(WaitReason::BehindGroup, "It waits for an earlier event of its group.".to_owned());
    };
    let ahead_state = match (&ahead.worker_id, ahead.ready_at) {
        (Some(worker_id), _) => format!("which worker '{worker_id}' holds"),
        (None, Some(ready_at)) if ready_at > now => format!("which is not due before {}", format_time(ready_at)),
        _ => "which has not been claimed yet".to_owned(),
    };
    let event_id = ahead.event_id;
    Explanation {
        until: ahead.ready_at.filter(|ready_at| ahead.worker_id.is_none() && *ready_at > now),
        behind: Some(event_id),
        advice: Some(format!("See event {event_id}: when it has finished, this one can run.")),
        ..explanation(WaitReason::BehindGroup, format!("It waits in its group behind event {event_id}, {ahead_state}."))
    }
}

fn explain_delayed(delivery: &DeliveryView, ready_at: Timestamp) -> Explanation {
    let due = format_time(ready_at);
    let (reason, sentence) = match (delivery.retry_count, delivery.attempts) {
        (0, 0) => (WaitReason::Scheduled, format!("It is scheduled for {due}.")),
        (0, _) => (WaitReason::Scheduled, format!("It was snoozed until {due}.")),
        (failures, _) => {
            let limit = delivery.max_retries.map(|limit| format!(" of {limit}")).unwrap_or_default();
            (WaitReason::Backoff, format!("It failed (failure {failures}{limit}) and is retried at {due}."))
        }
    };
    Explanation { until: Some(ready_at), ..explanation(reason, sentence) }
}

fn explain_ready(facts: &Facts) -> Explanation {
    let state = facts.state;
    if facts.last_requested.is_some_and(|requested| after(requested, CONSUMER_ACTIVE) >= state.now) {
        let since = state.delivery.ready_at.map(|ready_at| format!(" since {}", format_time(ready_at)));
        let since = since.unwrap_or_default();
        return explanation(
            WaitReason::AboutToRun,
            format!("It is ready{since} and will be claimed as soon as a worker for such events is free."),
        );
    }
    let of_type = format!("events of type '{}'", state.event_type);
    let tagged = if state.tags.is_empty() { "" } else { " with these tags" };
    let last_request =
        facts.last_requested.map(|requested| format!(" The last request was at {}.", format_time(requested)));
    Explanation {
        advice: Some(format!(
            "Start a worker that claims {of_type}, or check whether the existing workers are all busy or gone."
        )),
        ..explanation(
            WaitReason::NoWorker,
            format!(
                "No worker has requested {of_type}{tagged} in the last minute.{}",
                last_request.unwrap_or_default()
            ),
        )
    }
}

fn explain_processing(delivery: &DeliveryView, now: Timestamp) -> Explanation {
    let worker_id = delivery.worker_id.as_deref().unwrap_or_default();
    let since = delivery.picked_at.map(|picked_at| format!(" since {}", format_time(picked_at))).unwrap_or_default();
    let start = if delivery.started_at.is_some() { "" } else { " and has not reported a start" };
    let holder = format!("Worker '{worker_id}' has held it{since}{start}");
    match delivery.lease_expires_at {
        Some(end) if end <= now => Explanation {
            advice: Some(format!(
                "If nothing changes, check whether worker '{worker_id}' is alive, and reset the event."
            )),
            ..explanation(
                WaitReason::AbandonedSoon,
                format!("{holder}; its lease expired at {}, so the event is about to be released.", format_time(end)),
            )
        },
        end => {
            let until = end.map(|end| format!("; its lease is valid until {}", format_time(end))).unwrap_or_default();
            let advice = "If the worker is gone, wait for the lease to expire, or reset the event.".to_owned();
            Explanation {
                until: end,
                advice: Some(advice),
                ..explanation(WaitReason::Running, format!("{holder}{until}."))
            }
        }
    }
}

fn explain_finished(reason: WaitReason, delivery: &DeliveryView, how: &str) -> Explanation {
    explanation(reason, format!("{how} at {}.", format_time(delivery.updated_at)))
}

fn explain_dead(reason: WaitReason, state: &DeliveryState, how: &str) -> Explanation {
    let error = state.delivery.error_message.as_deref().map(|error| format!(" ({})", shorten(error)));
    let why = state.dead_because.as_ref().map(|reason| format!(": {reason}{}", error.unwrap_or_default()));
    let why = why.unwrap_or_default();
    let advice = match state.dead_because {
        Some(_) => "Redrive it: it becomes PENDING again, with fresh retries.",
        None => "It was purged from the dead letters, so it cannot be redriven. Publish it again if it is needed.",
    };
    Explanation {
        advice: Some(advice.to_owned()),
        ..explanation(reason, format!("{how} at {}{why}.", format_time(state.delivery.updated_at)))
    }
}

fn explanation(reason: WaitReason, sentence: String) -> Explanation {
    Explanation { reason, sentence, until: None, behind: None, advice: None }
}

/// The most characters of an error that an explanation shows.
const ERROR_CHARS_MAX: usize = 200;

/// The first line of an error, cut to the limit.
fn shorten(error: &str) -> String {
    let line = error.lines().next().unwrap_or_default();
    let short: String = line.chars().take(ERROR_CHARS_MAX).collect();
    if short.len() < error.len() { short + "…" } else { short }
}

/// A timestamp for people.
fn format_time(time: Timestamp) -> String {
    time.to_rfc3339_opts(SecondsFormat::Secs, true)
}

#[cfg(test)]
mod tests;
