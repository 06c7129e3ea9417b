//! Searching events by filter and text, page by page.

use windlass::{Error, Limits, NewEvent, Queue, Report, SearchFilter, SearchPage, Status, SubscriptionSpec};

use super::inspect::publish_one_per_status;
use crate::support::*;

async fn search(queue: &Queue, filter: SearchFilter) -> SearchPage {
    queue.search(filter).await.expect("a search succeeds")
}

/// The ids of all events that match, read page by page.
async fn find_all(queue: &Queue, mut filter: SearchFilter) -> Vec<i64> {
    let mut ids = Vec::new();
    loop {
        let page = search(queue, filter.clone()).await;
        ids.extend(page.events.iter().map(|found| found.event_id));
        match page.next {
            Some(next) => {
                assert!(filter.before.is_none_or(|before| next < before), "the cursor did not move past {next}");
                filter.before = Some(next);
            }
            None => return ids,
        }
    }
}

fn strings(values: &[&str]) -> Vec<String> {
    values.iter().map(ToString::to_string).collect()
}

fn with_text(text: &str) -> SearchFilter {
    SearchFilter { text: Some(text.into()), ..Default::default() }
}

fn with_status(status: Status) -> SearchFilter {
    SearchFilter { status: Some(status), ..Default::default() }
}

fn newest_first(mut ids: Vec<i64>) -> Vec<i64> {
    ids.sort_by_key(|id| std::cmp::Reverse(*id));
    ids
}

