//! Samples: outcomes of all processes are counted once, and thinning old samples changes no sum.

use std::time::Duration;

use tokio::task::JoinSet;
use windlass::{
    ClaimRequest, DeadLetterFilter, Error, ExhaustedPolicy, Handler, History, Limits, NewEvent, NewSchedule, Node,
    Policy, Queue, Report, Sample, SampleFilter, SubscriptionSpec,
};
use windlass_testkit::Kind;

use crate::bed::Bed;
use crate::open_transaction::OpenTransaction;
use crate::support::*;

const HOUR: Duration = Duration::from_secs(3600);
const DAY: Duration = Duration::from_secs(24 * 3600);

/// published, completed, failed, retried, expired, cancelled
type Counts = [u64; 6];

fn counts(samples: &[Sample]) -> Counts {
    let mut all = [0; 6];
    for sample in samples {
        let Sample { published, completed, failed, retried, expired, cancelled, .. } = sample;
        let of = [published, completed, failed, retried, expired, cancelled];
        all.iter_mut().zip(of).for_each(|(sum, count)| *sum += count);
    }
    all
}

async fn samples(queue: &Queue, filter: SampleFilter) -> Vec<Sample> {
    queue.samples(filter).await.expect("samples can be read")
}

/// The samples of the last `back`, one for each day.
async fn samples_of_last(queue: &Queue, back: Duration) -> Vec<Sample> {
    let from = queue.clock().now() - chrono::TimeDelta::from_std(back).unwrap();
    samples(queue, SampleFilter { from: Some(from), step: DAY, ..SampleFilter::default() }).await
}

/// The counts of the last day, including those that are not written yet.
async fn counted(queue: &Queue) -> Counts {
    counts(&samples_of_last(queue, DAY).await)
}

/// The number of measured durations: queue latencies and processing times.
async fn measured(queue: &Queue) -> (u64, u64) {
    let samples = samples_of_last(queue, DAY).await;
    let sum = |of: fn(&Sample) -> Option<windlass::Quantiles>| {
        samples.iter().filter_map(of).map(|quantiles| quantiles.count).sum()
    };
    (sum(|sample| sample.wait_ms), sum(|sample| sample.run_ms))
}

/// The counts in the database, as another process reads them.
async fn written_counts(bed: &Bed, namespace: &str) -> Counts {
    counted(&bed.second_queue().await.in_namespace(namespace).unwrap()).await
}

fn table_name(bed: &Bed, name: &str) -> String {
    match bed.database.kind {
        Kind::Sqlite => name.to_owned(),
        Kind::Postgres => format!("windlass.{name}"),
    }
}

async fn count_rows(bed: &Bed, span_s: u32) -> i64 {
    let sql = format!("SELECT count(*) FROM {} WHERE span_s = {span_s}", table_name(bed, "samples"));
    bed.database.select_numbers(&sql).await[0]
}

async fn refused(queue: &Queue, filter: SampleFilter) -> (&'static str, String) {
    match queue.samples(filter).await {
        Err(Error::Invalid { field, problem }) => (field, problem),
        other => panic!("not refused: {other:?}"),
    }
}

