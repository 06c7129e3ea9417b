//! Schedules that pg_cron runs, on a server with pg_cron that the test starts.

use sqlx::{AssertSqlSafe, Executor, Row};
use windlass::{Error, NewEvent, NewSchedule, Queue, ScheduleRunner};
use windlass_testkit::postgres::{connect, execute, lines};
use windlass_testkit::{Database, Kind};

use crate::bed::{Bed, run_on_empty};
use crate::run_scheduled_task::{ID, insert};
use crate::server::Server;
use crate::support::*;

/// Set by `cargo xtask` if pg_cron is installed.
const PG_CRON: &str = "WINDLASS_TEST_PG_CRON";

const SETTINGS: &[&str] = &["shared_preload_libraries=pg_cron", "cron.use_background_workers=on"];

const OTHERS: [&str; 3] = [
    "11111111-8a55-4bd9-9d0e-5f2a3c7d1e10",
    "22222222-8a55-4bd9-9d0e-5f2a3c7d1e10",
    "33333333-8a55-4bd9-9d0e-5f2a3c7d1e10",
];

const JOBS: &str = "SELECT format('%s|%s|%s', jobname, schedule, command) FROM cron.job ORDER BY jobname";
const RUNNERS: &str = "SELECT format('%s %s', runner, next_at > now()) FROM windlass.schedules ORDER BY schedule_id";

async fn start() -> Option<Server> {
    if std::env::var_os(PG_CRON).is_none() {
        eprintln!("{PG_CRON} is not set: skipping the tests of schedules that pg_cron runs");
        return None;
    }
    Server::start_new_with(SETTINGS).await
}

fn job(id: &str, cron: &str) -> String {
    format!("windlass:{id}|{cron}|SELECT windlass.run_scheduled_task('{id}')")
}

async fn handover_error(queue: &Queue, id: &str) -> String {
    queue.hand_to_pg_cron(id).await.unwrap_err().to_string()
}

async fn update(url: &str, id: &str, change: &str) {
    execute(url, &format!("UPDATE windlass.schedules SET {change} WHERE schedule_id = '{id}'")).await;
}

/// Checks that schedules pg_cron cannot run are refused, and that others move to pg_cron and back.
async fn check_handover(url: &str, queue: &Queue) {
    assert!(handover_error(queue, ID).await.starts_with("runner: pg_cron is not installed in this database: "));
    execute(url, "CREATE EXTENSION pg_cron").await;
    assert!(handover_error(queue, ID).await.starts_with("timezone: pg_cron uses GMT "));
    update(url, ID, "timezone = 'UTC', cron = '0 0 * * * *'").await;
    assert!(handover_error(queue, ID).await.starts_with("cron: pg_cron does not support seconds"));
    update(url, ID, "cron = '@daily', title = '{{tick.next}}'").await;
    assert!(handover_error(queue, ID).await.starts_with("title: uses {{tick.next}}"));
    assert_eq!(lines(url, JOBS).await, [""; 0]);
    assert_eq!(lines(url, RUNNERS).await, ["windlass t"]);

    update(url, ID, "title = NULL").await;
    queue.hand_to_pg_cron(&ID.to_uppercase()).await.unwrap();
    assert_eq!(lines(url, JOBS).await, [job(ID, "0 0 * * *")]);
    assert_eq!(lines(url, RUNNERS).await, ["pg_cron "]);
    // A second call updates the job.
    update(url, ID, "cron = '30 4 * * 1-5'").await;
    queue.hand_to_pg_cron(ID).await.unwrap();
    assert_eq!(lines(url, JOBS).await, [job(ID, "30 4 * * 1-5")]);

    for _ in 0..2 {
        queue.take_from_pg_cron(ID).await.unwrap();
        assert_eq!(lines(url, JOBS).await, [""; 0]);
        assert_eq!(lines(url, RUNNERS).await, ["windlass t"]);
    }
    update(url, ID, "active = false, next_at = NULL").await;
    queue.hand_to_pg_cron(ID).await.unwrap();
    queue.take_from_pg_cron(ID).await.unwrap();
    assert_eq!(lines(url, RUNNERS).await, ["windlass "]);
}

/// Checks that the job follows changes and the removal of a schedule.
async fn check_changes(url: &str, queue: &Queue) {
    let schedule = |cron: &str| NewSchedule::new("nightly", cron, NewEvent::new("t"));
    let id = queue.add_schedule(schedule("0 2 * * *")).await.unwrap().id;
    queue.hand_to_pg_cron(&id).await.unwrap();
    assert_eq!(queue.fire_schedules_once().await.unwrap().next_in, None);
    let changed = queue.put_schedule(&id, schedule("0 3 * * *")).await.unwrap();
    assert_eq!((changed.runner, changed.next_at), (ScheduleRunner::PgCron, None));
    assert_eq!(json(&queue.schedule(&id).await.unwrap()), json(&changed));
    assert_eq!(lines(url, JOBS).await, [job(&id, "0 3 * * *")]);
    let refused = queue.put_schedule(&id, schedule("0 0 4 * * *")).await.unwrap_err();
    assert!(refused.to_string().starts_with("cron: pg_cron does not support seconds"), "{refused}");
    assert_eq!(lines(url, JOBS).await, [job(&id, "0 3 * * *")]);
    assert_eq!(json(&queue.schedule(&id).await.unwrap()), json(&changed));
    queue.remove_schedule(&id).await.unwrap();
    assert_eq!(lines(url, JOBS).await, [""; 0]);
}

