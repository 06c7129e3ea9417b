//! What is in the database, and in the process, at this moment.

use std::time::Duration;

use windlass::{NamespaceOverview, Overview, Queue, QueueOverview};

use super::exposition::Exposition;

/// How long deliveries have been held; each is counted under one of these.
const AGES: [&str; 5] = ["<1m", "<5m", "<15m", "<30m", ">=30m"];

pub(super) fn process(text: &mut Exposition, queue: &Queue) {
    let build = [("version", env!("CARGO_PKG_VERSION")), ("database", queue.database())];
    text.gauge("windlass_build_info", "Which version this is, and on which database; always 1.").add(&build, 1.0);
    let pools = queue.pools();
    if pools.is_empty() {
        return;
    }
    let mut connections = text
        .gauge("windlass_database_connections", "This process's connections to the database, by what they are for.");
    for pool in &pools {
        connections.add(&[("pool", pool.pool), ("state", "busy")], pool.busy as f64);
        connections.add(&[("pool", pool.pool), ("state", "idle")], pool.idle as f64);
    }
    let mut most = text.gauge("windlass_database_connections_max", "The most connections of each kind.");
    for pool in &pools {
        most.add(&[("pool", pool.pool)], pool.max as f64);
    }
}

pub(super) fn reading(text: &mut Exposition, up: bool, took: Duration, age: Duration) {
    text.gauge("windlass_database_up", "Whether the database answered when it was last read for these metrics.")
        .add(&[], f64::from(u8::from(up)));
    text.gauge("windlass_database_read_duration_seconds", "How long reading the database for these metrics took.")
        .add(&[], took.as_secs_f64());
    text.gauge("windlass_database_read_age_seconds", "How long ago the database was read for these metrics.")
        .add(&[], age.as_secs_f64());
}

pub(super) fn database(text: &mut Exposition, overview: &Overview) {
    let all = &overview.namespaces;
    deliveries(text, all);
    oldest(text, all);
    processing(text, all);
    dead_letters(text, all);
    namespaces(text, all);
    tasks(text, all);
}

fn queues(all: &[NamespaceOverview]) -> impl Iterator<Item = (&str, &QueueOverview)> {
    all.iter().flat_map(|of| of.queues.iter().map(|queue| (of.namespace.as_str(), queue)))
}

fn deliveries(text: &mut Exposition, all: &[NamespaceOverview]) {
    let mut family = text.gauge("windlass_queue_deliveries", "Live deliveries, by where they stand.");
    for (namespace, queue) in queues(all) {
        let states = [
            ("ready", queue.ready),
            ("delayed", queue.delayed),
            ("waiting_for_group", queue.waiting_for_group),
            ("processing", queue.processing),
        ];
        for (state, count) in states {
            let of = [
                ("namespace", namespace),
                ("subscription", &*queue.subscription),
                ("type", &*queue.event_type),
                ("state", state),
            ];
            family.add(&of, count as f64);
        }
    }
}

fn oldest(text: &mut Exposition, all: &[NamespaceOverview]) {
    let help = "For how long the delivery has been ready that has been so for longest; 0 where none is.";
    let mut family = text.gauge("windlass_queue_oldest_ready_age_seconds", help);
    for (namespace, queue) in queues(all) {
        let of = [("namespace", namespace), ("subscription", &*queue.subscription), ("type", &*queue.event_type)];
        family.add(&of, queue.oldest_ready.as_secs_f64());
    }
}

fn processing(text: &mut Exposition, all: &[NamespaceOverview]) {
    let help = "Deliveries that workers hold, by for how long; each is counted under one age.";
    let mut family = text.gauge("windlass_processing_deliveries", help);
    for of in all {
        for same in of.queues.chunk_by(|one, next| one.subscription == next.subscription) {
            for (place, age) in AGES.iter().enumerate() {
                let count: u64 = same.iter().map(|queue| queue.processing_ages[place]).sum();
                let labels = [("namespace", &*of.namespace), ("subscription", &*same[0].subscription), ("age", *age)];
                family.add(&labels, count as f64);
            }
        }
    }
}

fn dead_letters(text: &mut Exposition, all: &[NamespaceOverview]) {
    let mut family = text.gauge("windlass_dead_letters", "Dead letters there are, by the kind of reason.");
    for (of, dead) in all.iter().flat_map(|of| of.dead_letters.iter().map(move |dead| (of, dead))) {
        let labels = [
            ("namespace", &*of.namespace),
            ("subscription", &*dead.subscription),
            ("type", &*dead.event_type),
            ("reason", dead.reason.as_str()),
        ];
        family.add(&labels, dead.count as f64);
    }
}

fn namespaces(text: &mut Exposition, all: &[NamespaceOverview]) {
    let mut paused = text.gauge("windlass_namespace_paused", "Whether a namespace is paused.");
    for of in all {
        paused.add(&[("namespace", &of.namespace)], f64::from(u8::from(of.paused)));
    }
    let mut nodes = text.gauge("windlass_nodes", "Nodes, by whether they were heard of lately.");
    for of in all {
        nodes.add(&[("namespace", &of.namespace), ("status", "alive")], of.nodes_alive as f64);
        nodes.add(&[("namespace", &of.namespace), ("status", "stale")], of.nodes_stale as f64);
    }
    let help = "For how long the oldest event published in a transaction has waited to be routed; 0 where none waits.";
    let mut arrival = text.gauge("windlass_oldest_arrival_age_seconds", help);
    for of in all {
        arrival.add(&[("namespace", &of.namespace)], of.oldest_arrival.as_secs_f64());
    }
    let help = "For how long the schedule has been due that is due for longest; 0 where none is.";
    let mut late = text.gauge("windlass_schedule_late_seconds", help);
    for of in all {
        late.add(&[("namespace", &of.namespace)], of.schedule_late.as_secs_f64());
    }
}

fn tasks(text: &mut Exposition, all: &[NamespaceOverview]) {
    let tasks = || all.iter().flat_map(|of| of.tasks.iter().map(move |task| (of, task)));
    let labels = |of: &NamespaceOverview, task: &windlass::MaintenanceOverview| {
        [("namespace", of.namespace.clone()), ("task", task.view.task.as_str().to_owned())]
    };
    let mut family =
        text.gauge("windlass_maintenance_overdue_seconds", "For how long upkeep has been due; 0 where it is not.");
    for (of, task) in tasks() {
        add(&mut family, &labels(of, task), task.overdue.as_secs_f64());
    }
    let help = "When upkeep was last done by any process, well or not.";
    let mut family = text.gauge("windlass_maintenance_last_run_timestamp_seconds", help);
    for (of, task) in tasks() {
        if let Some(at) = task.view.last_run_at {
            add(&mut family, &labels(of, task), at.timestamp_micros() as f64 / 1e6);
        }
    }
    let mut family = text.gauge("windlass_maintenance_last_run_failed", "Whether upkeep failed when it was last done.");
    for (of, task) in tasks() {
        add(&mut family, &labels(of, task), f64::from(u8::from(task.view.error.is_some())));
    }
}

fn add(family: &mut super::exposition::Family<'_>, labels: &[(&str, String); 2], value: f64) {
    let labels = [(labels[0].0, &*labels[0].1), (labels[1].0, &*labels[1].1)];
    family.add(&labels, value);
}