conformance! {
    async fn published_events_are_counted_once(bed) {
        publish(&bed.queue, "a").await;
        publish_many(&bed.queue, "b", 700).await;
        let keyed = || NewEvent::new("a").key("k");
        for duplicate in [false, true, true] {
            assert_eq!(bed.queue.publish(keyed()).await.unwrap().duplicate, duplicate);
        }
        let twice = bed.queue.publish_all(vec![keyed().key("l"), keyed().key("l")]).await.unwrap();
        assert_eq!(twice.iter().filter(|published| published.duplicate).count(), 1);
        assert!(bed.queue.publish(NewEvent::new("")).await.is_err());
        assert_eq!(counted(&bed.queue).await, [703, 0, 0, 0, 0, 0]);
        // Other processes see the counts only after they are written.
        assert_eq!(written_counts(bed, "default").await, [0; 6]);
        assert_eq!(bed.queue.flush_samples_once().await, Ok(2));
        assert_eq!((written_counts(bed, "default").await, counted(&bed.queue).await), ([703, 0, 0, 0, 0, 0], [703, 0, 0, 0, 0, 0]));
        assert_eq!(bed.queue.flush_samples_once().await, Ok(0));
        let by_type = SampleFilter { by_type: true, ..SampleFilter::default() };
        let shown: Vec<_> = samples(&bed.queue, by_type).await.into_iter().map(|s| (s.event_type, s.published)).collect();
        assert_eq!(shown, [(Some("a".to_owned()), 3), (Some("b".to_owned()), 700)]);
    }

    async fn every_outcome_is_counted(bed) {
        let queue = bed.namespace(Policy { max_retries: Some(2), ..Policy::default() }).await;
        publish_many(&queue, "t", 8).await;
        let claimed = claim_all(&queue).await;
        bed.advance(secs(3));
        finish(&queue, &claimed[0], Report::done()).await;
        finish(&queue, &claimed[1], Report::new(windlass::Outcome::DoneWithErrors)).await;
        finish(&queue, &claimed[2], Report::dead("never")).await;
        finish(&queue, &claimed[3], release()).await;
        finish(&queue, &claimed[4], snooze(secs(1))).await;
        fail(&queue, &claimed[5]).await;
        // Repeated reports and reports with a lost lease are not counted.
        assert!(!queue.finish(&claimed[0], Report::done()).await.unwrap().is_lost());
        queue.reset(claimed[6].event.id, "main", "by hand").await.unwrap();
        assert!(queue.finish(&claimed[6], Report::done()).await.unwrap().is_lost());
        assert_eq!(counted(&queue).await, [8, 2, 1, 1, 0, 0]);
        assert_eq!(measured(&queue).await, (8, 4));
        // A failure after the last retry counts as failed.
        bed.advance(BACKOFF * 2);
        for delivery in claim_all(&queue).await {
            if delivery.event.id == claimed[5].event.id {
                fail(&queue, &delivery).await;
            } else {
                done(&queue, &delivery).await;
            }
        }
        // All but the two dead letters are completed; the abandoned one was released and claimed again.
        assert_eq!((counted(&queue).await, measured(&queue).await), ([8, 6, 2, 1, 0, 0], (8, 9)));
        assert_eq!(queue.flush_samples_once().await.map(|rows| rows > 0), Ok(true));
        assert_eq!(written_counts(bed, "ns").await, [8, 6, 2, 1, 0, 0]);
    }

    async fn event_abandoned_too_often_counts_as_failed(bed) {
        let queue = bed.namespace(Policy { max_attempts: 1, ..Policy::default() }).await;
        publish(&queue, "t").await;
        claim_one(&queue).await;
        bed.advance(LEASE * 2);
        assert_eq!(queue.release_expired_once().await, Ok(1));
        assert_eq!((counted(&queue).await, measured(&queue).await), ([1, 0, 1, 0, 0, 0], (1, 0)));
    }

    async fn complete_with_errors_policy_counts_as_completed(bed) {
        let policy = Policy { max_retries: Some(0), exhausted: ExhaustedPolicy::CompleteWithErrors, ..Policy::default() };
        let queue = bed.namespace(policy).await;
        publish(&queue, "t").await;
        fail(&queue, &claim_one(&queue).await).await;
        assert_eq!(counted(&queue).await, [1, 1, 0, 0, 0, 0]);
    }

    async fn expired_and_canceled_events_are_counted(bed) {
        let expired = publish_new(&bed.queue, NewEvent::new("a").expires_at(after(bed.now(), secs(1)))).await;
        let canceled = publish(&bed.queue, "b").await;
        bed.queue.cancel(canceled.id, None).await.unwrap();
        assert!(bed.queue.cancel(canceled.id, None).await.is_err());
        bed.advance(secs(2));
        assert_eq!(bed.queue.expire_once().await, Ok(1));
        assert_eq!(bed.queue.expire_once().await, Ok(0));
        assert_eq!(counted(&bed.queue).await, [2, 0, 0, 0, 1, 1]);
        // A redrive does not count as a publish; the completion counts.
        let letters = DeadLetterFilter { event_ids: vec![expired.id], ..DeadLetterFilter::default() };
        assert_eq!(bed.queue.redrive(letters).await, Ok(1));
        assert_eq!(counted(&bed.queue).await, [2, 0, 0, 0, 1, 1]);
        done(&bed.queue, &claim_one(&bed.queue).await).await;
        assert_eq!((counted(&bed.queue).await, measured(&bed.queue).await), ([2, 1, 0, 0, 1, 1], (1, 1)));
    }

    async fn completions_are_counted_per_subscription(bed) {
        bed.queue.add_subscription(SubscriptionSpec::new("mail")).await.unwrap();
        publish_many(&bed.queue, "t", 3).await;
        for subscription in ["main", "mail"] {
            for delivery in claim(&bed.queue, ClaimRequest::new("w").subscription(subscription).max(10)).await {
                done(&bed.queue, &delivery).await;
            }
        }
        assert_eq!((counted(&bed.queue).await, measured(&bed.queue).await), ([3, 6, 0, 0, 0, 0], (6, 6)));
    }

    async fn events_without_history_are_counted(bed) {
        let queue = bed.namespace(Policy { history: History::None, ..Policy::default() }).await;
        publish_many(&queue, "t", 3).await;
        for delivery in claim_all(&queue).await {
            done(&queue, &delivery).await;
        }
        assert_eq!((count_events(&queue).await, counted(&queue).await), (0, [3, 3, 0, 0, 0, 0]));
    }

    async fn reports_by_worker_or_lease_are_counted_and_timed(bed) {
        publish_many(&bed.queue, "t", 2).await;
        let claimed = claim_all(&bed.queue).await;
        bed.advance(secs(4));
        let by_lease = windlass::LeasedEvent::by_lease(claimed[0].event.id, claimed[0].lease);
        let by_worker = windlass::LeasedEvent::by_worker(claimed[1].event.id, "w");
        let other = bed.second_queue().await;
        for lease in [by_lease, by_worker] {
            assert!(!other.finish(lease, Report::done()).await.unwrap().is_lost());
        }
        let run = samples_of_last(&other, DAY).await[0].run_ms.unwrap();
        assert_eq!((counted(&other).await, run.count), ([0, 2, 0, 0, 0, 0], 2));
        assert!(4_000.0 / 1.42 < run.p50 && run.p99 < 4_000.0 * 1.42, "{run:?}");
    }

    async fn queue_latency_starts_when_the_event_is_ready(bed) {
        publish_new(&bed.queue, NewEvent::new("now")).await;
        publish_new(&bed.queue, NewEvent::new("later").delay(secs(600))).await;
        bed.advance(secs(610));
        for delivery in claim_all(&bed.queue).await {
            bed.advance(secs(1));
            fail(&bed.queue, &delivery).await;
        }
        bed.advance(BACKOFF);
        // Only the wait before the first claim counts, not the backoff.
        for delivery in claim_all(&bed.queue).await {
            done(&bed.queue, &delivery).await;
        }
        let by_type = SampleFilter { step: DAY, by_type: true, ..SampleFilter::default() };
        for (sample, ms) in samples(&bed.queue, by_type).await.iter().zip([10_000.0, 610_000.0]) {
            let wait = sample.wait_ms.unwrap();
            assert_eq!((wait.count, sample.run_ms.unwrap().count), (1, 2));
            assert!(ms / 1.42 < wait.p50 && wait.p50 < ms * 1.42, "{sample:?}");
        }
    }

    async fn publish_in_transaction_counts_only_if_committed(bed) {
        let publish_in = async |commits: bool, events: Vec<NewEvent>| {
            let mut tx = OpenTransaction::begin(&bed.database).await;
            tx.publish_all(&bed.queue, events).await.unwrap();
            if commits { tx.commit().await } else { tx.rollback().await }
        };
        let event = |event_type: &str| NewEvent::new(event_type);
        publish_in(true, vec![event("a"), event("b").key("k"), event("b").key("k"), event("b")]).await;
        publish_in(false, vec![event("a"), event("b")]).await;
        publish_in(true, vec![event("b").key("k")]).await;
        bed.queue.sample_once().await.unwrap();
        let now = SampleFilter { until: Some(after(chrono::Utc::now(), HOUR)), ..SampleFilter::default() };
        let published = async |queue: &Queue, types: &[&str]| {
            let types = types.iter().map(ToString::to_string).collect();
            let from = Some(after(bed.now(), Duration::ZERO));
            counts(&samples(queue, SampleFilter { from, step: DAY, types, ..now.clone() }).await)[0]
        };
        assert_eq!((published(&bed.queue, &["a"]).await, published(&bed.queue, &["b"]).await), (1, 2));
        // Sampling again counts nothing twice.
        bed.queue.sample_once().await.unwrap();
        bed.queue.flush_samples_once().await.unwrap();
        assert_eq!(published(&bed.second_queue().await, &[]).await, 3);
    }

    async fn scheduled_events_are_counted(bed) {
        let every_minute = NewSchedule::new("s", "* * * * *", NewEvent::new("t"));
        let id = bed.queue.add_schedule(every_minute).await.unwrap().id;
        bed.advance(secs(60));
        bed.queue.fire_schedules_once().await.unwrap();
        bed.queue.run_schedule(&id).await.unwrap();
        assert_eq!(counted(&bed.queue).await[0], 2);
    }

    async fn transactional_handlers_are_counted(bed) {
        let queue = bed.real_time_queue().await;
        let kind = bed.database.kind;
        let handler = |id: &'static str| match kind {
            Kind::Sqlite => Handler::in_sqlite_tx("t", |_, _| Ok(())).id(id),
            Kind::Postgres => Handler::in_pg_tx("t", |_, _tx| async { Ok(()) }).id(id),
        };
        // Two handlers, each in its own transaction: the delivery completes once.
        let node = Node::new(&queue, "n").handler(handler("a")).handler(handler("b")).start().await.unwrap();
        publish_many(&queue, "t", 20).await;
        eventually("all are completed", async || counted(&queue).await[1] == 20).await;
        node.stop().await;
        assert_eq!((counted(&queue).await, measured(&queue).await), ([20, 20, 0, 0, 0, 0], (20, 20)));
        queue.close().await;
        assert_eq!(counted(&bed.real_time_queue().await).await, [20, 20, 0, 0, 0, 0]);
    }

    async fn duration_of_transactional_handlers_is_measured(bed) {
        let queue = bed.real_time_queue().await;
        let duration = millis(300);
        let handler = match bed.database.kind {
            Kind::Sqlite => Handler::in_sqlite_tx("t", move |_, _| {
                std::thread::sleep(duration);
                Ok(())
            }),
            Kind::Postgres => Handler::in_pg_tx("t", move |_, _tx| async move {
                tokio::time::sleep(duration).await;
                Ok(())
            }),
        };
        let node = Node::new(&queue, "n").handler(handler).start().await.unwrap();
        publish(&queue, "t").await;
        eventually("it is completed", async || counted(&queue).await[1] == 1).await;
        node.stop().await;
        let run = samples_of_last(&queue, DAY).await.iter().find_map(|sample| sample.run_ms).unwrap();
        assert!(run.p50 >= 200.0, "{run:?}");
    }

    async fn depth_and_age_cover_pending_and_processing_deliveries(bed) {
        publish_many(&bed.queue, "a", 3).await;
        publish_new(&bed.queue, NewEvent::new("a").delay(HOUR)).await;
        bed.advance(secs(5));
        publish_many(&bed.queue, "b", 2).await;
        publish_new(&bed.queue, NewEvent::new("g").group("g")).await;
        let waiting = publish_new(&bed.queue, NewEvent::new("g").group("g")).await;
        let claimed = claim(&bed.queue, ClaimRequest::new("w").types(["b", "g"]).max(3)).await;
        assert_eq!((claimed.len(), view(&bed.queue, waiting.id).await.ready_at), (3, None));
        bed.advance(secs(2));
        let by_type = || SampleFilter { by_type: true, ..SampleFilter::default() };
        let seen = async || {
            let shown = |sample: Sample| (sample.event_type.unwrap(), sample.depth, sample.oldest_ms);
            samples(&bed.queue, by_type()).await.into_iter().map(shown).collect::<Vec<_>>()
        };
        // Nothing has been sampled yet.
        assert!(seen().await.iter().all(|(_, depth, oldest_ms)| depth.is_none() && oldest_ms.is_none()));
        bed.queue.sample_once().await.unwrap();
        let seen_of = |event_type: &str, depth, oldest_ms| (event_type.to_owned(), Some(depth), Some(oldest_ms));
        let expected = [seen_of("a", 4, 7_000), seen_of("b", 2, 0), seen_of("g", 2, 0)];
        assert_eq!(seen().await, expected);
        assert_eq!(samples(&bed.queue, SampleFilter::default()).await[0].depth, Some(8));
        // A second sample within the minute keeps the maximum; the next minute starts a new sample.
        for delivery in &claimed {
            done(&bed.queue, delivery).await;
        }
        bed.queue.sample_once().await.unwrap();
        let waited = seen_of("g", 2, 2_000);
        assert_eq!(seen().await, [expected[0].clone(), expected[1].clone(), waited]);
        bed.advance(MINUTE);
        bed.queue.sample_once().await.unwrap();
        let next = samples(&bed.queue, SampleFilter::default()).await;
        assert_eq!((next[1].depth, next[1].oldest_ms), (Some(5), Some(67_000)));
        let longer = SampleFilter { step: secs(600), ..SampleFilter::default() };
        assert_eq!(samples(&bed.queue, longer).await.iter().map(|sample| sample.depth).collect::<Vec<_>>(), [Some(8)]);
    }

    async fn depth_is_absent_where_nothing_was_sampled(bed) {
        publish_many(&bed.queue, "t", 3).await;
        bed.queue.sample_once().await.unwrap();
        bed.advance(MINUTE);
        publish(&bed.queue, "t").await;
        bed.advance(MINUTE);
        for delivery in claim_all(&bed.queue).await {
            done(&bed.queue, &delivery).await;
        }
        bed.queue.flush_samples_once().await.unwrap();
        let sampled = [bed.queue.sample_once().await, bed.queue.sample_once().await];
        assert_eq!(sampled, [Ok(1), Ok(1)]);
        bed.advance(MINUTE);
        // One more sample records that the queue is still empty; after that there is nothing to sample.
        bed.queue.sample_once().await.unwrap();
        bed.advance(MINUTE);
        assert_eq!(bed.queue.sample_once().await, Ok(0));
        let shown: Vec<_> =
            samples(&bed.queue, SampleFilter::default()).await.iter().map(|s| (s.depth, s.oldest_ms)).collect();
        let (most, empty) = ((Some(3), Some(0)), (Some(0), Some(0)));
        assert_eq!(shown, [most, (None, None), empty, empty]);
        // Thinning keeps the maximum and ignores absent depths.
        bed.advance(3 * DAY);
        bed.queue.thin_samples_once().await.unwrap();
        assert_eq!(samples_of_last(&bed.queue, 4 * DAY).await[0].depth, Some(3));
    }

    async fn namespaces_are_counted_separately(bed) {
        let other = bed.namespace(Policy::default()).await;
        publish_many(&bed.queue, "t", 2).await;
        publish_many(&other, "t", 3).await;
        other.sample_once().await.unwrap();
        assert_eq!(other.flush_samples_once().await, Ok(2));
        assert_eq!((written_counts(bed, "default").await[0], written_counts(bed, "ns").await[0]), (2, 3));
        let depths = (samples_of_last(&bed.queue, DAY).await[0].depth, samples_of_last(&other, DAY).await[0].depth);
        assert_eq!(depths, (None, Some(3)));
        let nowhere = bed.queue.in_namespace("nowhere").unwrap();
        let code = |error: Error| error.code();
        assert_eq!(nowhere.samples(SampleFilter::default()).await.map_err(code), Err("namespace_not_found"));
        assert_eq!(nowhere.sample_once().await.map_err(code), Err("namespace_not_found"));
        assert_eq!(nowhere.thin_samples_once().await.map_err(code), Err("namespace_not_found"));
    }

    async fn samples_being_written_are_shown_once(bed) {
        let published = async || counted(&bed.queue).await[0];
        for so_far in 1..=60 {
            publish(&bed.queue, "t").await;
            let (shown, written) = tokio::join!(published(), bed.queue.flush_samples_once());
            assert_eq!((shown, written), (so_far, Ok(1)));
        }
    }

    async fn backfilled_past_events_have_no_queue_latency(bed) {
        let queue = bed.namespace(Policy::default()).await;
        publish(&queue, "before").await;
        publish_new(&queue, NewEvent::new("due").delay(3 * MINUTE)).await;
        bed.advance(2 * MINUTE);
        let start = queue.clock().now() - chrono::TimeDelta::hours(1);
        queue.add_subscription(SubscriptionSpec::new("late").since(start)).await.unwrap();
        publish(&queue, "after").await;
        bed.advance(2 * MINUTE);
        let claimed = claim(&queue, ClaimRequest::new("w").subscription("late").max(10)).await;
        assert_eq!(claimed.len(), 3);
        let by_type = SampleFilter { by_type: true, step: DAY, ..SampleFilter::default() };
        let has_latency: Vec<(String, bool)> = samples(&queue, by_type)
            .await
            .into_iter()
            .map(|sample| (sample.event_type.unwrap(), sample.wait_ms.is_some()))
            .collect();
        assert_eq!(has_latency, [("after".to_owned(), true), ("before".to_owned(), false), ("due".to_owned(), true)]);
    }

    async fn counts_of_several_processes_add_up(bed) {
        let queues =
            [bed.second_queue().await, bed.second_queue().await, bed.second_queue().await, bed.second_queue().await];
        let mut workers = JoinSet::new();
        for queue in queues.clone() {
            workers.spawn(async move {
                let mut ended = 0;
                for round in 0..5 {
                    publish_many(&queue, "t", 10).await;
                    for delivery in claim(&queue, ClaimRequest::new("w").max(7)).await {
                        done(&queue, &delivery).await;
                        ended += 1;
                    }
                    if round % 2 == 0 {
                        queue.flush_samples_once().await.unwrap();
                    }
                }
                ended
            });
        }
        // Concurrent claims may return fewer deliveries than are ready.
        let ended: u64 = workers.join_all().await.into_iter().sum();
        let (mut published, mut completed) = (0, 0);
        for queue in &queues {
            queue.flush_samples_once().await.unwrap();
        }
        for sample in samples_of_last(&bed.queue, DAY).await {
            (published, completed) = (published + sample.published, completed + sample.completed);
            let (wait, run) = (sample.wait_ms.unwrap().count, sample.run_ms.unwrap().count);
            assert_eq!((wait, run), (completed, completed));
        }
        assert_eq!((published, completed), (200, ended));
    }

    async fn each_minute_has_its_own_sample(bed) {
        for minute in 0..8 {
            publish_many(&bed.queue, "t", minute + 1).await;
            bed.advance(MINUTE);
        }
        let shown: Vec<_> = samples(&bed.queue, SampleFilter::default()).await.iter().map(|s| s.published).collect();
        // Unwritten counts are separate for the newest minutes only.
        assert_eq!(shown, [10, 5, 6, 7, 8]);
        bed.queue.flush_samples_once().await.unwrap();
        publish_many(&bed.queue, "t", 9).await;
        let all = samples(&bed.queue, SampleFilter::default()).await;
        assert_eq!(all.iter().map(|sample| sample.published).collect::<Vec<_>>(), [10, 5, 6, 7, 8, 9]);
        assert_eq!(all[5].at, after(bed.now(), Duration::ZERO));
        assert!(all.iter().all(|sample| sample.span_ms == 60_000 && sample.event_type.is_none()));
    }

    async fn samples_are_kept_if_writing_fails(bed) {
        publish_many(&bed.queue, "t", 3).await;
        done(&bed.queue, &claim_one(&bed.queue).await).await;
        let (here, away) = (table_name(bed, "samples"), table_name(bed, "away"));
        bed.database.execute(&format!("ALTER TABLE {here} RENAME TO away")).await;
        let error = bed.queue.flush_samples_once().await.unwrap_err();
        assert_eq!(error.code(), "database");
        publish_many(&bed.queue, "t", 2).await;
        bed.database.execute(&format!("ALTER TABLE {away} RENAME TO samples")).await;
        assert_eq!(bed.queue.flush_samples_once().await, Ok(1));
        assert_eq!(written_counts(bed, "default").await, [5, 1, 0, 0, 0, 0]);
        assert_eq!(bed.queue.flush_samples_once().await, Ok(0));
    }

    async fn closing_the_queue_writes_its_samples(bed) {
        let queue = bed.second_queue().await;
        publish_many(&queue, "t", 3).await;
        queue.close().await;
        assert_eq!(counted(&bed.queue).await, [3, 0, 0, 0, 0, 0]);
        assert_eq!(queue.flush_samples_once().await, Ok(0));
    }

    async fn thinning_preserves_sums(bed) {
        let start = bed.now();
        // Three hours of events of two types; some deliveries are always pending when a sample is taken.
        for minute in 0..180 {
            publish_many(&bed.queue, if minute % 2 == 0 { "a" } else { "b" }, 1 + minute % 3).await;
            for delivery in claim(&bed.queue, ClaimRequest::new("w").max(1)).await {
                done(&bed.queue, &delivery).await;
            }
            if minute % 5 == 0 {
                bed.queue.sample_once().await.unwrap();
            }
            bed.queue.flush_samples_once().await.unwrap();
            bed.advance(MINUTE);
        }
        let of_all = async || {
            let from = Some(start - chrono::TimeDelta::minutes(30));
            let all = samples(&bed.queue, SampleFilter { from, step: HOUR, ..SampleFilter::default() }).await;
            all.into_iter().map(|sample| Sample { depth: None, ..sample }).collect::<Vec<_>>()
        };
        let (minutes, before) = (count_rows(bed, 60).await, of_all().await);
        assert!(minutes > 250 && counts(&before)[1] == 180, "{minutes} {before:?}");
        let deepest = samples_of_last(&bed.queue, DAY).await.iter().map(|sample| sample.depth).max().unwrap();
        assert_eq!(bed.queue.thin_samples_once().await, Ok(0));

        // Two days later, the samples of the first 90 minutes are thinned to 10 minutes.
        bed.test_clock.set(after(start, 2 * DAY + secs(95 * 60)));
        let other = bed.second_queue().await;
        let (one, two) = tokio::join!(bed.queue.thin_samples_once(), other.thin_samples_once());
        assert!(one.unwrap() + two.unwrap() > 0);
        assert_eq!(of_all().await, before);
        assert_eq!(count_rows(bed, 600).await, 18);
        let remaining: i64 = count_rows(bed, 60).await;
        assert!(remaining > 0 && remaining < minutes, "{remaining} of {minutes}");
        assert_eq!(bed.queue.thin_samples_once().await, Ok(0));

        bed.test_clock.set(after(start, 14 * DAY + 4 * HOUR));
        bed.queue.thin_samples_once().await.unwrap();
        assert_eq!(of_all().await, before);
        assert_eq!((count_rows(bed, 60).await, count_rows(bed, 600).await, count_rows(bed, 3600).await), (0, 0, 8));
        let depths = samples(&bed.queue, SampleFilter { from: Some(start), step: HOUR, by_type: true, ..SampleFilter::default() });
        let most = depths.await.iter().map(|sample| sample.depth).max().unwrap();
        assert!(most > Some(0) && most <= deepest, "{most:?} of {deepest:?}");
        // A step finer than the stored samples returns the stored span.
        let fine = SampleFilter { from: Some(start), until: Some(after(start, 4 * HOUR)), ..SampleFilter::default() };
        assert!(samples(&bed.queue, fine).await.iter().all(|sample| sample.span_ms == 3_600_000));

        bed.test_clock.set(after(start, 400 * DAY + 5 * HOUR));
        assert_eq!(bed.queue.thin_samples_once().await, Ok(8));
        assert_eq!(count_rows(bed, 3600).await, 0);
    }

    async fn late_samples_are_added(bed) {
        let start = bed.now();
        publish_many(&bed.queue, "t", 2).await;
        bed.queue.flush_samples_once().await.unwrap();
        let slow = bed.second_queue().await;
        publish_many(&slow, "t", 3).await;
        bed.test_clock.set(after(start, 3 * DAY));
        assert_eq!(bed.queue.thin_samples_once().await, Ok(1));
        // A process writes samples that are days old.
        slow.flush_samples_once().await.unwrap();
        assert_eq!(counts(&samples_of_last(&bed.queue, 4 * DAY).await)[0], 5);
        assert_eq!(bed.queue.thin_samples_once().await, Ok(1));
        assert_eq!((counts(&samples_of_last(&bed.queue, 4 * DAY).await)[0], count_rows(bed, 600).await), (5, 1));
    }

    async fn filter_selects_time_and_types(bed) {
        for event_type in ["order.paid", "order.sent", "mail"] {
            publish(&bed.queue, event_type).await;
            bed.advance(MINUTE);
        }
        bed.queue.flush_samples_once().await.unwrap();
        let of = async |filter: SampleFilter| counts(&samples(&bed.queue, filter).await)[0];
        let types = |types: &[&str]| SampleFilter {
            types: types.iter().map(ToString::to_string).collect(),
            ..SampleFilter::default()
        };
        assert_eq!([of(types(&["order.*"])).await, of(types(&["mail", "x"])).await, of(types(&["*"])).await], [2, 1, 3]);
        let start = bed.now() - chrono::TimeDelta::minutes(3);
        let at = |minutes| Some(after(start, minutes * MINUTE));
        let between = |from, until| SampleFilter { from: at(from), until: at(until), ..SampleFilter::default() };
        assert_eq!([of(between(0, 1)).await, of(between(1, 3)).await, of(between(0, 9)).await], [1, 2, 3]);
        assert_eq!(of(between(3, 9)).await, 0);
        bed.advance(2 * HOUR);
        assert_eq!(of(SampleFilter::default()).await, 0);
    }

    async fn answer_size_is_limited(bed) {
        assert_eq!((bed.queue.limits().samples_max, bed.queue.limits().sample_rows_max), (10_000, 100_000));
        let from = |minutes: i64| Some(bed.now() - chrono::TimeDelta::minutes(minutes));
        let until = Some(bed.now());
        let filter_for = |minutes| SampleFilter { from: from(minutes), until, ..SampleFilter::default() };
        assert_eq!(samples(&bed.queue, filter_for(10_000)).await, []);
        let (field, problem) = refused(&bed.queue, filter_for(10_001)).await;
        assert_eq!(field, "step_ms");
        assert_eq!(problem, "results in 10001 points or more; the limit is 10000: use longer steps or a shorter range");
        samples(&bed.queue, SampleFilter { step: HOUR, ..filter_for(500_000) }).await;

        for event_type in ["a", "b", "c"] {
            publish(&bed.queue, event_type).await;
        }
        bed.queue.flush_samples_once().await.unwrap();
        let limited = async |limits: Limits| Queue::options(&bed.database.url).limits(limits).open().await.unwrap();
        let filter_for = |by_type| SampleFilter { from: until, until: Some(after(bed.now(), MINUTE)), by_type, ..SampleFilter::default() };
        let strict = limited(Limits { samples_max: 2, ..Limits::default() }).await;
        let (total, by_type) = (samples(&strict, filter_for(false)).await, refused(&strict, filter_for(true)).await);
        assert_eq!((total.len(), by_type.0), (1, "step_ms"));
        let strict = limited(Limits { sample_rows_max: 2, ..Limits::default() }).await;
        let (field, problem) = refused(&strict, filter_for(false)).await;
        let expected = "more than 2 stored samples would have to be read, regardless of 'step_ms': use a shorter range";
        assert_eq!((field, problem.as_str()), ("from", expected));
    }

    async fn invalid_filters_are_refused(bed) {
        let now = Some(bed.now());
        let filter = SampleFilter::default;
        for step in [secs(1), secs(59), secs(90), millis(60_001), 401 * DAY, Duration::MAX] {
            assert_eq!(refused(&bed.queue, SampleFilter { step, ..filter() }).await.0, "step_ms", "{step:?}");
        }
        assert_eq!(refused(&bed.queue, SampleFilter { from: now, until: now, ..filter() }).await.0, "from");
        assert_eq!(refused(&bed.queue, SampleFilter { from: Some(after(bed.now(), secs(1))), ..filter() }).await.0, "from");
        for bad in ["", "a*b", "\0"] {
            assert_eq!(refused(&bed.queue, SampleFilter { types: vec![bad.into()], ..filter() }).await.0, "types");
        }
        let (first, last) = (chrono::DateTime::<chrono::Utc>::MIN_UTC, chrono::DateTime::<chrono::Utc>::MAX_UTC);
        let all_time = SampleFilter { from: Some(first), until: Some(last), step: 400 * DAY, ..filter() };
        assert_eq!(samples(&bed.queue, all_time.clone()).await, []);
        assert_eq!(refused(&bed.queue, SampleFilter { step: DAY, ..all_time }).await.0, "step_ms");
        let long_ago = Some(first + chrono::TimeDelta::minutes(1));
        assert_eq!(samples(&bed.queue, SampleFilter { from: Some(first), until: long_ago, ..filter() }).await, []);
    }
}
