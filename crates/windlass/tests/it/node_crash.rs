//! Nodes in real processes that are killed, stopped and replaced while they work.

use std::collections::BTreeSet;
use std::sync::Mutex;
use std::time::Duration;

use fastrand::Rng;
use windlass::{
    Backoff, Handled, Handler, HandlerResultStorage, ListFilter, NewEvent, Node, Policy, Queue, Status, shutdown_signal,
};

use crate::bed::{Bed, Kind};
use crate::crash::all;
use crate::process::{Process, note, notes};
use crate::support::*;

/// A process with a node: how many events at once, and the names of its handlers.
pub async fn child(queue: Queue, settings: &str) {
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
            note_down(&event);
            tokio::time::sleep(Duration::from_micros(fastrand::u64(..3_000))).await;
            Ok(())
        }),
        "hangs" => Handler::new("t", |event, _| async move {
            note_down(&event);
            std::future::pending().await
        }),
        // Hangs in the first attempt only. It notes its own name as the group.
        "hangs_once" => Handler::new("t", |event, _| async move {
            note(format!("{} hangs_once {} {}", event.id, event.payload, std::process::id()));
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

fn note_down(event: &windlass::Event) {
    let (group, pid) = (event.group_id.as_deref().unwrap_or("-"), std::process::id());
    note(format!("{} {group} {} {pid}", event.id, event.payload));
}

async fn write_effect(event: windlass::Envelope, mut tx: windlass::PgTx, name: String) -> Handled {
    let insert = sqlx::query("INSERT INTO effects (event_id, group_id, handler, pid) VALUES ($1, $2, $3, $4)");
    let insert = insert.bind(event.id).bind(event.group_id.as_deref()).bind(name).bind(i64::from(std::process::id()));
    insert.execute(&mut *tx).await?;
    tokio::time::sleep(Duration::from_micros(fastrand::u64(..3_000))).await;
    Ok(())
}

/// What a child noted of an event that it handled.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Note {
    event_id: i64,
    group: String,
    n: i64,
    pid: u32,
}

fn noted(bed: &Bed) -> Vec<Note> {
    let read = |line: &String| {
        let [event_id, group, n, pid] = line.split(' ').collect::<Vec<_>>()[..] else { panic!("{line}") };
        let (event_id, n) = (event_id.parse().unwrap(), n.parse().unwrap_or(0));
        Note { event_id, group: group.to_owned(), n, pid: pid.parse().unwrap() }
    };
    notes(bed).iter().map(read).collect()
}

/// A table of the user's, in which nothing keeps a handler from writing twice.
async fn effects(bed: &Bed) {
    let number = match bed.database.kind {
        Kind::Sqlite => "INTEGER PRIMARY KEY",
        Kind::Postgres => "BIGSERIAL PRIMARY KEY",
    };
    let columns = "event_id BIGINT, group_id TEXT, handler TEXT, pid BIGINT";
    bed.database.execute(&format!("CREATE TABLE effects (n {number}, {columns})")).await;
}

async fn namespace(bed: &Bed, policy: Policy) -> Queue {
    bed.real_time().await.put_namespace("ns", Some(policy.into()), None).await.unwrap()
}

/// Crashes are no failures, and the only thing that is expected to go wrong here.
fn lease(lease_ms: u64) -> Policy {
    Policy { lease_ms, max_attempts: 1_000, max_retries: Some(0), backoff: Backoff::None, ..Policy::default() }
}

async fn completed(queue: &Queue) -> usize {
    let filter = ListFilter { status: Some(Status::Completed), limit: 1, ..Default::default() };
    queue.list(filter).await.unwrap().total as usize
}

async fn all_are_completed(queue: &Queue, count: usize) {
    eventually("all events are completed", async || completed(queue).await == count).await;
    assert_eq!(all(queue).await.len(), count);
    assert_eq!(queue.workers(MINUTE).await.unwrap().iter().map(|worker| worker.held).sum::<u64>(), 0);
}

/// Publishes numbered events, and remembers them.
struct Load<'a> {
    queue: &'a Queue,
    published: Mutex<Vec<i64>>,
}

