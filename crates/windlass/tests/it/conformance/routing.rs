//! Routing of events that were published in transactions: pauses, runs, conflicts, clock changes and diagnosis.

use windlass::{
    CancelFilter, ClaimRequest, DeadLetterFilter, Delivery, FindingLevel, GroupFailurePolicy, Limits, ListFilter,
    NewEvent, Policy, Queue, Report, Status, SubscriptionSpec, WaitReason,
};
use windlass_testkit::Kind;

use crate::bed::Bed;
use crate::open_transaction::{OpenTransaction, query_number};
use crate::support::*;

/// The name of a table or view, with its schema on PostgreSQL.
fn table(bed: &Bed, name: &str) -> String {
    match bed.database.kind {
        Kind::Sqlite => name.to_owned(),
        Kind::Postgres => format!("windlass.{name}"),
    }
}

async fn count_rows(bed: &Bed, name: &str) -> i64 {
    query_number(&bed.database, &format!("SELECT count(*) FROM {}", table(bed, name))).await
}

/// Publishes in a transaction of its own and commits it.
async fn publish_in_tx(bed: &Bed, queue: &Queue, events: Vec<NewEvent>) -> Vec<i64> {
    let mut tx = OpenTransaction::begin(&bed.database).await;
    let published = tx.publish_all(queue, events).await.unwrap();
    tx.commit().await;
    published.iter().map(|published| published.event.id).collect()
}

/// Publishes with an `INSERT` into the outbox view, as programs in other languages do.
async fn insert_outbox(bed: &Bed, columns: &str, values: &str) {
    bed.database.execute(&format!("INSERT INTO {} ({columns}) VALUES {values}", table(bed, "outbox"))).await;
}

fn members(group: &str, count: usize) -> Vec<NewEvent> {
    (0..count).map(|_| NewEvent::new("t").group(group)).collect()
}

/// Claims and completes one delivery at a time until none is ready; returns the event ids in this order.
async fn handle_all(queue: &Queue) -> Vec<i64> {
    let mut handled = Vec::new();
    while let Some(delivery) = poll(queue).await {
        handled.push(delivery.event.id);
        done(queue, &delivery).await;
    }
    handled
}

/// Claims a run of up to ten members of a group.
async fn claim_run(queue: &Queue) -> Vec<Delivery> {
    claim(queue, ClaimRequest::new("w").max(1).group_run(10)).await
}

async fn complete_all(queue: &Queue, deliveries: &[Delivery]) {
    for delivery in deliveries {
        done(queue, delivery).await;
    }
}

/// Makes routing fail until `unblock_routers`.
async fn block_routers(bed: &Bed) {
    bed.database
        .execute(match bed.database.kind {
            Kind::Sqlite => "CREATE TRIGGER block BEFORE DELETE ON arrivals BEGIN SELECT RAISE(ABORT, 'blocked'); END",
            Kind::Postgres => {
                "CREATE FUNCTION block() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE 'blocked'; END $$;
                 CREATE TRIGGER block BEFORE DELETE ON windlass.arrivals FOR EACH ROW EXECUTE FUNCTION block()"
            }
        })
        .await;
}

async fn unblock_routers(bed: &Bed) {
    bed.database
        .execute(match bed.database.kind {
            Kind::Sqlite => "DROP TRIGGER block",
            Kind::Postgres => "DROP FUNCTION block CASCADE",
        })
        .await;
}

