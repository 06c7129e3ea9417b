//! Snapshots of the commands that only read: the same on both databases and through a server.

use serde_json::Value;

use crate::fixture::{CliFixture, Seed};

snapshot_on_each_target! { events state configuration }

/// Event 3 waits behind 1, which is processing; 5 is a dead letter; 6 waits for its retry; 7 is completed.
const SEED: Seed = &[
    ("POST", "/subscriptions", r#"{"subscription":"audit","types":"order.*","policy":{"max_retries":9}}"#),
    (
        "POST",
        "/events",
        r#"{"type":"order.paid","title":"Order 17","description":"Paid by card.\nIn full.","tags":"shop,email",
            "payload":{"order":17,"amount":12345678901234567890.10,"lines":[1,{"sku":"a-1"}],"note":""},
            "group_id":"customer-42","key":"order-17","priority":5,"metadata":{"source":"web"}}"#,
    ),
    (
        "POST",
        "/events",
        r#"{"type":"mail.send","title":"evil \u001b[31mred\u0007 \u202etitle","tags":"email","payload":"hi"}"#,
    ),
    (
        "POST",
        "/events",
        r#"{"type":"order.paid","title":"Order 18","tags":"shop","payload":{"order":18},"group_id":"customer-42"}"#,
    ),
    ("POST", "/events", r#"{"type":"report.due","payload":null,"delay_ms":36000000}"#),
    ("POST", "/events", r#"{"type":"mail.send","payload":{"n":1},"tags":"bad","max_retries":0}"#),
    ("POST", "/events", r#"{"type":"mail.send","payload":{"n":2},"tags":"flaky"}"#),
    ("POST", "/events", r#"{"type":"mail.send","payload":{"n":3},"tags":"good"}"#),
    ("POST", "/events/claim", r#"{"worker_id":"worker-1","tags":"shop","lease_ms":3600000}"#),
    ("POST", "/events/claim", r#"{"worker_id":"mailer:1","tags":"bad"}"#),
    (
        "POST",
        "/events/finish",
        r#"{"worker_id":"mailer:1","items":[{"event_id":5,"outcome":"fail","status_code":111,"execution_time_ms":1234,
            "error_message":"smtp: refused\nby mail.example.com"}]}"#,
    ),
    ("POST", "/events/claim", r#"{"worker_id":"mailer:1","tags":"flaky"}"#),
    ("POST", "/events/6/fail", r#"{"worker_id":"mailer:1","error_message":"timed out"}"#),
    ("POST", "/events/claim", r#"{"worker_id":"mailer:1","tags":"good"}"#),
    ("POST", "/events/7/complete", r#"{"worker_id":"mailer:1","execution_time_ms":12}"#),
    ("PUT", "/nodes/api-1", r#"{"display_name":"Shop API","event_types":["order.paid","mail.*"]}"#),
    ("POST", "/pause?type=newsletter.*", ""),
];

fn events(mut fixture: CliFixture) {
    fixture
        .seed(SEED)
        .run("list")
        .run("list --json")
        .run("list --status pending --type 'mail.*,order.*' --limit 2")
        .run("list --text 'ORDER 18' --since 1h")
        .run("list --tag nothing")
        .run("list --until 2020-01-01 --json")
        .run("get 1")
        .run("get 1 --json")
        .run("get 1 --subscription audit")
        .run("get 2")
        .run("get 3")
        .run("get 5")
        .run("get 6")
        .run("dead-letters list")
        .run("dead-letters list --json")
        .run("dead-letters list --status expired")
        .run("dead-letters show 5")
        .run("get 99")
        .run("dead-letters show 1")
        .run("get 1 --subscription nobody")
        .run("list --status gone")
        .assert_snapshot("inspect_events");
    if let Some(response) = fixture.server_response("/events/1?include_logs=true") {
        let printed: Value = serde_json::from_str(&fixture.output_of("get 1 --json").1).unwrap();
        assert_eq!(printed, response);
    }
}

fn state(mut fixture: CliFixture) {
    fixture
        .seed(SEED)
        .run("stats")
        .run("stats --json --since 2020-01-01")
        .run("stuck --older-than 0s")
        .run("stuck")
        .run("stuck --json")
        .run("worker list")
        .run("worker list --json")
        .run("node list")
        .run("node list --json")
        .run("stats --namespace nowhere")
        .assert_snapshot("inspect_state");
}

fn configuration(mut fixture: CliFixture) {
    fixture
        .seed(SEED)
        .run("namespace list")
        .run("namespace list --json")
        .run("namespace show")
        .run("namespace show nowhere")
        .run("subscription list")
        .run("subscription list --json")
        .run("subscription show audit")
        .run("subscription show nobody")
        .run("schedule list")
        .run("schedule preview '0 2 * * *' --timezone Europe/Berlin --from 2026-03-28 --count 3 --json")
        .run("schedule preview '61 * * * *'")
        .assert_snapshot("inspect_configuration");
}
