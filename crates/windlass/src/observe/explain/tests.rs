//! Explanations, by tables of delivery states.

use super::*;
use crate::clock::from_micros;

const SECOND: i64 = 1_000_000;

fn time(seconds: i64) -> Timestamp {
    from_micros(seconds * SECOND)
}

const NOW: i64 = 1_000;

/// A delivery with this status; if pending, it has been ready for one second.
fn delivery_state(status: Status) -> DeliveryState {
    let held = status == Status::Processing;
    DeliveryState {
        now: time(NOW),
        event_type: "order.paid".into(),
        tags: vec!["email".into()],
        delivery: DeliveryView {
            subscription: "main".into(),
            status,
            attempts: u32::from(held),
            retry_count: 0,
            max_retries: Some(3),
            ready_at: (status == Status::Pending).then(|| time(NOW - 1)),
            next_retry_at: None,
            worker_id: held.then(|| "w".to_owned()),
            picked_at: held.then(|| time(NOW - 5)),
            started_at: held.then(|| time(NOW - 4)),
            lease_expires_at: held.then(|| time(NOW + 60)),
            error_message: None,
            updated_at: time(NOW - 5),
        },
        expires_at: None,
        due_at: None,
        ahead: None,
        dead_because: None,
    }
}

fn ahead(worker_id: Option<&str>, ready_at: Option<i64>) -> Option<GroupHead> {
    Some(GroupHead { event_id: 7, worker_id: worker_id.map(str::to_owned), ready_at: ready_at.map(time) })
}

fn explained(state: &DeliveryState, paused: Option<WaitReason>, last_requested: Option<i64>) -> Explanation {
    explain(&Facts { state, paused, last_requested: last_requested.map(time) })
}

