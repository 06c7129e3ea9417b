//! Why an event is not running, in a sentence, and what can be done about it.

use chrono::{DateTime, SecondsFormat, Utc};
use serde::Serialize;

use crate::clock::{Timestamp, after};
use crate::error::Result;
use crate::event::delivery::Status;
use crate::event::names;
use crate::observe::consumers::last_requested;
use crate::observe::inspect::DeliveryView;
use crate::queue::Queue;
use crate::store::{DeliveryState, GroupHead};
use crate::topology::Topology;

/// Why a delivery stands where it stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum WaitReason {
    /// It was published in a transaction and has no deliveries yet.
    Arrived,
    /// It is ready, and there are workers for it.
    AboutToRun,
    /// A worker holds it.
    Running,
    /// Its worker's lease has run out; it is about to be given back.
    AbandonedSoon,
    /// Its time has not come.
    Scheduled,
    /// It failed, and is tried again later.
    Backoff,
    /// Another event of its group goes first.
    BehindGroup,
    /// The namespace is paused.
    NamespacePaused,
    /// The subscription is paused.
    SubscriptionPaused,
    /// Its type is paused.
    TypePaused,
    /// It is ready, and nobody asks for it.
    NoWorker,
    /// Its deadline has passed; it is about to end as EXPIRED.
    Expiring,
    /// It is done.
    Completed,
    /// It is done, with errors.
    CompletedWithErrors,
    /// It was given up.
    Failed,
    /// It was not begun before its deadline.
    Expired,
    /// It was called off.
    Cancelled,
}

/// Why an event is not running, or is, or will not.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Explanation {
    /// In a word.
    pub reason: WaitReason,
    /// For people.
    pub sentence: String,
    /// When this ends by itself, where that is known.
    pub until: Option<DateTime<Utc>>,
    /// The event that goes first.
    pub behind: Option<i64>,
    /// What can be done about it.
    pub advice: Option<String>,
}

impl Queue {
    /// Why the delivery of an event to a subscription is not running.
    pub async fn explain(&self, event_id: i64, subscription: &str) -> Result<Explanation> {
        self.topology_with(subscription).await?;
        // What is paused may have changed a moment ago.
        let topology = self.reload().await?;
        self.route_before_reading().await;
        let standing = self.store().standing(self.namespace(), subscription, event_id, self.now()).await?;
        let Some(standing) = standing else {
            let since = self.store().arrived_at(self.namespace(), event_id).await?;
            return since.map(arrived).ok_or_else(|| self.no_event(event_id));
        };
        let asked = match standing.delivery.status {
            Status::Pending => {
                let consumers = self.store().consumers(self.namespace()).await?;
                last_requested(&consumers, subscription, &standing.event_type, &standing.tags)
            }
            _ => None,
        };
        let paused = paused(&topology, subscription, &standing.event_type);
        Ok(explain(&Facts { standing: &standing, paused, asked }))
    }
}

/// All that an explanation depends on.
struct Facts<'a> {
    standing: &'a DeliveryState,
    paused: Option<WaitReason>,
    /// When somebody last asked for events of its kind.
    asked: Option<Timestamp>,
}

/// Who asked within this time is taken to ask still.
const ASKING: std::time::Duration = std::time::Duration::from_secs(60);

fn paused(topology: &Topology, subscription: &str, event_type: &str) -> Option<WaitReason> {
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
    let delivery = &facts.standing.delivery;
    match delivery.status {
        Status::Pending => waiting(facts),
        Status::Processing => held(delivery, facts.standing.now),
        Status::Completed => ended(WaitReason::Completed, delivery, "It was completed"),
        Status::CompletedWithErrors => {
            ended(WaitReason::CompletedWithErrors, delivery, "It was completed, with errors,")
        }
        Status::Cancelled => ended(WaitReason::Cancelled, delivery, "It was called off"),
        Status::Failed => dead(WaitReason::Failed, facts.standing, "It was given up"),
        Status::Expired => {
            dead(WaitReason::Expired, facts.standing, "It was not begun before its deadline, and was given up")
        }
    }
}