conformance! {
    async fn rolled_back_publish_leaves_no_rows(bed) {
        let tables = ["events", "arrivals", "event_groups", "event_keys", "event_queue", "lanes"];
        let event = || NewEvent::new("t").group("g").key("k").tags(["x"]);
        for by_sql in [true, false] {
            let mut tx = OpenTransaction::begin(&bed.database).await;
            match by_sql {
                true => {
                    let insert = "(event_type, group_id, key, tags) VALUES ('t', 'g', 'k', 'x')";
                    tx.execute(&format!("INSERT INTO {} {insert}", table(bed, "outbox"))).await;
                }
                false => drop(tx.publish_all(&bed.queue, vec![event(), NewEvent::new("t").group("h")]).await.unwrap()),
            }
            tx.rollback().await;
            assert!(poll(&bed.queue).await.is_none());
            for table in tables {
                assert_eq!(count_rows(bed, table).await, 0, "{table}");
            }
        }
        let published = bed.queue.publish(event()).await.unwrap();
        assert!(!published.duplicate);
    }

    async fn arrival_may_wait_an_hour_for_a_router(bed) {
        let late = publish_in_tx(bed, &bed.queue, members("g", 1)).await[0];
        // Like a transaction that was open for an hour: no router has run since the publish.
        bed.advance(60 * MINUTE);
        let ungrouped = publish_many(&bed.queue, "t", 2).await;
        let got = claim_all(&bed.queue).await;
        assert_eq!(sorted(ids(&got)), [vec![late], ungrouped].concat());
        let claimed = got.iter().find(|delivery| delivery.event.id == late).unwrap();
        // The next member of the group waits for it.
        let next = publish_in_tx(bed, &bed.queue, members("g", 1)).await[0];
        assert!(poll(&bed.queue).await.is_none());
        done(&bed.queue, claimed).await;
        assert_eq!(handle_all(&bed.queue).await, [next]);
    }

    async fn arrivals_of_paused_subscription_are_routed(bed) {
        let queue = bed.namespace(Policy::default()).await;
        queue.pause_subscription("main").await.unwrap();
        let events = publish_in_tx(bed, &queue, members("g", 3)).await;
        assert!(poll(&queue).await.is_none());
        assert_eq!((count_rows(bed, "arrivals").await, count_rows(bed, "event_queue").await), (0, 3));
        queue.resume_subscription("main").await.unwrap();
        assert_eq!(handle_all(&queue).await, events);
    }

    async fn arrivals_during_a_pause_are_delivered_after_resume(bed) {
        bed.namespace(Policy::default()).await;
        let queue = bed.real_time_queue().await.in_namespace("ns").unwrap();
        queue.pause().await.unwrap();
        insert_outbox(bed, "namespace, event_type, group_id", "('ns', 't', 'g'), ('ns', 't', 'g')").await;
        assert!(poll(&queue).await.is_none());
        queue.resume().await.unwrap();
        queue.pause_type("t").await.unwrap();
        let third = publish_in_tx(bed, &queue, members("g", 1)).await[0];
        assert!(poll(&queue).await.is_none());
        queue.resume_type("t").await.unwrap();
        let handled = handle_all(&queue).await;
        assert_eq!((handled.len(), handled.is_sorted(), handled[2]), (3, true, third));
    }

    async fn arrivals_of_removed_subscription_go_to_the_others(bed) {
        bed.queue.add_subscription(SubscriptionSpec::new("audit")).await.unwrap();
        let event = publish_in_tx(bed, &bed.queue, members("g", 1)).await[0];
        bed.second_queue().await.remove_subscription("audit").await.unwrap();
        assert_eq!(handle_all(&bed.queue).await, [event]);
        assert_eq!((count_rows(bed, "event_queue").await, count_rows(bed, "event_groups").await), (0, 0));
    }

    // For each routed event, another one arrives.
    async fn reads_and_claims_are_not_blocked_by_publishers(bed) {
        bed.database
            .execute(match bed.database.kind {
                Kind::Sqlite => {
                    "CREATE TRIGGER more AFTER DELETE ON arrivals
                     BEGIN INSERT INTO outbox (event_type) VALUES ('more'); END"
                }
                Kind::Postgres => {
                    "CREATE FUNCTION more() RETURNS trigger LANGUAGE plpgsql AS $$
                     BEGIN PERFORM windlass.publish('more'); RETURN NULL; END $$;
                     CREATE TRIGGER more AFTER DELETE ON windlass.arrivals FOR EACH ROW EXECUTE FUNCTION more()"
                }
            })
            .await;
        let event = publish_in_tx(bed, &bed.queue, members("g", 1)).await[0];
        assert_eq!(status(&bed.queue, event).await, Status::Pending);
        assert!(count_events(&bed.queue).await > 1);
        let got = claim(&bed.queue, ClaimRequest::new("w").types(["t"])).await;
        assert_eq!(ids(&got), [event]);
        if bed.database.kind == Kind::Postgres {
            // Other transactions commit while the subscription is created.
            bed.queue.add_subscription(SubscriptionSpec::new("audit")).await.unwrap();
        }
        assert_eq!(bed.queue.cancel_all(CancelFilter { types: vec!["t".into()], ..Default::default() }).await, Ok(0));
        let drop = if bed.database.kind == Kind::Sqlite { "DROP TRIGGER more" } else { "DROP FUNCTION more CASCADE" };
        bed.database.execute(drop).await;
    }

    // -- groups whose members change while a run of them is in progress

    async fn run_continues_when_waiting_members_are_canceled(bed) {
        for all in [false, true] {
            let queue = bed.namespace(Policy::default()).await;
            let group = format!("g{all}");
            let first = publish_in_tx(bed, &queue, members(&group, 3)).await;
            let run = claim_run(&queue).await;
            assert_eq!(ids(&run), first);
            // These arrive behind the run; the first of them is the next member of the group.
            let second = publish_in_tx(bed, &queue, members(&group, 3)).await;
            match all {
                true => {
                    let filter = CancelFilter { event_ids: second[..2].to_vec(), ..CancelFilter::default() };
                    assert_eq!(queue.cancel_all(filter).await, Ok(2));
                }
                false => {
                    assert_eq!(status(&queue, second[0]).await, Status::Pending);
                    for event in &second[..2] {
                        assert_eq!(queue.cancel(*event, None).await, Ok(1));
                    }
                }
            }
            assert!(poll(&queue).await.is_none());
            complete_all(&queue, &run).await;
            assert_eq!(handle_all(&queue).await, second[2..]);
        }
    }

    async fn run_continues_when_waiting_members_expire(bed) {
        let first = publish_in_tx(bed, &bed.queue, members("g", 2)).await;
        let run = claim_run(&bed.queue).await;
        let deadline = after(bed.now(), secs(5));
        let with_deadline = |_| NewEvent::new("t").group("g").expires_at(deadline);
        let mut second: Vec<NewEvent> = (0..2).map(with_deadline).collect();
        second.push(NewEvent::new("t").group("g"));
        let second = publish_in_tx(bed, &bed.queue, second).await;
        assert_eq!(status(&bed.queue, second[0]).await, Status::Pending);
        bed.advance(secs(6));
        bed.queue.expire_once().await.unwrap();
        assert_eq!(sorted(dead_letter_ids(&bed.queue).await), second[..2]);
        assert!(poll(&bed.queue).await.is_none());
        complete_all(&bed.queue, &run).await;
        assert_eq!(handle_all(&bed.queue).await, second[2..]);
        assert_eq!(status(&bed.queue, first[1]).await, Status::Completed);
    }

    // A delivery of a run counts as started in time.
    async fn member_does_not_expire_within_its_run(bed) {
        let deadline = after(bed.now(), secs(5));
        let events = (0..3).map(|_| NewEvent::new("t").group("g").expires_at(deadline));
        let events = publish_in_tx(bed, &bed.queue, events.collect()).await;
        let run = claim_run(&bed.queue).await;
        assert_eq!(ids(&run), events);
        bed.advance(secs(6));
        bed.queue.expire_once().await.unwrap();
        complete_all(&bed.queue, &run[..1]).await;
        // The failure releases the rest of the run, which is past its deadline.
        fail(&bed.queue, &run[1]).await;
        bed.queue.expire_once().await.unwrap();
        bed.advance(BACKOFF);
        bed.queue.expire_once().await.unwrap();
        assert!(poll(&bed.queue).await.is_none());
        let statuses = [status(&bed.queue, events[0]).await, status(&bed.queue, events[1]).await];
        assert_eq!(statuses, [Status::Completed, Status::Expired]);
        assert_eq!(status(&bed.queue, events[2]).await, Status::Expired);
        assert_eq!(count_rows(bed, "event_groups").await, 0);
    }

    async fn redriven_event_waits_for_the_run_of_its_group(bed) {
        for group_failure in [GroupFailurePolicy::Block, GroupFailurePolicy::Continue] {
            let queue = bed.namespace(Policy { group_failure, ..Policy::default() }).await;
            let group = format!("{group_failure:?}");
            let events = publish_in_tx(bed, &queue, members(&group, 5)).await;
            let run = claim(&queue, ClaimRequest::new("w").max(1).group_run(3)).await;
            finish(&queue, &run[0], Report::dead("x")).await;
            // The rest of the run is released, and claimed again before the redrive.
            let run = claim(&queue, ClaimRequest::new("w").max(1).group_run(2)).await;
            assert_eq!(ids(&run), events[1..3]);
            bed.advance(secs(1));
            assert_eq!(queue.redrive(DeadLetterFilter::default()).await, Ok(1));
            assert!(poll(&queue).await.is_none());
            done(&queue, &run[0]).await;
            assert!(poll(&queue).await.is_none());
            done(&queue, &run[1]).await;
            assert_eq!(handle_all(&queue).await, [events[3], events[4], events[0]]);
        }
    }

    async fn reset_within_a_run_releases_the_rest(bed) {
        for (group, position) in [("a", 0), ("b", 1), ("c", 2)] {
            let queue = bed.namespace(Policy::default()).await;
            let events = publish_in_tx(bed, &queue, members(group, 4)).await;
            let run = claim(&queue, ClaimRequest::new("w").max(1).group_run(3)).await;
            queue.reset(events[position], "main", "by hand").await.unwrap();
            // Earlier members of the run continue.
            assert_eq!(poll(&queue).await.is_none(), position > 0);
            for delivery in &run[..position] {
                done(&queue, delivery).await;
            }
            for delivery in &run[position..] {
                assert!(queue.finish(delivery, Report::done()).await.unwrap().is_lost());
            }
            if position == 0 {
                bed.advance(LEASE);
                queue.release_expired_once().await.unwrap();
            }
            assert_eq!(handle_all(&queue).await, events[position..]);
        }
    }

    // -- events that cannot be routed

    async fn arrivals_beyond_the_limits_become_dead_letters(bed) {
        let strict = Queue::options(&bed.database.url).limits(Limits { tags_max: 2, ..Limits::default() });
        let strict = strict.open().await.unwrap();
        let tagged = |tags: &str| NewEvent::new("t").group("g").tags_text(tags.to_owned());
        let events = vec![tagged("a"), tagged("a,b,c"), tagged("a,b")];
        // Another process, with the usual limits, publishes them.
        let events = publish_in_tx(bed, &bed.real_time_queue().await, events).await;
        let mut handled = Vec::new();
        for _ in 0..2 {
            let delivery = claim_one(&strict).await;
            handled.push(delivery.event.id);
            done(&strict, &delivery).await;
        }
        assert_eq!(handled, [events[0], events[2]]);
        let letters = strict.dead_letters(DeadLetterFilter::default()).await.unwrap().items;
        assert_eq!((letters.len(), letters[0].event.id, &*letters[0].reason), (1, events[1], "invalid"));
        assert!(letters[0].error.as_deref().unwrap().contains("tags"), "{:?}", letters[0].error);
        assert_eq!(strict.get(events[1]).await.unwrap().deliveries[0].status, Status::Failed);
        // A process whose limits allow the event can still deliver it.
        assert_eq!(bed.queue.redrive(DeadLetterFilter::default()).await, Ok(1));
        assert_eq!(handle_all(&bed.queue).await, [events[1]]);
        assert_eq!((count_rows(bed, "arrivals").await, count_rows(bed, "event_groups").await), (0, 0));
    }

    // On PostgreSQL, two concurrent transactions that do not see each other can publish the same key.
    async fn router_detects_keys_used_twice(bed) {
        let event = |payload: i32| NewEvent::new("t").group("g").payload(&payload).unwrap();
        let events = publish_in_tx(bed, &bed.queue, vec![event(1), event(1), event(2), event(3)]).await;
        // Give three events the same key, as if separate transactions had published them.
        for name in ["events", "arrivals"] {
            let id = if name == "events" { "id" } else { "event_id" };
            let set = format!("UPDATE {} SET key = 'k' WHERE {id} < {}", table(bed, name), events[3]);
            bed.database.execute(&set).await;
        }
        assert_eq!(handle_all(&bed.queue).await, [events[0], events[3]]);
        let letters = bed.queue.dead_letters(DeadLetterFilter::default()).await.unwrap().items;
        assert_eq!((letters.len(), letters[0].event.id, &*letters[0].reason), (1, events[2], "key_conflict"));
        let error = format!("key 'k' was used for event {}, which has another type or payload", events[0]);
        assert_eq!(letters[0].error.as_deref(), Some(&*error));
        // The duplicate with the same content is deleted.
        assert!(bed.queue.get(events[1]).await.is_err());
        assert_eq!(count_events(&bed.queue).await, 3);
        assert_eq!(bed.queue.redrive(DeadLetterFilter::default()).await, Ok(1));
        assert_eq!(handle_all(&bed.queue).await, [events[2]]);
    }

    async fn router_detects_key_that_was_routed_before(bed) {
        let first = publish_new(&bed.queue, NewEvent::new("t").key("k")).await.id;
        let events = publish_in_tx(bed, &bed.queue, vec![NewEvent::new("t"), NewEvent::new("u")]).await;
        for (name, id) in [("events", "id"), ("arrivals", "event_id")] {
            let set = format!("UPDATE {} SET key = 'k' WHERE {id} > {first}", table(bed, name));
            bed.database.execute(&set).await;
        }
        assert_eq!(handle_all(&bed.queue).await, [first]);
        assert_eq!(dead_letter_ids(&bed.queue).await, [events[1]]);
        assert!(bed.queue.get(events[0]).await.is_err());
        // Nothing of it remains for retention to delete.
        assert_eq!(count_rows(bed, "arrivals").await, 0);
    }

    // -- clocks

    async fn clock_jump_loses_no_arrival(bed) {
        let start = bed.now();
        let event = |group: &str| NewEvent::new("t").group(group);
        let at_start = publish_in_tx(bed, &bed.queue, vec![event("g"), event("g").delay(MINUTE), event("h").delay(MINUTE)]).await;
        bed.test_clock.set(start - chrono::TimeDelta::hours(1));
        let before = publish_in_tx(bed, &bed.queue, vec![event("g"), event("g").delay(MINUTE)]).await;
        // Due events are ready immediately, although some have a creation time in the future.
        let first = claim_one(&bed.queue).await;
        done(&bed.queue, &first).await;
        assert!([at_start[0], before[0]].contains(&first.event.id));
        bed.test_clock.set(after(start, 60 * MINUTE));
        let later = publish_in_tx(bed, &bed.queue, vec![event("g")]).await;
        let handled = handle_all(&bed.queue).await;
        let all = [at_start, before, later].concat();
        assert_eq!(sorted([vec![first.event.id], handled.clone()].concat()), all);
        assert_eq!(*handled.last().unwrap(), all[5], "the event published last is due last");
        assert_eq!((count_rows(bed, "event_groups").await, count_rows(bed, "arrivals").await), (0, 0));
    }

    async fn clock_set_back_delays_no_arrival(bed) {
        let start = bed.now();
        let first = publish_in_tx(bed, &bed.queue, members("g", 1)).await;
        bed.test_clock.set(start - chrono::TimeDelta::hours(1));
        let second = publish_in_tx(bed, &bed.queue, members("h", 2)).await;
        let got = claim_all(&bed.queue).await;
        assert!(ids(&got).contains(&second[0]));
        complete_all(&bed.queue, &got).await;
        bed.test_clock.set(start);
        let handled = [ids(&got), handle_all(&bed.queue).await].concat();
        assert_eq!(sorted(handled), [first, second].concat());
    }

    // -- without a process

    async fn database_without_a_process_accepts_events(bed) {
        bed.queue.close().await;
        insert_outbox(bed, "event_type, payload, group_id", "('t', '1', 'g'), ('t', '2', 'g'), ('u', '3', NULL)").await;
        let mut tx = OpenTransaction::begin(&bed.database).await;
        tx.execute(&format!("INSERT INTO {} (event_type, payload) VALUES ('never', '0')", table(bed, "outbox"))).await;
        tx.rollback().await;
        assert_eq!((count_rows(bed, "arrivals").await, count_rows(bed, "event_queue").await), (3, 0));
        let queue = bed.real_time_queue().await;
        let payloads = async || {
            let got = claim_all(&queue).await;
            complete_all(&queue, &got).await;
            sorted(got.iter().map(|delivery| delivery.event.payload::<i32>().unwrap()).collect())
        };
        assert_eq!(payloads().await, [1, 3]);
        assert_eq!(payloads().await, [2]);
    }

    // -- reading events that are not routed yet

    async fn arrival_is_shown_before_it_is_routed(bed) {
        block_routers(bed).await;
        let queue = &bed.queue;
        let event = publish_in_tx(bed, queue, members("g", 1)).await[0];
        let view = queue.get(event).await.unwrap();
        assert_eq!((view.event.event_type.as_str(), view.deliveries.len()), ("t", 0));
        let listed = queue.list(ListFilter::default()).await.unwrap();
        assert_eq!((listed.total, listed.items[0].event.id), (1, event));
        assert_eq!(queue.log(event).await.unwrap().len(), 0);
        let explanation = queue.explain(event, "main").await.unwrap();
        assert_eq!(explanation.reason, WaitReason::Arrived);
        let since = "It was published at 2025-12-24T10:30:00Z and is not routed to its subscriptions yet.";
        assert_eq!(explanation.sentence, since);
        assert!(explanation.advice.unwrap().contains("windlass serve"));
        // Directly published events are delivered, except in the group of the arrival.
        let other = publish(queue, "t").await.id;
        let behind = publish_new(queue, NewEvent::new("t").group("g")).await.id;
        assert_eq!(queue.explain(behind, "main").await.unwrap().reason, WaitReason::Arrived);
        unblock_routers(bed).await;
        assert_eq!(queue.explain(event, "main").await.unwrap().reason, WaitReason::NoWorker);
        assert_eq!(sorted(handle_all(queue).await), [event, other, behind]);
    }

    async fn unrouted_arrivals_are_reported(bed) {
        let finding = async || {
            let findings = bed.queue.diagnose().await.unwrap();
            findings.into_iter().find(|finding| finding.check == "arrivals").expect("there is an arrivals check")
        };
        let oldest = async || {
            let overview = bed.queue.overview().await.unwrap();
            overview.namespaces.iter().map(|of| of.oldest_arrival).max().unwrap()
        };
        assert_eq!((finding().await.level, oldest().await), (FindingLevel::Ok, secs(0)));
        let queue = bed.namespace(Policy::default()).await;
        publish_in_tx(bed, &queue, members("g", 2)).await;
        bed.advance(secs(10));
        assert_eq!((finding().await.level, oldest().await), (FindingLevel::Ok, secs(10)));
        bed.advance(secs(5));
        publish_in_tx(bed, &bed.queue, members("g", 1)).await;
        let found = finding().await;
        assert_eq!((found.level, oldest().await), (FindingLevel::Warning, secs(15)));
        assert_eq!(found.summary, "events published in transactions are not routed: in 'ns' for 15 s");
        assert!(found.advice.unwrap().contains("windlass serve"));
        bed.advance(10 * MINUTE);
        assert_eq!(finding().await.level, FindingLevel::Problem);
        // Neither diagnose nor overview routes arrivals.
        assert_eq!(count_rows(bed, "arrivals").await, 3);
        assert!(poll(&queue).await.is_some());
        assert_eq!(oldest().await, secs(600));
        assert!(poll(&bed.queue).await.is_some());
        assert_eq!((finding().await.level, oldest().await), (FindingLevel::Ok, secs(0)));
    }
}
