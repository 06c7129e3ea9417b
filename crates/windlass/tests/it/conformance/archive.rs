//! History in files: before it is deleted, by hand, and back.

use std::path::Path;
use std::time::Duration;

use windlass::{
    ClaimRequest, Clock, DeadLetterFilter, Error, ExportedHistory, HistoryFilter, ImportedHistory, NewEvent, Policy,
    PolicyOverrides, Queue, Report, RetentionReport, Status, SubscriptionSpec,
};

use crate::bed::Bed;
use crate::support::*;

const HOUR: Duration = Duration::from_secs(3_600);

fn archiving(keep: Option<Duration>) -> Policy {
    Policy { archive: true, keep_completed_ms: keep.map(|keep| keep.as_millis() as u64), ..Policy::default() }
}

/// A process that writes its archive to this folder.
async fn archiver(bed: &Bed, folder: &Path) -> Queue {
    let options = Queue::options(&bed.database.url).clock(bed.queue.clock().clone()).archive_to(folder);
    options.open().await.unwrap().in_namespace("ns").unwrap()
}

async fn export(queue: &Queue, to: &Path, filter: HistoryFilter) -> ExportedHistory {
    queue.export_history(to, filter, |_, _| {}).await.unwrap()
}

async fn import(queue: &Queue, from: &Path) -> ImportedHistory {
    queue.import_history(from, None, |_, _| {}).await.unwrap()
}

async fn completed_one(queue: &Queue, event: NewEvent) -> i64 {
    let event = publish_new(queue, event).await;
    done(queue, &take(queue).await).await;
    event.id
}

/// Events with everything that there can be about them.
async fn rich_history(bed: &Bed, queue: &Queue) -> Vec<i64> {
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
    finish(queue, &take(queue).await, report.detail(serde_json::value::RawValue::from_string("[1]".into()).unwrap()))
        .await;
    bed.advance(BACKOFF);
    let delivery = take(queue).await;
    queue.start(&delivery).await.unwrap();
    done(queue, &delivery).await;
    let second = claim(queue, ClaimRequest::new("w2").subscription("second")).await.remove(0);
    queue.finalize(&second, &["half".to_owned()]).await.unwrap().attempt().unwrap();
    let plain = publish(queue, "noise").await.id;
    assert_eq!(queue.cancel(plain, None).await, Ok(2));
    vec![first, plain]
}

async fn all_of(queue: &Queue, event_ids: &[i64]) -> Vec<(String, String)> {
    let mut all = Vec::new();
    for id in event_ids {
        all.push(everything(queue, *id).await);
    }
    all
}

