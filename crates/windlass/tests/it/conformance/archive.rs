//! History in files: archived before it is deleted, exported, and imported.

use std::path::Path;
use std::time::Duration;

use windlass::{
    ClaimRequest, Clock, DeadLetterFilter, Error, ExportedHistory, HistoryFilter, ImportedHistory, NewEvent, Policy,
    PolicyOverrides, Queue, Report, RetentionReport, Status, SubscriptionSpec,
};

use crate::bed::Bed;
use crate::support::*;

const HOUR: Duration = Duration::from_secs(3_600);

fn archive_policy(keep: Option<Duration>) -> Policy {
    Policy { archive: true, keep_completed_ms: keep.map(|keep| keep.as_millis() as u64), ..Policy::default() }
}

/// A queue that archives to this folder.
async fn archiving_queue(bed: &Bed, folder: &Path) -> Queue {
    let options = Queue::options(&bed.database.url).clock(bed.queue.clock().clone()).archive_to(folder);
    options.open().await.unwrap().in_namespace("ns").unwrap()
}

async fn export(queue: &Queue, to: &Path, filter: HistoryFilter) -> ExportedHistory {
    queue.export_history(to, filter, |_, _| {}).await.unwrap()
}

async fn import(queue: &Queue, from: &Path) -> ImportedHistory {
    queue.import_history(from, None, |_, _| {}).await.unwrap()
}

async fn publish_completed(queue: &Queue, event: NewEvent) -> i64 {
    let event = publish_new(queue, event).await;
    done(queue, &claim_one(queue).await).await;
    event.id
}

