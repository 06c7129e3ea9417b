//! The SQL functions of the PostgreSQL schema. They have the same effects as the library.

use std::time::Duration;

use sqlx::{AssertSqlSafe, Connection, Executor, PgConnection, Row};
use windlass::{
    ClaimRequest, GroupFailurePolicy, NamespacePolicy, NewEvent, Policy, PolicyOverrides, Queue, SampleFilter,
    SubscriptionSpec, Timestamp,
};
use windlass_testkit::postgres::{connect, lines};

use crate::bed::Bed;
use crate::support::*;

/// Runs a query that returns one number.
async fn call(connection: &mut PgConnection, sql: &str) -> sqlx::Result<i64> {
    Ok(connection.fetch_one(AssertSqlSafe(sql.to_owned())).await?.get(0))
}

/// Runs `SELECT windlass.publish(…)`.
async fn publish_sql(connection: &mut PgConnection, arguments: &str) -> i64 {
    let published = call(connection, &format!("SELECT windlass.publish({arguments})")).await;
    published.unwrap_or_else(|error| panic!("{arguments}: {error}"))
}

/// The error message of a call with invalid arguments.
pub async fn validation_error(connection: &mut PgConnection, sql: &str) -> String {
    let error = call(connection, sql).await.unwrap_err().into_database_error().expect("the server refuses it");
    assert_eq!(error.code().as_deref(), Some("22023"), "{sql}: {error}");
    error.message().to_owned()
}

fn overrides(
    max_retries: Option<Option<u32>>,
    max_attempts: Option<u32>,
    group: Option<GroupFailurePolicy>,
) -> PolicyOverrides {
    PolicyOverrides { max_retries, max_attempts, group_failure: group, ..Default::default() }
}

/// A namespace with type overrides, and subscriptions with filters and overrides.
async fn create_namespace(queue: &Queue, namespace: &str) -> Queue {
    let base = Policy { key_window_ms: 5_000, max_retries: Some(7), ..Policy::default() };
    let expiring = |ms| PolicyOverrides { expires_after_ms: Some(Some(ms)), ..overrides(None, Some(14), None) };
    let types = [
        ("order.*".into(), overrides(Some(Some(4)), Some(11), None)),
        ("order.p*".into(), overrides(Some(None), None, Some(GroupFailurePolicy::Continue))),
        ("order.pai*".into(), overrides(None, Some(12), None)),
        // Same length as the previous pattern: the one later in byte order wins.
        ("order.paid".into(), overrides(None, Some(13), None)),
        ("mail!".into(), expiring(86_400_123)),
        ("mail*".into(), overrides(None, Some(15), None)),
    ];
    let queue =
        queue.put_namespace(namespace, Some(NamespacePolicy { base, types: types.into() }), None).await.unwrap();
    let subscriptions = [
        SubscriptionSpec::new("Audit").types(["order.*", "mail"]),
        SubscriptionSpec::new("email").tags(["email", "sms"]).policy(overrides(Some(Some(1)), Some(2), None)),
        SubscriptionSpec::new("passing").policy(overrides(Some(None), None, Some(GroupFailurePolicy::Continue))),
        SubscriptionSpec::new("strict").types(["order.paid"]).policy(overrides(
            None,
            None,
            Some(GroupFailurePolicy::Block),
        )),
        SubscriptionSpec::new("both").types(["*"]).tags(["ö"]),
    ];
    for subscription in subscriptions {
        queue.add_subscription(subscription).await.unwrap();
    }
    queue
}

const AT: &str = "2031-05-06T07:08:09.123456Z";

fn raw(json: &str) -> Box<serde_json::value::RawValue> {
    serde_json::value::RawValue::from_string(json.to_owned()).unwrap()
}

