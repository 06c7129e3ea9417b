//! Gauges: the current state of the process and of the database.

use std::time::Duration;

use windlass::{NamespaceOverview, Overview, Queue, QueueOverview};

use super::exposition::Exposition;

/// The `age` labels of processing deliveries. Each delivery is counted under one of them.
const AGES: [&str; 5] = ["<1m", "<5m", "<15m", "<30m", ">=30m"];

pub(super) fn process(text: &mut Exposition, queue: &Queue) {
    let build = [("version", env!("CARGO_PKG_VERSION")), ("database", queue.database())];
    text.gauge("windlass_build_info", "Version and database of this process; always 1.").add(&build, 1.0);
    let pools = queue.pools();
    if pools.is_empty() {
        return;
    }
    let mut connections = text.gauge("windlass_database_connections", "Database connections of this process, by pool.");
    for pool in &pools {
        connections.add(&[("pool", pool.pool), ("state", "busy")], pool.busy as f64);
        connections.add(&[("pool", pool.pool), ("state", "idle")], pool.idle as f64);
    }
    let mut limits = text.gauge("windlass_database_connections_max", "Maximum number of connections of each pool.");
    for pool in &pools {
        limits.add(&[("pool", pool.pool)], pool.max as f64);
    }
}

pub(super) fn database_read(text: &mut Exposition, up: bool, read_duration: Duration, age: Duration) {
    text.gauge("windlass_database_up", "Whether the last read of the database for these metrics succeeded.")
        .add(&[], f64::from(u8::from(up)));
    text.gauge(
        "windlass_database_read_duration_seconds",
        "Duration of the last read of the database for these metrics.",
    )
    .add(&[], read_duration.as_secs_f64());
    text.gauge("windlass_database_read_age_seconds", "Time since the last read of the database for these metrics.")
        .add(&[], age.as_secs_f64());
}

pub(super) fn database(text: &mut Exposition, overview: &Overview) {
    let namespaces = &overview.namespaces;
    deliveries(text, namespaces);
    oldest(text, namespaces);
    processing(text, namespaces);
    dead_letters(text, namespaces);
    namespace_states(text, namespaces);
    tasks(text, namespaces);
}

fn queues(namespaces: &[NamespaceOverview]) -> impl Iterator<Item = (&str, &QueueOverview)> {
    namespaces.iter().flat_map(|namespace| namespace.queues.iter().map(|queue| (namespace.namespace.as_str(), queue)))
}

fn deliveries(text: &mut Exposition, namespaces: &[NamespaceOverview]) {
    let mut family = text.gauge("windlass_queue_deliveries", "Pending and processing deliveries, by state.");
    for (namespace, queue) in queues(namespaces) {
        let states = [
            ("ready", queue.ready),
            ("delayed", queue.delayed),
            ("waiting_for_group", queue.waiting_for_group),
            ("processing", queue.processing),
        ];
        for (state, count) in states {
            let labels = [
                ("namespace", namespace),
                ("subscription", &*queue.subscription),
                ("type", &*queue.event_type),
                ("state", state),
            ];
            family.add(&labels, count as f64);
        }
    }
}

fn oldest(text: &mut Exposition, namespaces: &[NamespaceOverview]) {
    let help = "Age of the oldest ready delivery; 0 if none is ready.";
    let mut family = text.gauge("windlass_queue_oldest_ready_age_seconds", help);
    for (namespace, queue) in queues(namespaces) {
        let labels = [("namespace", namespace), ("subscription", &*queue.subscription), ("type", &*queue.event_type)];
        family.add(&labels, queue.oldest_ready.as_secs_f64());
    }
}

