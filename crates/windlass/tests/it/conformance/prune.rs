//! Leftovers go, and nothing else does.

use windlass::{DeadLetterFilter, HandlerResult, NewEvent, Policy, Queue, Report};

use crate::bed::{Bed, Kind};
use crate::postgres as server;
use crate::support::*;

fn results(handlers: &[&str]) -> Vec<HandlerResult> {
    let ok = |handler: &&str| HandlerResult { handler: handler.to_string(), succeeded: true, error: None };
    handlers.iter().map(ok).collect()
}

async fn run(bed: &Bed, sql: &str) {
    let sql = if bed.database.kind == Kind::Sqlite { sql.replace("windlass.", "") } else { sql.to_owned() };
    bed.database.execute(&sql).await;
}

/// Of how many handlers there is a result.
async fn count(bed: &Bed) -> usize {
    match bed.database.kind {
        Kind::Postgres => server::lines(&bed.database.url, "SELECT handler FROM windlass.handler_results").await.len(),
        Kind::Sqlite => {
            let connection = rusqlite::Connection::open(bed.database.file()).unwrap();
            let count = connection.query_row("SELECT count(*) FROM handler_results", [], |row| row.get::<_, i64>(0));
            count.unwrap() as usize
        }
    }
}

/// An event whose first attempt reported these.
async fn tried(queue: &Queue, report: Report, handlers: &[&str]) -> i64 {
    let event = publish(queue, "t").await;
    finish(queue, &take(queue).await, report.handler_results(results(handlers))).await;
    event.id
}

conformance! {
    // Q12
    async fn results_of_deliveries_that_are_gone_are_deleted(bed) {
        let other = bed.namespace(Policy::default()).await;
        let gone = tried(&bed.queue, Report::failed("x"), &["a", "b"]).await;
        tried(&bed.queue, Report::failed("x"), &["a"]).await;
        tried(&bed.queue, Report::dead("x"), &["a"]).await;
        let foreign = tried(&other, Report::failed("x"), &["a"]).await;
        assert_eq!((bed.queue.prune_once().await, count(bed).await), (Ok(0), 5));
        run(bed, &format!("DELETE FROM windlass.event_queue WHERE event_id IN ({gone}, {foreign})")).await;
        assert_eq!((bed.queue.prune_once().await, count(bed).await), (Ok(2), 3));
        assert_eq!((other.prune_once().await, count(bed).await), (Ok(1), 2));
        assert_eq!(bed.queue.purge(DeadLetterFilter::default()).await, Ok(1));
        assert_eq!((bed.queue.prune_once().await, count(bed).await), (Ok(0), 1));
    }

    async fn many_are_deleted_by_several_at_once(bed) {
        let event = tried(&bed.queue, Report::failed("x"), &["a"]).await;
        let numbers = match bed.database.kind {
            Kind::Sqlite => "(WITH RECURSIVE s(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM s LIMIT 1200) SELECT n FROM s)",
            Kind::Postgres => "generate_series(1, 1200) AS s(n)",
        };
        run(bed, &format!(
            "INSERT INTO windlass.handler_results (event_id, subscription_id, namespace, subscription, handler, succeeded, \
             attempt, created_at) SELECT event_id + n, subscription_id, namespace, subscription, handler, succeeded, attempt, \
             created_at FROM windlass.handler_results, {numbers} WHERE event_id = {event}"
        )).await;
        assert_eq!(count(bed).await, 1_201);
        let other = bed.other().await;
        let (one, two) = tokio::join!(bed.queue.prune_once(), other.prune_once());
        let third = bed.queue.prune_once().await;
        assert_eq!((one.unwrap() + two.unwrap() + third.unwrap(), count(bed).await), (1_200, 1));
    }

    async fn keys_are_forgotten_after_their_window(bed) {
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
