//! The backlog: pending and processing deliveries by state, and dead letters by reason.

use windlass::{Backlog, ClaimRequest, NewEvent, Outcome, Report};

use crate::support::*;

conformance! {
    async fn dead_letters_are_grouped_by_reason_and_type(bed) {
        let queue = &bed.queue;
        let other = queue.put_namespace("other", None, None).await.unwrap();
        for (queue, event_type) in [(queue, "mail"), (queue, "order"), (&other, "mail"), (queue, "mail")] {
            bed.advance(secs(1));
            publish(queue, event_type).await;
            finish(queue, &claim_one(queue).await, Report::dead("x")).await;
        }
        let expected = [("mail", 2, bed.now()), ("order", 1, bed.now() - chrono::TimeDelta::seconds(2))];
        let groups = queue.dead_letter_groups(0).await.unwrap();
        let found: Vec<_> = groups.iter().map(|group| (&*group.event_type, group.count, group.newest_at)).collect();
        assert_eq!(found, expected);
        assert!(groups.iter().all(|group| group.reason == "Handler error"));
        assert_eq!(queue.dead_letter_groups(1).await.unwrap().len(), 1);
    }

    async fn backlog_counts_deliveries_by_wait_reason(bed) {
        let queue = &bed.queue;
        let other = queue.put_namespace("other", None, None).await.unwrap();
        publish(&other, "mail").await;
        publish(queue, "order").await;
        bed.advance(secs(5));
        let since = bed.now();
        publish_new(queue, NewEvent::new("mail").group("g")).await;
        publish_new(queue, NewEvent::new("mail").group("g")).await;
        publish_new(queue, NewEvent::new("mail").delay(secs(60))).await;
        bed.advance(secs(5));
        publish(queue, "mail").await;
        let claimed = claim_one(queue).await;
        assert_eq!(claimed.event.event_type, "order");
        finish(queue, &claimed, Report::new(Outcome::Retry { after: Some(secs(60)) })).await;
        publish(queue, "order").await;
        assert_eq!(claim(queue, ClaimRequest::new("w").types(["order"])).await.len(), 1);

        let none = |event_type: &str| Backlog {
            event_type: event_type.into(), ready: 0, running: 0, delayed: 0, retrying: 0, behind_group: 0, ready_since: None,
        };
        let mail = Backlog { ready: 2, delayed: 1, behind_group: 1, ready_since: Some(since), ..none("mail") };
        let order = Backlog { running: 1, retrying: 1, ..none("order") };
        assert_eq!(queue.backlog().await.unwrap(), [mail.clone(), order]);
        assert_eq!(mail.live(), 4);
        bed.advance(secs(60));
        let later = queue.backlog().await.unwrap();
        assert_eq!((later[0].ready, later[0].delayed, later[1].retrying, later[1].ready), (3, 0, 0, 1));
        assert_eq!(other.backlog().await.unwrap()[0].ready, 1);
    }
}
