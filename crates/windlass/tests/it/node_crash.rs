//! Nodes in child processes that are killed, stopped and replaced while they work.

use std::collections::BTreeSet;
use std::sync::Mutex;
use std::time::Duration;

use fastrand::Rng;
use windlass::{
    Backoff, Handled, Handler, HandlerResultStorage, ListFilter, NewEvent, Node, Policy, Queue, Status, shutdown_signal,
};
use windlass_testkit::Kind;

use crate::bed::Bed;
use crate::crash::all_events;
use crate::process::{Process, record_line, recorded_lines};
use crate::support::*;

/// The body of a child process that runs a node. The settings are its concurrency and the names of its handlers.
pub async fn run_child(queue: Queue, settings: &str) {
    let (concurrency, handlers) = settings.split_once(' ').unwrap();
    let node = Node::new(&queue, "").concurrency(concurrency.parse().unwrap());
    let node = handlers.split(' ').fold(node, |node, name| node.handler(handler(name.to_owned())));
    node.run_until(shutdown_signal()).await.unwrap();
    queue.close().await;
}

fn handler(name: String) -> Handler {
    let id = name.clone();
    let handler = match name.as_str() {
        "notes" => Handler::new("t", |event, _| async move {
            record_handled(&event);
            tokio::time::sleep(Duration::from_micros(fastrand::u64(..3_000))).await;
            Ok(())
        }),
        "hangs" => Handler::new("t", |event, _| async move {
            record_handled(&event);
            std::future::pending().await
        }),
        // Hangs in the first attempt only. It records its own name as the group.
        "hangs_once" => Handler::new("t", |event, _| async move {
            record_line(format!("{} hangs_once {} {}", event.id, event.payload, std::process::id()));
            if event.attempt() == 1 { std::future::pending().await } else { Ok(()) }
        }),
        _ if std::env::var("WINDLASS_CHILD_URL").unwrap().starts_with("sqlite") => {
            Handler::in_sqlite_tx("t", move |event, tx| {
                let insert = "INSERT INTO effects (event_id, group_id, handler, pid) VALUES (?1, ?2, ?3, ?4)";
                tx.execute(insert, (event.id, &event.group_id, &name, std::process::id()))?;
                Ok(())
            })
        }
        _ => Handler::in_pg_tx("t", move |event, tx| write_effect(event, tx, name.clone())),
    };
    handler.id(id)
}

fn record_handled(event: &windlass::Event) {
    let (group, pid) = (event.group_id.as_deref().unwrap_or("-"), std::process::id());
    record_line(format!("{} {group} {} {pid}", event.id, event.payload));
}

async fn write_effect(event: windlass::Envelope, mut tx: windlass::PgTx, name: String) -> Handled {
    let insert = sqlx::query("INSERT INTO effects (event_id, group_id, handler, pid) VALUES ($1, $2, $3, $4)");
    let insert = insert.bind(event.id).bind(event.group_id.as_deref()).bind(name).bind(i64::from(std::process::id()));
    insert.execute(&mut *tx).await?;
    tokio::time::sleep(Duration::from_micros(fastrand::u64(..3_000))).await;
    Ok(())
}

/// A line that a child recorded when it handled an event.
#[derive(Debug, Clone, PartialEq, Eq)]
struct HandledEvent {
    event_id: i64,
    group: String,
    n: i64,
    pid: u32,
}

fn handled_events(bed: &Bed) -> Vec<HandledEvent> {
    let read = |line: &String| {
        let [event_id, group, n, pid] = line.split(' ').collect::<Vec<_>>()[..] else { panic!("{line}") };
        let (event_id, n) = (event_id.parse().unwrap(), n.parse().unwrap_or(0));
        HandledEvent { event_id, group: group.to_owned(), n, pid: pid.parse().unwrap() }
    };
    recorded_lines(bed).iter().map(read).collect()
}

/// Creates a table of the application in which duplicate writes are visible.
async fn create_effects_table(bed: &Bed) {
    let number = match bed.database.kind {
        Kind::Sqlite => "INTEGER PRIMARY KEY",
        Kind::Postgres => "BIGSERIAL PRIMARY KEY",
    };
    let columns = "event_id BIGINT, group_id TEXT, handler TEXT, pid BIGINT";
    bed.database.execute(&format!("CREATE TABLE effects (n {number}, {columns})")).await;
}

async fn namespace(bed: &Bed, policy: Policy) -> Queue {
    bed.real_time_queue().await.put_namespace("ns", Some(policy.into()), None).await.unwrap()
}

/// A policy under which a crash is retried and any other failure is final.
fn crash_only_policy(lease_ms: u64) -> Policy {
    Policy { lease_ms, max_attempts: 1_000, max_retries: Some(0), backoff: Backoff::None, ..Policy::default() }
}

