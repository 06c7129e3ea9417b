//! The event list, the event page, and their actions.

use serde_json::json;

use super::{Browser, html, location};
use crate::harness::Server;

/// HTML that would run if it were not escaped.
const UNSAFE_HTML: &str = "<script>alert(1)</script>\"'&";
const ESCAPED: &str = "&#60;script&#62;alert(1)&#60;/script&#62;";

async fn page(server: &Server, path: &str) -> String {
    html(&Browser::without_token().get(server, &format!("/ui/default{path}")).await, 200).to_owned()
}

/// The ids of the listed events, from top to bottom.
fn ids(body: &str) -> Vec<i64> {
    let rows = body.split("<tr data-key=\"").skip(1);
    rows.map(|row| row.split('"').next().unwrap().parse().unwrap()).collect()
}

on_each_database! {
    async fn event_filters_apply_and_stay_in_the_url(server) {
        let one = server.publish_as(json!({ "type": "order.paid", "title": "One", "tags": "eu", "group_id": "g 1" })).await;
        let two = server.publish_as(json!({ "type": "order.sent", "payload": { "note": "needle" }, "key": "k&1" })).await;
        let three = server.publish_as(json!({ "type": "mail", "tags": "eu,vip" })).await;
        server.claim(&json!({ "worker_id": "w:1", "types": "mail" })).await;
        let table = [
            ("", vec![three, two, one]),
            ("?type=order.*", vec![two, one]),
            ("?tag=vip", vec![three]),
            ("?status=PROCESSING", vec![three]),
            ("?text=Needle", vec![two]),
            ("?group=g+1", vec![one]),
            ("?key=k%261", vec![two]),
            ("?from=2025-12-24T10:30&until=2025-12-24T10:31", vec![three, two, one]),
            ("?until=2025-12-24T10:30", vec![]),
            ("?status=&type=&text=", vec![three, two, one]),
            ("?type=nothing", vec![]),
        ];
        for (query, expected) in table {
            assert_eq!(ids(&page(server, &format!("/events{query}")).await), expected, "{query}");
        }
        let body = page(server, "/events?type=order.*&key=k%261").await;
        assert!(body.contains("value=\"order.*\"") && body.contains("value=\"k&#38;1\""), "{body}");
    }

    async fn event_pages_go_from_newest_to_oldest(server) {
        let events: Vec<_> = (0..60).map(|n| json!({ "type": "order.paid", "payload": n })).collect();
        server.post("/events/batch", &json!({ "events": events })).await.expect(201);
        let first = page(server, "/events?type=order.*").await;
        let shown = ids(&first);
        assert_eq!(shown.len(), 50);
        let older = format!("/ui/default/events?type=order.*&#38;before={}", shown.last().unwrap());
        assert!(first.contains(&format!("href=\"{older}\"")), "{first}");
        let second = page(server, &format!("/events?type=order.*&before={}", shown.last().unwrap())).await;
        assert_eq!(ids(&second).len(), 10);
        assert!(second.contains("href=\"/ui/default/events?type=order.*\""), "{second}");
    }

    async fn user_text_is_escaped(server) {
        let event = json!({
            "type": UNSAFE_HTML, "title": UNSAFE_HTML, "description": UNSAFE_HTML, "tags": UNSAFE_HTML, "group_id": UNSAFE_HTML,
            "key": UNSAFE_HTML, "producer": UNSAFE_HTML, "payload": { UNSAFE_HTML: UNSAFE_HTML }, "metadata": { "a": UNSAFE_HTML },
        });
        let id = server.publish_as(event).await;
        assert_eq!(server.claim_ids(&json!({ "worker_id": UNSAFE_HTML })).await, [id]);
        let pages = ["/events".to_owned(), format!("/events/{id}"), String::new()];
        for path in &pages {
            let body = page(server, path).await;
            assert!(!body.contains("<script>alert") && body.contains(ESCAPED), "{path}: {body}");
        }
        let report = json!({ "worker_id": UNSAFE_HTML, "retry": false, "error_message": UNSAFE_HTML, "detail": UNSAFE_HTML });
        server.post(&format!("/events/{id}/fail"), &report).await.expect(200);
        for path in pages.iter().map(String::as_str).chain(["/dead-letters", "/events?text=%3Cscript%3Ealert"]) {
            let body = page(server, path).await;
            assert!(!body.contains("<script>alert"), "{path}: {body}");
        }
        let body = page(server, &format!("/events/{id}")).await;
        // Title, description, type, group, key, producer, payload, metadata, error, worker and detail.
        assert!(body.matches(ESCAPED).count() > 12, "{body}");
    }

    async fn event_page_shows_the_timeline(server) {
        let payload = "{\"amount\":12345678901234567890,\"b\":[1]}";
        let sent = format!("{{\"type\":\"order.paid\",\"title\":\"Pay\",\"payload\":{payload},\"group_id\":\"g\"}}");
        let id = server.post_text("/events", &sent).await.expect(201)["id"].as_i64().unwrap();
        let second = server.publish_as(json!({ "type": "order.paid", "group_id": "g" })).await;
        let body = page(server, &format!("/events/{second}")).await;
        assert!(body.contains(&format!("Event #{id}")) && body.contains(&format!("/ui/default/events/{id}")), "{body}");
        assert!(body.contains("PENDING") && body.contains("rel=\"prev\"") && body.contains("PUBLISHED"), "{body}");
        server.claim(&json!({ "worker_id": "w:1" })).await;
        server.fail(id, "w:1").await.expect(200);
        let body = page(server, &format!("/events/{id}")).await;
        for text in ["Connection timeout", "w:1", "took 5 s", "code 500", "12345678901234567890", "/events?group=g"] {
            assert!(body.contains(text), "{text}: {body}");
        }
        assert!(body.contains("rel=\"next\"") && body.contains("1 of 3 failures"), "{body}");
        let raw = server.get(&format!("/ui/default/events/{id}/payload")).await;
        assert_eq!(raw.body, payload);
        assert_eq!(raw.header("content-type"), Some("text/plain; charset=utf-8"));
        assert_eq!(raw.header("content-disposition"), Some(&*format!("attachment; filename=\"event-{id}.json\"")));
        assert_eq!(raw.header("x-content-type-options"), Some("nosniff"));
    }

    async fn large_payload_is_cut(server) {
        let id = server.publish_as(json!({ "type": "big", "payload": "x".repeat(300_000) })).await;
        let body = page(server, &format!("/events/{id}")).await;
        assert!(body.len() < 100_000 && body.contains("293.0 KiB") && body.contains("only the beginning"), "{}", body.len());
    }

    async fn each_action_asks_for_confirmation(server) {
        let browser = Browser::without_token();
        let waiting = server.publish("a").await;
        let held = server.publish_claimed("b").await;
        let dead = server.publish_dead("c").await;
        let table =
            [(waiting, "cancel", "PENDING", "CANCELLED"), (held, "reset", "PROCESSING", "PENDING"), (dead, "redrive", "FAILED", "PENDING")];
        for (id, verb, before, after) in table {
            let path = format!("/ui/default/events/{id}/{verb}");
            let shown = page(server, &format!("/events/{id}")).await;
            assert!(shown.contains(&format!("action=\"{path}\"")), "{verb}: {shown}");
            let asked = browser.post(server, &path, "subscription=main").await;
            assert!(html(&asked, 200).contains(&format!("event {id} for the subscription main?")), "{asked:?}");
            assert_eq!(server.status(id).await, before, "{verb}");
            let done = browser.post(server, &path, "subscription=main&confirmed=yes").await;
            assert_eq!(location(&done), format!("/ui/default/events/{id}"));
            assert_eq!(server.status(id).await, after, "{verb}");
        }
        // An action that is no longer possible shows the API error.
        let late = browser.post(server, &format!("/ui/default/events/{waiting}/cancel"), "confirmed=yes").await;
        assert!(html(&late, 409).contains("CANCELLED"), "{late:?}");
    }

    async fn notice_is_shown_once(server) {
        let id = server.publish("a").await;
        let done = Browser::without_token().post(server, &format!("/ui/default/events/{id}/cancel"), "confirmed=yes").await;
        let cookie = done.header("set-cookie").unwrap().split(';').next().unwrap().to_owned();
        assert!(done.header("set-cookie").unwrap().contains("httponly; samesite=strict"));
        let cookie = format!("cookie: {}\r\n", cookie.replace("%2e", "%2E"));
        // A live update does not consume the notice.
        let update = server.send("GET", "/ui/default", &format!("{cookie}x-windlass-live: 1\r\n"), "").await;
        assert!(!update.body.contains("is cancelled") && update.header("set-cookie").is_none(), "{update:?}");
        let next = server.send("GET", "/ui/default", &cookie, "").await;
        assert!(next.body.contains(&format!("vent {id} is cancelled for main.")), "{next:?}");
        assert!(next.header("set-cookie").unwrap().starts_with("windlass_notice=; path=/ui; max-age=0"), "{next:?}");
    }

    async fn only_selected_events_are_canceled(server) {
        let browser = Browser::without_token();
        let [one, two, three] = [server.publish("a").await, server.publish("a").await, server.publish("a").await];
        let form = format!("what=selected&id={one}&id={three}&back=%2Fui%2Fdefault%2Fevents%3Ftag%3Da");
        let asked = browser.post(server, "/ui/default/events/cancel", &form).await;
        assert!(html(&asked, 200).contains("Cancel 2 events?"), "{asked:?}");
        assert_eq!(server.status(one).await, "PENDING");
        let done = browser.post(server, "/ui/default/events/cancel", &format!("{form}&confirmed=yes")).await;
        assert_eq!(location(&done), "/ui/default/events?tag=a");
        assert_eq!([server.status(one).await, server.status(two).await, server.status(three).await], ["CANCELLED", "PENDING", "CANCELLED"]);
        let none = browser.post(server, "/ui/default/events/cancel", "what=selected").await;
        assert!(html(&none, 400).contains("select at least one event first"));
        let elsewhere = browser.post(server, "/ui/default/events/cancel", &format!("id={two}&back=//evil&confirmed=yes")).await;
        assert_eq!(location(&elsewhere), "/ui/default/events");
    }

    async fn only_matching_events_are_canceled(server) {
        let browser = Browser::without_token();
        let events: Vec<_> = (0..1_100).map(|n| json!({ "type": "order.paid", "payload": n })).collect();
        server.post("/events/batch", &json!({ "events": events })).await.expect(201);
        let other = server.publish_as(json!({ "type": "mail" })).await;
        let form = "what=matching&type=order.*";
        let asked = browser.post(server, "/ui/default/events/cancel", form).await;
        assert!(html(&asked, 200).contains("Cancel 1,100 events?"), "{asked:?}");
        assert!(asked.body.contains(&format!("name=\"up_to\" value=\"{other}\"")), "{asked:?}");
        // Events published after the confirmation page are not included.
        let later = server.publish_as(json!({ "type": "order.paid" })).await;
        let form = format!("{form}&up_to={other}");
        let done = browser.post(server, "/ui/default/events/cancel", &format!("{form}&confirmed=yes")).await;
        assert_eq!(location(&done), "/ui/default/events");
        assert_eq!(server.get("/events?status=PENDING").await.expect(200)["total"], 2);
        assert_eq!([server.status(other).await, server.status(later).await], ["PENDING", "PENDING"]);
        assert!(page(server, "/events?type=mail").await.contains("Cancel all waiting that match"));
        assert!(!page(server, "/events?text=mail").await.contains("Cancel all waiting"));
    }
}
