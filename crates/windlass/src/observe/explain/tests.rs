//! Each reason by a table of what leads to it.

use super::*;
use crate::clock::from_micros;

const SECOND: i64 = 1_000_000;

fn instant(seconds: i64) -> Timestamp {
    from_micros(seconds * SECOND)
}

const NOW: i64 = 1_000;

/// Ready since a second, with a worker that asks.
fn standing(status: Status) -> DeliveryState {
    let held = status == Status::Processing;
    DeliveryState {
        now: instant(NOW),
        event_type: "order.paid".into(),
        tags: vec!["email".into()],
        delivery: DeliveryView {
            subscription: "main".into(),
            status,
            attempts: u32::from(held),
            retry_count: 0,
            max_retries: Some(3),
            ready_at: (status == Status::Pending).then(|| instant(NOW - 1)),
            next_retry_at: None,
            worker_id: held.then(|| "w".to_owned()),
            picked_at: held.then(|| instant(NOW - 5)),
            started_at: held.then(|| instant(NOW - 4)),
            lease_expires_at: held.then(|| instant(NOW + 60)),
            error_message: None,
            updated_at: instant(NOW - 5),
        },
        expires_at: None,
        due_at: None,
        ahead: None,
        dead_because: None,
    }
}

fn ahead(worker_id: Option<&str>, ready_at: Option<i64>) -> Option<GroupHead> {
    Some(GroupHead { event_id: 7, worker_id: worker_id.map(str::to_owned), ready_at: ready_at.map(instant) })
}

fn why(standing: &DeliveryState, paused: Option<WaitReason>, asked: Option<i64>) -> Explanation {
    explain(&Facts { standing, paused, asked: asked.map(instant) })
}

