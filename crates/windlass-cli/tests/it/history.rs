//! `windlass history`.

use std::path::Path;

use serde_json::{Value, json};
use windlass::{ClaimRequest, NewEvent, Queue, Report};
use windlass_testkit::{Database, Kind, run_on_two_threads, sqlite_url};

use crate::windlass::{Server, run};

/// Runs a test on SQLite and PostgreSQL, each with the URL of an empty database and a temporary folder.
fn on_both_stores(test: impl AsyncFn(&str, &Path)) {
    for database in [Kind::Sqlite, Kind::Postgres].map(Database::empty) {
        run_on_two_threads(async || test(&database.url, database.folder.path()).await);
    }
}

/// Creates three completed events and a pending one, in two namespaces.
async fn create_history(url: &str) -> Queue {
    let queue = Queue::open(url).await.unwrap();
    queue.put_namespace("shop", None, None).await.unwrap();
    let shop = queue.in_namespace("shop").unwrap();
    for (queue, event_type) in [(&queue, "a"), (&shop, "order.paid"), (&shop, "order.sent")] {
        let event = NewEvent::new(event_type).title("Grüße").payload(&json!({ "n": 1 })).unwrap();
        queue.publish(event).await.unwrap();
        let claimed = queue.claim(ClaimRequest::new("w")).await.unwrap();
        queue.finish(&claimed[0], Report::done()).await.unwrap().attempt().unwrap();
    }
    shop.publish(NewEvent::new("waits")).await.unwrap();
    queue
}

async fn event_and_log(queue: &Queue, id: i64) -> String {
    let (view, log) = (queue.get(id).await.unwrap(), queue.log(id).await.unwrap());
    json!([view, log]).to_string()
}

fn stdout_of(args: &[&str]) -> String {
    let (code, stdout, stderr) = run(args);
    assert_eq!((code, stderr.as_str()), (0, ""), "{args:?}");
    stdout
}

#[test]
fn exported_history_can_be_imported() {
    on_both_stores(async |url, folder| {
        let queue = create_history(url).await;
        let shop = queue.in_namespace("shop").unwrap();
        let (dir, other) = (folder.join("backup"), folder.join("other.db"));
        let dir = dir.to_str().unwrap();
        let exported = stdout_of(&["history", "export", "--database", url, "--to", dir]);
        assert_eq!(exported, format!("3 events with 3 attempts, in 2 files in {dir}\n"));
        let other = format!("sqlite://{}", other.display());
        let imported = stdout_of(&["history", "import", dir, "--database", &other]);
        assert_eq!(imported, "3 events and 3 attempts imported from 2 files; 0 of the events known already\n");
        let imported_queue = Queue::open(&other).await.unwrap();
        assert_eq!(event_and_log(&imported_queue, 1).await, event_and_log(&queue, 1).await);
        let shop_there = imported_queue.in_namespace("shop").unwrap();
        for id in [2, 3] {
            assert_eq!(event_and_log(&shop_there, id).await, event_and_log(&shop, id).await);
        }
        assert!(shop_there.claim(ClaimRequest::new("w")).await.unwrap().is_empty());
        let again = stdout_of(&["history", "import", dir, "--database", url, "--json"]);
        let expected = json!({ "files": 2, "unfinished": 0, "events": 0, "attempts": 0, "known": 3, "clashes": 0,
                               "first_clash": null });
        assert_eq!(serde_json::from_str::<Value>(&again).unwrap(), expected);
        queue.close().await;
    });
}

#[test]
fn export_can_be_filtered() {
    on_both_stores(async |url, folder| {
        create_history(url).await.close().await;
        let events = |name: &str, args: &[&str]| {
            let dir = folder.join(name);
            let args =
                [&["history", "export", "--json", "--database", url, "--to", dir.to_str().unwrap()], args].concat();
            serde_json::from_str::<Value>(&stdout_of(&args)).unwrap()["events"].as_u64().unwrap()
        };
        assert_eq!(events("1", &["--namespace", "shop"]), 2);
        assert_eq!(events("2", &["--type", "order.*,b"]), 2);
        assert_eq!(events("3", &["--type", "order.sent", "--type", "a"]), 2);
        assert_eq!(events("4", &["--until", "2026-01-01"]), 0);
        assert_eq!(events("5", &["--from", "2026-01-01T00:00:00Z"]), 3);
        let (code, stdout, stderr) = run(&["history", "export", "--database", url, "--to", "x", "--from", "yesterday"]);
        assert_eq!((code, stdout.as_str()), (2, ""));
        assert!(stderr.contains("give a day, as in 2026-01-31"), "{stderr}");
        let (code, _, stderr) = run(&["history", "export", "--database", url, "--to", "x", "--namespace", "nope"]);
        assert_eq!(code, 3);
        assert!(stderr.starts_with("error: namespace 'nope' does not exist; create it first\n"), "{stderr}");
    });
}

#[test]
fn import_reports_conflicts_and_stores_the_rest() {
    on_both_stores(async |url, folder| {
        create_history(url).await.close().await;
        let dir = folder.join("backup");
        let dir = dir.to_str().unwrap();
        stdout_of(&["history", "export", "--database", url, "--to", dir]);
        let other = format!("sqlite://{}", folder.join("other.db").display());
        let imported_queue = Queue::open(&other).await.unwrap();
        imported_queue.publish(NewEvent::new("mine")).await.unwrap();
        imported_queue.close().await;
        let (code, stdout, stderr) = run(&["history", "import", dir, "--database", &other]);
        assert_eq!(code, 1);
        assert_eq!(stdout, "2 events and 2 attempts imported from 2 files; 0 of the events known already\n");
        let expected = "error: 1 event left out: the ids, the first is 1, belong to other events here\n";
        assert_eq!(stderr, expected);
    });
}

#[test]
fn export_creates_no_database() {
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path().join("backup");
    let (code, _, stderr) =
        run(&["history", "export", "--database", &sqlite_url(folder.path()), "--to", dir.to_str().unwrap()]);
    assert_eq!(code, 1, "{stderr}");
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
}

#[test]
fn server_banner_names_the_archive() {
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path().join("archive");
    let server = Server::start_with(
        &sqlite_url(folder.path()),
        &["--listen", "127.0.0.1:0", "--archive-dir", dir.to_str().unwrap()],
    );
    assert!(server.banner.contains(&format!("\n  archive    {}\n", dir.display())), "{}", server.banner);
    let put = server.json("PUT", "/namespaces/a", r#"{"policy":{"archive":true}}"#, 201);
    assert_eq!(put["policy"]["archive"], true);
}