/// They have groups, and one more has none.
const GROUPS: usize = 4;

impl Load<'_> {
    fn new(queue: &Queue) -> Load<'_> {
        Load { queue, published: Mutex::default() }
    }

    /// One event for each group, and one without.
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

/// Publishes events while processes that handle them are killed and others take their place, until all are completed.
async fn churn(bed: &Bed, queue: &Queue, role: &str, rounds: usize) -> Vec<i64> {
    let seed = SeedOnPanic(fastrand::u64(..));
    let mut rng = Rng::with_seed(seed.0);
    let load = Load::new(queue);
    let mut processes: Vec<Process> = (0..3).map(|_| Process::start(bed, role)).collect();
    for _ in 0..rounds {
        for _ in 0..rng.usize(5..20) {
            load.publish().await;
        }
        let enough = completed(queue).await + rng.usize(1..20);
        eventually("something is done", async || completed(queue).await >= enough.min(load.count())).await;
        let victims = rng.usize(1..=processes.len());
        rng.shuffle(&mut processes);
        processes[..victims].iter_mut().for_each(Process::kill);
        processes.drain(..victims);
        processes.extend((0..victims).map(|_| Process::start(bed, role)));
    }
    all_are_completed(queue, load.count()).await;
    load.published()
}

/// In the order in which they were written.
async fn effects_of(bed: &Bed, handler: &str, and: &str) -> Vec<i64> {
    bed.database.ids(&format!("SELECT event_id FROM effects WHERE handler = '{handler}' {and} ORDER BY n")).await
}

async fn exactly_once(bed: &Bed, policy: Policy, handlers: &[&str]) {
    effects(bed).await;
    let queue = namespace(bed, policy).await;
    let published = churn(bed, &queue, &format!("node 8 {}", handlers.join(" ")), 6).await;
    for handler in handlers {
        assert_eq!(sorted(effects_of(bed, handler, "").await), published, "{handler}");
        for group in 0..GROUPS {
            let of_group = effects_of(bed, handler, &format!("AND group_id = 'g{group}'")).await;
            assert!(of_group.is_sorted(), "{handler}, g{group}: {of_group:?}");
        }
    }
}

/// Whether each number of a group comes after the one before. Another process repeats what the one before had handled and
/// not yet completed, in order.
fn check_order(notes: &[Note], group: &str, count: usize) {
    let (mut last, mut pid) = (-1, 0);
    for note in notes.iter().filter(|note| note.group == group) {
        assert!(note.n == last + 1 || (note.n <= last && note.pid != pid), "{note:?} after {last} by {pid}");
        (last, pid) = (note.n, note.pid);
    }
    assert_eq!(last, count as i64 - 1);
}