async fn completed(queue: &Queue) -> usize {
    let filter = ListFilter { status: Some(Status::Completed), limit: 1, ..Default::default() };
    queue.list(filter).await.unwrap().total as usize
}

async fn wait_until_completed(queue: &Queue, count: usize) {
    eventually("all events are completed", async || completed(queue).await == count).await;
    assert_eq!(all_events(queue).await.len(), count);
    assert_eq!(queue.workers(MINUTE).await.unwrap().iter().map(|worker| worker.held).sum::<u64>(), 0);
}

/// Publishes numbered events, and keeps their ids.
struct Load<'a> {
    queue: &'a Queue,
    published: Mutex<Vec<i64>>,
}

/// The number of groups. One more event of each round has no group.
const GROUPS: usize = 4;

impl Load<'_> {
    fn new(queue: &Queue) -> Load<'_> {
        Load { queue, published: Mutex::default() }
    }

    /// Publishes one event for each group, and one without a group.
    async fn publish(&self) {
        let n = self.count() / (GROUPS + 1);
        let event = || NewEvent::new("t").payload(&n).unwrap();
        let grouped = (0..GROUPS).map(|group| event().group(format!("g{group}")));
        let published = self.queue.publish_all(grouped.chain([event()]).collect()).await.unwrap();
        self.published.lock().unwrap().extend(published.iter().map(|published| published.event.id));
    }

    fn count(&self) -> usize {
        self.published.lock().unwrap().len()
    }

    fn published(self) -> Vec<i64> {
        self.published.into_inner().unwrap()
    }
}

/// Publishes events while the processes that handle them are killed and replaced, until all events are completed.
async fn publish_while_killing(bed: &Bed, queue: &Queue, role: &str, rounds: usize) -> Vec<i64> {
    let seed = SeedOnPanic(fastrand::u64(..));
    let mut rng = Rng::with_seed(seed.0);
    let load = Load::new(queue);
    let mut processes: Vec<Process> = (0..3).map(|_| Process::start(bed, role)).collect();
    for _ in 0..rounds {
        for _ in 0..rng.usize(5..20) {
            load.publish().await;
        }
        let target = completed(queue).await + rng.usize(1..20);
        eventually("some events are completed", async || completed(queue).await >= target.min(load.count())).await;
        let victims = rng.usize(1..=processes.len());
        rng.shuffle(&mut processes);
        processes[..victims].iter_mut().for_each(Process::kill);
        processes.drain(..victims);
        processes.extend((0..victims).map(|_| Process::start(bed, role)));
    }
    wait_until_completed(queue, load.count()).await;
    load.published()
}

/// The events that a handler wrote, in the order of its writes.
async fn effects_of(bed: &Bed, handler: &str, condition: &str) -> Vec<i64> {
    bed.database
        .select_numbers(&format!("SELECT event_id FROM effects WHERE handler = '{handler}' {condition} ORDER BY n"))
        .await
}

async fn assert_effects_once(bed: &Bed, policy: Policy, handlers: &[&str]) {
    create_effects_table(bed).await;
    let queue = namespace(bed, policy).await;
    let published = publish_while_killing(bed, &queue, &format!("node 8 {}", handlers.join(" ")), 6).await;
    for handler in handlers {
        assert_eq!(sorted(effects_of(bed, handler, "").await), published, "{handler}");
        for group in 0..GROUPS {
            let of_group = effects_of(bed, handler, &format!("AND group_id = 'g{group}'")).await;
            assert!(of_group.is_sorted(), "{handler}, g{group}: {of_group:?}");
        }
    }
}

/// Checks that a group was handled in order. A process may repeat events that its predecessor had handled but not yet
/// completed.
fn check_order(handled: &[HandledEvent], group: &str, count: usize) {
    let (mut last, mut pid) = (-1, 0);
    for event in handled.iter().filter(|event| event.group == group) {
        assert!(event.n == last + 1 || (event.n <= last && event.pid != pid), "{event:?} after {last} by {pid}");
        (last, pid) = (event.n, event.pid);
    }
    assert_eq!(last, count as i64 - 1);
}