fn arrived(since: Timestamp) -> Explanation {
    Explanation {
        advice: Some("Start `windlass serve` or a node on this database, or see the log of those that run.".to_owned()),
        ..because(
            WaitReason::Arrived,
            format!("It arrived at {} and is not routed to its subscriptions yet.", at(since)),
        )
    }
}

/// What people do takes precedence: what is paused goes on only when somebody says so. Time passes by itself.
fn waiting(facts: &Facts) -> Explanation {
    let standing = facts.standing;
    let (now, delivery) = (standing.now, &standing.delivery);
    if let Some(deadline) = standing.expires_at.filter(|deadline| *deadline <= now) {
        return expiring(deadline);
    }
    let mut explanation = match (facts.paused, delivery.ready_at) {
        (Some(reason), _) => paused_by(reason, standing),
        (None, None) => match standing.due_at.filter(|due_at| *due_at > now) {
            Some(due_at) => later(delivery, due_at),
            None => behind(standing.ahead.as_ref(), now),
        },
        (None, Some(ready_at)) if ready_at > now => later(delivery, ready_at),
        (None, Some(_)) => ready(facts),
    };
    if let Some(deadline) = standing.expires_at {
        explanation.sentence += &format!(" Unless it is begun before {}, it expires.", at(deadline));
    }
    explanation
}

fn expiring(deadline: Timestamp) -> Explanation {
    Explanation {
        advice: Some("Redrive it, once it is a dead letter, if it is to be done all the same.".to_owned()),
        ..because(
            WaitReason::Expiring,
            format!("Its deadline, {}, has passed before it was begun: it is about to end as EXPIRED.", at(deadline)),
        )
    }
}

fn paused_by(reason: WaitReason, standing: &DeliveryState) -> Explanation {
    let (what, advice) = match reason {
        WaitReason::NamespacePaused => ("The namespace is paused".to_owned(), "Resume the namespace."),
        WaitReason::SubscriptionPaused => {
            let subscription = &standing.delivery.subscription;
            (format!("The subscription '{subscription}' is paused"), "Resume the subscription.")
        }
        _ => (format!("Events of the type '{}' are paused", standing.event_type), "Resume the type."),
    };
    let later = standing.delivery.ready_at.filter(|ready_at| *ready_at > standing.now);
    let then = later.map(|ready_at| format!(" It is not to be begun before {} anyway.", at(ready_at)));
    Explanation {
        advice: Some(advice.to_owned()),
        ..because(reason, format!("{what}: nothing is handed out.{}", then.unwrap_or_default()))
    }
}

fn behind(ahead: Option<&GroupHead>, now: Timestamp) -> Explanation {
    let Some(ahead) = ahead else {
        return because(WaitReason::BehindGroup, "It waits for its turn in its group.".to_owned());
    };
    let doing = match (&ahead.worker_id, ahead.ready_at) {
        (Some(worker_id), _) => format!("which worker '{worker_id}' holds"),
        (None, Some(ready_at)) if ready_at > now => format!("which is not to be tried before {}", at(ready_at)),
        _ => "which has not been taken yet".to_owned(),
    };
    let event_id = ahead.event_id;
    Explanation {
        until: ahead.ready_at.filter(|ready_at| ahead.worker_id.is_none() && *ready_at > now),
        behind: Some(event_id),
        advice: Some(format!("See event {event_id}: when it has ended, this one can run.")),
        ..because(WaitReason::BehindGroup, format!("It waits in its group behind event {event_id}, {doing}."))
    }
}

fn later(delivery: &DeliveryView, ready_at: Timestamp) -> Explanation {
    let then = at(ready_at);
    let (reason, sentence) = match (delivery.retry_count, delivery.attempts) {
        (0, 0) => (WaitReason::Scheduled, format!("It is scheduled for {then}.")),
        (0, _) => (WaitReason::Scheduled, format!("It was put off until {then}.")),
        (failures, _) => {
            let limit = delivery.max_retries.map(|limit| format!(" of {limit}")).unwrap_or_default();
            (WaitReason::Backoff, format!("It failed (failure {failures}{limit}) and is tried again at {then}."))
        }
    };
    Explanation { until: Some(ready_at), ..because(reason, sentence) }
}

