//! Schedules that pg_cron runs, on a server of the test's own that has it.

use sqlx::{AssertSqlSafe, Executor, Row};
use windlass::{Error, NewEvent, NewSchedule, Queue, ScheduleRunner};

use crate::bed::{Bed, Database, Kind, run_on_empty};
use crate::postgres::{connect, execute, lines};
use crate::run_scheduled_task::{ID, insert};
use crate::server::Server;
use crate::support::*;

/// Set by `cargo xtask` where pg_cron is installed beside the server's programs.
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
        eprintln!("{PG_CRON} is not set: schedules that pg_cron runs are not tested");
        return None;
    }
    Server::start_new_with(SETTINGS).await
}

fn job(id: &str, cron: &str) -> String {
    format!("windlass:{id}|{cron}|SELECT windlass.run_scheduled_task('{id}')")
}

async fn refused(queue: &Queue, id: &str) -> String {
    queue.hand_to_pg_cron(id).await.unwrap_err().to_string()
}

async fn set(url: &str, id: &str, change: &str) {
    execute(url, &format!("UPDATE windlass.schedules SET {change} WHERE schedule_id = '{id}'")).await;
}

async fn is_refused_and_handed_over_and_taken_back(url: &str, queue: &Queue) {
    assert!(refused(queue, ID).await.starts_with("runner: pg_cron is not installed in this database: "));
    execute(url, "CREATE EXTENSION pg_cron").await;
    assert!(refused(queue, ID).await.starts_with("timezone: pg_cron goes by GMT "));
    set(url, ID, "timezone = 'UTC', cron = '0 0 * * * *'").await;
    assert!(refused(queue, ID).await.starts_with("cron: pg_cron knows no seconds"));
    set(url, ID, "cron = '@daily', title = '{{tick.next}}'").await;
    assert!(refused(queue, ID).await.starts_with("title: uses {{tick.next}}"));
    assert_eq!(lines(url, JOBS).await, [""; 0]);
    assert_eq!(lines(url, RUNNERS).await, ["windlass t"]);

    set(url, ID, "title = NULL").await;
    queue.hand_to_pg_cron(&ID.to_uppercase()).await.unwrap();
    assert_eq!(lines(url, JOBS).await, [job(ID, "0 0 * * *")]);
    assert_eq!(lines(url, RUNNERS).await, ["pg_cron "]);
    // Again: with what it says now.
    set(url, ID, "cron = '30 4 * * 1-5'").await;
    queue.hand_to_pg_cron(ID).await.unwrap();
    assert_eq!(lines(url, JOBS).await, [job(ID, "30 4 * * 1-5")]);

    for _ in 0..2 {
        queue.take_from_pg_cron(ID).await.unwrap();
        assert_eq!(lines(url, JOBS).await, [""; 0]);
        assert_eq!(lines(url, RUNNERS).await, ["windlass t"]);
    }
    set(url, ID, "active = false, next_at = NULL").await;
    queue.hand_to_pg_cron(ID).await.unwrap();
    queue.take_from_pg_cron(ID).await.unwrap();
    assert_eq!(lines(url, RUNNERS).await, ["windlass "]);
}

/// pg_cron hears of it when a schedule is changed or removed.
async fn is_changed_and_removed(url: &str, queue: &Queue) {
    let schedule = |cron: &str| NewSchedule::new("nightly", cron, NewEvent::new("t"));
    let id = queue.add_schedule(schedule("0 2 * * *")).await.unwrap().id;
    queue.hand_to_pg_cron(&id).await.unwrap();
    assert_eq!(queue.fire_schedules_once().await.unwrap().next_in, None);
    let changed = queue.put_schedule(&id, schedule("0 3 * * *")).await.unwrap();
    assert_eq!((changed.runner, changed.next_at), (ScheduleRunner::PgCron, None));
    assert_eq!(json(&queue.schedule(&id).await.unwrap()), json(&changed));
    assert_eq!(lines(url, JOBS).await, [job(&id, "0 3 * * *")]);
    let refused = queue.put_schedule(&id, schedule("0 0 4 * * *")).await.unwrap_err();
    assert!(refused.to_string().starts_with("cron: pg_cron knows no seconds"), "{refused}");
    assert_eq!(lines(url, JOBS).await, [job(&id, "0 3 * * *")]);
    assert_eq!(json(&queue.schedule(&id).await.unwrap()), json(&changed));
    queue.remove_schedule(&id).await.unwrap();
    assert_eq!(lines(url, JOBS).await, [""; 0]);
}

