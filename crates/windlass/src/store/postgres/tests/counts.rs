//! Statements that read all deliveries of a namespace read no deliveries of others.

use sqlx::Executor;

use super::super::{read_pages, stats};
use super::search::MANY;
use super::{Database, database, explain, reads};

#[tokio::test]
async fn counts_read_no_deliveries_of_other_namespaces() {
    let mut database = database("counts").await;
    let Database { plain, hot, .. } = &mut database;
    hot.execute(concat!("RESET ALL; ", read_pages!("SET"))).await.unwrap();
    plain.execute("ANALYZE").await.unwrap();
    plain.execute(MANY).await.unwrap();
    let ages = "'{60, 300, 900, 1800}'";
    let statements = [("backlog", stats::BACKLOG, vec!["'quiet'", "NULL", ages])];
    for state in ["analysed while empty", "analysed"] {
        for (name, sql, arguments) in &statements {
            let plan = explain(hot, sql, arguments, true).await;
            let blocks = |key: &str| plan[0]["Plan"][key].as_u64().unwrap();
            let buffers = blocks("Shared Hit Blocks") + blocks("Shared Read Blocks");
            assert!(buffers <= 100, "{name}, {state}: {buffers} buffers in {plan:#}");
            let mut found = Vec::new();
            reads(&plan, &mut found);
            let pages = found.iter().any(|read| read.table == "event_queue" && read.kind == "Bitmap Heap Scan");
            assert!(pages, "{name}, {state}: {plan:#}");
        }
        plain.execute("ANALYZE").await.unwrap();
    }
    database.drop().await;
}