conformance! {
    // C7
    async fn a_transaction_takes_effect_once_however_many_processes_are_killed(bed) {
        exactly_once(bed, lease(500), &["a"]).await;
    }

    // C7
    async fn so_do_those_of_several_handlers(bed) {
        exactly_once(bed, lease(500), &["a", "b"]).await;
    }

    // C7
    async fn so_does_one_that_several_handlers_share(bed) {
        exactly_once(bed, Policy { share_transaction: true, ..lease(500) }, &["a", "b"]).await;
    }

    // O4. The lease is long enough that only those who are killed lose it.
    async fn groups_keep_their_order_however_many_processes_are_killed(bed) {
        let queue = namespace(bed, lease(3_000)).await;
        let published = churn(bed, &queue, "node 8 notes", 2).await;
        let handled: BTreeSet<i64> = noted(bed).iter().map(|note| note.event_id).collect();
        assert_eq!(handled.into_iter().collect::<Vec<_>>(), published);
        for group in 0..GROUPS {
            check_order(&noted(bed), &format!("g{group}"), published.len() / (GROUPS + 1));
        }
    }

    // O7
    async fn processes_share_the_work_and_each_event_runs_once(bed) {
        let queue = namespace(bed, lease(60_000)).await;
        let _processes: Vec<Process> = (0..3).map(|_| Process::start(bed, "node 4 notes")).collect();
        let pids = || noted(bed).iter().map(|note| note.pid).collect::<BTreeSet<u32>>();
        let published = Mutex::new(Vec::new());
        eventually("each of them takes part", async || {
            let more = publish_many(&queue, "t", 50).await;
            published.lock().unwrap().extend(more);
            pids().len() == 3
        })
        .await;
        let published = published.into_inner().unwrap();
        all_are_completed(&queue, published.len()).await;
        assert_eq!(sorted(noted(bed).iter().map(|note| note.event_id).collect()), published);
    }

    // O7, Q14. The lease is long enough that a busy machine does not cost it.
    async fn what_a_killed_process_had_taken_is_handled_by_another_one(bed) {
        let queue = namespace(bed, lease(5_000)).await;
        let published = publish_many(&queue, "t", 1_500).await;
        let mut hangs = Process::start(bed, "node 1000 hangs");
        eventually("it has its hands full", async || notes(bed).len() == 1_000).await;
        let _other = Process::start(bed, "node 8 notes");
        // For as long as it lives, nobody else gets what it holds.
        eventually("the others are completed", async || completed(&queue).await == 500).await;
        assert_eq!(noted(bed).len(), 1_500);
        hangs.kill();
        all_are_completed(&queue, published.len()).await;
        let by_other = noted(bed).into_iter().filter(|note| note.pid != hangs.pid());
        let handled: BTreeSet<i64> = by_other.map(|note| note.event_id).collect();
        assert_eq!(handled.into_iter().collect::<Vec<_>>(), published);
    }

    // Q12, Q14
    async fn after_a_kill_immediate_results_keep_finished_handlers_from_running_again(bed) {
        let policy = Policy { handler_results: HandlerResultStorage::Immediately, ..lease(1_000) };
        let queue = namespace(bed, policy).await;
        publish(&queue, "t").await;
        let role = "node 1 notes hangs_once";
        let mut killed = Process::start(bed, role);
        let schema = if bed.database.kind == Kind::Postgres { "windlass." } else { "" };
        let stored = format!("SELECT count(*) FROM {schema}handler_results WHERE handler = 'notes'");
        eventually("a result is stored", async || bed.database.ids(&stored).await == [1]).await;
        eventually("both handlers have started", async || noted(bed).len() == 2).await;
        killed.kill();
        let _next = Process::start(bed, role);
        all_are_completed(&queue, 1).await;
        let again: Vec<Note> = noted(bed).into_iter().filter(|note| note.pid != killed.pid()).collect();
        assert!(again.len() == 1 && again[0].group == "hangs_once", "{again:?}");
    }

    // C14. A lease that is not given back would have to run out, and no test waits for that.
    async fn processes_can_be_replaced_under_load(bed) {
        let queue = namespace(bed, lease(600_000)).await;
        let load = Load::new(&queue);
        let mut ended = Vec::new();
        let mut current = Process::start(bed, "node 8 notes");
        for _ in 0..6 {
            for _ in 0..15 {
                load.publish().await;
            }
            let next = Process::start(bed, "node 8 notes");
            eventually("it is at work", async || {
                load.publish().await;
                noted(bed).iter().any(|note| note.pid == current.pid())
            })
            .await;
            current.terminate();
            ended.push(std::mem::replace(&mut current, next));
        }
        let published = load.published();
        all_are_completed(&queue, published.len()).await;
        current.terminate();
        for mut process in ended.into_iter().chain([current]) {
            let ended = tokio::task::spawn_blocking(move || process.wait()).await.unwrap();
            assert!(ended.success(), "{ended}");
        }
        assert_eq!(sorted(noted(bed).iter().map(|note| note.event_id).collect()), published);
        for group in 0..GROUPS {
            check_order(&noted(bed), &format!("g{group}"), published.len() / (GROUPS + 1));
        }
        let nodes = queue.nodes().await.unwrap();
        assert!(nodes.len() == 7 && nodes.iter().all(|node| node.stopped_at.is_some()), "{nodes:?}");
    }
}
