//! `windlass.run_scheduled_task`, called in SQL for schedules that are inserted in SQL.

use sqlx::{AssertSqlSafe, Executor, PgConnection, Row};
use windlass::Timestamp;
use windlass_testkit::postgres::{connect, execute, lines};

use crate::bed::Bed;
use crate::sql_functions::validation_error;
use crate::support::*;

pub const ID: &str = "0b5e6d2c-8a55-4bd9-9d0e-5f2a3c7d1e10";

/// Inserts a schedule, with values for optional columns.
pub async fn insert(url: &str, id: &str, columns: &str, values: &str) {
    let sql = format!(
        "INSERT INTO windlass.schedules (schedule_id, namespace, name, cron, timezone, event_type, payload, created_at,
             updated_at, next_at{columns})
         VALUES ('{id}', 'default', 'nightly \"{id}\"', '* * * * *', 'Europe/Berlin', 'report.due',
             '{{\"at\": \"{{{{tick.utc}}}}\"}}', '2020-01-01Z', '2020-01-01Z', '2040-05-06T07:08:00Z'{values})"
    );
    execute(url, &sql).await;
}

async fn run(connection: &mut PgConnection, id: &str) -> Option<i64> {
    let sql = format!("SELECT windlass.run_scheduled_task('{id}')");
    connection.fetch_one(AssertSqlSafe(sql)).await.unwrap().get(0)
}

/// The columns of the schedule that change when it fires, and its fires.
async fn state(bed: &Bed) -> Vec<String> {
    let schedule = "SELECT format('%s %s %s', last_event_id, last_at = updated_at, next_at = '2040-05-06T07:08:00Z')
                    FROM windlass.schedules";
    let fires = "SELECT format('%s %s %s %s', event_id, manual, tick_at = fired_at, skipped)
                 FROM windlass.schedule_fires ORDER BY event_id";
    [lines(&bed.database.url, schedule).await, lines(&bed.database.url, fires).await].concat()
}

/// Renders a template for a tick of a schedule with this time zone and name.
async fn render(connection: &mut PgConnection, template: &str, tick: &str, zone: &str, name: &str) -> String {
    let sql = "SELECT windlass._render($1, s, $2::text::timestamptz, s.name) FROM jsonb_populate_record(
                   NULL::windlass.schedules, jsonb_build_object('timezone', $3, 'name', $4, 'schedule_id', $5)) AS s";
    let query = sqlx::query(sql).bind(template).bind(tick).bind(zone).bind(name).bind(ID);
    query.fetch_one(connection).await.unwrap().get(0)
}