/// Events of all kinds, each as the argument of the library and of the SQL function.
fn sample_events() -> Vec<(NewEvent, &'static str)> {
    let at = || AT.parse::<Timestamp>().unwrap();
    let payload = r#"{"b": 1.0, "a":1e5 , "a":"\u00e4\ud83d\ude00\\ud800"}"#;
    vec![
        (NewEvent::new("plain"), "'plain'"),
        (NewEvent::new("order.paid"), "'order.paid'"),
        (NewEvent::new("order.packed").group("g"), "'order.packed', group_id => 'g'"),
        (NewEvent::new("order.packed").group("g"), "'order.packed', group_id => 'g'"),
        (NewEvent::new("order.paid").group("g"), "'order.paid', group_id => 'g'"),
        (NewEvent::new("order.paid").group("h").max_retries(0), "'order.paid', group_id => 'h', max_retries => 0"),
        (NewEvent::new("order.new").max_retries(9), "'order.new', max_retries => 9"),
        (NewEvent::new("mail!"), "'mail!'"),
        (NewEvent::new("mailing").tags(["sms", "x"]), "'mailing', tags => 'sms,x'"),
        (NewEvent::new("mail").tags_text(" sms ,email,sms, a"), "'mail', tags => ' sms ,email,sms, a'"),
        (NewEvent::new("t").tags(["ö", "Z", "a"]).priority(-3), "'t', tags => 'ö,Z,a', priority => -3"),
        (NewEvent::new("t").tags_text(" "), "'t', tags => ' '"),
        (
            NewEvent::new("t").payload_raw(raw(payload)),
            r#"'t', '{"b": 1.0, "a":1e5 , "a":"\u00e4\ud83d\ude00\\ud800"}'"#,
        ),
        (NewEvent::new("t").key("k").title("it's"), "'t', key => 'k', title => 'it''s'"),
        (NewEvent::new("t").key("k").title("again"), "'t', key => 'k', title => 'again'"),
        (NewEvent::new("t").delay(secs(90)).group("d"), "'t', delay => '90 seconds', group_id => 'd'"),
        (NewEvent::new("t").delay(Duration::ZERO), "'t', delay => '0'"),
        (
            NewEvent::new("t").title("at").run_at(at()).expires_at(at() + chrono::TimeDelta::hours(1)),
            "'t', title => 'at', run_at => '2031-05-06T07:08:09.123456Z', expires_at => '2031-05-06T08:08:09.123456Z'",
        ),
        (
            NewEvent::new("t").title("past").run_at("2020-01-01T00:00:00Z".parse().unwrap()).producer("p"),
            "'t', title => 'past', run_at => '2020-01-01T00:00:00Z', producer => 'p'",
        ),
        (
            NewEvent::new("t").description("long").metadata(&serde_json::json!({ "m": 1 })).unwrap(),
            r#"'t', description => 'long', metadata => '{"m":1}'"#,
        ),
    ]
}

// The columns that must be equal. Ids, lanes and times differ, and the router creates deliveries out of order.
const EVENTS: &str = "
SELECT row_to_json(r)::text FROM (
    SELECT e.event_type, e.title, e.description, e.tags, e.payload::text, e.group_id, e.key, e.priority, e.producer,
           e.scheduled_task_id, e.metadata::text, e.expires_at,
           CASE WHEN e.title IN ('at', 'past') THEN e.run_at::text ELSE (e.run_at - e.created_at)::text END AS run_at
    FROM windlass.events e WHERE e.namespace = '{ns}' ORDER BY e.id) AS r";
const DELIVERIES: &str = "
SELECT row_to_json(r)::text FROM (
    SELECT q.subscription, l.subscription AS lane_subscription, l.event_type, l.tags, l.priority,
           CASE WHEN e.title = 'at' THEN q.ready_at::text WHEN q.ready_at = 'infinity' THEN 'waits'
                WHEN e.run_at > e.created_at THEN (q.ready_at - q.created_at)::text ELSE 'ready' END AS ready_at,
           CASE WHEN e.title = 'at' THEN q.due_at::text
                WHEN e.run_at > e.created_at THEN (q.due_at - q.created_at)::text END AS due_at,
           q.event_type AS type, q.priority AS level, q.attempts, q.attempts_limit, q.retry_count, q.max_retries, q.group_id, q.expires_at, q.lease, q.worker_id,
           q.created_at = e.created_at AS same_instant
    FROM windlass.event_queue q JOIN windlass.events e ON e.id = q.event_id JOIN windlass.lanes l USING (lane_id)
    WHERE q.namespace = '{ns}' AND e.namespace = '{ns}' AND l.namespace = '{ns}'
    ORDER BY e.id, q.subscription) AS r";
const GROUPS: &str = "
SELECT format('%s %s %s', subscription, group_id, depth) FROM windlass.event_groups WHERE namespace = '{ns}'
ORDER BY subscription, group_id";
const KEYS: &str = "
SELECT format('%s %s %s %s', k.key, k.expires_at - k.created_at, e.title, e.created_at = k.created_at)
FROM windlass.event_keys k JOIN windlass.events e ON e.id = k.event_id WHERE k.namespace = '{ns}' ORDER BY 1";

/// The stored rows of a namespace.
async fn contents(bed: &Bed, namespace: &str) -> Vec<String> {
    let mut all = Vec::new();
    for sql in [EVENTS, DELIVERIES, GROUPS, KEYS] {
        all.extend(lines(&bed.database.url, &sql.replace("{ns}", namespace)).await);
    }
    all
}

fn assert_same(library: &[String], sql: &[String]) {
    for (library, sql) in library.iter().zip(sql) {
        assert_eq!(library, sql);
    }
    assert_eq!(library.len(), sql.len());
}

