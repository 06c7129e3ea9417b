//! `windlass history`.

use std::path::Path;

use serde_json::{Value, json};
use windlass::sqlx::{AssertSqlSafe, Connection, Executor, PgConnection};
use windlass::{ClaimRequest, NewEvent, Queue, Report};

use crate::windlass::{Server, run, sqlite_url};

/// Runs a test on both databases: with a URL that has nothing behind it yet, and a folder of its own.
fn on_both(name: &str, test: impl AsyncFn(&str, &Path)) {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let folder = tempfile::tempdir().unwrap();
    runtime.block_on(test(&sqlite_url(folder.path()), folder.path()));
    let folder = tempfile::tempdir().unwrap();
    runtime.block_on(async {
        let server = std::env::var("WINDLASS_TEST_POSTGRES")
            .expect("WINDLASS_TEST_POSTGRES is not set: run the tests with `cargo xtask test`");
        let database = format!("windlass_cli_{name}_{}", std::process::id());
        let mut admin = PgConnection::connect(&server).await.unwrap();
        admin.execute(AssertSqlSafe(format!("CREATE DATABASE {database}"))).await.unwrap();
        let url = format!("{}/{database}", server.rsplit_once('/').unwrap().0);
        test(&url, folder.path()).await;
        admin.execute(AssertSqlSafe(format!("DROP DATABASE {database} WITH (FORCE)"))).await.unwrap();
    });
}

/// Three events that are done, and one that waits, in two namespaces.
async fn fill(url: &str) -> Queue {
    let queue = Queue::open(url).await.unwrap();
    queue.put_namespace("shop", None, None).await.unwrap();
    let shop = queue.in_namespace("shop").unwrap();
    for (queue, event_type) in [(&queue, "a"), (&shop, "order.paid"), (&shop, "order.sent")] {
        let event = NewEvent::new(event_type).title("Grüße").payload(&json!({ "n": 1 })).unwrap();
        queue.publish(event).await.unwrap();
        let taken = queue.claim(ClaimRequest::new("w")).await.unwrap();
        queue.finish(&taken[0], Report::done()).await.unwrap().attempt().unwrap();
    }
    shop.publish(NewEvent::new("waits")).await.unwrap();
    queue
}

async fn shown(queue: &Queue, id: i64) -> String {
    let (view, log) = (queue.get(id).await.unwrap(), queue.log(id).await.unwrap());
    json!([view, log]).to_string()
}

fn out(args: &[&str]) -> String {
    let (code, stdout, stderr) = run(args);
    assert_eq!((code, stderr.as_str()), (0, ""), "{args:?}");
    stdout
}

#[test]
fn history_goes_to_files_and_back() {
    on_both("round_trip", async |url, folder| {
        let queue = fill(url).await;
        let shop = queue.in_namespace("shop").unwrap();
        let (dir, other) = (folder.join("backup"), folder.join("other.db"));
        let dir = dir.to_str().unwrap();
        let exported = out(&["history", "export", "--database", url, "--to", dir]);
        assert_eq!(exported, format!("3 events with 3 attempts, in 2 files in {dir}\n"));
        let other = format!("sqlite://{}", other.display());
        let imported = out(&["history", "import", dir, "--database", &other]);
        assert_eq!(imported, "3 events and 3 attempts imported from 2 files; 0 of the events known already\n");
        let there = Queue::open(&other).await.unwrap();
        assert_eq!(shown(&there, 1).await, shown(&queue, 1).await);
        let shop_there = there.in_namespace("shop").unwrap();
        for id in [2, 3] {
            assert_eq!(shown(&shop_there, id).await, shown(&shop, id).await);
        }
        assert!(shop_there.claim(ClaimRequest::new("w")).await.unwrap().is_empty());
        let again = out(&["history", "import", dir, "--database", url, "--json"]);
        let expected = json!({ "files": 2, "unfinished": 0, "events": 0, "attempts": 0, "known": 3, "clashes": 0,
                               "first_clash": null });
        assert_eq!(serde_json::from_str::<Value>(&again).unwrap(), expected);
        queue.close().await;
    });
}

#[test]
fn an_export_can_be_narrowed_down() {
    on_both("narrow", async |url, folder| {
        fill(url).await.close().await;
        let events = |name: &str, args: &[&str]| {
            let dir = folder.join(name);
            let args =
                [&["history", "export", "--json", "--database", url, "--to", dir.to_str().unwrap()], args].concat();
            serde_json::from_str::<Value>(&out(&args)).unwrap()["events"].as_u64().unwrap()
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
fn what_clashes_is_an_error_and_the_rest_is_there() {
    on_both("clash", async |url, folder| {
        fill(url).await.close().await;
        let dir = folder.join("backup");
        let dir = dir.to_str().unwrap();
        out(&["history", "export", "--database", url, "--to", dir]);
        let other = format!("sqlite://{}", folder.join("other.db").display());
        let there = Queue::open(&other).await.unwrap();
        there.publish(NewEvent::new("mine")).await.unwrap();
        there.close().await;
        let (code, stdout, stderr) = run(&["history", "import", dir, "--database", &other]);
        assert_eq!(code, 1);
        assert_eq!(stdout, "2 events and 2 attempts imported from 2 files; 0 of the events known already\n");
        let expected = "error: 1 event left out: the ids, the first is 1, belong to other events here\n";
        assert_eq!(stderr, expected);
    });
}

#[test]
fn looking_for_history_makes_no_database() {
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path().join("backup");
    let (code, _, stderr) =
        run(&["history", "export", "--database", &sqlite_url(folder.path()), "--to", dir.to_str().unwrap()]);
    assert_eq!(code, 1, "{stderr}");
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
}

#[test]
fn a_server_says_where_it_archives_to() {
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path().join("archive");
    let server = Server::start_with(
        &sqlite_url(folder.path()),
        &["--listen", "127.0.0.1:0", "--archive-dir", dir.to_str().unwrap()],
    );
    assert!(server.hello.contains(&format!("\n  archive    {}\n", dir.display())), "{}", server.hello);
    let put = server.json("PUT", "/namespaces/a", r#"{"policy":{"archive":true}}"#, 201);
    assert_eq!(put["policy"]["archive"], true);
}
