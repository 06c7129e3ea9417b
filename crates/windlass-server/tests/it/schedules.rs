//! `/schedules`.

use serde_json::{Value, json};

use crate::harness::Server;

const UNKNOWN: &str = "00000000-0000-4000-8000-000000000000";

fn every_minute(name: &str) -> Value {
    json!({ "name": name, "cron": "* * * * *", "type": "tick" })
}

async fn add(server: &Server, request: &Value) -> String {
    server.post("/schedules", request).await.expect(201)["id"].as_str().unwrap().to_owned()
}

/// Waits until the schedule has fired, and returns it.
async fn fired(server: &Server, id: &str) -> Value {
    loop {
        server.queue.fire_schedules_once().await.unwrap();
        let shown = server.get(&format!("/schedules/{id}")).await.expect(200);
        if !shown["last_at"].is_null() {
            return shown;
        }
    }
}

async fn names(server: &Server, query: &str) -> (Vec<String>, u64) {
    let list = server.get(&format!("/schedules{query}")).await.expect(200);
    let name = |schedule: &Value| schedule["name"].as_str().unwrap().to_owned();
    (list["schedules"].as_array().unwrap().iter().map(name).collect(), list["total"].as_u64().unwrap())
}

on_each_database! {
    // C11
    async fn schedule_is_created_shown_and_replaced(server) {
        let request = json!({
            "name": "daily report", "cron": "0 6 * * MON-FRI", "timezone": "Europe/Berlin", "type": "report.due",
            "payload": { "day": "{{tick.date}}" }, "title": "t", "description": "d", "tags": ["a", "b"],
            "group_id": "g", "priority": 2, "max_retries": 4, "metadata": { "m": 1 }, "expires_in_ms": 1000,
            "missed": "skip", "active": true
        });
        let added = server.post("/schedules", &request).await.expect(201);
        let mut expected = json!({
            "id": added["id"], "name": "daily report", "cron": "0 6 * * MON-FRI", "timezone": "Europe/Berlin",
            "type": "report.due", "title": "t", "description": "d", "tags": "a,b", "payload": { "day": "{{tick.date}}" },
            "group_id": "g", "priority": 2, "max_retries": 4, "metadata": { "m": 1 }, "expires_in_ms": 1000,
            "missed": "skip", "runner": "windlass", "active": true, "next_at": "2025-12-25T05:00:00Z",
            "next_runs": ["2025-12-25T05:00:00Z", "2025-12-26T05:00:00Z", "2025-12-29T05:00:00Z",
                          "2025-12-30T05:00:00Z", "2025-12-31T05:00:00Z"],
            "last_at": null, "last_event_id": null, "created_at": "2025-12-24T10:30:00Z",
            "updated_at": "2025-12-24T10:30:00Z"
        });
        assert_eq!(added, expected);
        let path = format!("/schedules/{}", added["id"].as_str().unwrap());
        assert_eq!(server.get(&path).await.expect(200), expected);
        let error = server.post("/schedules", &request).await.error(409, "exists");
        assert_eq!(error, "schedule 'daily report' exists already");
        server.advance_secs(60);
        let mut changed = request.clone();
        (changed["active"], changed["missed"]) = (json!(false), json!("all"));
        (expected["active"], expected["missed"], expected["next_at"]) = (json!(false), json!("all"), Value::Null);
        (expected["next_runs"], expected["updated_at"]) = (json!([]), json!("2025-12-24T10:31:00Z"));
        assert_eq!(server.put(&path, &changed).await.expect(200), expected);
        assert_eq!(server.get(&format!("/namespaces/default{path}")).await.expect(200), expected);
        let other = add(server, &every_minute("other")).await;
        server.put(&format!("/schedules/{other}"), &changed).await.error(409, "exists");
    }

    // C11
    async fn schedule_publishes_its_event(server) {
        let id = add(server, &json!({ "name": "a", "cron": "31 * * * *", "type": "tick", "payload": "{{tick.utc}}" })).await;
        server.advance_secs(60);
        let shown = fired(server, &id).await;
        assert_eq!(shown["last_at"], "2025-12-24T10:31:00Z");
        let event = server.get(&format!("/events/{}", shown["last_event_id"])).await.expect(200);
        assert_eq!((&event["producer"], &event["scheduled_task_id"]), (&json!("scheduler"), &json!(id)));
        assert_eq!((&event["type"], &event["payload"]), (&json!("tick"), &json!("2025-12-24T10:31:00Z")));
        let fires = server.get(&format!("/schedules/{id}/fires")).await.expect(200);
        let fire = json!({
            "tick_at": "2025-12-24T10:31:00Z", "manual": false, "fired_at": "2025-12-24T10:31:00Z",
            "event_id": shown["last_event_id"], "skipped": 0, "error": null
        });
        assert_eq!(fires, json!({ "fires": [fire] }));
        let earlier = server.get(&format!("/schedules/{id}/fires?before=2025-12-24T10:31:00Z&limit=5")).await;
        assert_eq!(earlier.expect(200), json!({ "fires": [] }));
    }

    async fn schedule_is_paused_resumed_run_and_removed(server) {
        let id = add(server, &every_minute("a")).await;
        let path = format!("/schedules/{id}");
        let paused = server.act(&format!("{path}/pause")).await.expect(200);
        assert_eq!((&paused["active"], &paused["next_at"]), (&json!(false), &Value::Null));
        let published = server.act(&format!("{path}/run")).await.expect(201);
        assert_eq!((&published["status"], &published["scheduled_task_id"]), (&json!("PENDING"), &json!(id)));
        assert_eq!(server.get(&format!("/events/{}", published["id"])).await.expect(200)["max_retries"], published["max_retries"]);
        assert_eq!(server.get(&format!("{path}/fires")).await.expect(200)["fires"][0]["manual"], true);
        let resumed = server.act(&format!("{path}/resume")).await.expect(200);
        assert_eq!((&resumed["active"], &resumed["next_at"]), (&json!(true), &json!("2025-12-24T10:31:00Z")));
        let removed = server.delete(&path).await;
        assert_eq!((removed.status, removed.body.as_str()), (204, ""));
        server.get(&path).await.error(404, "schedule_not_found");
        server.delete(&path).await.error(404, "schedule_not_found");
    }

    // C12
    async fn runner_of_a_schedule_can_be_set(server) {
        let path = format!("/schedules/{}/runner", add(server, &every_minute("s")).await);
        assert_eq!(server.put(&path, &json!({ "runner": "windlass" })).await.expect(200)["runner"], "windlass");
        assert_eq!(server.put(&path, &json!({ "runner": "pg_cron" })).await.bad_field(), "runner");
        server.put(&path, &json!({ "runner": "somebody" })).await.error(400, "invalid");
        let unknown = format!("/schedules/{UNKNOWN}/runner");
        server.put(&unknown, &json!({ "runner": "windlass" })).await.error(404, "schedule_not_found");
    }

    async fn schedules_are_listed(server) {
        for name in ["b", "a", "c"] {
            add(server, &every_minute(name)).await;
        }
        add(server, &json!({ "name": "d", "cron": "@daily", "type": "other", "active": false })).await;
        let list = |names: &[&str]| names.iter().map(ToString::to_string).collect::<Vec<_>>();
        assert_eq!(names(server, "").await, (list(&["a", "b", "c", "d"]), 4));
        assert_eq!(names(server, "?limit=2&offset=1").await, (list(&["b", "c"]), 4));
        assert_eq!(names(server, "?active=false").await, (list(&["d"]), 1));
        assert_eq!(names(server, "?type=other").await, (list(&["d"]), 1));
        assert_eq!(names(server, "?name=b&active=true").await, (list(&["b"]), 1));
        let page = server.get("/schedules?limit=2&offset=1").await.expect(200);
        assert_eq!((&page["limit"], &page["offset"]), (&json!(2), &json!(1)));
        assert_eq!(server.get("/schedules?limit=0").await.bad_field(), "limit");
        assert_eq!(server.get("/schedules?limit=1001").await.bad_field(), "limit");
    }

    async fn cron_expression_is_previewed(server) {
        let path = "/schedules/preview?cron=30+2+*+*+*&timezone=Europe/Berlin&from=2026-03-28T12:00:00Z&count=2";
        let ticks = server.get(path).await.expect(200);
        assert_eq!(ticks, json!({ "ticks": ["2026-03-29T01:00:00Z", "2026-03-30T00:30:00Z"] }));
        let ticks = server.get("/schedules/preview?cron=@hourly").await.expect(200)["ticks"].clone();
        assert_eq!((ticks.as_array().unwrap().len(), &ticks[0]), (5, &json!("2025-12-24T11:00:00Z")));
        assert_eq!(server.get("/schedules/preview?cron=@hourly&count=101").await.bad_field(), "count");
        assert_eq!(server.get("/schedules/preview?cron=x").await.bad_field(), "cron");
        assert_eq!(server.get("/schedules/preview?cron=@hourly&timezone=x").await.bad_field(), "timezone");
        // So late that no tick follows.
        let late = server.get("/schedules/preview?cron=@hourly&from=9999-01-01T00:00:00Z").await;
        assert_eq!(late.expect(200), json!({ "ticks": [] }));
    }

    async fn invalid_schedule_is_refused(server) {
        let with = |field: &str, value: Value| {
            let mut request = every_minute("a");
            request[field] = value;
            request
        };
        for (field, value) in [
            ("name", json!(" ")),
            ("cron", json!("0 0 30 2 *")),
            ("timezone", json!("Berlin")),
            ("type", json!("a*")),
            ("payload", json!("{{tick.day}}")),
            ("title", json!("{{schedule.cron}}")),
            ("tags", json!("a\tb")),
            ("group_id", json!("")),
            ("max_retries", json!(10_001)),
            ("metadata", json!([])),
            ("expires_in_ms", json!(0)),
        ] {
            assert_eq!(server.post("/schedules", &with(field, value)).await.bad_field(), field);
        }
        server.post("/schedules", &with("missed", json!("never"))).await.error(400, "invalid");
        server.post("/schedules", &with("key", json!("k"))).await.error(400, "invalid");
        server.post("/schedules", &json!({ "name": "a", "cron": "@daily" })).await.error(400, "invalid");
        server.post("/namespaces/nowhere/schedules", &every_minute("a")).await.error(404, "namespace_not_found");
        let large = with("payload", json!("x".repeat(1 << 20)));
        server.post("/schedules", &large).await.error(413, "too_large");
    }

    async fn invalid_or_unknown_schedule_id_is_refused(server) {
        for verb in ["pause", "resume", "run"] {
            server.act(&format!("/schedules/{UNKNOWN}/{verb}")).await.error(404, "schedule_not_found");
            assert_eq!(server.act(&format!("/schedules/7/{verb}")).await.bad_field(), "id");
        }
        for path in [format!("/schedules/{UNKNOWN}"), format!("/schedules/{UNKNOWN}/fires")] {
            server.get(&path).await.error(404, "schedule_not_found");
        }
        server.put(&format!("/schedules/{UNKNOWN}"), &every_minute("a")).await.error(404, "schedule_not_found");
        assert_eq!(server.get("/schedules/%00").await.bad_field(), "id");
    }
}