on_postgres! {
    // C11, C12
    async fn manual_run_publishes_event_with_all_schedule_fields(bed) {
        let queue = bed.real_time_queue().await;
        let columns = ", title, description, tags, group_id, priority, max_retries, metadata, expires_in_ms";
        let values = r#", 'of {{tick.date}}', 'long', 'a,b', 'g', 7, 2, '{"m":1}', 90000"#;
        insert(&bed.database.url, ID, columns, values).await;
        let mut connection = connect(&bed.database.url).await;
        connection.execute("SET timezone = 'Asia/Tokyo'").await.unwrap();
        let id = run(&mut connection, ID).await.unwrap();

        let event = claim_one(&queue).await.event;
        assert_eq!((event.id, event.event_type.as_str()), (id, "report.due"));
        assert_eq!((event.producer.as_deref(), event.scheduled_task_id.as_deref()), (Some("scheduler"), Some(ID)));
        let tick = "SELECT to_char(tick_at AT TIME ZONE 'UTC', 'YYYY-MM-DD\"T\"HH24:MI:SSZ') FROM windlass.schedule_fires";
        let at = lines(&bed.database.url, tick).await.remove(0);
        assert_eq!(event.payload.get(), format!(r#"{{"at": "{at}"}}"#));
        let berlin = lines(&bed.database.url, &format!(
            "SELECT to_char(created_at AT TIME ZONE 'Europe/Berlin', 'YYYY-MM-DD') FROM windlass.events WHERE id = {id}"
        )).await.remove(0);
        assert_eq!(event.title.as_deref(), Some(&*format!("of {berlin}")));
        assert_eq!((event.description.as_deref(), event.tags.as_str()), (Some("long"), "a,b"));
        assert_eq!((event.group_id.as_deref(), event.priority), (Some("g"), 7));
        assert_eq!(event.metadata.as_ref().unwrap().get(), r#"{"m":1}"#);
        // Counts from the beginning of the transaction, shortly before the event was created.
        let expires_after = event.expires_at.unwrap() - event.created_at;
        assert!((85..=90).contains(&expires_after.num_seconds()), "{expires_after}");
        assert_eq!(view(&queue, id).await.max_retries, Some(2));
        let kept: String = connection.fetch_one("SHOW timezone").await.unwrap().get(0);
        assert_eq!(kept, "Asia/Tokyo");

        let again = run(&mut connection, ID).await.unwrap();
        assert_eq!(state(bed).await, [format!("{again} t t"), format!("{id} t t 0"), format!("{again} t t 0")]);
    }

    // C12
    async fn concurrent_pg_cron_calls_publish_one_event_a_minute(bed) {
        let queue = bed.real_time_queue().await;
        insert(&bed.database.url, ID, ", runner", ", 'pg_cron'").await;
        let minute = "SELECT to_char(now() AT TIME ZONE 'UTC', 'YYYY-MM-DD\"T\"HH24:MI:00Z')";
        let first = lines(&bed.database.url, minute).await.remove(0);
        let calls: Vec<_> = (0..8)
            .map(|_| {
                let url = bed.database.url.clone();
                tokio::spawn(async move { run(&mut connect(&url).await, ID).await })
            })
            .collect();
        let mut ids = Vec::new();
        for call in calls {
            ids.extend(call.await.unwrap());
        }
        let last = lines(&bed.database.url, minute).await.remove(0);
        // A new minute may have begun meanwhile.
        let minutes = sorted(vec![first, last]);
        assert!(ids.len() == 1 || (ids.len() == 2 && minutes[0] != minutes[1]), "{ids:?}");
        let payload = claim_one(&queue).await.event.payload;
        assert!(minutes.iter().any(|minute| payload.get() == format!(r#"{{"at": "{minute}"}}"#)), "{payload}");
        let fires = "SELECT format('%s %s %s', event_id, manual, tick_at = date_trunc('minute', fired_at))
                     FROM windlass.schedule_fires ORDER BY event_id";
        let expected: Vec<_> = sorted(ids).iter().map(|id| format!("{id} f t")).collect();
        assert_eq!(lines(&bed.database.url, fires).await, expected);
    }

    // C12
    async fn inactive_schedule_is_not_run_and_unknown_is_refused(bed) {
        insert(&bed.database.url, ID, ", active", ", false").await;
        let mut connection = connect(&bed.database.url).await;
        assert_eq!(run(&mut connection, ID).await, None);
        assert_eq!(count_events(&bed.queue).await, 0);
        assert_eq!(state(bed).await, ["  t"]);
        let unknown = "SELECT windlass.run_scheduled_task('0b5e6d2c-8a55-4bd9-9d0e-5f2a3c7d1e11')";
        let message = validation_error(&mut connection, unknown).await;
        assert_eq!(message, "p_task_id: there is no schedule '0b5e6d2c-8a55-4bd9-9d0e-5f2a3c7d1e11'");
        let message = validation_error(&mut connection, "SELECT windlass.run_scheduled_task(NULL)").await;
        assert_eq!(message, "p_task_id: there is no schedule NULL");
    }

    // C12
    async fn invalid_event_is_refused_and_leaves_no_rows(bed) {
        insert(&bed.database.url, ID, ", title", ", repeat('{{schedule.name}}', 22)").await;
        let mut connection = connect(&bed.database.url).await;
        let message = validation_error(&mut connection, &format!("SELECT windlass.run_scheduled_task('{ID}')")).await;
        assert_eq!(message, "title is 1012 bytes; the limit is 1000 bytes");
        assert_eq!(state(bed).await, ["  t"]);
        assert_eq!(count_events(&bed.queue).await, 0);
    }

    // C11, C12
    async fn templates_render_as_in_the_library(bed) {
        let mut connection = connect(&bed.database.url).await;
        let all = "{{tick.utc}} {{tick.local}} {{tick.date}} {{tick.time}} {{tick.unix}}";
        let table = [
            ("2026-03-29T00:59:59Z", "Europe/Berlin",
             "2026-03-29T00:59:59Z 2026-03-29T01:59:59+01:00 2026-03-29 01:59:59 1774745999"),
            ("2026-03-29T01:00:00Z", "Europe/Berlin",
             "2026-03-29T01:00:00Z 2026-03-29T03:00:00+02:00 2026-03-29 03:00:00 1774746000"),
            ("2026-01-01T02:15:00Z", "America/St_Johns",
             "2026-01-01T02:15:00Z 2025-12-31T22:45:00-03:30 2025-12-31 22:45:00 1767233700"),
            (
                "2026-01-01T00:00:00.999999Z",
                "UTC",
                "2026-01-01T00:00:00Z 2026-01-01T00:00:00+00:00 2026-01-01 00:00:00 1767225600",
            ),
            (
                "2026-01-01T00:00:00Z",
                "Asia/Kathmandu",
                "2026-01-01T00:00:00Z 2026-01-01T05:45:00+05:45 2026-01-01 05:45:00 1767225600",
            ),
            // `CET` is also a fixed offset, but here it is the zone with daylight saving time.
            ("2026-07-01T00:00:00Z", "CET",
             "2026-07-01T00:00:00Z 2026-07-01T02:00:00+02:00 2026-07-01 02:00:00 1782864000"),
        ];
        for (tick, zone, expected) in table {
            assert_eq!(render(&mut connection, all, tick, zone, "n").await, expected);
            let timestamp: Timestamp = tick.parse().unwrap();
            let utc = timestamp.to_rfc3339_opts(chrono::SecondsFormat::Secs, true);
            assert!(expected.starts_with(&format!("{utc} ")), "{utc}");
        }
        let name = r"{{tick.unix}} {{schedule.name}} \\1 \\";
        let others = "{{schedule.id}} {{schedule.name}} [{{tick.previous}}{{tick.next}}] {{tick_utc}} {{{  tick.unix }}}";
        let expected = format!("{ID} {name} [] {{{{tick_utc}}}} {{1767225600}}");
        assert_eq!(render(&mut connection, others, "2026-01-01Z", "UTC", name).await, expected);
        assert_eq!(render(&mut connection, "no values", "2026-01-01Z", "nowhere", "n").await, "no values");
    }

    // C11, C12
    async fn payload_template_renders_to_valid_json(bed) {
        let queue = bed.real_time_queue().await;
        insert(&bed.database.url, ID, ", title, last_at", ", 'of {{schedule.name}}', '2026-02-03T04:05:06Z'").await;
        let payload = r#"{"{{schedule.name}}": ["{{tick.previous}}", "{{tick.next}}", 1.0]}"#;
        execute(&bed.database.url, &format!(r#"UPDATE windlass.schedules SET payload = '{payload}', name = 'a"\ö'"#)).await;
        run(&mut connect(&bed.database.url).await, ID).await.unwrap();
        let event = claim_one(&queue).await.event;
        let expected = r#"{"a\"\\ö": ["2026-02-03T04:05:06Z", "2040-05-06T07:08:00Z", 1.0]}"#;
        assert_eq!(event.payload.get(), expected);
        assert_eq!(event.title.as_deref(), Some(r#"of a"\ö"#));
    }
}
