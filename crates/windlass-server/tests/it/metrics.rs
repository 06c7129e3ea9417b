//! `/metrics`: exact values after a known workload, in well-formed text.

use std::time::Duration;

use serde_json::json;
use windlass::{
    ClaimRequest, Delivery, HandlerError, NewEvent, Node, Outcome, Queue, Report, Scope, SubscriptionSpec, sqlx,
};
use windlass_testkit::until;

use crate::exposition::Exposition;
use crate::harness::Server;

fn secs(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

pub async fn scrape(server: &Server) -> Exposition {
    Exposition::parse(&server.get("/metrics").await.body)
}

async fn publish(queue: &Queue, event_type: &str, count: usize) {
    queue.publish_all(vec![NewEvent::new(event_type); count]).await.unwrap();
}

async fn claim(queue: &Queue, event_type: &str, max: usize) -> Vec<Delivery> {
    let taken = queue.claim(ClaimRequest::new("w:1").types([event_type]).max(max)).await.unwrap();
    assert_eq!(taken.len(), max, "{event_type}");
    taken
}

async fn finish(queue: &Queue, delivery: &Delivery, report: Report) {
    assert!(!queue.finish(delivery, report).await.unwrap().is_lost());
}

/// Publishes ten events and finishes nine with every possible outcome. Returns the one still held.
async fn finish_ten_events(server: &Server) -> Vec<Delivery> {
    let queue = &server.queue;
    publish(queue, "a", 10).await;
    server.advance_secs(2);
    let mut taken = claim(queue, "a", 10).await;
    server.advance_secs(3);
    let with_errors = Report::new(Outcome::DoneWithErrors);
    let snooze = Report::new(Outcome::Snooze { delay: secs(3_600) });
    let odd = Report::new(Outcome::Dead { reason: "no such user: 42".into() });
    let reports = [Report::done(), Report::done(), Report::done(), with_errors, snooze].into_iter().chain([
        Report::failed("later"),
        Report::failed("later"),
        Report::dead("never"),
        odd,
    ]);
    for report in reports {
        finish(queue, &taken.remove(0), report).await;
    }
    taken
}

/// Ends attempts without a report: expired leases, deadlines, and administrative actions.
async fn end_without_reports(server: &Server, held: &[Delivery]) {
    let queue = &server.queue;
    queue.publish(NewEvent::new("c").expires_in(secs(10))).await.unwrap();
    publish(queue, "d", 2).await;
    let taken = claim(queue, "d", 2).await;
    queue.reset(taken[0].event.id, "main", "stuck").await.unwrap();
    finish(queue, &taken[1], Report::new(Outcome::Release)).await;
    queue.cancel(taken[0].event.id, None).await.unwrap();
    server.advance_secs(61);
    queue.release_expired_once().await.unwrap();
    queue.expire_once().await.unwrap();
    let again = claim(queue, "a", 1).await;
    assert_eq!(again[0].event.id, held[0].event.id);
    assert!(queue.finish(&held[0], Report::done()).await.unwrap().is_lost());
}

/// Runs a node whose handlers return every kind of result, one of them in a transaction.
async fn run_node(server: &Server, queue: &Queue) {
    let node = Node::new(queue, "node-1")
        .on("ok", |_, _| async { Ok(()) })
        .on("flaky", |_, _| async { Err(HandlerError::retry("later")) })
        .on("broken", |_, _| async { Err(HandlerError::unrecoverable("never")) })
        .on("busy", |_, _| async { Err(HandlerError::snooze(secs(3_600))) });
    let node = match queue.database() {
        "sqlite" => node.on_in_sqlite_tx("booked", |_, _| Ok(())),
        _ => node.on_in_pg_tx("booked", |_, _| async { Ok(()) }),
    };
    for event_type in ["ok", "ok", "flaky", "broken", "busy", "booked"] {
        publish(queue, event_type, 1).await;
    }
    let running = node.start().await.unwrap();
    until(async || {
        let seen = Exposition::parse(&server.get("/metrics").await.body);
        let known = seen.0.contains_key("windlass_handler_runs_total");
        (known && seen.sum("windlass_attempts_total", &[("namespace", "shop")]) == 6.0).then_some(())
    })
    .await;
    running.stop().await;
}

fn expect(seen: &Exposition, name: &str, expected: &[(&[(&str, &str)], f64)]) {
    for (labels, value) in expected {
        assert_eq!(seen.sum(name, labels), *value, "{name} {labels:?}");
    }
    let all: f64 = expected.iter().map(|(_, value)| value).sum();
    assert_eq!(seen.sum(name, &[]), all, "{name}: nothing else is counted");
}

/// Uses every part of the queue, so that every metric has samples.
pub async fn run_workload(server: &mut Server) -> Exposition {
    server.restart_with(|options| options.metrics_age_max = Duration::ZERO).await;
    let queue = server.queue.clone();
    queue.add_subscription(SubscriptionSpec::new("audit").types(["b"])).await.unwrap();
    let shop = queue.put_namespace("shop", None, None).await.unwrap();
    let held = finish_ten_events(server).await;
    publish(&queue, "b", 3).await;
    queue.publish(NewEvent::new("g").group("one")).await.unwrap();
    queue.publish(NewEvent::new("g").group("one")).await.unwrap();
    let audit = queue.claim(ClaimRequest::new("w:1").subscription("audit").max(3)).await.unwrap();
    for delivery in &audit {
        finish(&queue, delivery, Report::done()).await;
    }
    end_without_reports(server, &held).await;
    run_node(server, &shop).await;
    server.get("/nowhere").await.error(404, "unknown_path");
    scrape(server).await
}

on_each_database! {
    // Q15, C15, O2
    async fn counters_are_exact_after_a_known_workload(server) {
        let seen = run_workload(server).await;

        let of = |event_type: &'static str| [("namespace", "default"), ("type", event_type)];
        expect(&seen, "windlass_events_published_total", &[
            (&of("a"), 10.0), (&of("b"), 3.0), (&of("c"), 1.0), (&of("d"), 2.0), (&of("g"), 2.0),
            (&[("namespace", "shop")], 6.0),
        ]);
        expect(&seen, "windlass_deliveries_claimed_total", &[
            (&[("subscription", "main"), ("type", "a")], 11.0),
            (&[("subscription", "main"), ("type", "d")], 2.0),
            (&[("subscription", "audit"), ("type", "b")], 3.0),
            (&[("namespace", "shop"), ("subscription", "main")], 6.0),
        ]);
        let ended = |event_type: &'static str, outcome: &'static str| {
            [("namespace", "default"), ("type", event_type), ("outcome", outcome)]
        };
        expect(&seen, "windlass_attempts_total", &[
            (&ended("a", "completed"), 3.0), (&ended("a", "completed_with_errors"), 1.0), (&ended("a", "snoozed"), 1.0),
            (&ended("a", "retried"), 2.0), (&ended("a", "failed"), 2.0), (&ended("a", "abandoned"), 1.0),
            (&ended("b", "completed"), 3.0), (&ended("c", "expired"), 1.0), (&ended("d", "reset"), 1.0),
            (&ended("d", "released"), 1.0), (&ended("d", "cancelled"), 1.0),
            (&[("namespace", "shop"), ("outcome", "completed")], 3.0),
            (&[("namespace", "shop"), ("outcome", "retried")], 1.0),
            (&[("namespace", "shop"), ("outcome", "failed")], 1.0),
            (&[("namespace", "shop"), ("outcome", "snoozed")], 1.0),
        ]);
        let dead = [
            (&[("type", "a"), ("reason", "handler_error")][..], 1.0),
            (&[("type", "a"), ("reason", "other")], 1.0),
            (&[("type", "c"), ("reason", "expired")], 1.0),
            (&[("namespace", "shop"), ("type", "broken"), ("reason", "handler_error")], 1.0),
        ];
        expect(&seen, "windlass_dead_lettered_total", &dead);
        expect(&seen, "windlass_dead_letters", &dead);
        expect(&seen, "windlass_leases_lost_total", &[(&[("namespace", "default")], 1.0)]);
        expect(&seen, "windlass_handler_runs_total", &[
            (&[("handler", "ok"), ("result", "success")], 2.0),
            (&[("handler", "booked"), ("result", "success")], 1.0),
            (&[("handler", "flaky"), ("result", "transient")], 1.0),
            (&[("handler", "broken"), ("result", "unrecoverable")], 1.0),
            (&[("handler", "busy"), ("result", "snoozed")], 1.0),
        ]);
    }

    async fn latencies_are_recorded_in_seconds(server) {
        let seen = run_workload(server).await;
        let a = [("namespace", "default"), ("type", "a")];
        let with = |le: &'static str| [a[0], a[1], ("le", le)];
        // Ten events waited 2 s. Only first claims count, so the second claim of one of them is not included.
        assert_eq!(seen.sum("windlass_wait_seconds_count", &a), 10.0);
        assert_eq!(seen.sum("windlass_wait_seconds_sum", &a), 20.0);
        assert_eq!(seen.sum("windlass_wait_seconds_bucket", &with("1")), 0.0);
        assert_eq!(seen.sum("windlass_wait_seconds_bucket", &with("2.5")), 10.0);
        // Eight reports arrived after 3 s. Snoozed and abandoned attempts are not included.
        assert_eq!(seen.sum("windlass_handling_seconds_count", &a), 8.0);
        assert_eq!(seen.sum("windlass_handling_seconds_sum", &a), 24.0);
        assert_eq!(seen.sum("windlass_handling_seconds_bucket", &with("2.5")), 0.0);
        assert_eq!(seen.sum("windlass_handling_seconds_bucket", &with("5")), 8.0);
    }

    async fn gauges_show_the_state_of_the_database(server) {
        let seen = run_workload(server).await;
        let at = |event_type: &'static str, state: &'static str| {
            [("namespace", "default"), ("subscription", "main"), ("type", event_type), ("state", state)]
        };
        expect(&seen, "windlass_queue_deliveries", &[
            (&at("a", "processing"), 1.0), (&at("a", "delayed"), 3.0), (&at("b", "ready"), 3.0), (&at("d", "ready"), 1.0),
            (&at("g", "ready"), 1.0), (&at("g", "waiting_for_group"), 1.0),
            (&[("namespace", "shop"), ("state", "delayed")], 2.0),
        ]);
        let oldest = |event_type| {
            let of = [("namespace", "default"), ("subscription", "main"), ("type", event_type)];
            seen.sum("windlass_queue_oldest_ready_age_seconds", &of)
        };
        assert_eq!((oldest("a"), oldest("b"), oldest("g")), (0.0, 61.0, 61.0));
        expect(&seen, "windlass_processing_deliveries", &[
            (&[("namespace", "default"), ("subscription", "main"), ("age", "<1m")], 1.0),
        ]);
        expect(&seen, "windlass_namespace_paused", &[(&[("namespace", "shop")], 0.0)]);
        expect(&seen, "windlass_oldest_arrival_age_seconds", &[(&[("namespace", "default")], 0.0)]);
        expect(&seen, "windlass_schedule_late_seconds", &[(&[("namespace", "shop")], 0.0)]);
        // The node has reported that it stopped.
        expect(&seen, "windlass_nodes", &[(&[("status", "alive")], 0.0)]);
        let build = [("version", env!("CARGO_PKG_VERSION")), ("database", server.queue.database())];
        expect(&seen, "windlass_build_info", &[(&build, 1.0)]);
        expect(&seen, "windlass_database_up", &[(&[], 1.0)]);
    }

    async fn maintenance_runs_are_counted(server) {
        let release_expired = [("namespace", "default"), ("task", "release_expired")];
        let last_run = "windlass_maintenance_last_run_timestamp_seconds";
        // The server runs due tasks itself and records each run in the database.
        let seen = until(async || {
            let runs: u64 = server.queue.maintenance_tasks().await.unwrap().iter().map(|task| task.runs).sum();
            let seen = scrape(server).await;
            let all = runs >= 8 && seen.0.contains_key("windlass_maintenance_runs_total") && seen.sum(last_run, &release_expired) > 0.0;
            (all && seen.sum("windlass_maintenance_runs_total", &[("result", "ok")]) == runs as f64).then_some(seen)
        })
        .await;
        assert_eq!(seen.sum("windlass_maintenance_runs_total", &[("result", "failed")]), 0.0);
        assert_eq!(seen.sum("windlass_maintenance_duration_seconds_count", &release_expired[1..]), 1.0);
        let now = server.queue.clock().now().timestamp() as f64;
        for name in ["windlass_maintenance_last_success_timestamp_seconds", last_run] {
            assert_eq!(seen.sum(name, &release_expired), now, "{name}");
        }
        assert_eq!(seen.sum("windlass_maintenance_overdue_seconds", &[]), 0.0);
        assert_eq!(seen.sum("windlass_maintenance_last_run_failed", &[]), 0.0);
    }

    async fn requests_are_counted_by_path_template(server) {
        for id in 1..=3 {
            server.get(&format!("/namespaces/default/events/{id}")).await.error(404, "event_not_found");
        }
        server.publish("a").await;
        server.get("/nowhere/1").await.error(404, "unknown_path");
        server.send("BREW", "/events", "", "").await.error(405, "wrong_method");
        let seen = scrape(server).await;
        let event = [("method", "GET"), ("path", "/namespaces/{namespace}/events/{id}")];
        expect(&seen, "windlass_http_requests_total", &[
            (&[event[0], event[1], ("status", "404")], 3.0),
            (&[("method", "POST"), ("path", "/events"), ("status", "201")], 1.0),
            (&[("method", "GET"), ("path", "none"), ("status", "404")], 1.0),
            (&[("method", "other"), ("path", "none"), ("status", "405")], 1.0),
        ]);
        assert_eq!(seen.sum("windlass_http_request_duration_seconds_count", &event), 3.0);
        assert_eq!(seen.sum("windlass_http_connections", &[]), 1.0);
    }

    async fn database_is_not_read_for_every_scrape(server) {
        server.restart_with(|options| options.metrics_age_max = secs(3_600)).await;
        publish(&server.queue, "a", 2).await;
        let ready = [("type", "a"), ("state", "ready")];
        assert_eq!(scrape(server).await.sum("windlass_queue_deliveries", &ready), 2.0);
        publish(&server.queue, "a", 2).await;
        let seen = scrape(server).await;
        assert_eq!(seen.sum("windlass_queue_deliveries", &ready), 2.0);
        // Counters of the process are always current.
        assert_eq!(seen.sum("windlass_events_published_total", &[("type", "a")]), 4.0);
    }

    async fn process_metrics_are_served_without_the_database(server) {
        server.restart_with(|options| options.metrics_age_max = Duration::ZERO).await;
        publish(&server.queue, "a", 2).await;
        assert_eq!(scrape(server).await.sum("windlass_database_up", &[]), 1.0);
        server.queue.close().await;
        let seen = scrape(server).await;
        assert_eq!(seen.sum("windlass_database_up", &[]), 0.0);
        assert_eq!(seen.sum("windlass_events_published_total", &[]), 2.0);
        assert!(!seen.0.contains_key("windlass_queue_deliveries"));
    }

    async fn metrics_are_limited_to_the_tokens_namespaces(server) {
        server.restart_with(|options| options.metrics_age_max = Duration::ZERO).await;
        server.queue.put_namespace("shop", None, None).await.unwrap();
        let shop = server.queue.in_namespace("shop").unwrap();
        publish(&server.queue, "a", 2).await;
        publish(&shop, "a", 3).await;
        let new = |namespaces: &[&str]| {
            windlass::NewToken::new([Scope::Read]).namespaces(namespaces.iter().copied())
        };
        let (all, some) = (server.queue.create_token(new(&[])).await.unwrap(), server.queue.create_token(new(&["shop"])).await.unwrap());
        for (token, default, shop) in [(all, 2.0, 3.0), (some, 0.0, 3.0)] {
            let header = format!("authorization: Bearer {}\r\n", token.secret);
            let answer = until(async || {
                let answer = server.send("GET", "/metrics", &header, "").await;
                (answer.status == 200).then_some(answer)
            })
            .await;
            let seen = Exposition::parse(&answer.body);
            for name in ["windlass_events_published_total", "windlass_queue_deliveries"] {
                assert_eq!(seen.sum(name, &[("namespace", "default")]), default, "{name}");
                assert_eq!(seen.sum(name, &[("namespace", "shop")]), shop, "{name}");
            }
        }
    }

    async fn each_process_counts_its_own_activity(server) {
        server.restart_with(|options| options.metrics_age_max = Duration::ZERO).await;
        let other = Queue::options(&server.url).clock(server.queue.clock().clone()).open().await.unwrap();
        publish(&other, "a", 3).await;
        publish(&server.queue, "a", 2).await;
        let seen = scrape(server).await;
        assert_eq!(seen.sum("windlass_events_published_total", &[]), 2.0);
        assert_eq!(seen.sum("windlass_queue_deliveries", &[]), 5.0);
        other.close().await;
    }

    async fn sql_publications_are_counted_when_routed(server) {
        if server.queue.database() != "postgres" {
            return;
        }
        let sql = "SELECT windlass.publish('a'); SELECT windlass.publish('a'); SELECT windlass.publish('b')";
        windlass_testkit::postgres::execute(&server.url, sql).await;
        let seen = until(async || {
            server.advance_secs(70);
            let seen = scrape(server).await;
            seen.0.contains_key("windlass_events_published_total").then_some(seen)
        })
        .await;
        expect(&seen, "windlass_events_published_total", &[(&[("type", "a")], 2.0), (&[("type", "b")], 1.0)]);
    }

    // Three concurrent transactions that do not see each other.
    async fn duplicate_keys_across_transactions_are_counted(server) {
        if server.queue.database() != "postgres" {
            return;
        }
        let mut transactions = Vec::new();
        for payload in [1, 1, 2] {
            let mut connection = windlass_testkit::postgres::connect(&server.url).await;
            let publish = format!("BEGIN; SELECT windlass.publish('a', '{payload}', key => 'k')");
            sqlx::raw_sql(sqlx::AssertSqlSafe(publish)).execute(&mut connection).await.unwrap();
            transactions.push(connection);
        }
        for mut connection in transactions {
            sqlx::raw_sql("COMMIT").execute(&mut connection).await.unwrap();
        }
        let seen = until(async || {
            server.advance_secs(70);
            let seen = scrape(server).await;
            (seen.0.contains_key("windlass_events_published_total")
                && seen.sum("windlass_events_published_total", &[]) == 2.0).then_some(seen)
        })
        .await;
        expect(&seen, "windlass_events_dropped_total", &[(&[("namespace", "default")], 1.0)]);
        expect(&seen, "windlass_attempts_total", &[(&[("type", "a"), ("outcome", "failed")], 1.0)]);
        expect(&seen, "windlass_dead_lettered_total", &[(&[("type", "a"), ("reason", "other")], 1.0)]);
    }

    async fn documented_metrics_are_served(server) {
        let seen = run_workload(server).await;
        let listed: Vec<&str> = include_str!("../../../../docs/metrics.md")
            .lines()
            .filter_map(|line| line.strip_prefix("| `windlass_")?.split('`').next())
            .collect();
        let served: Vec<&str> = seen.0.keys().map(|name| name.strip_prefix("windlass_").unwrap()).collect();
        let on_postgres = |name: &&&str| server.queue.database() == "postgres" || !name.starts_with("database_connections");
        let mut expected: Vec<&str> = listed.iter().filter(on_postgres).copied().collect();
        expected.sort_unstable();
        assert_eq!(served, expected);
    }

    async fn dashboards_and_alerts_use_served_metrics(server) {
        let seen = run_workload(server).await;
        let files = [
            include_str!("../../../../deploy/grafana/windlass.json"),
            include_str!("../../../../deploy/prometheus/alerts.yml"),
            include_str!("../../../../docs/metrics.md"),
        ];
        for file in files {
            let words = file.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
            let names: Vec<&str> = words.filter(|word| word.starts_with("windlass_") && !word.ends_with('_')).collect();
            assert!(names.len() > 10);
            for name in names {
                let family = ["_bucket", "_sum", "_count"].iter().find_map(|end| name.strip_suffix(end)).unwrap_or(name);
                let known = seen.0.contains_key(family) || family.starts_with("windlass_database_connections");
                assert!(known, "{name} is not served");
            }
        }
    }

    async fn metrics_of_a_new_server_are_well_formed(server) {
        let answer = server.get("/metrics").await;
        assert_eq!((answer.status, answer.header("content-type")), (200, Some("text/plain; version=0.0.4; charset=utf-8")));
        let seen = Exposition::parse(&answer.body);
        assert_eq!(seen.sum("windlass_database_up", &[]), 1.0);
        server.post("/events", &json!({ "type": "a\"b\\c", "title": "odd" })).await;
        Exposition::parse(&server.get("/metrics").await.body);
    }
}