conformance! {
    // C7
    async fn handler_transaction_commits_once_despite_kills(bed) {
        assert_effects_once(bed, crash_only_policy(500), &["a"]).await;
    }

    // C7
    async fn transactions_of_several_handlers_commit_once_despite_kills(bed) {
        assert_effects_once(bed, crash_only_policy(500), &["a", "b"]).await;
    }

    // C7
    async fn shared_handler_transaction_commits_once_despite_kills(bed) {
        assert_effects_once(bed, Policy { share_transaction: true, ..crash_only_policy(500) }, &["a", "b"]).await;
    }

    // O4. The lease is long enough that only killed processes lose it.
    async fn groups_keep_their_order_despite_kills(bed) {
        let queue = namespace(bed, crash_only_policy(3_000)).await;
        let published = publish_while_killing(bed, &queue, "node 8 notes", 2).await;
        let handled: BTreeSet<i64> = handled_events(bed).iter().map(|event| event.event_id).collect();
        assert_eq!(handled.into_iter().collect::<Vec<_>>(), published);
        for group in 0..GROUPS {
            check_order(&handled_events(bed), &format!("g{group}"), published.len() / (GROUPS + 1));
        }
    }

    // O7
    async fn processes_share_the_work_and_each_event_runs_once(bed) {
        let queue = namespace(bed, crash_only_policy(60_000)).await;
        let _processes: Vec<Process> = (0..3).map(|_| Process::start(bed, "node 4 notes")).collect();
        let pids = || handled_events(bed).iter().map(|event| event.pid).collect::<BTreeSet<u32>>();
        let published = Mutex::new(Vec::new());
        eventually("each process handles events", async || {
            let more = publish_many(&queue, "t", 50).await;
            published.lock().unwrap().extend(more);
            pids().len() == 3
        })
        .await;
        let published = published.into_inner().unwrap();
        wait_until_completed(&queue, published.len()).await;
        assert_eq!(sorted(handled_events(bed).iter().map(|event| event.event_id).collect()), published);
    }

    // O7, Q14. The lease is long enough that no process loses it on a busy machine.
    async fn events_leased_by_killed_process_are_handled_by_another(bed) {
        let queue = namespace(bed, crash_only_policy(5_000)).await;
        let published = publish_many(&queue, "t", 1_500).await;
        let mut hangs = Process::start(bed, "node 1000 hangs");
        eventually("all slots of the node are in use", async || recorded_lines(bed).len() == 1_000).await;
        let _other = Process::start(bed, "node 8 notes");
        // While the process lives, its leased events are not delivered to another one.
        eventually("the other events are completed", async || completed(&queue).await == 500).await;
        assert_eq!(handled_events(bed).len(), 1_500);
        hangs.kill();
        wait_until_completed(&queue, published.len()).await;
        let by_other = handled_events(bed).into_iter().filter(|event| event.pid != hangs.pid());
        let handled: BTreeSet<i64> = by_other.map(|event| event.event_id).collect();
        assert_eq!(handled.into_iter().collect::<Vec<_>>(), published);
    }

    // Q12, Q14
    async fn immediate_results_skip_finished_handlers_after_kill(bed) {
        let policy = Policy { handler_results: HandlerResultStorage::Immediately, ..crash_only_policy(1_000) };
        let queue = namespace(bed, policy).await;
        publish(&queue, "t").await;
        let role = "node 1 notes hangs_once";
        let mut killed = Process::start(bed, role);
        let schema = if bed.database.kind == Kind::Postgres { "windlass." } else { "" };
        let stored = format!("SELECT count(*) FROM {schema}handler_results WHERE handler = 'notes'");
        eventually("a result is stored", async || bed.database.select_numbers(&stored).await == [1]).await;
        eventually("both handlers have started", async || handled_events(bed).len() == 2).await;
        killed.kill();
        let _next = Process::start(bed, role);
        wait_until_completed(&queue, 1).await;
        let again: Vec<HandledEvent> = handled_events(bed).into_iter().filter(|event| event.pid != killed.pid()).collect();
        assert!(again.len() == 1 && again[0].group == "hangs_once", "{again:?}");
    }

    // C14. A lease that is not released would expire only after the end of the test.
    async fn processes_can_be_replaced_under_load(bed) {
        let queue = namespace(bed, crash_only_policy(600_000)).await;
        let load = Load::new(&queue);
        let mut ended = Vec::new();
        let mut current = Process::start(bed, "node 8 notes");
        for _ in 0..6 {
            for _ in 0..15 {
                load.publish().await;
            }
            let next = Process::start(bed, "node 8 notes");
            eventually("the node handles events", async || {
                load.publish().await;
                handled_events(bed).iter().any(|event| event.pid == current.pid())
            })
            .await;
            current.terminate();
            ended.push(std::mem::replace(&mut current, next));
        }
        let published = load.published();
        wait_until_completed(&queue, published.len()).await;
        current.terminate();
        for mut process in ended.into_iter().chain([current]) {
            let ended = tokio::task::spawn_blocking(move || process.wait()).await.unwrap();
            assert!(ended.success(), "{ended}");
        }
        assert_eq!(sorted(handled_events(bed).iter().map(|event| event.event_id).collect()), published);
        for group in 0..GROUPS {
            check_order(&handled_events(bed), &format!("g{group}"), published.len() / (GROUPS + 1));
        }
        let nodes = queue.nodes().await.unwrap();
        assert!(nodes.len() == 7 && nodes.iter().all(|node| node.stopped_at.is_some()), "{nodes:?}");
    }
}