/// The change to a ready delivery, and the expected reason, time and sentence.
type Case = (fn(&mut DeliveryState), WaitReason, Option<i64>, &'static str);

#[test]
fn pending_delivery_explains_what_it_waits_for() {
    let cases: [Case; 8] = [
        (
            |_| {},
            WaitReason::AboutToRun,
            None,
            "It is ready since 1970-01-01T00:16:39Z and will be claimed as soon as a worker for such events is free.",
        ),
        (
            |s| s.delivery.ready_at = Some(time(NOW + 9)),
            WaitReason::Scheduled,
            Some(NOW + 9),
            "It is scheduled for 1970-01-01T00:16:49Z.",
        ),
        (
            |s| (s.delivery.ready_at, s.delivery.attempts) = (Some(time(NOW + 9)), 1),
            WaitReason::Scheduled,
            Some(NOW + 9),
            "It was snoozed until 1970-01-01T00:16:49Z.",
        ),
        (
            |s| (s.delivery.ready_at, s.delivery.attempts, s.delivery.retry_count) = (Some(time(NOW + 9)), 2, 2),
            WaitReason::Backoff,
            Some(NOW + 9),
            "It failed (failure 2 of 3) and is retried at 1970-01-01T00:16:49Z.",
        ),
        (
            |s| (s.delivery.ready_at, s.ahead) = (None, ahead(Some("v"), Some(NOW - 9))),
            WaitReason::BehindGroup,
            None,
            "It waits in its group behind event 7, which worker 'v' holds.",
        ),
        (
            |s| (s.delivery.ready_at, s.ahead) = (None, ahead(None, Some(NOW + 9))),
            WaitReason::BehindGroup,
            Some(NOW + 9),
            "It waits in its group behind event 7, which is not due before 1970-01-01T00:16:49Z.",
        ),
        (
            |s| s.expires_at = Some(time(NOW)),
            WaitReason::Expiring,
            None,
            "Its deadline, 1970-01-01T00:16:40Z, has passed before it was started: it is about to become EXPIRED.",
        ),
        (
            |s| (s.delivery.ready_at, s.expires_at) = (Some(time(NOW + 9)), Some(time(NOW + 20))),
            WaitReason::Scheduled,
            Some(NOW + 9),
            "It is scheduled for 1970-01-01T00:16:49Z. Unless it starts before 1970-01-01T00:17:00Z, it expires.",
        ),
    ];
    for (change, reason, until, sentence) in cases {
        let mut waiting = delivery_state(Status::Pending);
        change(&mut waiting);
        let explanation = explained(&waiting, None, Some(NOW - 3));
        assert_eq!((explanation.reason, explanation.sentence.as_str()), (reason, sentence));
        assert_eq!(explanation.until, until.map(time), "{sentence}");
        assert_eq!(explanation.behind, waiting.ahead.as_ref().map(|ahead| ahead.event_id), "{sentence}");
    }
}

#[test]
fn consumer_is_inactive_after_a_minute() {
    let waiting = delivery_state(Status::Pending);
    assert_eq!(explained(&waiting, None, Some(NOW - 60)).reason, WaitReason::AboutToRun);
    let late = explained(&waiting, None, Some(NOW - 61));
    assert_eq!(late.reason, WaitReason::NoWorker);
    assert_eq!(
        late.sentence,
        "No worker has requested events of type 'order.paid' with these tags in the last minute. \
         The last request was at 1970-01-01T00:15:39Z."
    );
    let never = explained(&DeliveryState { tags: Vec::new(), ..waiting }, None, None);
    assert_eq!(never.sentence, "No worker has requested events of type 'order.paid' in the last minute.");
    assert!(never.advice.is_some());
}

#[test]
fn pause_is_reported_before_a_due_time() {
    let mut waiting = delivery_state(Status::Pending);
    waiting.delivery.ready_at = Some(time(NOW + 9));
    for (reason, sentence) in [
        (WaitReason::NamespacePaused, "The namespace is paused: nothing can be claimed."),
        (WaitReason::SubscriptionPaused, "The subscription 'main' is paused: nothing can be claimed."),
        (WaitReason::TypePaused, "Events of the type 'order.paid' are paused: nothing can be claimed."),
    ] {
        let explanation = explained(&waiting, Some(reason), None);
        assert_eq!(explanation.reason, reason);
        assert_eq!(explanation.sentence, format!("{sentence} It is not due before 1970-01-01T00:16:49Z anyway."));
    }
    waiting.expires_at = Some(time(NOW - 1));
    assert_eq!(explained(&waiting, Some(WaitReason::NamespacePaused), None).reason, WaitReason::Expiring);
}

#[test]
fn processing_delivery_names_its_worker_and_lease() {
    let mut running = delivery_state(Status::Processing);
    let held = "Worker 'w' has held it since 1970-01-01T00:16:35Z";
    let explanation = explained(&running, Some(WaitReason::NamespacePaused), None);
    assert_eq!(explanation.reason, WaitReason::Running);
    assert_eq!(explanation.sentence, format!("{held}; its lease is valid until 1970-01-01T00:17:40Z."));
    assert_eq!(explanation.until, Some(time(NOW + 60)));
    running.delivery.started_at = None;
    assert!(explained(&running, None, None).sentence.starts_with(&format!("{held} and has not reported a start;")));
    running.delivery.lease_expires_at = Some(time(NOW));
    let explanation = explained(&running, None, None);
    assert_eq!((explanation.reason, explanation.until), (WaitReason::AbandonedSoon, None));
    assert!(explanation.sentence.contains("its lease expired at 1970-01-01T00:16:40Z"), "{}", explanation.sentence);
}

#[test]
fn finished_delivery_says_how_it_ended() {
    for (status, reason, sentence) in [
        (Status::Completed, WaitReason::Completed, "It was completed at 1970-01-01T00:16:35Z."),
        (
            Status::CompletedWithErrors,
            WaitReason::CompletedWithErrors,
            "It was completed, with errors, at 1970-01-01T00:16:35Z.",
        ),
        (Status::Cancelled, WaitReason::Cancelled, "It was canceled at 1970-01-01T00:16:35Z."),
        (Status::Failed, WaitReason::Failed, "It was dead-lettered at 1970-01-01T00:16:35Z: no luck."),
        (
            Status::Expired,
            WaitReason::Expired,
            "It was not started before its deadline and expired at 1970-01-01T00:16:35Z: no luck.",
        ),
    ] {
        let ended = DeliveryState { dead_because: Some("no luck".into()), ..delivery_state(status) };
        let explanation = explained(&ended, Some(WaitReason::NamespacePaused), None);
        assert_eq!((explanation.reason, explanation.sentence.as_str()), (reason, sentence));
    }
    let mut failed = DeliveryState { dead_because: Some("no luck".into()), ..delivery_state(Status::Failed) };
    for (error, shown) in [("x", "x".to_owned()), ("x\ny", "x…".to_owned()), (&"ä".repeat(999), "ä".repeat(200) + "…")]
    {
        failed.delivery.error_message = Some(error.to_owned());
        assert!(explained(&failed, None, None).sentence.ends_with(&format!(": no luck ({shown}).")), "{shown}");
    }
    let purged = explained(&delivery_state(Status::Failed), None, None);
    assert_eq!(purged.sentence, "It was dead-lettered at 1970-01-01T00:16:35Z.");
    assert!(purged.advice.is_some_and(|advice| advice.contains("cannot be redriven")));
}
