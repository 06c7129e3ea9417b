//! The workloads, as data.

use super::figures::Figure;
use super::protocol::Variant;
use super::systems::{Storage, System};

#[derive(Clone, Copy, Debug)]
pub struct Workload {
    pub id: &'static str,
    /// Its description in the report.
    pub title: &'static str,
    pub steps: Steps,
    pub systems: SystemFilter,
    pub variants: &'static [Variant],
    /// Measured only in the first round because it takes long.
    pub once: bool,
    /// The workload whose rate its own is divided by in the report.
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
    /// Publish and drain with larger payloads.
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
        blocker: VacuumBlocker,
        seconds: u64,
    },
}

/// The events that are published and drained.
#[derive(Clone, Copy, Debug)]
pub struct Backlog {
    /// The most events: slow systems drain what they can in ten seconds.
    pub events: usize,
    /// Events published beforehand and mostly left; 0 to publish only what is drained.
    pub waiting: usize,
    pub tag_sets: usize,
    /// Tag sets in random order instead of in turn.
    pub mixed: bool,
    pub groups: usize,
    pub fail_percent: u64,
    pub subscriptions: usize,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Rate {
    PerSecond(u64),
    /// A share of the highest rate that the system reached in this run.
    ShareOfMax(f64),
}

/// What keeps vacuum from removing dead rows.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum VacuumBlocker {
    /// Nothing, for comparison.
    None,
    /// An idle REPEATABLE READ transaction.
    Snapshot,
    /// An idle transaction that has written.
    Writer,
    /// Four overlapping transactions that read all tables.
    Readers,
}

#[derive(Clone, Copy, Debug)]
pub enum SystemFilter {
    All,
    Ours,
    Postgres,
    Only(&'static [&'static str]),
}

impl Workload {
    pub fn is_for(&self, system: &System) -> bool {
        match self.systems {
            SystemFilter::All => true,
            SystemFilter::Ours => system.is_ours() && system.name != "windlass-http",
            SystemFilter::Postgres => system.storage == Storage::Postgres,
            SystemFilter::Only(names) => names.contains(&system.name),
        }
    }

    /// Loops exist only for the Windlass library and a plain backlog.
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
    Workload { id, title, steps, systems: SystemFilter::All, variants, once: false, against: None }
}

const fn publish(id: &'static str, title: &'static str, callers: usize, batch: usize, events: usize) -> Workload {
    workload(id, title, Steps::Publish { callers, batch, events }, RECOMMENDED)
}

const fn ours(id: &'static str, title: &'static str, backlog: Backlog) -> Workload {
    Workload { systems: SystemFilter::Ours, ..workload(id, title, Steps::Drain(backlog), BOTH) }
}

const fn hold(id: &'static str, title: &'static str, blocker: VacuumBlocker, seconds: u64) -> Workload {
    let steps = Steps::Hold { blocker, seconds };
    Workload { systems: SystemFilter::Postgres, once: true, ..workload(id, title, steps, TUNED) }
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
        "2 publishers with 100 events a call, and workers, concurrently",
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
        "the same, at 70 % of the highest rate: the lower of steady and publish-16",
        Steps::Latency { rate: Rate::ShareOfMax(0.7), seconds: 10 },
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
        systems: SystemFilter::Only(&["windlass-postgres", "windlass-sqlite", "pgmq", "graphile-worker"]),
        once: true,
        against: Some("drain"),
        ..workload(
            "backlog",
            "drain 100,000 of 1,000,000 pending events",
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
            "drain, events of 1,000 tag sets in random order",
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
            "drain, 10 % fail once and are retried",
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
    hold("alone", "steady for the same time, without a blocker", VacuumBlocker::None, 180),
    hold("held-snapshot", "steady, with an idle REPEATABLE READ transaction", VacuumBlocker::Snapshot, 180),
    hold("long-writer", "steady, with an idle transaction that has written a row", VacuumBlocker::Writer, 180),
    hold("readers", "steady, with four overlapping readers of all tables", VacuumBlocker::Readers, 90),
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
            if let SystemFilter::Only(names) = workload.systems {
                assert!(names.iter().all(|name| find(name).is_some()), "{}", workload.id);
            }
        }
    }

    #[test]
    fn loops_are_measured_only_for_the_windlass_library() {
        let drain = WORKLOADS.iter().find(|workload| workload.id == "drain").unwrap();
        assert_eq!(drain.variants_of(find("windlass-sqlite").unwrap()), ALL);
        assert_eq!(drain.variants_of(find("windlass-http").unwrap()), BOTH);
        assert_eq!(drain.variants_of(find("pgmq").unwrap()), BOTH);
    }
}