/// What differs from one that is about to run, and what is said then.
type Case = (fn(&mut DeliveryState), WaitReason, Option<i64>, &'static str);

#[test]
fn what_waits_says_what_it_waits_for() {
    let cases: [Case; 8] = [
        (
            |_| {},
            WaitReason::AboutToRun,
            None,
            "It is ready since 1970-01-01T00:16:39Z, and is taken as soon as a worker that asks for such events is free.",
        ),
        (
            |s| s.delivery.ready_at = Some(instant(NOW + 9)),
            WaitReason::Scheduled,
            Some(NOW + 9),
            "It is scheduled for 1970-01-01T00:16:49Z.",
        ),
        (
            |s| (s.delivery.ready_at, s.delivery.attempts) = (Some(instant(NOW + 9)), 1),
            WaitReason::Scheduled,
            Some(NOW + 9),
            "It was put off until 1970-01-01T00:16:49Z.",
        ),
        (
            |s| (s.delivery.ready_at, s.delivery.attempts, s.delivery.retry_count) = (Some(instant(NOW + 9)), 2, 2),
            WaitReason::Backoff,
            Some(NOW + 9),
            "It failed (failure 2 of 3) and is tried again at 1970-01-01T00:16:49Z.",
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
            "It waits in its group behind event 7, which is not to be tried before 1970-01-01T00:16:49Z.",
        ),
        (
            |s| s.expires_at = Some(instant(NOW)),
            WaitReason::Expiring,
            None,
            "Its deadline, 1970-01-01T00:16:40Z, has passed before it was begun: it is about to end as EXPIRED.",
        ),
        (
            |s| (s.delivery.ready_at, s.expires_at) = (Some(instant(NOW + 9)), Some(instant(NOW + 20))),
            WaitReason::Scheduled,
            Some(NOW + 9),
            "It is scheduled for 1970-01-01T00:16:49Z. Unless it is begun before 1970-01-01T00:17:00Z, it expires.",
        ),
    ];
    for (differ, reason, until, sentence) in cases {
        let mut waiting = standing(Status::Pending);
        differ(&mut waiting);
        let explanation = why(&waiting, None, Some(NOW - 3));
        assert_eq!((explanation.reason, explanation.sentence.as_str()), (reason, sentence));
        assert_eq!(explanation.until, until.map(instant), "{sentence}");
        assert_eq!(explanation.behind, waiting.ahead.as_ref().map(|ahead| ahead.event_id), "{sentence}");
    }
}

#[test]
fn nobody_asks_once_a_minute_has_passed() {
    let waiting = standing(Status::Pending);
    assert_eq!(why(&waiting, None, Some(NOW - 60)).reason, WaitReason::AboutToRun);
    let late = why(&waiting, None, Some(NOW - 61));
    assert_eq!(late.reason, WaitReason::NoWorker);
    assert_eq!(
        late.sentence,
        "No worker has asked for events of type 'order.paid' with these tags in the last minute. \
         The last one asked at 1970-01-01T00:15:39Z."
    );
    let never = why(&DeliveryState { tags: Vec::new(), ..waiting }, None, None);
    assert_eq!(never.sentence, "No worker has asked for events of type 'order.paid' in the last minute.");
    assert!(never.advice.is_some());
}

#[test]
fn what_is_paused_is_said_before_what_passes_by_itself() {
    let mut waiting = standing(Status::Pending);
    waiting.delivery.ready_at = Some(instant(NOW + 9));
    for (reason, sentence) in [
        (WaitReason::NamespacePaused, "The namespace is paused: nothing is handed out."),
        (WaitReason::SubscriptionPaused, "The subscription 'main' is paused: nothing is handed out."),
        (WaitReason::TypePaused, "Events of the type 'order.paid' are paused: nothing is handed out."),
    ] {
        let explanation = why(&waiting, Some(reason), None);
        assert_eq!(explanation.reason, reason);
        assert_eq!(
            explanation.sentence,
            format!("{sentence} It is not to be begun before 1970-01-01T00:16:49Z anyway.")
        );
    }
    waiting.expires_at = Some(instant(NOW - 1));
    assert_eq!(why(&waiting, Some(WaitReason::NamespacePaused), None).reason, WaitReason::Expiring);
}

#[test]
fn what_is_held_says_by_whom_and_until_when() {
    let mut running = standing(Status::Processing);
    let held = "Worker 'w' holds it since 1970-01-01T00:16:35Z";
    let explanation = why(&running, Some(WaitReason::NamespacePaused), None);
    assert_eq!(explanation.reason, WaitReason::Running);
    assert_eq!(explanation.sentence, format!("{held}; its lease is good until 1970-01-01T00:17:40Z."));
    assert_eq!(explanation.until, Some(instant(NOW + 60)));
    running.delivery.started_at = None;
    assert!(why(&running, None, None).sentence.starts_with(&format!("{held} and has not said that it began;")));
    running.delivery.lease_expires_at = Some(instant(NOW));
    let explanation = why(&running, None, None);
    assert_eq!((explanation.reason, explanation.until), (WaitReason::AbandonedSoon, None));
    assert!(explanation.sentence.contains("its lease ran out at 1970-01-01T00:16:40Z"), "{}", explanation.sentence);
}

#[test]
fn what_has_ended_says_how() {
    for (status, reason, sentence) in [
        (Status::Completed, WaitReason::Completed, "It was completed at 1970-01-01T00:16:35Z."),
        (
            Status::CompletedWithErrors,
            WaitReason::CompletedWithErrors,
            "It was completed, with errors, at 1970-01-01T00:16:35Z.",
        ),
        (Status::Cancelled, WaitReason::Cancelled, "It was called off at 1970-01-01T00:16:35Z."),
        (Status::Failed, WaitReason::Failed, "It was given up at 1970-01-01T00:16:35Z: no luck."),
        (
            Status::Expired,
            WaitReason::Expired,
            "It was not begun before its deadline, and was given up at 1970-01-01T00:16:35Z: no luck.",
        ),
    ] {
        let ended = DeliveryState { dead_because: Some("no luck".into()), ..standing(status) };
        let explanation = why(&ended, Some(WaitReason::NamespacePaused), None);
        assert_eq!((explanation.reason, explanation.sentence.as_str()), (reason, sentence));
    }
    let mut failed = DeliveryState { dead_because: Some("no luck".into()), ..standing(Status::Failed) };
    for (error, shown) in [("x", "x".to_owned()), ("x\ny", "x…".to_owned()), (&"ä".repeat(999), "ä".repeat(200) + "…")]
    {
        failed.delivery.error_message = Some(error.to_owned());
        assert!(why(&failed, None, None).sentence.ends_with(&format!(": no luck ({shown}).")), "{shown}");
    }
    let purged = why(&standing(Status::Failed), None, None);
    assert_eq!(purged.sentence, "It was given up at 1970-01-01T00:16:35Z.");
    assert!(purged.advice.is_some_and(|advice| advice.contains("cannot be redriven")));
}