/// The schedules that pg_cron has run, each with the status of the run.
async fn finished_runs(url: &str) -> Vec<String> {
    let sql = "SELECT DISTINCT format('%s %s', split_part(command, '''', 2), status) FROM cron.job_run_details
               WHERE end_time IS NOT NULL ORDER BY 1";
    lines(url, sql).await
}

/// Waits, up to the next full minute, until pg_cron has run these schedules.
async fn wait_for_runs(url: &str, ran: &[String]) {
    let started = std::time::Instant::now();
    while finished_runs(url).await != ran {
        assert!(started.elapsed() < secs(75), "{:?}", finished_runs(url).await);
        tokio::time::sleep(millis(100)).await;
    }
}

async fn call(url: &str) -> Option<i64> {
    let sql = format!("SELECT windlass.run_scheduled_task('{ID}')");
    connect(url).await.fetch_one(AssertSqlSafe(sql)).await.unwrap().get(0)
}

// C12
#[test]
fn postgres_pg_cron_runs_schedules_handed_to_it() {
    run_on_empty(Kind::Postgres, async |_: &Database| {
        let Some(server) = start().await else { return };
        let (url, queue) = (server.url(), Queue::open(&server.url()).await.unwrap());
        insert(&url, ID, "", "").await;
        check_handover(&url, &queue).await;
        check_changes(&url, &queue).await;

        let [paused, returned, deleted] = OTHERS;
        for id in OTHERS {
            insert(&url, id, "", "").await;
        }
        for id in [ID, paused, returned, deleted] {
            update(&url, id, "active = true, timezone = 'UTC', cron = '* * * * *'").await;
            queue.hand_to_pg_cron(id).await.unwrap();
        }
        update(&url, paused, "active = false").await;
        queue.take_from_pg_cron(returned).await.unwrap();
        execute(&url, &format!("DELETE FROM windlass.schedules WHERE schedule_id = '{deleted}'")).await;
        let ran = [format!("{ID} succeeded"), format!("{paused} succeeded"), format!("{deleted} failed")];
        wait_for_runs(&url, &ran).await;

        let event = claim_one_soon(&queue).await.event;
        assert_eq!((event.scheduled_task_id.as_deref(), event.producer.as_deref()), (Some(ID), Some("scheduler")));
        assert!(event.payload.get().ends_with(":00Z\"}"), "{}", event.payload);
        for _ in 0..3 {
            call(&url).await;
        }
        let events = "SELECT format('%s %s', e.scheduled_task_id, count(*) = count(DISTINCT f.tick_at))
                      FROM windlass.events e LEFT JOIN windlass.schedule_fires f ON f.event_id = e.id AND NOT f.manual
                      GROUP BY e.scheduled_task_id";
        assert_eq!(lines(&url, events).await, [format!("{ID} t")]);
        let messages = "SELECT return_message FROM cron.job_run_details WHERE status = 'failed'";
        assert!(lines(&url, messages).await[0].contains(&format!("p_task_id: there is no schedule '{deleted}'")));

        for id in [ID, paused] {
            queue.take_from_pg_cron(id).await.unwrap();
        }
        assert_eq!(lines(&url, JOBS).await, [job(deleted, "* * * * *")]);
        queue.close().await;
    });
}

async fn without_pg_cron_windlass_runs_every_schedule(bed: &Bed) {
    insert(&bed.database.url, ID, "", "").await;
    assert!(handover_error(&bed.queue, ID).await.starts_with("runner: pg_cron is not installed in this database: "));
    bed.queue.take_from_pg_cron(ID).await.unwrap();
    let other = bed.queue.put_namespace("other", None, None).await.unwrap();
    for (queue, id) in [(&bed.queue, OTHERS[0]), (&other, ID)] {
        let (namespace, schedule_id) = (queue.namespace().to_owned(), id.to_owned());
        let error = Error::ScheduleNotFound { namespace, schedule_id };
        assert_eq!(queue.hand_to_pg_cron(id).await, Err(error.clone()));
        assert_eq!(queue.take_from_pg_cron(id).await, Err(error));
    }
    assert!(handover_error(&bed.queue, "nightly").await.starts_with("id: 'nightly' is not the UUID of a schedule"));
    assert_eq!(lines(&bed.database.url, RUNNERS).await, ["windlass t"]);
}

// C12
#[test]
fn postgres_without_pg_cron_windlass_runs_every_schedule() {
    crate::bed::run(Kind::Postgres, without_pg_cron_windlass_runs_every_schedule);
}

// C12
#[test]
fn sqlite_has_no_pg_cron() {
    crate::bed::run(Kind::Sqlite, async |bed: &Bed| {
        let expected = "runner: pg_cron requires PostgreSQL: on SQLite, Windlass runs all schedules";
        assert_eq!(handover_error(&bed.queue, ID).await, expected);
        let error = bed.queue.take_from_pg_cron(ID).await.unwrap_err();
        assert_eq!(error.code(), "schedule_not_found");
        let id = bed.queue.add_schedule(NewSchedule::new("s", "* * * * *", NewEvent::new("t"))).await.unwrap().id;
        assert_eq!(bed.queue.take_from_pg_cron(&id).await, Ok(()));
    });
}