fn ready(facts: &Facts) -> Explanation {
    let standing = facts.standing;
    if facts.asked.is_some_and(|asked| after(asked, ASKING) >= standing.now) {
        let since = standing.delivery.ready_at.map(|ready_at| format!(" since {}", at(ready_at)));
        let since = since.unwrap_or_default();
        return because(
            WaitReason::AboutToRun,
            format!("It is ready{since}, and is taken as soon as a worker that asks for such events is free."),
        );
    }
    let of_type = format!("events of type '{}'", standing.event_type);
    let tagged = if standing.tags.is_empty() { "" } else { " with these tags" };
    let before = facts.asked.map(|asked| format!(" The last one asked at {}.", at(asked)));
    Explanation {
        advice: Some(format!(
            "Start a worker that asks for {of_type}, or look whether those that should are all busy, or gone."
        )),
        ..because(
            WaitReason::NoWorker,
            format!("No worker has asked for {of_type}{tagged} in the last minute.{}", before.unwrap_or_default()),
        )
    }
}

fn held(delivery: &DeliveryView, now: Timestamp) -> Explanation {
    let worker_id = delivery.worker_id.as_deref().unwrap_or_default();
    let since = delivery.picked_at.map(|picked_at| format!(" since {}", at(picked_at))).unwrap_or_default();
    let begun = if delivery.started_at.is_some() { "" } else { " and has not said that it began" };
    let holds = format!("Worker '{worker_id}' holds it{since}{begun}");
    match delivery.lease_expires_at {
        Some(end) if end <= now => Explanation {
            advice: Some(format!("If nothing happens, look whether worker '{worker_id}' lives, and reset the event.")),
            ..because(
                WaitReason::AbandonedSoon,
                format!("{holds}; its lease ran out at {}, so the event is about to be given back.", at(end)),
            )
        },
        end => {
            let until = end.map(|end| format!("; its lease is good until {}", at(end))).unwrap_or_default();
            let advice = "If the worker is gone, wait for the lease to end, or reset the event.".to_owned();
            Explanation { until: end, advice: Some(advice), ..because(WaitReason::Running, format!("{holds}{until}.")) }
        }
    }
}

fn ended(reason: WaitReason, delivery: &DeliveryView, how: &str) -> Explanation {
    because(reason, format!("{how} at {}.", at(delivery.updated_at)))
}

fn dead(reason: WaitReason, standing: &DeliveryState, how: &str) -> Explanation {
    let error = standing.delivery.error_message.as_deref().map(|error| format!(" ({})", shortened(error)));
    let why = standing.dead_because.as_ref().map(|reason| format!(": {reason}{}", error.unwrap_or_default()));
    let why = why.unwrap_or_default();
    let advice = match standing.dead_because {
        Some(_) => "Redrive it: then it is PENDING again, with fresh retries.",
        None => "It was taken out of the dead letters, so it cannot be redriven. Publish it again if it is needed.",
    };
    Explanation {
        advice: Some(advice.to_owned()),
        ..because(reason, format!("{how} at {}{why}.", at(standing.delivery.updated_at)))
    }
}

fn because(reason: WaitReason, sentence: String) -> Explanation {
    Explanation { reason, sentence, until: None, behind: None, advice: None }
}

/// The most that an explanation shows of an error.
const ERROR_CHARS_MAX: usize = 200;

/// The beginning of an error's first line.
fn shortened(error: &str) -> String {
    let line = error.lines().next().unwrap_or_default();
    let short: String = line.chars().take(ERROR_CHARS_MAX).collect();
    if short.len() < error.len() { short + "…" } else { short }
}

/// An instant, for people.
fn at(instant: Timestamp) -> String {
    instant.to_rfc3339_opts(SecondsFormat::Secs, true)
}

#[cfg(test)]
mod tests;