/// What pg_cron has run to its end: whose, and how it ended.
async fn runs(url: &str) -> Vec<String> {
    let sql = "SELECT DISTINCT format('%s %s', split_part(command, '''', 2), status) FROM cron.job_run_details
               WHERE end_time IS NOT NULL ORDER BY 1";
    lines(url, sql).await
}

async fn until_a_minute_has_begun(url: &str, ran: &[String]) {
    let begun = std::time::Instant::now();
    while runs(url).await != ran {
        assert!(begun.elapsed() < secs(75), "{:?}", runs(url).await);
        tokio::time::sleep(millis(100)).await;
    }
}

async fn call(url: &str) -> Option<i64> {
    let sql = format!("SELECT windlass.run_scheduled_task('{ID}')");
    connect(url).await.fetch_one(AssertSqlSafe(sql)).await.unwrap().get(0)
}

// C12
#[test]
fn postgres_pg_cron_runs_what_is_handed_to_it() {
    run_on_empty(Kind::Postgres, async |_: &Database| {
        let Some(server) = start().await else { return };
        let (url, queue) = (server.url(), Queue::open(&server.url()).await.unwrap());
        insert(&url, ID, "", "").await;
        is_refused_and_handed_over_and_taken_back(&url, &queue).await;
        is_changed_and_removed(&url, &queue).await;

        let [paused, taken, gone] = OTHERS;
        for id in OTHERS {
            insert(&url, id, "", "").await;
        }
        for id in [ID, paused, taken, gone] {
            set(&url, id, "active = true, timezone = 'UTC', cron = '* * * * *'").await;
            queue.hand_to_pg_cron(id).await.unwrap();
        }
        set(&url, paused, "active = false").await;
        queue.take_from_pg_cron(taken).await.unwrap();
        execute(&url, &format!("DELETE FROM windlass.schedules WHERE schedule_id = '{gone}'")).await;
        let ran = [format!("{ID} succeeded"), format!("{paused} succeeded"), format!("{gone} failed")];
        until_a_minute_has_begun(&url, &ran).await;

        let event = take_soon(&queue).await.event;
        assert_eq!((event.scheduled_task_id.as_deref(), event.producer.as_deref()), (Some(ID), Some("scheduler")));
        assert!(event.payload.get().ends_with(":00Z\"}"), "{}", event.payload);
        for _ in 0..3 {
            call(&url).await;
        }
        let events = "SELECT format('%s %s', e.scheduled_task_id, count(*) = count(DISTINCT f.tick_at))
                      FROM windlass.events e LEFT JOIN windlass.schedule_fires f ON f.event_id = e.id AND NOT f.manual
                      GROUP BY e.scheduled_task_id";
        assert_eq!(lines(&url, events).await, [format!("{ID} t")]);
        let said = "SELECT return_message FROM cron.job_run_details WHERE status = 'failed'";
        assert!(lines(&url, said).await[0].contains(&format!("p_task_id: there is no schedule '{gone}'")));

        for id in [ID, paused] {
            queue.take_from_pg_cron(id).await.unwrap();
        }
        assert_eq!(lines(&url, JOBS).await, [job(gone, "* * * * *")]);
        queue.close().await;
    });
}

async fn without_pg_cron_windlass_runs_every_schedule(bed: &Bed) {
    insert(&bed.database.url, ID, "", "").await;
    assert!(refused(&bed.queue, ID).await.starts_with("runner: pg_cron is not installed in this database: "));
    bed.queue.take_from_pg_cron(ID).await.unwrap();
    let other = bed.queue.put_namespace("other", None, None).await.unwrap();
    for (queue, id) in [(&bed.queue, OTHERS[0]), (&other, ID)] {
        let (namespace, schedule_id) = (queue.namespace().to_owned(), id.to_owned());
        let error = Error::ScheduleNotFound { namespace, schedule_id };
        assert_eq!(queue.hand_to_pg_cron(id).await, Err(error.clone()));
        assert_eq!(queue.take_from_pg_cron(id).await, Err(error));
    }
    assert!(refused(&bed.queue, "nightly").await.starts_with("id: 'nightly' is not the UUID of a schedule"));
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
        let expected = "runner: pg_cron is a part of PostgreSQL: on SQLite, Windlass runs all schedules";
        assert_eq!(refused(&bed.queue, ID).await, expected);
        let error = bed.queue.take_from_pg_cron(ID).await.unwrap_err();
        assert_eq!(error.code(), "schedule_not_found");
        let id = bed.queue.add_schedule(NewSchedule::new("s", "* * * * *", NewEvent::new("t"))).await.unwrap().id;
        assert_eq!(bed.queue.take_from_pg_cron(&id).await, Ok(()));
    });
}
