//! The workloads, as data.

use super::figures::Figure;
use super::protocol::Variant;
use super::systems::{Place, System};

#[derive(Clone, Copy, Debug)]
pub struct Workload {
    pub id: &'static str,
    /// What it is, in a line of the report.
    pub title: &'static str,
    pub steps: Steps,
    pub who: Who,
    pub variants: &'static [Variant],
    /// Too long to be measured in every round.
    pub once: bool,
    /// Its rate is shown as a share of the one of this workload.
    pub against: Option<&'static str>,
}

#[derive(Clone, Copy, Debug)]
pub enum Steps {
    Publish {
        callers: usize,
        batch: usize,
        events: usize,
    },
    Drain(Backlog),
    /// Both, with larger payloads.
    Payload {
        bytes: usize,
        events: usize,
    },
    Steady {
        seconds: u64,
    },
    Latency {
        rate: Rate,
        seconds: u64,
    },
    Hold {
        holder: Holder,
        seconds: u64,
    },
}

/// What is published and drained.
#[derive(Clone, Copy, Debug)]
pub struct Backlog {
    /// At most: slow systems drain what they can in ten seconds.
    pub events: usize,
    /// Published beforehand and mostly left; 0: only what is drained.
    pub waiting: usize,
    pub tag_sets: usize,
    /// The sets come in no order; else in turn.
    pub mixed: bool,
    pub groups: usize,
    pub fail_percent: u64,
    pub subscriptions: usize,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Rate {
    PerSecond(u64),
    /// Of the most that the system has reached in this run.
    OfMost(f64),
}

/// Who gets in the way of vacuum.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Holder {
    /// Nobody, for comparison.
    Nobody,
    /// An idle REPEATABLE READ transaction.
    Snapshot,
    /// An idle transaction that has written.
    Writer,
    /// Four that overlap, and read all tables.
    Readers,
}

#[derive(Clone, Copy, Debug)]
pub enum Who {
    All,
    Ours,
    Postgres,
    Only(&'static [&'static str]),
}

impl Workload {
    pub fn is_for(&self, system: &System) -> bool {
        match self.who {
            Who::All => true,
            Who::Ours => system.is_ours() && system.name != "windlass-http",
            Who::Postgres => system.place == Place::Postgres,
            Who::Only(names) => names.contains(&system.name),
        }
    }

    /// Claiming in loops is an alternative of ours, and only for a plain backlog.
    pub fn variants_of(&self, system: &System) -> Vec<Variant> {
        let has_loops = system.is_ours() && system.name != "windlass-http";
        self.variants.iter().copied().filter(|variant| *variant != Variant::Loops || has_loops).collect()
    }

    pub fn figures(&self) -> &'static [Figure] {
        match self.steps {
            Steps::Publish { batch: 100, .. } => &[Figure::Rate, Figure::WalBytes, Figure::Transactions],
            Steps::Drain(_) if self.id == "drain" => &[Figure::Rate, Figure::WalBytes, Figure::Transactions],
            Steps::Publish { .. } | Steps::Drain(_) | Steps::Steady { .. } => &[Figure::Rate],
            Steps::Payload { .. } => &[Figure::Published, Figure::Rate],
            Steps::Latency { .. } => &[Figure::P50Ms, Figure::P95Ms, Figure::P99Ms, Figure::MaxMs, Figure::Offered],
            Steps::Hold { .. } => &[Figure::First, Figure::Last, Figure::Kept, Figure::After, Figure::Recovered],
        }
    }
}

const RECOMMENDED: &[Variant] = &[Variant::Recommended];
const TUNED: &[Variant] = &[Variant::Tuned];
const BOTH: &[Variant] = &[Variant::Recommended, Variant::Tuned];
const ALL: &[Variant] = &[Variant::Recommended, Variant::Tuned, Variant::Loops];

pub const PLAIN: Backlog =
    Backlog { events: 100_000, waiting: 0, tag_sets: 0, mixed: false, groups: 0, fail_percent: 0, subscriptions: 1 };

const fn workload(id: &'static str, title: &'static str, steps: Steps, variants: &'static [Variant]) -> Workload {
    Workload { id, title, steps, who: Who::All, variants, once: false, against: None }
}

const fn publish(id: &'static str, title: &'static str, callers: usize, batch: usize, events: usize) -> Workload {
    workload(id, title, Steps::Publish { callers, batch, events }, RECOMMENDED)
}

const fn ours(id: &'static str, title: &'static str, backlog: Backlog) -> Workload {
    Workload { who: Who::Ours, ..workload(id, title, Steps::Drain(backlog), BOTH) }
}

const fn hold(id: &'static str, title: &'static str, holder: Holder, seconds: u64) -> Workload {
    let steps = Steps::Hold { holder, seconds };
    Workload { who: Who::Postgres, once: true, ..workload(id, title, steps, TUNED) }
}