conformance! {
    async fn events_are_found_by_status_as_get_shows_them(bed) {
        let events = publish_one_per_status(bed).await;
        for (status, event) in Status::ALL.into_iter().zip(events) {
            let page = search(&bed.queue, with_status(status)).await;
            assert_eq!(page.events.len(), 1, "{status}");
            assert_eq!(page.next, None, "{status}");
            let (found, shown) = (&page.events[0], bed.queue.get(event).await.unwrap());
            assert_eq!((found.event_id, &found.delivery), (event, &shown.deliveries[0]), "{status}");
            assert_eq!(found.event_type, shown.event.event_type);
            assert_eq!(found.created_at, shown.event.created_at);
        }
        assert_eq!(find_all(&bed.queue, SearchFilter::default()).await, newest_first(events.to_vec()));
    }

    async fn each_filter_finds_its_events(bed) {
        let queue = &bed.queue;
        let paid = NewEvent::new("order.paid").title("Paid by Ada").tags_text("email, high").group("g1").key("k1");
        let paid = publish_new(queue, paid.payload(&serde_json::json!({ "note": "Fifty%_off" })).unwrap()).await.id;
        bed.advance(secs(1));
        let middle = bed.now();
        let sent = NewEvent::new("order.sent").description("to the moon").tags(["sms"]).group("g2");
        let sent = publish_new(queue, sent.payload(&serde_json::json!({ "note": r"Fifty\off" })).unwrap()).await.id;
        bed.advance(secs(1));
        let user = publish_new(queue, NewEvent::new("user_created").tags(["email"]).key("k2")).await.id;
        let none: [i64; 0] = [];

        let of_types = |types: &[&str]| SearchFilter { types: strings(types), ..Default::default() };
        assert_eq!(find_all(queue, of_types(&["order.*"])).await, [sent, paid]);
        assert_eq!(find_all(queue, of_types(&["order.paid", "user_created"])).await, [user, paid]);
        let of_tags = |tags: &[&str]| SearchFilter { tags: strings(tags), ..Default::default() };
        assert_eq!(find_all(queue, of_tags(&["email"])).await, [user, paid]);
        assert_eq!(find_all(queue, of_tags(&["high", "sms"])).await, [sent, paid]);
        assert_eq!(find_all(queue, of_tags(&["hig"])).await, none);
        let of_group = |group: &str| SearchFilter { group_id: Some(group.into()), ..Default::default() };
        assert_eq!(find_all(queue, of_group("g2")).await, [sent]);
        assert_eq!(find_all(queue, of_group("g")).await, none);
        let of_key = |key: &str| SearchFilter { key: Some(key.into()), ..Default::default() };
        assert_eq!(find_all(queue, of_key("k1")).await, [paid]);
        assert_eq!(find_all(queue, of_key("k3")).await, none);
        let from = SearchFilter { created_from: Some(middle), ..Default::default() };
        assert_eq!(find_all(queue, from.clone()).await, [user, sent]);
        let before = SearchFilter { created_before: Some(middle), ..Default::default() };
        assert_eq!(find_all(queue, before).await, [paid]);
        let between = SearchFilter { created_before: Some(after(middle, secs(1))), ..from };
        assert_eq!(find_all(queue, between).await, [sent]);
        let older = SearchFilter { before: Some(sent), ..Default::default() };
        assert_eq!(find_all(queue, older).await, [paid]);
    }

    async fn text_is_found_in_title_description_type_and_payload(bed) {
        let queue = &bed.queue;
        let titled = publish_new(queue, NewEvent::new("a").title("Invoice for Zoë 100% _done_")).await.id;
        let described = publish_new(queue, NewEvent::new("b").description("an INVOICE, twice")).await.id;
        let typed = publish(queue, "invoice.sent").await.id;
        let note = serde_json::json!({ "deep": [{ "note": "my Invoice" }] });
        let paid = publish_new(queue, NewEvent::new("c").payload(&note).unwrap()).await.id;
        publish_new(queue, NewEvent::new("d").title("in voice").tags(["invoice"])).await;
        let all_ids = [paid, typed, described, titled];
        for wanted in ["invoice", "INVOICE", "  Invoice "] {
            assert_eq!(find_all(queue, with_text(wanted)).await, all_ids, "{wanted}");
        }
        assert_eq!(find_all(queue, with_text("zoë")).await, [titled]);
        // The text has no wildcards.
        assert_eq!(find_all(queue, with_text("100% _d")).await, [titled]);
        for nowhere in ["in%ice", "inv_ice", r"invoice\", "%%", "__"] {
            assert_eq!(find_all(queue, with_text(nowhere)).await, Vec::<i64>::new(), "{nowhere}");
        }
        assert_eq!(find_all(queue, with_text("  ")).await.len(), 5);
        let both = SearchFilter { types: strings(&["invoice.*", "b"]), limit: 1, ..with_text("invoice") };
        assert_eq!(find_all(queue, both).await, [typed, described]);
    }

    async fn number_finds_event_with_that_id_first_and_once(bed) {
        let queue = &bed.queue;
        let wanted = publish(queue, "a").await.id;
        let note = serde_json::json!({ "see": wanted.to_string() });
        let mut mentioning = Vec::new();
        for _ in 0..3 {
            mentioning.push(publish_new(queue, NewEvent::new("b").payload(&note).unwrap()).await.id);
        }
        let expected = [vec![wanted], newest_first(mentioning)].concat();
        for limit in 1..6 {
            let found = find_all(queue, SearchFilter { limit, ..with_text(&wanted.to_string()) }).await;
            let found_expected = found.iter().filter(|id| expected.contains(id)).copied().collect::<Vec<_>>();
            assert_eq!(found_expected, expected, "{limit}");
        }
        let of_b = SearchFilter { types: strings(&["b"]), ..with_text(&wanted.to_string()) };
        assert_eq!(find_all(queue, of_b).await, expected[1..]);
        let done = SearchFilter { status: Some(Status::Completed), ..with_text(&wanted.to_string()) };
        assert_eq!(find_all(queue, done).await, Vec::<i64>::new());
        assert_eq!(find_all(queue, with_text("99999999999999999999999")).await, Vec::<i64>::new());
    }

    async fn paging_returns_every_event_exactly_once(bed) {
        let limits = Limits { search_rows_max: 7, ..Default::default() };
        let queue = windlass::Queue::options(&bed.database.url).clock(bed.queue.clock().clone()).limits(limits);
        let queue = queue.open().await.unwrap();
        let other = bed.namespace(windlass::Policy::default()).await;
        let (mut all_ids, mut failed) = (Vec::new(), Vec::new());
        for n in 0..60 {
            publish(&other, "t").await;
            let event_type = if n % 20 == 0 { "rare" } else { "t" };
            all_ids.push(publish(&queue, event_type).await.id);
            let report = match n % 4 {
                0 => Report::dead("x"),
                1 => Report::done(),
                _ => continue,
            };
            let claimed = claim(&queue, windlass::ClaimRequest::new("w").max(100)).await;
            let newest = claimed.iter().find(|delivery| delivery.event.id == all_ids[n]).unwrap();
            finish(&queue, newest, report).await;
            failed.extend((n % 4 == 0).then(|| all_ids[n]));
        }
        let all_ids = newest_first(all_ids);
        for limit in [1, 2, 7, 20, 1_000] {
            assert_eq!(find_all(&queue, SearchFilter { limit, ..Default::default() }).await, all_ids);
            let rare = SearchFilter { types: strings(&["rare"]), limit, ..Default::default() };
            assert_eq!(find_all(&queue, rare).await.len(), 3);
            let mut by_status = Vec::new();
            for status in Status::ALL {
                by_status.extend(find_all(&queue, SearchFilter { limit, ..with_status(status) }).await);
            }
            assert_eq!(newest_first(by_status), all_ids);
            let dead = SearchFilter { limit, ..with_status(Status::Failed) };
            assert_eq!(find_all(&queue, dead).await, newest_first(failed.clone()));
        }
        // A page reads at most `search_rows_max` events and returns a cursor.
        let page = search(&queue, with_text("nowhere")).await;
        assert_eq!((page.events.len(), page.looked_at, page.next), (0, 7, Some(all_ids[6])));
    }

    async fn namespaces_and_subscriptions_see_their_own_events(bed) {
        let queue = &bed.queue;
        queue.add_subscription(SubscriptionSpec::new("audit").types(["order.*"])).await.unwrap();
        let other = bed.namespace(windlass::Policy::default()).await;
        let (a, b) = (publish(queue, "order.paid").await.id, publish(queue, "user.created").await.id);
        let in_other = publish(&other, "order.paid").await.id;
        let audit = |status| SearchFilter { subscription: Some("audit".into()), status, ..Default::default() };
        assert_eq!(find_all(queue, SearchFilter::default()).await, [b, a]);
        assert_eq!(find_all(&other, SearchFilter::default()).await, [in_other]);
        assert_eq!(find_all(&other, with_text(&a.to_string())).await, Vec::<i64>::new());
        assert_eq!(find_all(queue, audit(None)).await, [a]);
        let claimed = claim(queue, windlass::ClaimRequest::new("w").subscription("audit")).await;
        assert_eq!(find_all(queue, audit(Some(Status::Processing))).await, [a]);
        assert_eq!(find_all(queue, with_status(Status::Processing)).await, Vec::<i64>::new());
        finish(queue, &claimed[0], Report::dead("x")).await;
        assert_eq!(find_all(queue, audit(Some(Status::Failed))).await, [a]);
        assert_eq!(find_all(queue, with_status(Status::Failed)).await, Vec::<i64>::new());
        assert_eq!(search(queue, audit(None)).await.events[0].delivery.subscription, "audit");
    }

    async fn filters_can_be_combined(bed) {
        let queue = &bed.queue;
        let mut wanted = Vec::new();
        for n in 0..24 {
            let event = NewEvent::new(if n % 2 == 0 { "even" } else { "odd" });
            let event = event.title(if n % 3 == 0 { "third" } else { "other" }).group(format!("g{n}"));
            let id = publish_new(queue, event).await.id;
            wanted.extend((n % 6 == 0).then_some(id));
        }
        let filter = SearchFilter { types: strings(&["even"]), limit: 3, ..with_text("third") };
        let pending = SearchFilter { status: Some(Status::Pending), ..filter.clone() };
        assert_eq!(find_all(queue, filter.clone()).await, newest_first(wanted.clone()));
        assert_eq!(find_all(queue, pending.clone()).await, newest_first(wanted.clone()));
        let of_group = SearchFilter { group_id: Some("g6".into()), ..pending };
        assert_eq!(find_all(queue, of_group).await, [wanted[1]]);
        let failed = SearchFilter { status: Some(Status::Failed), ..filter };
        assert_eq!(find_all(queue, failed).await, Vec::<i64>::new());
    }

    async fn key_finds_every_event_that_used_it(bed) {
        let queue = bed.namespace(windlass::Policy { key_window_ms: 1_000, ..Default::default() }).await;
        let first = publish_new(&queue, NewEvent::new("t").key("k")).await.id;
        bed.advance(secs(2));
        let second = publish_new(&queue, NewEvent::new("t").key("k")).await.id;
        publish(&queue, "t").await;
        let of_key = SearchFilter { key: Some("k".into()), ..Default::default() };
        assert_eq!(find_all(&queue, of_key).await, [second, first]);
    }

    async fn invalid_search_filters_are_refused(bed) {
        let (queue, now) = (&bed.queue, bed.now());
        let refused = async |filter: SearchFilter| queue.search(filter).await.unwrap_err().to_string();
        let base = SearchFilter::default;
        assert!(refused(SearchFilter { limit: 1_001, ..base() }).await.starts_with("limit: "));
        assert!(refused(SearchFilter { types: strings(&["a*b"]), ..base() }).await.starts_with("types: "));
        assert!(refused(SearchFilter { tags: strings(&[""]), ..base() }).await.starts_with("tags: "));
        assert!(refused(SearchFilter { group_id: Some("\n".into()), ..base() }).await.starts_with("group_id: "));
        assert!(refused(SearchFilter { key: Some(String::new()), ..base() }).await.starts_with("key: "));
        assert!(refused(with_text("a\0")).await.starts_with("text: "));
        assert!(refused(with_text(&"x".repeat(1_001))).await.contains("text"));
        let empty_range = SearchFilter { created_from: Some(now), created_before: Some(now), ..base() };
        assert!(refused(empty_range).await.starts_with("created_from: "));
        let unknown = queue.search(SearchFilter { subscription: Some("nobody".into()), ..base() }).await.unwrap_err();
        assert!(matches!(unknown, Error::SubscriptionNotFound { .. }));
        let nowhere = queue.in_namespace("nowhere").unwrap().search(base()).await.unwrap_err();
        assert!(matches!(nowhere, Error::NamespaceNotFound { .. }));
    }
}
