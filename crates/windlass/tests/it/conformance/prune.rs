//! Pruning deletes handler results and keys that are no longer needed, and nothing else.

use windlass::{DeadLetterFilter, HandlerResult, NewEvent, Policy, Queue, Report};
use windlass_testkit::Kind;
use windlass_testkit::postgres as server;

use crate::bed::Bed;
use crate::support::*;

fn results(handlers: &[&str]) -> Vec<HandlerResult> {
    let ok = |handler: &&str| HandlerResult { handler: handler.to_string(), succeeded: true, error: None };
    handlers.iter().map(ok).collect()
}

async fn execute(bed: &Bed, sql: &str) {
    let sql = if bed.database.kind == Kind::Sqlite { sql.replace("windlass.", "") } else { sql.to_owned() };
    bed.database.execute(&sql).await;
}

/// The number of stored handler results.
async fn count_results(bed: &Bed) -> usize {
    match bed.database.kind {
        Kind::Postgres => server::lines(&bed.database.url, "SELECT handler FROM windlass.handler_results").await.len(),
        Kind::Sqlite => {
            let connection = rusqlite::Connection::open(bed.database.file()).unwrap();
            let count = connection.query_row("SELECT count(*) FROM handler_results", [], |row| row.get::<_, i64>(0));
            count.unwrap() as usize
        }
    }
}

/// Publishes an event whose first attempt ends with this report and results of these handlers.
async fn publish_and_report(queue: &Queue, report: Report, handlers: &[&str]) -> i64 {
    let event = publish(queue, "t").await;
    finish(queue, &claim_one(queue).await, report.handler_results(results(handlers))).await;
    event.id
}

conformance! {
    // Q12
    async fn results_of_deleted_deliveries_are_pruned(bed) {
        let other = bed.namespace(Policy::default()).await;
        let deleted = publish_and_report(&bed.queue, Report::failed("x"), &["a", "b"]).await;
        publish_and_report(&bed.queue, Report::failed("x"), &["a"]).await;
        publish_and_report(&bed.queue, Report::dead("x"), &["a"]).await;
        let in_other = publish_and_report(&other, Report::failed("x"), &["a"]).await;
        assert_eq!((bed.queue.prune_once().await, count_results(bed).await), (Ok(0), 5));
        execute(bed, &format!("DELETE FROM windlass.event_queue WHERE event_id IN ({deleted}, {in_other})")).await;
        assert_eq!((bed.queue.prune_once().await, count_results(bed).await), (Ok(2), 3));
        assert_eq!((other.prune_once().await, count_results(bed).await), (Ok(1), 2));
        assert_eq!(bed.queue.purge(DeadLetterFilter::default()).await, Ok(1));
        assert_eq!((bed.queue.prune_once().await, count_results(bed).await), (Ok(0), 1));
    }

    async fn concurrent_prunes_delete_each_result_once(bed) {
        let event = publish_and_report(&bed.queue, Report::failed("x"), &["a"]).await;
        let numbers = match bed.database.kind {
            Kind::Sqlite => "(WITH RECURSIVE s(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM s LIMIT 1200) SELECT n FROM s)",
            Kind::Postgres => "generate_series(1, 1200) AS s(n)",
        };
        execute(bed, &format!(
            "INSERT INTO windlass.handler_results (event_id, subscription_id, namespace, subscription, handler, succeeded, \
             attempt, created_at) SELECT event_id + n, subscription_id, namespace, subscription, handler, succeeded, attempt, \
             created_at FROM windlass.handler_results, {numbers} WHERE event_id = {event}"
        )).await;
        assert_eq!(count_results(bed).await, 1_201);
        let other = bed.second_queue().await;
        let (one, two) = tokio::join!(bed.queue.prune_once(), other.prune_once());
        let third = bed.queue.prune_once().await;
        assert_eq!((one.unwrap() + two.unwrap() + third.unwrap(), count_results(bed).await), (1_200, 1));
    }

    async fn keys_are_pruned_after_their_window(bed) {
        let queue = bed.namespace(Policy { key_window_ms: 10_000, ..Policy::default() }).await;
        publish_new(&queue, NewEvent::new("t").key("a")).await;
        bed.advance(secs(5));
        let later = publish_new(&queue, NewEvent::new("t").key("b")).await;
        publish_new(&bed.queue, NewEvent::new("t").key("a")).await;
        bed.advance(secs(5) - MICRO);
        assert_eq!(queue.prune_once().await, Ok(0));
        bed.advance(MICRO);
        assert_eq!((queue.prune_once().await, bed.queue.prune_once().await), (Ok(1), Ok(0)));
        let again = queue.publish(NewEvent::new("t").key("b")).await.unwrap();
        assert_eq!((again.duplicate, again.event.id), (true, later.id));
        assert!(!queue.publish(NewEvent::new("t").key("a")).await.unwrap().duplicate);
    }
}
