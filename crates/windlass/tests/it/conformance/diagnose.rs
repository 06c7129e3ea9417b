//! Diagnosing an installation: each check reports its problem, and reports nothing once the problem is fixed.

use std::collections::BTreeSet;

use windlass::{
    ClaimRequest, DeadLetterFilter, Error, Finding, FindingLevel, GroupFailurePolicy, Limits, NewEvent, NewNode,
    NewSchedule, NewToken, Policy, Queue, Report, Scope, SubscriptionSpec,
};
use windlass_testkit::Kind;

use crate::bed::Bed;
use crate::support::*;

const HOUR: std::time::Duration = secs_of(3_600);
const DAY: std::time::Duration = secs_of(86_400);

const fn secs_of(secs: u64) -> std::time::Duration {
    std::time::Duration::from_secs(secs)
}

/// The finding of one check.
async fn finding(queue: &Queue, check: &str) -> Finding {
    let findings = queue.diagnose().await.expect("an open queue can be diagnosed");
    findings.into_iter().find(|finding| finding.check == check).unwrap_or_else(|| panic!("there is no check '{check}'"))
}

async fn level(queue: &Queue, check: &str) -> FindingLevel {
    finding(queue, check).await.level
}

fn table_name(bed: &Bed, name: &str) -> String {
    match bed.database.kind {
        Kind::Sqlite => name.to_owned(),
        Kind::Postgres => format!("windlass.{name}"),
    }
}