pub const WORKLOADS: &[Workload] = &[
    publish("publish-1", "publish, one caller, one event a call", 1, 1, 3_000),
    publish("publish-16", "publish, 16 callers, one event a call", 16, 1, 20_000),
    publish("publish-256", "publish, 256 callers, one event a call", 256, 1, 50_000),
    publish("publish-batch-100", "publish, 4 callers, 100 events a call", 4, 100, 100_000),
    publish("publish-batch-1000", "publish, 4 callers, 1,000 events a call", 4, 1_000, 200_000),
    workload("drain", "drain a backlog of up to 100,000 with a handler that does nothing", Steps::Drain(PLAIN), ALL),
    workload(
        "steady",
        "2 publishers, 100 events a call, and the workers, at once",
        Steps::Steady { seconds: 15 },
        BOTH,
    ),
    workload(
        "latency-50",
        "from the publisher's call to the start of the handler, 50 a second",
        Steps::Latency { rate: Rate::PerSecond(50), seconds: 20 },
        BOTH,
    ),
    workload(
        "latency-70",
        "the same, at 70 % of the most: of the lower of steady and publish-16",
        Steps::Latency { rate: Rate::OfMost(0.7), seconds: 10 },
        RECOMMENDED,
    ),
    workload(
        "payload-2k",
        "payloads of 2 KB: publish in batches of 100, and drain",
        Steps::Payload { bytes: 2_000, events: 50_000 },
        TUNED,
    ),
    workload(
        "payload-20k",
        "payloads of 20 KB: publish in batches of 100, and drain",
        Steps::Payload { bytes: 20_000, events: 10_000 },
        TUNED,
    ),
    Workload {
        who: Who::Only(&["windlass-postgres", "windlass-sqlite", "pgmq", "graphile-worker"]),
        once: true,
        against: Some("drain"),
        ..workload(
            "backlog",
            "drain 100,000 while 1,000,000 wait",
            Steps::Drain(Backlog { waiting: 1_000_000, ..PLAIN }),
            BOTH,
        )
    },
    Workload {
        against: Some("drain"),
        ..ours("tag-sets", "drain, events of 1,000 tag sets in turn", Backlog { tag_sets: 1_000, ..PLAIN })
    },
    Workload {
        against: Some("drain"),
        ..ours(
            "tag-sets-mixed",
            "drain, events of 1,000 tag sets in no order",
            Backlog { tag_sets: 1_000, mixed: true, ..PLAIN },
        )
    },
    ours("groups-1", "drain, one ordered group", Backlog { events: 2_000, groups: 1, ..PLAIN }),
    ours("groups-100", "drain, 100 ordered groups", Backlog { events: 20_000, groups: 100, ..PLAIN }),
    ours("groups-10000", "drain, 10,000 ordered groups", Backlog { events: 20_000, groups: 10_000, ..PLAIN }),
    Workload {
        against: Some("drain"),
        ..workload(
            "failures",
            "drain, 10 % fail once and are tried again",
            Steps::Drain(Backlog { events: 20_000, fail_percent: 10, ..PLAIN }),
            BOTH,
        )
    },
    ours("fan-out-1", "drain by 1 subscription, deliveries/s", Backlog { events: 30_000, ..PLAIN }),
    ours("fan-out-3", "drain by 3 subscriptions, deliveries/s", Backlog { events: 30_000, subscriptions: 3, ..PLAIN }),
    ours(
        "fan-out-10",
        "drain by 10 subscriptions, deliveries/s",
        Backlog { events: 10_000, subscriptions: 10, ..PLAIN },
    ),
    hold("alone", "steady for as long, beside nobody", Holder::Nobody, 180),
    hold("held-snapshot", "steady, beside an idle REPEATABLE READ transaction", Holder::Snapshot, 180),
    hold("long-writer", "steady, beside an idle transaction that has written a row", Holder::Writer, 180),
    hold("readers", "steady, beside four overlapping readers of all tables", Holder::Readers, 90),
];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compare::systems::find;

    #[test]
    fn names_are_unique_and_references_exist() {
        for (at, workload) in WORKLOADS.iter().enumerate() {
            assert!(WORKLOADS[..at].iter().all(|other| other.id != workload.id), "{}", workload.id);
            assert!(workload.against.is_none_or(|id| WORKLOADS.iter().any(|other| other.id == id)));
            if let Who::Only(names) = workload.who {
                assert!(names.iter().all(|name| find(name).is_some()), "{}", workload.id);
            }
        }
    }

    #[test]
    fn loops_are_measured_for_our_own_library_only() {
        let drain = WORKLOADS.iter().find(|workload| workload.id == "drain").unwrap();
        assert_eq!(drain.variants_of(find("windlass-sqlite").unwrap()), ALL);
        assert_eq!(drain.variants_of(find("windlass-http").unwrap()), BOTH);
        assert_eq!(drain.variants_of(find("pgmq").unwrap()), BOTH);
    }
}