fn processing(text: &mut Exposition, namespaces: &[NamespaceOverview]) {
    let help = "Deliveries held by workers, by the time since they were claimed; each is counted under one age.";
    let mut family = text.gauge("windlass_processing_deliveries", help);
    for namespace in namespaces {
        for same in namespace.queues.chunk_by(|one, next| one.subscription == next.subscription) {
            for (index, age) in AGES.iter().enumerate() {
                let count: u64 = same.iter().map(|queue| queue.processing_ages[index]).sum();
                let labels =
                    [("namespace", &*namespace.namespace), ("subscription", &*same[0].subscription), ("age", *age)];
                family.add(&labels, count as f64);
            }
        }
    }
}

fn dead_letters(text: &mut Exposition, namespaces: &[NamespaceOverview]) {
    let mut family = text.gauge("windlass_dead_letters", "Dead letters, by kind of reason.");
    for (namespace, dead) in
        namespaces.iter().flat_map(|namespace| namespace.dead_letters.iter().map(move |dead| (namespace, dead)))
    {
        let labels = [
            ("namespace", &*namespace.namespace),
            ("subscription", &*dead.subscription),
            ("type", &*dead.event_type),
            ("reason", dead.reason.as_str()),
        ];
        family.add(&labels, dead.count as f64);
    }
}

fn namespace_states(text: &mut Exposition, namespaces: &[NamespaceOverview]) {
    let mut paused = text.gauge("windlass_namespace_paused", "Whether the namespace is paused.");
    for namespace in namespaces {
        paused.add(&[("namespace", &namespace.namespace)], f64::from(u8::from(namespace.paused)));
    }
    let mut nodes = text.gauge("windlass_nodes", "Nodes, by whether their last heartbeat is recent.");
    for namespace in namespaces {
        nodes.add(&[("namespace", &namespace.namespace), ("status", "alive")], namespace.nodes_alive as f64);
        nodes.add(&[("namespace", &namespace.namespace), ("status", "stale")], namespace.nodes_stale as f64);
    }
    let help = "Age of the oldest arrival that is not routed yet; 0 if there is none.";
    let mut arrival = text.gauge("windlass_oldest_arrival_age_seconds", help);
    for namespace in namespaces {
        arrival.add(&[("namespace", &namespace.namespace)], namespace.oldest_arrival.as_secs_f64());
    }
    let help = "How long the most overdue schedule has been due; 0 if none is due.";
    let mut late = text.gauge("windlass_schedule_late_seconds", help);
    for namespace in namespaces {
        late.add(&[("namespace", &namespace.namespace)], namespace.schedule_late.as_secs_f64());
    }
}

fn tasks(text: &mut Exposition, namespaces: &[NamespaceOverview]) {
    let tasks = || namespaces.iter().flat_map(|namespace| namespace.tasks.iter().map(move |task| (namespace, task)));
    let labels = |namespace: &NamespaceOverview, task: &windlass::MaintenanceOverview| {
        [("namespace", namespace.namespace.clone()), ("task", task.view.task.as_str().to_owned())]
    };
    let mut family = text
        .gauge("windlass_maintenance_overdue_seconds", "How long the maintenance task has been due; 0 if it is not.");
    for (namespace, task) in tasks() {
        add(&mut family, &labels(namespace, task), task.overdue.as_secs_f64());
    }
    let help = "When the maintenance task last ran in any process, successful or not.";
    let mut family = text.gauge("windlass_maintenance_last_run_timestamp_seconds", help);
    for (namespace, task) in tasks() {
        if let Some(at) = task.view.last_run_at {
            add(&mut family, &labels(namespace, task), at.timestamp_micros() as f64 / 1e6);
        }
    }
    let mut family =
        text.gauge("windlass_maintenance_last_run_failed", "Whether the last run of the maintenance task failed.");
    for (namespace, task) in tasks() {
        add(&mut family, &labels(namespace, task), f64::from(u8::from(task.view.error.is_some())));
    }
}

fn add(family: &mut super::exposition::Family<'_>, labels: &[(&str, String); 2], value: f64) {
    let labels = [(labels[0].0, &*labels[0].1), (labels[1].0, &*labels[1].1)];
    family.add(&labels, value);
}