conformance! {
    async fn new_database_has_no_findings(bed) {
        let queue = bed.real_time_queue().await;
        let findings = queue.diagnose().await.unwrap();
        let names: BTreeSet<&str> = findings.iter().map(|finding| &*finding.check).collect();
        assert_eq!(names.len(), findings.len(), "each check has one finding");
        // The test server trades durability for speed.
        let problems =
            findings.iter().filter(|finding| finding.level > FindingLevel::Ok && finding.check != "durability");
        assert_eq!(problems.collect::<Vec<_>>(), [] as [&Finding; 0]);
        assert!(findings.iter().all(|finding| finding.level == FindingLevel::Ok || finding.advice.is_some()));
    }

    async fn closed_queue_cannot_be_diagnosed(bed) {
        bed.queue.close().await;
        assert_eq!(bed.queue.diagnose().await, Err(Error::Closed));
    }

    async fn concurrent_diagnoses_all_return(bed) {
        let (one, two, three) = tokio::join!(bed.queue.diagnose(), bed.queue.diagnose(), bed.queue.diagnose());
        assert_eq!(one.unwrap().len(), two.unwrap().len());
        assert!(three.is_ok());
    }

    async fn unreleased_expired_leases_are_reported(bed) {
        let event = publish(&bed.queue, "mail").await;
        claim_one(&bed.queue).await;
        bed.advance(LEASE + MINUTE);
        assert_eq!(level(&bed.queue, "expired_leases").await, FindingLevel::Ok);
        bed.advance(secs(1));
        let found = finding(&bed.queue, "expired_leases").await;
        assert_eq!(found.level, FindingLevel::Warning);
        let expected = format!("1 with a lease that expired up to 1 min ago: event {} (mail in 'default', held by w)", event.id);
        assert_eq!(found.summary, expected);
        bed.advance(10 * MINUTE);
        assert_eq!(level(&bed.queue, "expired_leases").await, FindingLevel::Problem);
        bed.queue.release_expired_once().await.unwrap();
        assert_eq!(level(&bed.queue, "expired_leases").await, FindingLevel::Ok);
    }

    async fn silent_workers_and_stuck_events_are_reported(bed) {
        let queue = bed.namespace(Policy { lease_ms: 3_600_000, ..Policy::default() }).await;
        let id = publish(&queue, "mail").await.id;
        let delivery = claim_one(&queue).await;
        bed.advance(5 * MINUTE + secs(1));
        assert_eq!(level(&queue, "stuck_events").await, FindingLevel::Ok);
        let worker = finding(&queue, "stale_workers").await;
        assert_eq!(worker.level, FindingLevel::Warning);
        let expected = "1 silent and still holding deliveries: w in 'ns' (holds 1, silent for 5 min)";
        assert_eq!(worker.summary, expected);
        bed.advance(5 * MINUTE);
        let stuck = finding(&queue, "stuck_events").await;
        assert_eq!(stuck.level, FindingLevel::Warning);
        assert!(stuck.summary.contains(&format!("event {id} (mail in 'ns', held by w)")), "{stuck:?}");
        assert!(stuck.advice.unwrap().contains(&format!("`windlass reset {id} --namespace ns`")));
        queue.extend(&delivery, Some(HOUR)).await.unwrap();
        assert_eq!(level(&queue, "stuck_events").await, FindingLevel::Ok);
        assert_eq!(level(&queue, "stale_workers").await, FindingLevel::Ok);
    }

    async fn worker_with_recent_activity_is_not_silent(bed) {
        let queue = bed.namespace(Policy { lease_ms: 3_600_000, ..Policy::default() }).await;
        publish_many(&queue, "mail", 2).await;
        claim_one(&queue).await;
        bed.advance(6 * MINUTE);
        assert_eq!(level(&queue, "stale_workers").await, FindingLevel::Warning);
        claim_one(&queue).await;
        assert_eq!(level(&queue, "stale_workers").await, FindingLevel::Ok);
    }

    async fn silent_nodes_are_reported(bed) {
        bed.queue.register_node(NewNode::new("api-1")).await.unwrap();
        bed.queue.register_node(NewNode::new("api-2")).await.unwrap();
        bed.queue.stop_node("api-2").await.unwrap();
        assert_eq!(level(&bed.queue, "stale_nodes").await, FindingLevel::Ok);
        bed.advance(secs(91));
        let found = finding(&bed.queue, "stale_nodes").await;
        assert_eq!(found.level, FindingLevel::Warning);
        assert_eq!(found.summary, "1 silent without having stopped: api-1 in 'default' for 1 min");
        bed.advance(DAY);
        assert_eq!(level(&bed.queue, "stale_nodes").await, FindingLevel::Notice);
        bed.queue.touch_node("api-1").await.unwrap();
        assert_eq!(level(&bed.queue, "stale_nodes").await, FindingLevel::Ok);
    }

    async fn unclaimed_events_are_reported_unless_paused(bed) {
        let queue = bed.namespace(Policy::default()).await;
        publish(&queue, "mail.send").await;
        publish_new(&queue, NewEvent::new("later").run_at(after(bed.now(), 10 * HOUR))).await;
        bed.advance(5 * MINUTE + secs(1));
        assert_eq!(level(&queue, "oldest_waiting").await, FindingLevel::Notice);
        bed.advance(HOUR);
        let found = finding(&queue, "oldest_waiting").await;
        assert_eq!(found.level, FindingLevel::Warning);
        assert_eq!(found.summary, "ready and not claimed: mail.send for 'main' in 'ns' for 1 h 5 min");

        queue.pause().await.unwrap();
        assert_eq!(level(&queue, "oldest_waiting").await, FindingLevel::Ok);
        assert_eq!(finding(&queue, "paused").await.summary, "1 paused: namespace 'ns'");
        queue.resume().await.unwrap();
        queue.pause_type("mail.*").await.unwrap();
        assert_eq!(level(&queue, "oldest_waiting").await, FindingLevel::Ok);
        assert_eq!(finding(&queue, "paused").await.summary, "1 paused: type 'mail.*' in 'ns'");
        queue.resume_type("mail.*").await.unwrap();
        queue.pause_subscription("main").await.unwrap();
        assert_eq!(level(&queue, "oldest_waiting").await, FindingLevel::Ok);
        let paused = finding(&queue, "paused").await;
        assert_eq!((paused.level, &*paused.summary), (FindingLevel::Notice, "1 paused: subscription 'main' in 'ns'"));
        queue.resume_subscription("main").await.unwrap();
        assert_eq!(level(&queue, "paused").await, FindingLevel::Ok);

        assert_eq!(level(&queue, "oldest_waiting").await, FindingLevel::Warning);
        claim_one(&queue).await;
        assert_eq!(level(&queue, "oldest_waiting").await, FindingLevel::Ok);
    }

    async fn growing_backlog_is_reported(bed) {
        publish(&bed.queue, "mail").await;
        for _ in 0..5 {
            bed.queue.sample_once().await.unwrap();
            bed.advance(MINUTE);
        }
        publish_many(&bed.queue, "mail", 1_500).await;
        bed.queue.flush_samples_once().await.unwrap();
        for _ in 0..5 {
            bed.queue.sample_once().await.unwrap();
            bed.advance(MINUTE);
        }
        let found = finding(&bed.queue, "backlog").await;
        assert_eq!(found.level, FindingLevel::Warning);
        let expected = "'default' grew from 1 to 1,501 pending and processing deliveries within the hour: 1,501 events published, 0 finished";
        assert_eq!(found.summary, expected);
        bed.advance(HOUR);
        for _ in 0..10 {
            bed.queue.sample_once().await.unwrap();
            bed.advance(MINUTE);
        }
        assert_eq!(finding(&bed.queue, "backlog").await.summary, "does not grow; 1,501 deliveries pending or processing");
    }

    async fn groups_blocked_by_a_retry_are_reported(bed) {
        let mut first = None;
        for _ in 0..3 {
            let event = publish_new(&bed.queue, NewEvent::new("mail").group("user-42")).await;
            first.get_or_insert(event.id);
        }
        assert_eq!(level(&bed.queue, "blocked_groups").await, FindingLevel::Ok);
        fail(&bed.queue, &claim_one(&bed.queue).await).await;
        let found = finding(&bed.queue, "blocked_groups").await;
        assert_eq!(found.level, FindingLevel::Notice);
        let expected = format!(
            "1 with 2 waiting for a retry: 'user-42' in 'default' (2 behind event {}: 1 failure, next attempt in 5 min)",
            first.unwrap()
        );
        assert_eq!(found.summary, expected);
        bed.advance(BACKOFF);
        assert_eq!(level(&bed.queue, "blocked_groups").await, FindingLevel::Ok);
    }

    async fn groups_with_continue_policy_are_not_reported(bed) {
        let queue = bed.namespace(Policy { group_failure: GroupFailurePolicy::Continue, ..Policy::default() }).await;
        for _ in 0..3 {
            publish_new(&queue, NewEvent::new("mail").group("user-42")).await;
        }
        fail(&queue, &claim_one(&queue).await).await;
        assert_eq!(level(&queue, "blocked_groups").await, FindingLevel::Ok);
    }

    async fn recent_dead_letters_are_reported(bed) {
        publish(&bed.queue, "mail").await;
        assert_eq!(level(&bed.queue, "dead_letters").await, FindingLevel::Ok);
        let delivery = claim_one(&bed.queue).await;
        finish(&bed.queue, &delivery, Report::dead("rejected")).await;
        let found = finding(&bed.queue, "dead_letters").await;
        assert_eq!((found.level, &*found.summary), (FindingLevel::Notice, "dead-lettered within the hour: 1 in 'default'"));
        assert!(found.advice.unwrap().contains("windlass dead-letters redrive"));
        bed.queue.redrive(DeadLetterFilter::default()).await.unwrap();
        assert_eq!(level(&bed.queue, "dead_letters").await, FindingLevel::Ok);
        let delivery = claim_one(&bed.queue).await;
        finish(&bed.queue, &delivery, Report::dead("rejected")).await;
        bed.advance(HOUR + secs(1));
        assert_eq!(level(&bed.queue, "dead_letters").await, FindingLevel::Ok);
    }

    async fn overdue_maintenance_is_reported(bed) {
        let queue = bed.namespace(Policy::default()).await;
        publish(&queue, "mail").await;
        bed.advance(6 * MINUTE);
        let found = finding(&queue, "maintenance").await;
        assert_eq!((found.level, &*found.summary), (FindingLevel::Warning, "no maintenance has run in 'ns'"));
        queue.maintain_once().await.unwrap();
        assert_eq!(level(&queue, "maintenance").await, FindingLevel::Ok);
        bed.advance(10 * MINUTE);
        let found = finding(&queue, "maintenance").await;
        assert_eq!(found.level, FindingLevel::Warning);
        assert!(found.summary.contains("release_expired of 'ns' is overdue by 9 min"), "{found:?}");
        bed.advance(2 * HOUR);
        assert_eq!(level(&queue, "maintenance").await, FindingLevel::Problem);
        queue.maintain_once().await.unwrap();
        assert_eq!(level(&queue, "maintenance").await, FindingLevel::Ok);
    }

    async fn failing_maintenance_is_reported(bed) {
        let (table, away) = (table_name(bed, "handler_results"), "handler_results_away");
        bed.database.execute(&format!("ALTER TABLE {table} RENAME TO {away}")).await;
        bed.queue.maintain_once().await.unwrap();
        let found = finding(&bed.queue, "maintenance").await;
        assert_eq!(found.level, FindingLevel::Warning);
        assert!(found.summary.starts_with("prune of 'default' fails: database error:"), "{found:?}");
        bed.database.execute(&format!("ALTER TABLE {} RENAME TO handler_results", table_name(bed, away))).await;
        bed.advance(10 * MINUTE);
        bed.queue.maintain_once().await.unwrap();
        assert_eq!(level(&bed.queue, "maintenance").await, FindingLevel::Ok);
    }

    async fn late_schedules_are_reported(bed) {
        bed.queue.add_schedule(NewSchedule::new("report", "* * * * *", NewEvent::new("report.due"))).await.unwrap();
        bed.advance(MINUTE);
        assert_eq!(level(&bed.queue, "schedules").await, FindingLevel::Ok);
        bed.advance(2 * MINUTE);
        let found = finding(&bed.queue, "schedules").await;
        assert_eq!((found.level, &*found.summary), (FindingLevel::Warning, "1 late: 'report' in 'default' by 2 min"));
        bed.advance(20 * MINUTE);
        assert_eq!(level(&bed.queue, "schedules").await, FindingLevel::Problem);
        bed.queue.fire_schedules_once().await.unwrap();
        assert_eq!(level(&bed.queue, "schedules").await, FindingLevel::Ok);
    }

    async fn unpublished_ticks_are_reported(bed) {
        let event = NewEvent::new("large").payload(&"x".repeat(100)).unwrap();
        bed.queue.add_schedule(NewSchedule::new("large", "0 * * * *", event)).await.unwrap();
        let (clock, test_clock) = windlass::Clock::test(bed.now());
        let limits = Limits { payload_bytes_max: 50, ..Limits::default() };
        let queue = Queue::options(&bed.database.url).limits(limits).clock(clock).open().await.unwrap();
        test_clock.advance(HOUR);
        queue.fire_schedules_once().await.unwrap();
        let found = finding(&queue, "schedules").await;
        assert_eq!(found.level, FindingLevel::Warning);
        assert!(found.summary.starts_with("1 tick without an event within the hour: 11:00:00Z of "), "{found:?}");
        assert!(found.summary.contains("the limit is 50 bytes"), "{found:?}");
        bed.advance(2 * HOUR + MINUTE);
        bed.queue.fire_schedules_once().await.unwrap();
        assert_eq!(level(&bed.queue, "schedules").await, FindingLevel::Ok);
    }

    async fn lanes_are_counted(bed) {
        bed.queue.publish_all((0..500).map(|n| NewEvent::new(format!("user-{n}.created"))).collect()).await.unwrap();
        let found = finding(&bed.queue, "lanes").await;
        assert_eq!((found.level, &*found.summary), (FindingLevel::Ok, "no namespace has more than 500"));
    }

    async fn expiring_tokens_are_reported(bed) {
        let token = NewToken::new([Scope::Read]).name("shop").expires_in(8 * DAY);
        let id = bed.queue.create_token(token).await.unwrap().token.token_id;
        bed.queue.create_token(NewToken::new([Scope::Admin])).await.unwrap();
        assert_eq!(finding(&bed.queue, "tokens").await.summary, "2 tokens, none about to expire");
        bed.advance(2 * DAY);
        let found = finding(&bed.queue, "tokens").await;
        assert_eq!(found.level, FindingLevel::Warning);
        assert_eq!(found.summary, format!("1 expires soon: {id} \"shop\" in 6 days"));
        bed.advance(6 * DAY);
        let found = finding(&bed.queue, "tokens").await;
        assert_eq!((found.level, found.summary), (FindingLevel::Notice, format!("1 of 2 tokens expired: {id} \"shop\"")));
        bed.queue.revoke_token(&id).await.unwrap();
        assert_eq!(level(&bed.queue, "tokens").await, FindingLevel::Ok);
    }

    async fn newer_schema_version_is_reported(bed) {
        let (migrations, now) = match bed.database.kind {
            Kind::Sqlite => ("windlass_migrations", "0"),
            Kind::Postgres => ("windlass.migrations", "now()"),
        };
        let newer = format!("INSERT INTO {migrations} (version, name, applied_at) VALUES (999, 'later', {now})");
        bed.database.execute(&newer).await;
        let found = finding(&bed.queue, "schema_version").await;
        assert_eq!(found.level, FindingLevel::Warning);
        assert!(found.summary.starts_with("version 999,"), "{found:?}");
        bed.database.execute(&format!("DELETE FROM {migrations} WHERE version = 999")).await;
        assert_eq!(level(&bed.queue, "schema_version").await, FindingLevel::Ok);
    }

    async fn missing_index_is_reported_and_created_by_the_advice(bed) {
        bed.database.execute(&format!("DROP INDEX {}", table_name(bed, "dead_letters_by_time"))).await;
        let found = finding(&bed.queue, "indexes").await;
        assert_eq!((found.level, &*found.summary), (FindingLevel::Problem, "1 missing: dead_letters_by_time"));
        bed.database.execute(&found.advice.unwrap()).await;
        assert_eq!(level(&bed.queue, "indexes").await, FindingLevel::Ok);
    }

    async fn all_namespaces_are_checked(bed) {
        let other = bed.namespace(Policy::default()).await;
        let spec = SubscriptionSpec::new("audit");
        other.add_subscription(spec).await.unwrap();
        publish(&other, "mail").await;
        claim(&other, ClaimRequest::new("w").max(10)).await;
        bed.advance(LEASE + 2 * MINUTE);
        // The namespace of the queue does not matter.
        for queue in [&bed.queue, &other] {
            let found = finding(queue, "expired_leases").await;
            assert!(found.summary.contains("in 'ns', held by w"), "{found:?}");
        }
    }
}