on_postgres! {
    // O5
    async fn sql_publish_stores_the_same_as_library_publish(bed) {
        let queue = bed.real_time_queue().await;
        let (library, sql) = (create_namespace(&queue, "library").await, create_namespace(&queue, "sql").await);
        let mut connection = connect(&bed.database.url).await;
        for (event, arguments) in sample_events() {
            library.publish(event).await.unwrap();
            publish_sql(&mut connection, &format!("{arguments}, namespace => 'sql'")).await;
        }
        assert_eq!(count_events(&sql).await, 20 - 1);
        let stored = contents(bed, "library").await;
        assert!(stored.len() > 80, "{}", stored.len());
        assert_same(&stored, &contents(bed, "sql").await);

        // Then in one transaction, into a group with retries.
        let mut tx = connection.begin().await.unwrap();
        for queue in [&library, &sql] {
            let request = || ClaimRequest::new("w").subscription("passing").types(["order.packed"]).max(1);
            fail(queue, &claim(queue, request()).await.remove(0)).await;
            let second = claim(queue, request()).await.remove(0);
            fail(queue, &second).await;
        }
        library.publish(NewEvent::new("order.packed").group("g")).await.unwrap();
        publish_sql(&mut tx, "'order.packed', group_id => 'g', namespace => 'sql'").await;
        library.publish(NewEvent::new("order.packed").group("g")).await.unwrap();
        publish_sql(&mut tx, "'order.packed', group_id => 'g', namespace => 'sql'").await;
        tx.commit().await.unwrap();
        // Counting routes the events first.
        assert_eq!(count_events(&sql).await, 20 - 1 + 2);
        let ready = "SELECT format('%s %s %s', q.subscription, rank() OVER (PARTITION BY q.namespace ORDER BY q.event_id),
                                   q.ready_at = 'infinity')
                     FROM windlass.event_queue q WHERE q.namespace = '{ns}' ORDER BY q.event_id, q.subscription";
        let library = lines(&bed.database.url, &ready.replace("{ns}", "library")).await;
        assert_same(&library, &lines(&bed.database.url, &ready.replace("{ns}", "sql")).await);
    }

    async fn events_published_by_sql_are_counted(bed) {
        let queue = bed.real_time_queue().await;
        let mut connection = connect(&bed.database.url).await;
        publish_sql(&mut connection, "'t', key => 'k'").await;
        publish_sql(&mut connection, "'t', key => 'k'").await;
        let mut tx = connection.begin().await.unwrap();
        publish_sql(&mut tx, "'t'").await;
        tx.rollback().await.unwrap();
        queue.sample_once().await.unwrap();
        let samples = queue.samples(Default::default()).await.unwrap();
        assert_eq!(samples.iter().map(|sample| sample.published).sum::<u64>(), 1);
    }

    // O5
    async fn sql_publish_wakes_waiting_claims_after_commit(bed) {
        let (queue, other) = (bed.real_time_queue().await, bed.real_time_queue().await);
        let mut connection = connect(&bed.database.url).await;
        for queue in [&queue, &other] {
            for (n, arguments) in ["'t'", "'t', group_id => 'g'", "'new', tags => 'x'"].into_iter().enumerate() {
                let waits = queue.clone();
                let request = ClaimRequest::new("w").wait(secs(30));
                let waiter = tokio::spawn(async move { waits.claim(request).await.unwrap() });
                tokio::task::yield_now().await;
                let mut tx = connection.begin().await.unwrap();
                publish_sql(&mut tx, arguments).await;
                tx.rollback().await.unwrap();
                let mut tx = connection.begin().await.unwrap();
                let event = publish_sql(&mut tx, &format!("{arguments}, payload => '{n}'")).await;
                assert_eq!(count_events(queue).await, 0);
                assert!(!waiter.is_finished());
                tx.commit().await.unwrap();
                let got = waiter.await.unwrap();
                assert_eq!(ids(&got), [event]);
                done(queue, &got[0]).await;
                connection.execute("DELETE FROM windlass.events").await.unwrap();
            }
        }
    }

    async fn commit_notifies_routers(bed) {
        let mut listener = sqlx::postgres::PgListener::connect(&bed.database.url).await.unwrap();
        listener.listen("windlass").await.unwrap();
        let mut connection = connect(&bed.database.url).await;
        // No router is listening.
        connection.execute("SET windlass.notify = 'on'").await.unwrap();
        let queue = bed.real_time_queue().await;
        for by_sql in [true, false] {
            let mut tx = connection.begin().await.unwrap();
            match by_sql {
                true => drop(publish_sql(&mut tx, "'t', delay => '1 hour'").await),
                false => drop(queue.publish_in(&mut *tx, NewEvent::new("t").delay(MINUTE)).await.unwrap()),
            }
            tx.commit().await.unwrap();
            assert_eq!(listener.recv().await.unwrap().payload(), "0 default +");
        }
    }

    async fn late_commit_is_found_behind_claim_positions(bed) {
        let queue = bed.real_time_queue().await;
        let mut connection = connect(&bed.database.url).await;
        publish(&queue, "t").await;
        done(&queue, &claim_one(&queue).await).await;
        for by_sql in [true, false] {
            let mut tx = connection.begin().await.unwrap();
            let late = match by_sql {
                true => publish_sql(&mut tx, "'t'").await,
                false => queue.publish_in(&mut *tx, NewEvent::new("t")).await.unwrap().event.id,
            };
            // Other events are published and claimed, and the claim positions move past the uncommitted event.
            let later = publish_many(&queue, "t", 20).await;
            for event in &later {
                let delivery = claim_one(&queue).await;
                assert_eq!(delivery.event.id, *event);
                done(&queue, &delivery).await;
            }
            let more = publish_many(&queue, "t", 3).await;
            tx.commit().await.unwrap();
            let mut got = Vec::new();
            while got.len() < 4 {
                let delivery = claim_one_soon(&queue).await;
                got.push(delivery.event.id);
                done(&queue, &delivery).await;
            }
            assert_eq!(sorted(got), sorted([vec![late], more].concat()));
        }
    }

    async fn trigger_can_publish(bed) {
        let queue = bed.real_time_queue().await;
        bed.database.execute("
            CREATE TABLE orders (id integer PRIMARY KEY, status text NOT NULL);
            CREATE FUNCTION tell_of_order() RETURNS trigger LANGUAGE plpgsql AS $$
            BEGIN
                PERFORM windlass.publish('order.' || NEW.status, to_json(NEW), group_id => 'order-' || NEW.id);
                RETURN NULL;
            END $$;
            CREATE TRIGGER tell AFTER INSERT OR UPDATE OF status ON orders FOR EACH ROW EXECUTE FUNCTION tell_of_order();
            INSERT INTO orders VALUES (7, 'placed');
            UPDATE orders SET status = 'paid'").await;
        let first = claim_one(&queue).await;
        assert_eq!(first.event.event_type, "order.placed");
        assert_eq!(first.event.payload.get(), r#"{"id":7,"status":"placed"}"#);
        assert!(poll(&queue).await.is_none());
        done(&queue, &first).await;
        assert_eq!(claim_one(&queue).await.event.event_type, "order.paid");
    }

    async fn invalid_arguments_are_refused_by_name(bed) {
        let mut connection = connect(&bed.database.url).await;
        let deep = |depth: usize| format!("'t', '{}1{}'", "[".repeat(depth), "]".repeat(depth));
        let tags = (0..33).map(|n| n.to_string()).collect::<Vec<_>>().join(",");
        let cases = [
            ("''".to_owned(), "event_type: must not be empty"),
            ("NULL".to_owned(), "event_type: must not be empty"),
            ("'a*'".to_owned(), "event_type: must not contain '*'"),
            ("E'a\\u0007b'".to_owned(), "event_type: must not contain control characters"),
            ("E'a\\u0085'".to_owned(), "event_type: must not contain control characters"),
            ("' a'".to_owned(), "event_type: must not begin or end with white space"),
            ("E'a\\u3000'".to_owned(), "event_type: must not begin or end with white space"),
            ("repeat('ö', 101)".to_owned(), "event_type is 202 bytes; the limit is 200 bytes"),
            ("'t', namespace => 'nowhere'".to_owned(), "namespace: 'nowhere' does not exist; create it first"),
            ("'t', title => repeat('x', 1001)".to_owned(), "title is 1001 bytes; the limit is 1000 bytes"),
            (
                "'t', description => repeat('x', 10001)".to_owned(),
                "description is 10001 bytes; the limit is 10000 bytes",
            ),
            ("'t', tags => 'a,,b'".to_owned(), "tags: must not be empty"),
            ("'t', tags => repeat('x', 2001)".to_owned(), "tags is 2001 bytes; the limit is 2000 bytes"),
            (format!("'t', tags => '{tags}'"), "tags: has 33 tags; the limit is 32"),
            ("'t', group_id => ''".to_owned(), "group_id: must not be empty"),
            ("'t', key => ' '".to_owned(), "key: must not begin or end with white space"),
            ("'t', producer => repeat('x', 201)".to_owned(), "producer is 201 bytes; the limit is 200 bytes"),
            ("'t', priority => 32768".to_owned(), "priority: must be from -32768 to 32767"),
            ("'t', max_retries => -1".to_owned(), "max_retries: must be from 0 to 10000"),
            ("'t', max_retries => 10001".to_owned(), "max_retries: must be from 0 to 10000"),
            ("'t', run_at => 'infinity'".to_owned(), "run_at: must be within 100 years from now"),
            ("'t', expires_at => '-infinity'".to_owned(), "expires_at: must be within 100 years from now"),
            ("'t', run_at => now(), delay => '1 s'".to_owned(), "delay: give either run_at or a delay, not both"),
            ("'t', delay => '-1 s'".to_owned(), "delay: must not be negative"),
            ("'t', delay => '101 years'".to_owned(), "delay: must be at most 100 years"),
            (
                "'t', delay => '2 h', expires_at => now() + interval '1 h'".to_owned(),
                "expires_at: must be after run_at: the event could never start",
            ),
            (
                "'t', ('\"' || repeat('x', 1048576) || '\"')::json".to_owned(),
                "payload is 1048578 bytes; the limit is 1048576 bytes",
            ),
            (deep(101), "payload: must not nest deeper than 100"),
            (
                r#"'t', '"\\\ud83d\\\ude00"'"#.to_owned(),
                r"payload: has a \u escape that is half of a character: a lone surrogate",
            ),
            ("'t', metadata => '[1]'".to_owned(), "metadata: must be a JSON object"),
            (
                "'t', metadata => json_build_object('a', repeat('x', 16384))".to_owned(),
                "metadata is 16394 bytes; the limit is 16384 bytes",
            ),
        ];
        for (arguments, expected) in cases {
            assert_eq!(validation_error(&mut connection, &format!("SELECT windlass.publish({arguments})")).await, expected);
        }
        assert!(call(&mut connection, "SELECT windlass.publish('t', '{')").await.is_err());
        assert_eq!(count_events(&bed.queue).await, 0);
        assert_eq!(lines(&bed.database.url, "SELECT lane_id::text FROM windlass.lanes").await, [""; 0]);

        let accepted = [deep(100), format!("'t', '[{}]'", "[[[\"[[\\\"[[[\"]]],".repeat(60) + "1"), "'t', NULL".into()];
        for arguments in accepted {
            publish_sql(&mut connection, &arguments).await;
        }
        assert_eq!(count_events(&bed.queue).await, 3);
    }

    async fn key_deduplicates_across_sql_and_library(bed) {
        let queue = bed.real_time_queue().await;
        for round in 0..10 {
            let key = format!("k{round}");
            let mut publishing = Vec::new();
            for n in 0..6 {
                let (queue, key, url) = (queue.clone(), key.clone(), bed.database.url.clone());
                publishing.push(tokio::spawn(async move {
                    if n % 2 == 0 {
                        let event = NewEvent::new("t").key(key).group("g");
                        return queue.publish(event).await.unwrap().event.id;
                    }
                    publish_sql(&mut connect(&url).await, &format!("'t', key => '{key}', group_id => 'g'")).await
                }));
            }
            let mut ids = Vec::new();
            for published in publishing {
                ids.push(published.await.unwrap());
            }
            // Concurrent transactions got different ids. One event per key is stored.
            let kept: Vec<bool> = {
                assert_eq!(count_events(&queue).await, round + 1);
                let mut kept = Vec::new();
                for id in sorted(ids) {
                    kept.push(queue.get(id).await.is_ok());
                }
                kept
            };
            assert!(kept.contains(&true));
        }
        assert_eq!(lines(&bed.database.url, "SELECT depth::text FROM windlass.event_groups").await, ["10"]);
    }

    async fn concurrent_publishes_of_new_types_create_each_lane_once(bed) {
        let queue = bed.real_time_queue().await;
        queue.add_subscription(SubscriptionSpec::new("audit")).await.unwrap();
        let publishing: Vec<_> = (0..8)
            .map(|n| {
                let (queue, url) = (queue.clone(), bed.database.url.clone());
                tokio::spawn(async move {
                    for kind in 0..10 {
                        let mut connection = connect(&url).await;
                        match n % 2 {
                            0 => drop(publish(&queue, &format!("t{kind}")).await),
                            _ => drop(publish_sql(&mut connection, &format!("'t{kind}'")).await),
                        }
                    }
                })
            })
            .collect();
        for published in publishing {
            published.await.unwrap();
        }
        assert_eq!(claim_all(&queue).await.len(), 80);
        assert_eq!(lines(&bed.database.url, "SELECT lane_id::text FROM windlass.lanes").await.len(), 20);
    }

    async fn new_type_can_be_published_twice_in_one_transaction(bed) {
        let mut connection = connect(&bed.database.url).await;
        let mut tx = connection.begin().await.unwrap();
        let first = publish_sql(&mut tx, "'t', tags => 'x'").await;
        // No other transaction can create its lane before this one ends.
        let second = bed.queue.publish_in(&mut *tx, NewEvent::new("t").tags(["x"])).await.unwrap().event.id;
        tx.rollback().await.unwrap();
        assert!(poll(&bed.queue).await.is_none());
        assert!(first < second);
        let mut tx = connection.begin().await.unwrap();
        publish_sql(&mut tx, "'t', tags => 'x', run_at => '2025-01-01Z'").await;
        let event = NewEvent::new("t").tags(["x"]);
        bed.queue.publish_in(&mut *tx, event).await.unwrap();
        tx.commit().await.unwrap();
        assert_eq!(count_events(&bed.queue).await, 2);
        assert_eq!(lines(&bed.database.url, "SELECT lane_id::text FROM windlass.lanes").await.len(), 1);
    }

    // C12
    async fn append_event_log_stores_event_without_deliveries(bed) {
        let mut connection = connect(&bed.database.url).await;
        let task = "3f0c9e0e-6d1f-4c3a-9a65-0d0a5f5a7a11";
        let sql = format!("SELECT windlass.append_event_log('default', 'user.created', '{{\"id\": 1}}', 'node-1',
                           '{task}', '{{\"messageId\": 5}}')");
        let id = call(&mut connection, &sql).await.unwrap();
        let view = bed.queue.get(id).await.unwrap();
        let event = &view.event;
        assert_eq!((event.event_type.as_str(), event.payload.get()), ("user.created", r#"{"id": 1}"#));
        assert_eq!(event.producer.as_deref(), Some("node-1"));
        assert_eq!(event.scheduled_task_id.as_deref(), Some(task));
        assert_eq!(event.metadata.as_ref().unwrap().get(), r#"{"messageId": 5}"#);
        assert!(json(event).contains(task));
        assert!(view.deliveries.is_empty());
        assert!(poll(&bed.queue).await.is_none());

        let id = call(&mut connection, "SELECT windlass.append_event_log('default', 't', NULL, NULL)").await.unwrap();
        let event = bed.queue.get(id).await.unwrap().event;
        assert_eq!((event.payload.get(), event.scheduled_task_id.as_deref()), ("null", None));
        assert!(!json(&event).contains("scheduled_task_id"));

        let cases = [
            ("'nowhere', 't', '1', 'n'", "p_namespace: 'nowhere' does not exist; create it first"),
            ("'default', '', '1', 'n'", "p_event_type: must not be empty"),
            ("'default', 't', '1', ''", "p_producer_node_id: must not be empty"),
            ("'default', 't', '1', 'n', NULL, '1'", "p_metadata: must be a JSON object"),
        ];
        for (arguments, expected) in cases {
            let message = validation_error(&mut connection, &format!("SELECT windlass.append_event_log({arguments})")).await;
            assert_eq!(message, expected);
        }
        assert_eq!(count_events(&bed.queue).await, 2);
    }

    // C4, C12
    async fn backfilled_event_keeps_its_scheduled_task_id(bed) {
        let queue = bed.real_time_queue().await;
        let task = "3f0c9e0e-6d1f-4c3a-9a65-0d0a5f5a7a11";
        let mut connection = connect(&bed.database.url).await;
        let sql = format!("SELECT windlass.append_event_log('default', 't', '1', 'scheduler', '{task}')");
        call(&mut connection, &sql).await.unwrap();
        let since = queue.clock().now() - chrono::TimeDelta::minutes(1);
        queue.add_subscription(SubscriptionSpec::new("late").since(since)).await.unwrap();
        let got = claim(&queue, ClaimRequest::new("w").subscription("late")).await.remove(0);
        assert_eq!(got.event.scheduled_task_id.as_deref(), Some(task));
        finish(&queue, &got, windlass::Report::dead("x")).await;
        let letters = queue.dead_letters(Default::default()).await.unwrap().items;
        assert_eq!(letters[0].event.scheduled_task_id.as_deref(), Some(task));
        let listed = queue.list(Default::default()).await.unwrap().items;
        assert_eq!(listed[0].event.scheduled_task_id.as_deref(), Some(task));
    }

    // C12
    async fn queue_names_are_derived_from_namespace(bed) {
        let names = "SELECT windlass.queue_name_for_namespace(n) || ' ' || windlass.dead_letter_queue_name_for_namespace(n)
                     FROM unnest('{demo,my-shop-1}'::text[]) AS n";
        let expected = ["core_events_demo core_events_demo_dlq", "core_events_my_shop_1 core_events_my_shop_1_dlq"];
        assert_eq!(lines(&bed.database.url, names).await, expected);
    }

    async fn grants_in_the_guide_suffice_for_publishing(bed) {
        let mut connection = connect(&bed.database.url).await;
        // The test role has the name of the schema, which would otherwise come first in the search path.
        connection.execute("SET search_path = public").await.unwrap();
        let role = role();
        let run = async |connection: &mut PgConnection, sql: &str| {
            connection.execute(AssertSqlSafe(sql.replace("publisher", &role))).await.map(drop)
        };
        run(&mut connection, "CREATE ROLE publisher").await.unwrap();
        let everything = "SELECT windlass.publish('t', key => 'k', group_id => 'g', tags => 'x'),
                                 windlass.publish('t', group_id => 'g'),
                                 windlass.append_event_log('default', 't', '1', 'n');
                          INSERT INTO windlass.outbox (event_type) VALUES ('t') RETURNING id";
        let guide_block = |start: &str| guide_statements().into_iter().find(|block| block.starts_with(start)).unwrap();
        let ways = [
            ("SELECT order_paid(7)", guide_block("CREATE FUNCTION order_paid")),
            (everything, guide_block("GRANT USAGE ON SCHEMA")),
        ];
        for (publish, grants) in ways {
            run(&mut connection, "SET ROLE publisher").await.unwrap();
            run(&mut connection, publish).await.unwrap_err();
            run(&mut connection, "RESET ROLE").await.unwrap();
            run(&mut connection, &grants).await.unwrap();
            run(&mut connection, "SET ROLE publisher").await.unwrap();
            run(&mut connection, publish).await.unwrap_or_else(|error| panic!("{publish}: {error}"));
            for forbidden in ["DELETE FROM windlass.events", "SELECT FROM windlass.events", "SELECT FROM windlass.arrivals"] {
                let error = run(&mut connection, forbidden).await.unwrap_err();
                assert!(error.to_string().contains("permission denied"), "{error}");
            }
            run(&mut connection, "RESET ROLE").await.unwrap();
        }
        run(&mut connection, "DROP OWNED BY publisher; DROP ROLE publisher").await.unwrap();
        assert_eq!(count_events(&bed.queue).await, 5);
    }

    // The role has one of these two rights, and the default right to create temporary tables.
    async fn publisher_role_can_only_publish(bed) {
        let mut connection = connect(&bed.database.url).await;
        connection.execute("SET search_path = public").await.unwrap();
        let queue = bed.real_time_queue().await;
        let known = publish_new(&queue, NewEvent::new("secret").key("k").payload(&1).unwrap()).await;
        let role = role();
        let run = async |connection: &mut PgConnection, sql: &str| {
            connection.execute(AssertSqlSafe(sql.replace("publisher", &role))).await.map(drop)
        };
        let assert_denied = async |connection: &mut PgConnection, sql: &str| {
            let error = run(connection, sql).await.expect_err(sql).to_string();
            assert!(error.contains("permission denied"), "{sql}: {error}");
        };
        let tables = "SELECT format('windlass.%I', c.relname) FROM pg_class c
                      WHERE c.relnamespace = 'windlass'::regnamespace AND c.relkind IN ('r', 'p')";
        let tables = lines(&bed.database.url, tables).await;
        assert!(["windlass.events", "windlass.arrivals", "windlass.event_groups"].iter().all(|name| tables.contains(&(*name).to_owned())));
        run(&mut connection, "CREATE ROLE publisher; GRANT USAGE ON SCHEMA windlass TO publisher").await.unwrap();
        let insert = "INSERT INTO windlass.outbox (event_type, group_id) VALUES ('t', 'g')";
        let select = "SELECT windlass.publish('t', group_id => 'g')";
        let ways = [
            ("INSERT ON windlass.outbox", insert, select),
            ("EXECUTE ON FUNCTION windlass.publish", select, insert),
        ];
        for (right, allowed, other) in ways {
            run(&mut connection, &format!("GRANT {right} TO publisher; SET ROLE publisher")).await.unwrap();
            run(&mut connection, allowed).await.unwrap();
            assert_denied(&mut connection, other).await;
            assert_denied(&mut connection, "SELECT windlass.append_event_log('default', 't', '1', 'n')").await;
            for table in &tables {
                assert_denied(&mut connection, &format!("SELECT FROM {table}")).await;
                assert_denied(&mut connection, &format!("DELETE FROM {table}")).await;
                assert_denied(&mut connection, &format!("INSERT INTO {table} DEFAULT VALUES")).await;
                assert_denied(&mut connection, &format!("TRUNCATE {table}")).await;
            }
            assert_denied(&mut connection, "SELECT nextval('windlass.events_id_seq')").await;
            assert_denied(&mut connection, "SELECT windlass._arrive('default', 't', NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL,
                NULL, NULL, NULL, NULL, NULL, NULL)").await;
            // For a used key, the role learns the id and whether type and payload are the same.
            let payload = "SELECT windlass.publish('secret', '2', key => 'k')";
            if right.starts_with("EXECUTE") {
                assert_eq!(call(&mut connection, "SELECT windlass.publish('secret', '1', key => 'k')").await.unwrap(), known.id);
                let error = run(&mut connection, payload).await.unwrap_err().to_string();
                assert!(error.contains("another type or payload"), "{error}");
            }
            run(&mut connection, &format!("RESET ROLE; REVOKE {right} FROM publisher")).await.unwrap();
        }
        // The role cannot use the rights of a trigger function either.
        run(&mut connection, "SET ROLE publisher").await.unwrap();
        let mine = "CREATE TEMPORARY TABLE mine (namespace text, event_type text, payload json, title text, description text,
            tags text, group_id text, key text, priority integer, producer text, run_at timestamptz, delay interval,
            expires_at timestamptz, max_retries integer, metadata json, id bigint)";
        run(&mut connection, mine).await.unwrap();
        for function in ["_insert_into_outbox", "_number_lane"] {
            let trigger = "CREATE TRIGGER t BEFORE INSERT ON mine FOR EACH ROW EXECUTE FUNCTION windlass.";
            assert_denied(&mut connection, &format!("{trigger}{function}()")).await;
        }
        run(&mut connection, "RESET ROLE; DROP OWNED BY publisher; DROP ROLE publisher").await.unwrap();
        assert_eq!(count_events(&bed.queue).await, 3);
    }

    async fn grants_in_the_guide_suffice_for_publish_in(bed) {
        let mut connection = connect(&bed.database.url).await;
        let role = role();
        let run = async |connection: &mut PgConnection, sql: &str| {
            connection.execute(AssertSqlSafe(sql.replace("publisher", &role))).await.map(drop).unwrap();
        };
        run(&mut connection, "CREATE ROLE publisher").await;
        run(&mut connection, "GRANT USAGE ON SCHEMA windlass TO publisher").await;
        let grants = guide_statements().into_iter().find(|block| block.starts_with("GRANT USAGE ON SEQUENCE")).unwrap();
        run(&mut connection, &grants).await;
        let mut tx = connection.begin().await.unwrap();
        run(&mut tx, "SET LOCAL ROLE publisher").await;
        let event = |n: usize| NewEvent::new(format!("t{}", n % 2)).tags(["x"]).group("g").key(n.to_string());
        let published = bed.queue.publish_all_in(&mut tx, (0..3).map(event).collect()).await.unwrap();
        assert_eq!((published.len(), bed.queue.publish_in(&mut tx, NewEvent::new("t0")).await.is_ok()), (3, true));
        tx.commit().await.unwrap();
        run(&mut connection, "DROP OWNED BY publisher; DROP ROLE publisher").await;
        bed.queue.sample_once().await.unwrap();
        let by_type = SampleFilter { by_type: true, ..SampleFilter::default() };
        let samples = bed.queue.samples(by_type).await.unwrap();
        let counted: Vec<_> = samples.into_iter().map(|s| (s.event_type.unwrap(), s.published)).collect();
        assert_eq!(counted, [("t0".to_owned(), 3), ("t1".to_owned(), 1)]);
    }

    async fn every_statement_of_the_guide_works(bed) {
        let mut connection = connect(&bed.database.url).await;
        // The test role has the name of the schema, which would otherwise come first in the search path.
        connection.execute("SET search_path = public").await.unwrap();
        let role = role();
        connection.execute(AssertSqlSafe(format!("CREATE ROLE {role}"))).await.unwrap();
        crate::run_scheduled_task::insert(&bed.database.url, crate::run_scheduled_task::ID, "", "").await;
        for block in guide_statements() {
            let done = connection.execute(AssertSqlSafe(block.replace("publisher", &role))).await;
            done.unwrap_or_else(|error| panic!("{block}\n{error}"));
        }
        connection.execute(AssertSqlSafe(format!("DROP OWNED BY {role}; DROP ROLE {role}"))).await.unwrap();
        assert_eq!(count_events(&bed.queue).await, 11);
    }
}

/// A unique role name, because roles belong to the whole server.
fn role() -> String {
    format!("windlass_test_publisher_{}_{:08x}", std::process::id(), fastrand::u32(..))
}

/// The SQL blocks of the guide.
fn guide_statements() -> Vec<String> {
    let guide = include_str!("../../../../docs/sql.md");
    let blocks = guide.split("```sql\n").skip(1);
    blocks.map(|block| block.split_once("```").unwrap().0.to_owned()).collect()
}