conformance! {
    async fn nothing_goes_before_it_is_archived(bed) {
        let queue = bed.namespace(archiving(Some(HOUR))).await;
        let events = rich_history(bed, &queue).await;
        let before = all_of(&queue, &events).await;
        bed.advance(2 * HOUR);
        assert_eq!(queue.retain_once().await, Ok(RetentionReport { withheld: true, ..RetentionReport::default() }));
        assert_eq!(all_of(&queue, &events).await, before);
        let folder = tempfile::tempdir().unwrap();
        let archiver = archiver(bed, folder.path()).await;
        let retained = archiver.retain_once().await.unwrap();
        assert_eq!((retained.deliveries, retained.events), (4, 2));
        assert_eq!(total(&queue).await, 0);
        let months: Vec<_> = std::fs::read_dir(folder.path().join("ns")).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        assert_eq!(months, ["2025-12"]);
        bed.namespace(archiving(None)).await;
        let imported = import(&queue, folder.path()).await;
        assert_eq!((imported.files, imported.events, imported.attempts, imported.clashes), (1, 2, 5, 0));
        assert_eq!(all_of(&queue, &events).await, before);
    }

    async fn what_cannot_be_archived_stays(bed) {
        let queue = bed.namespace(archiving(Some(HOUR))).await;
        let event = completed_one(&queue, NewEvent::new("t")).await;
        bed.advance(2 * HOUR);
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("file");
        std::fs::write(&file, "").unwrap();
        let archiver = archiver(bed, &file).await;
        let error = archiver.retain_once().await.unwrap_err();
        assert_eq!(error.code(), "archive");
        assert_eq!(status(&queue, event).await, Status::Completed);
    }

    // What goes in parts is archived in parts, and put together again.
    async fn an_event_that_goes_in_parts_comes_back_whole(bed) {
        let queue = bed.namespace(archiving(Some(HOUR))).await;
        let longer = PolicyOverrides { keep_completed_ms: Some(Some(10 * 3_600_000)), ..Default::default() };
        queue.add_subscription(SubscriptionSpec::new("long").policy(longer)).await.unwrap();
        let event = completed_one(&queue, NewEvent::new("t")).await;
        bed.advance(MINUTE);
        let second = claim(&queue, ClaimRequest::new("w").subscription("long")).await.remove(0);
        done(&queue, &second).await;
        let before = everything(&queue, event).await;
        let folder = tempfile::tempdir().unwrap();
        let archiver = archiver(bed, folder.path()).await;
        bed.advance(2 * HOUR);
        assert_eq!(archiver.retain_once().await.unwrap().events, 0);
        bed.advance(10 * HOUR);
        assert_eq!(archiver.retain_once().await.unwrap().events, 1);
        bed.namespace(archiving(None)).await;
        let imported = import(&queue, folder.path()).await;
        assert_eq!((imported.files, imported.events, imported.known, imported.attempts), (2, 1, 1, 2));
        assert_eq!(everything(&queue, event).await, before);
    }

    async fn dead_letters_and_what_is_live_are_not_archived_while_they_stay(bed) {
        let policy = Policy { keep_failed_ms: Some(10 * 3_600_000), ..archiving(Some(HOUR)) };
        let queue = bed.namespace(policy).await;
        let letter = publish(&queue, "t").await.id;
        finish(&queue, &take(&queue).await, Report::dead("x")).await;
        publish(&queue, "t").await;
        fail(&queue, &take(&queue).await).await;
        let folder = tempfile::tempdir().unwrap();
        let archiver = archiver(bed, folder.path()).await;
        bed.advance(2 * HOUR);
        assert_eq!(archiver.retain_once().await, Ok(RetentionReport::default()));
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
        bed.advance(10 * HOUR);
        assert_eq!(archiver.retain_once().await.unwrap().dead_letters, 1);
        bed.namespace(archiving(None)).await;
        assert_eq!(import(&queue, folder.path()).await.events, 1);
        // It is history now, and nobody's letter.
        assert_eq!(status(&queue, letter).await, Status::Failed);
        assert!(dead(&queue).await.is_empty());
    }

    async fn what_is_exported_can_be_imported(bed) {
        let queue = bed.namespace(Policy { keep_completed_ms: Some(3_600_000), ..Policy::default() }).await;
        let events = rich_history(bed, &queue).await;
        let waiting = publish(&queue, "t").await;
        let letter = publish(&queue, "t").await;
        for delivery in take_all(&queue).await {
            if delivery.event.id == letter.id {
                finish(&queue, &delivery, Report::dead("x")).await;
            } else {
                finish(&queue, &delivery, release()).await;
            }
        }
        let before = all_of(&queue, &events).await;
        let folder = tempfile::tempdir().unwrap();
        let exported = export(&queue, folder.path(), HistoryFilter::default()).await;
        assert_eq!(exported, ExportedHistory { events: 2, attempts: 5, files: 1 });
        let again = import(&queue, folder.path()).await;
        assert_eq!((again.events, again.attempts, again.known), (0, 0, 2));
        bed.advance(2 * HOUR);
        assert_eq!(queue.retain_once().await.unwrap().events, 2);
        bed.namespace(Policy { keep_completed_ms: None, ..Policy::default() }).await;
        assert_eq!(import(&queue, folder.path()).await.events, 2);
        assert_eq!(all_of(&queue, &events).await, before);
        // Nothing of it is delivered, and nothing else has changed.
        assert_eq!(ids(&take_all(&queue).await), [waiting.id]);
        assert_eq!(dead(&queue).await, [letter.id]);
        assert!(publish(&queue, "t").await.id > letter.id);
    }

    async fn an_export_can_be_narrowed_down(bed) {
        let queue = bed.namespace(Policy::default()).await;
        completed_one(&queue, NewEvent::new("a.x")).await;
        bed.advance(HOUR);
        let (from, b) = (bed.now(), completed_one(&queue, NewEvent::new("b")).await);
        bed.advance(HOUR);
        let until = bed.now();
        completed_one(&queue, NewEvent::new("a.y")).await;
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

    async fn an_id_that_is_taken_is_counted_and_left_alone(bed) {
        let queue = bed.namespace(Policy { keep_completed_ms: Some(3_600_000), ..Policy::default() }).await;
        let event = completed_one(&queue, NewEvent::new("t")).await;
        let other = completed_one(&queue, NewEvent::new("t")).await;
        let folder = tempfile::tempdir().unwrap();
        export(&queue, folder.path(), HistoryFilter::default()).await;
        bed.database.execute(&match bed.database.kind {
            crate::bed::Kind::Sqlite => format!("UPDATE events SET event_type = 'u' WHERE id = {event}"),
            crate::bed::Kind::Postgres => format!("UPDATE windlass.events SET event_type = 'u' WHERE id = {event}"),
        }).await;
        let imported = import(&queue, folder.path()).await;
        assert_eq!((imported.events, imported.known, imported.clashes, imported.first_clash), (0, 1, 1, Some(event)));
        assert_eq!(queue.get(event).await.unwrap().event.event_type, "u");
        assert!(queue.get(other).await.is_ok());
    }

    // What comes back lies behind all walks, and goes all the same when its time is over.
    async fn what_was_imported_goes_by_the_policy_too(bed) {
        let queue = bed.namespace(Policy { keep_completed_ms: Some(3_600_000), ..Policy::default() }).await;
        let event = completed_one(&queue, NewEvent::new("t")).await;
        let folder = tempfile::tempdir().unwrap();
        export(&queue, folder.path(), HistoryFilter::default()).await;
        bed.advance(2 * HOUR);
        completed_one(&queue, NewEvent::new("t")).await;
        assert_eq!(queue.retain_once().await.unwrap().events, 1);
        bed.namespace(Policy { keep_completed_ms: Some(4 * 3_600_000), ..Policy::default() }).await;
        assert_eq!(import(&queue, folder.path()).await.events, 1);
        assert_eq!(queue.retain_once().await, Ok(RetentionReport::default()));
        // What is new is still told apart from what is old.
        let since = after(bed.now(), Duration::ZERO) - chrono::TimeDelta::minutes(5);
        let completed: u64 = queue.stats(since).await.unwrap().iter().map(|row| row.count).sum();
        assert_eq!(completed, 1);
        bed.advance(3 * HOUR);
        assert_eq!(queue.retain_once().await.unwrap().events, 1);
        assert!(queue.get(event).await.is_err());
    }

    async fn a_damaged_file_is_refused(bed) {
        let queue = bed.namespace(Policy::default()).await;
        completed_one(&queue, NewEvent::new("t")).await;
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

    async fn many_are_exported_and_imported_in_batches(bed) {
        let queue = bed.namespace(Policy { keep_completed_ms: Some(3_600_000), ..Policy::default() }).await;
        publish_many(&queue, "t", 1_100).await;
        loop {
            let taken = take_all(&queue).await;
            if taken.is_empty() {
                break;
            }
            let done: Vec<_> = taken.iter().map(|delivery| queue.finish(delivery, Report::done())).collect();
            for finished in done {
                finished.await.unwrap().attempt().unwrap();
            }
        }
        let (folder, mut told) = (tempfile::tempdir().unwrap(), Vec::new());
        let exported = queue.export_history(folder.path(), HistoryFilter::default(), |done, of| told.push((done, of))).await;
        assert_eq!(exported.unwrap().events, 1_100);
        assert!(told.len() > 2 && told.is_sorted() && told.iter().all(|(done, of)| done <= of), "{told:?}");
        bed.advance(2 * HOUR);
        assert_eq!(queue.retain_once().await.unwrap().events, 1_100);
        let mut told = Vec::new();
        let imported = queue.import_history(folder.path(), Some("ns"), |done, of| told.push((done, of))).await.unwrap();
        assert_eq!((imported.events, imported.attempts), (1_100, 1_100));
        assert_eq!(told.last(), Some(&(1_100, 1_100)));
        assert_eq!(queue.import_history(folder.path(), Some("other"), |_, _| {}).await.unwrap(), ImportedHistory::default());
    }
}

#[test]
fn history_moves_from_one_database_to_the_other() {
    crate::bed::run(crate::bed::Kind::Sqlite, async |from: &Bed| {
        let queue = from.namespace(Policy { keep_completed_ms: None, ..Policy::default() }).await;
        let events = rich_history(from, &queue).await;
        let before = all_of(&queue, &events).await;
        let folder = tempfile::tempdir().unwrap();
        export(&queue, folder.path(), HistoryFilter::default()).await;
        let name = crate::postgres::create(true).await;
        let (clock, _hand) = Clock::test(from.now());
        let to = Queue::options(&crate::postgres::url_of(&name)).clock(clock).open().await.unwrap();
        // The namespace is created, and ids go on after those that came.
        assert_eq!(import(&to, folder.path()).await.events, 2);
        let to = to.in_namespace("ns").unwrap();
        assert_eq!(all_of(&to, &events).await, before);
        assert!(publish(&to, "t").await.id > events[1]);
        assert_eq!(to.purge(DeadLetterFilter::default()).await, Ok(0));
        to.close().await;
        crate::postgres::drop_database(&name).await;
    });
}