/// Publishes and finishes events with every field and several kinds of attempts.
async fn publish_varied_history(bed: &Bed, queue: &Queue) -> Vec<i64> {
    queue.add_subscription(SubscriptionSpec::new("second")).await.unwrap();
    let event = NewEvent::new("order.paid")
        .title("Ünïcode\n\"quoted\"")
        .description("d")
        .tags_text(" b, a")
        .payload_raw(
            serde_json::value::RawValue::from_string(r#"{ "n": 1.10,"big":12345678901234567890 }"#.into()).unwrap(),
        )
        .group("g")
        .key("k")
        .priority(-2)
        .producer("p")
        .run_at(bed.now())
        .expires_at(after(bed.now(), 30 * HOUR))
        .metadata(&serde_json::json!({ "traceparent": "x" }))
        .unwrap();
    let first = publish_new(queue, event).await.id;
    let report = Report::failed("no luck").status_code(503).execution_time_ms(12);
    finish(
        queue,
        &claim_one(queue).await,
        report.detail(serde_json::value::RawValue::from_string("[1]".into()).unwrap()),
    )
    .await;
    bed.advance(BACKOFF);
    let delivery = claim_one(queue).await;
    queue.start(&delivery).await.unwrap();
    done(queue, &delivery).await;
    let second = claim(queue, ClaimRequest::new("w2").subscription("second")).await.remove(0);
    queue.finalize(&second, &["half".to_owned()]).await.unwrap().attempt().unwrap();
    let canceled = publish(queue, "noise").await.id;
    assert_eq!(queue.cancel(canceled, None).await, Ok(2));
    vec![first, canceled]
}

async fn views_and_logs(queue: &Queue, event_ids: &[i64]) -> Vec<(String, String)> {
    let mut all = Vec::new();
    for id in event_ids {
        all.push(event_snapshot(queue, *id).await);
    }
    all
}

conformance! {
    async fn history_is_not_deleted_before_it_is_archived(bed) {
        let queue = bed.namespace(archive_policy(Some(HOUR))).await;
        let events = publish_varied_history(bed, &queue).await;
        let before = views_and_logs(&queue, &events).await;
        bed.advance(2 * HOUR);
        assert_eq!(queue.retain_once().await, Ok(RetentionReport { withheld: true, ..RetentionReport::default() }));
        assert_eq!(views_and_logs(&queue, &events).await, before);
        let folder = tempfile::tempdir().unwrap();
        let archiver = archiving_queue(bed, folder.path()).await;
        let retained = archiver.retain_once().await.unwrap();
        assert_eq!((retained.deliveries, retained.events), (4, 2));
        assert_eq!(count_events(&queue).await, 0);
        let months: Vec<_> = std::fs::read_dir(folder.path().join("ns")).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        assert_eq!(months, ["2025-12"]);
        bed.namespace(archive_policy(None)).await;
        let imported = import(&queue, folder.path()).await;
        assert_eq!((imported.files, imported.events, imported.attempts, imported.clashes), (1, 2, 5, 0));
        assert_eq!(views_and_logs(&queue, &events).await, before);
    }

    async fn history_stays_if_archiving_fails(bed) {
        let queue = bed.namespace(archive_policy(Some(HOUR))).await;
        let event = publish_completed(&queue, NewEvent::new("t")).await;
        bed.advance(2 * HOUR);
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("file");
        std::fs::write(&file, "").unwrap();
        let archiver = archiving_queue(bed, &file).await;
        let error = archiver.retain_once().await.unwrap_err();
        assert_eq!(error.code(), "archive");
        assert_eq!(status(&queue, event).await, Status::Completed);
    }

    // The deliveries are archived at different times; the import merges them.
    async fn event_archived_in_parts_is_restored_whole(bed) {
        let queue = bed.namespace(archive_policy(Some(HOUR))).await;
        let longer = PolicyOverrides { keep_completed_ms: Some(Some(10 * 3_600_000)), ..Default::default() };
        queue.add_subscription(SubscriptionSpec::new("long").policy(longer)).await.unwrap();
        let event = publish_completed(&queue, NewEvent::new("t")).await;
        bed.advance(MINUTE);
        let second = claim(&queue, ClaimRequest::new("w").subscription("long")).await.remove(0);
        done(&queue, &second).await;
        let before = event_snapshot(&queue, event).await;
        let folder = tempfile::tempdir().unwrap();
        let archiver = archiving_queue(bed, folder.path()).await;
        bed.advance(2 * HOUR);
        assert_eq!(archiver.retain_once().await.unwrap().events, 0);
        bed.advance(10 * HOUR);
        assert_eq!(archiver.retain_once().await.unwrap().events, 1);
        bed.namespace(archive_policy(None)).await;
        let imported = import(&queue, folder.path()).await;
        assert_eq!((imported.files, imported.events, imported.known, imported.attempts), (2, 1, 1, 2));
        assert_eq!(event_snapshot(&queue, event).await, before);
    }

    async fn kept_dead_letters_and_pending_events_are_not_archived(bed) {
        let policy = Policy { keep_failed_ms: Some(10 * 3_600_000), ..archive_policy(Some(HOUR)) };
        let queue = bed.namespace(policy).await;
        let dead_letter = publish(&queue, "t").await.id;
        finish(&queue, &claim_one(&queue).await, Report::dead("x")).await;
        publish(&queue, "t").await;
        fail(&queue, &claim_one(&queue).await).await;
        let folder = tempfile::tempdir().unwrap();
        let archiver = archiving_queue(bed, folder.path()).await;
        bed.advance(2 * HOUR);
        assert_eq!(archiver.retain_once().await, Ok(RetentionReport::default()));
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
        bed.advance(10 * HOUR);
        assert_eq!(archiver.retain_once().await.unwrap().dead_letters, 1);
        bed.namespace(archive_policy(None)).await;
        assert_eq!(import(&queue, folder.path()).await.events, 1);
        // It is imported as history, not as a dead letter.
        assert_eq!(status(&queue, dead_letter).await, Status::Failed);
        assert!(dead_letter_ids(&queue).await.is_empty());
    }

    async fn exported_history_can_be_imported(bed) {
        let queue = bed.namespace(Policy { keep_completed_ms: Some(3_600_000), ..Policy::default() }).await;
        let events = publish_varied_history(bed, &queue).await;
        let pending = publish(&queue, "t").await;
        let dead_letter = publish(&queue, "t").await;
        for delivery in claim_all(&queue).await {
            if delivery.event.id == dead_letter.id {
                finish(&queue, &delivery, Report::dead("x")).await;
            } else {
                finish(&queue, &delivery, release()).await;
            }
        }
        let before = views_and_logs(&queue, &events).await;
        let folder = tempfile::tempdir().unwrap();
        let exported = export(&queue, folder.path(), HistoryFilter::default()).await;
        assert_eq!(exported, ExportedHistory { events: 2, attempts: 5, files: 1 });
        let again = import(&queue, folder.path()).await;
        assert_eq!((again.events, again.attempts, again.known), (0, 0, 2));
        bed.advance(2 * HOUR);
        assert_eq!(queue.retain_once().await.unwrap().events, 2);
        bed.namespace(Policy { keep_completed_ms: None, ..Policy::default() }).await;
        assert_eq!(import(&queue, folder.path()).await.events, 2);
        assert_eq!(views_and_logs(&queue, &events).await, before);
        // Imported events are not delivered, and other events are unchanged.
        assert_eq!(ids(&claim_all(&queue).await), [pending.id]);
        assert_eq!(dead_letter_ids(&queue).await, [dead_letter.id]);
        assert!(publish(&queue, "t").await.id > dead_letter.id);
    }

    async fn export_filter_selects_types_and_time(bed) {
        let queue = bed.namespace(Policy::default()).await;
        publish_completed(&queue, NewEvent::new("a.x")).await;
        bed.advance(HOUR);
        let (from, b) = (bed.now(), publish_completed(&queue, NewEvent::new("b")).await);
        bed.advance(HOUR);
        let until = bed.now();
        publish_completed(&queue, NewEvent::new("a.y")).await;
        let filters = [
            (HistoryFilter { types: vec!["a.*".into()], ..Default::default() }, 2),
            (HistoryFilter { types: vec!["b".into(), "c".into()], ..Default::default() }, 1),
            (HistoryFilter { from: Some(from), ..Default::default() }, 2),
            (HistoryFilter { until: Some(until), ..Default::default() }, 2),
            (HistoryFilter { from: Some(from), until: Some(until), ..Default::default() }, 1),
        ];
        for (filter, events) in filters {
            let folder = tempfile::tempdir().unwrap();
            assert_eq!(export(&queue, folder.path(), filter.clone()).await.events, events, "{filter:?}");
            if filter.from.is_some() && filter.until.is_some() {
                let imported = import(&queue, folder.path()).await;
                assert_eq!((imported.known, imported.events), (1, 0));
                assert!(queue.get(b).await.is_ok());
            }
        }
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(export(&queue, folder.path(), HistoryFilter { types: vec!["c".into()], ..Default::default() }).await.files, 0);
        let bad = HistoryFilter { types: vec!["a*b".into()], ..Default::default() };
        assert_eq!(queue.export_history(folder.path(), bad, |_, _| {}).await.unwrap_err().code(), "invalid");
        let nowhere = queue.in_namespace("nowhere").unwrap();
        let error = nowhere.export_history(folder.path(), HistoryFilter::default(), |_, _| {}).await.unwrap_err();
        assert_eq!(error, Error::NamespaceNotFound { namespace: "nowhere".into() });
    }

    async fn import_counts_id_clash_and_keeps_existing_event(bed) {
        let queue = bed.namespace(Policy { keep_completed_ms: Some(3_600_000), ..Policy::default() }).await;
        let event = publish_completed(&queue, NewEvent::new("t")).await;
        let other = publish_completed(&queue, NewEvent::new("t")).await;
        let folder = tempfile::tempdir().unwrap();
        export(&queue, folder.path(), HistoryFilter::default()).await;
        bed.database.execute(&match bed.database.kind {
            windlass_testkit::Kind::Sqlite => format!("UPDATE events SET event_type = 'u' WHERE id = {event}"),
            windlass_testkit::Kind::Postgres => format!("UPDATE windlass.events SET event_type = 'u' WHERE id = {event}"),
        }).await;
        let imported = import(&queue, folder.path()).await;
        assert_eq!((imported.events, imported.known, imported.clashes, imported.first_clash), (0, 1, 1, Some(event)));
        assert_eq!(queue.get(event).await.unwrap().event.event_type, "u");
        assert!(queue.get(other).await.is_ok());
    }

    // Retention has already passed the imported event's time. It is deleted nevertheless.
    async fn imported_history_follows_retention_policy(bed) {
        let queue = bed.namespace(Policy { keep_completed_ms: Some(3_600_000), ..Policy::default() }).await;
        let event = publish_completed(&queue, NewEvent::new("t")).await;
        let folder = tempfile::tempdir().unwrap();
        export(&queue, folder.path(), HistoryFilter::default()).await;
        bed.advance(2 * HOUR);
        publish_completed(&queue, NewEvent::new("t")).await;
        assert_eq!(queue.retain_once().await.unwrap().events, 1);
        bed.namespace(Policy { keep_completed_ms: Some(4 * 3_600_000), ..Policy::default() }).await;
        assert_eq!(import(&queue, folder.path()).await.events, 1);
        assert_eq!(queue.retain_once().await, Ok(RetentionReport::default()));
        // Statistics count the recent event and not the imported one.
        let since = after(bed.now(), Duration::ZERO) - chrono::TimeDelta::minutes(5);
        let completed: u64 = queue.stats(since).await.unwrap().iter().map(|row| row.count).sum();
        assert_eq!(completed, 1);
        bed.advance(3 * HOUR);
        assert_eq!(queue.retain_once().await.unwrap().events, 1);
        assert!(queue.get(event).await.is_err());
    }

    async fn damaged_archive_file_is_refused(bed) {
        let queue = bed.namespace(Policy::default()).await;
        publish_completed(&queue, NewEvent::new("t")).await;
        let folder = tempfile::tempdir().unwrap();
        export(&queue, folder.path(), HistoryFilter::default()).await;
        let month = folder.path().join("ns/2025-12");
        let file = std::fs::read_dir(&month).unwrap().map(|entry| entry.unwrap().path());
        let file = file.into_iter().find(|path| path.extension().is_some_and(|end| end == "gz")).unwrap();
        let mut bytes = std::fs::read(&file).unwrap();
        bytes[20] ^= 1;
        std::fs::write(&file, bytes).unwrap();
        let error = queue.import_history(folder.path(), None, |_, _| {}).await.unwrap_err();
        assert_eq!(error.code(), "archive");
        let nowhere = folder.path().join("nowhere");
        assert_eq!(queue.import_history(&nowhere, None, |_, _| {}).await.unwrap_err().code(), "archive");
    }

    async fn large_history_is_exported_and_imported_in_batches(bed) {
        let queue = bed.namespace(Policy { keep_completed_ms: Some(3_600_000), ..Policy::default() }).await;
        publish_many(&queue, "t", 1_100).await;
        loop {
            let claimed = claim_all(&queue).await;
            if claimed.is_empty() {
                break;
            }
            let done: Vec<_> = claimed.iter().map(|delivery| queue.finish(delivery, Report::done())).collect();
            for finished in done {
                finished.await.unwrap().attempt().unwrap();
            }
        }
        let (folder, mut progress) = (tempfile::tempdir().unwrap(), Vec::new());
        let exported = queue.export_history(folder.path(), HistoryFilter::default(), |n, of| progress.push((n, of))).await;
        assert_eq!(exported.unwrap().events, 1_100);
        assert!(progress.len() > 2 && progress.is_sorted() && progress.iter().all(|(n, of)| n <= of), "{progress:?}");
        bed.advance(2 * HOUR);
        assert_eq!(queue.retain_once().await.unwrap().events, 1_100);
        let mut progress = Vec::new();
        let imported =
            queue.import_history(folder.path(), Some("ns"), |n, of| progress.push((n, of))).await.unwrap();
        assert_eq!((imported.events, imported.attempts), (1_100, 1_100));
        assert_eq!(progress.last(), Some(&(1_100, 1_100)));
        assert_eq!(queue.import_history(folder.path(), Some("other"), |_, _| {}).await.unwrap(), ImportedHistory::default());
    }
}

#[test]
fn history_moves_between_databases() {
    crate::bed::run(windlass_testkit::Kind::Sqlite, async |from: &Bed| {
        let queue = from.namespace(Policy { keep_completed_ms: None, ..Policy::default() }).await;
        let events = publish_varied_history(from, &queue).await;
        let before = views_and_logs(&queue, &events).await;
        let folder = tempfile::tempdir().unwrap();
        export(&queue, folder.path(), HistoryFilter::default()).await;
        let name = windlass_testkit::postgres::create_database(true).await;
        let (clock, _test_clock) = Clock::test(from.now());
        let to = Queue::options(&windlass_testkit::postgres::url_of(&name)).clock(clock).open().await.unwrap();
        // The import creates the namespace, and new ids are larger than the imported ones.
        assert_eq!(import(&to, folder.path()).await.events, 2);
        let to = to.in_namespace("ns").unwrap();
        assert_eq!(views_and_logs(&to, &events).await, before);
        assert!(publish(&to, "t").await.id > events[1]);
        assert_eq!(to.purge(DeadLetterFilter::default()).await, Ok(0));
        to.close().await;
        windlass_testkit::postgres::drop_database(&name).await;
    });
}
