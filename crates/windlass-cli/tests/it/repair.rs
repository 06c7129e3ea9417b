//! Snapshots of the commands that change deliveries: redrive, purge, cancel, reset.

use crate::fixture::{CliFixture, Seed};

snapshot_on_each_target! { dead_letters pending_and_processing }

const DEAD_LETTERS: Seed = &[
    ("POST", "/events", r#"{"type":"mail.send","payload":1,"max_retries":0}"#),
    ("POST", "/events", r#"{"type":"mail.send","payload":2,"max_retries":0}"#),
    ("POST", "/events", r#"{"type":"order.paid","payload":3,"max_retries":0}"#),
    ("POST", "/events", r#"{"type":"order.paid","payload":4,"max_retries":0}"#),
    ("POST", "/events/claim", r#"{"worker_id":"w","max":10}"#),
    (
        "POST",
        "/events/finish",
        r#"{"worker_id":"w","items":[
            {"event_id":1,"outcome":"fail","error_message":"no"},{"event_id":2,"outcome":"fail","error_message":"no"},
            {"event_id":3,"outcome":"fail","error_message":"no"},{"event_id":4,"outcome":"fail","error_message":"no"}]}"#,
    ),
];

fn dead_letters(mut fixture: CliFixture) {
    fixture
        .seed(DEAD_LETTERS)
        .run("dead-letters redrive")
        .run("dead-letters redrive 1 --all")
        .run("dead-letters redrive --type 'mail.*'")
        .run("dead-letters redrive 1")
        .run("dead-letters redrive 1 99")
        .run("dead-letters redrive --type 'mail.*' --yes --json")
        .run("dead-letters purge 3")
        .run("dead-letters purge 3 --yes")
        .run("dead-letters purge --all --yes")
        .run("dead-letters purge --all --yes --json")
        .run("dead-letters list")
        .run("list")
        .assert_snapshot("repair_dead_letters");
}

const PENDING_AND_PROCESSING: Seed = &[
    ("POST", "/events", r#"{"type":"mail.send","payload":1,"tags":"spring"}"#),
    ("POST", "/events", r#"{"type":"mail.send","payload":2,"tags":"autumn"}"#),
    ("POST", "/events", r#"{"type":"order.paid","payload":3}"#),
    ("POST", "/events", r#"{"type":"order.paid","payload":4}"#),
    ("POST", "/events/claim", r#"{"worker_id":"w","types":"order.paid","lease_ms":3600000}"#),
];

fn pending_and_processing(mut fixture: CliFixture) {
    fixture
        .seed(PENDING_AND_PROCESSING)
        .run("reset 3 --reason 'w hangs'")
        .run("reset 3 --json")
        .run("cancel 3")
        .run("cancel 3")
        .run("cancel 99")
        .run("cancel 4 --json")
        .run("cancel")
        .run("cancel --all --tag spring")
        .run("cancel --type 'mail.*' --tag spring")
        .run("cancel --type 'mail.*' --tag spring --yes")
        .run("cancel --type 'mail.*' --yes --json")
        .run("list")
        .assert_snapshot("repair_pending_and_processing");
}
