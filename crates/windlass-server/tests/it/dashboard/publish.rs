//! The publish form.

use windlass::{NewToken, Scope};

use super::{Browser, html, location, token};

on_each_database! {
    async fn form_publishes_an_event(server) {
        let browser = Browser::without_token();
        let form = "type=order.paid&title=A+%26+B&tags=eu%2C+vip&group_id=g&key=k&payload=%7B%22a%22%3A+1%7D";
        let done = browser.post(server, "/ui/default/publish", form).await;
        let id: i64 = location(&done).rsplit('/').next().unwrap().parse().unwrap();
        let event = server.queue.get(id).await.unwrap().event;
        assert_eq!((event.title.as_deref(), event.tags.as_str(), event.payload.get()), (Some("A & B"), "eu, vip", "{\"a\": 1}"));
        assert_eq!((event.group_id.as_deref(), event.key.as_deref()), (Some("g"), Some("k")));
        // The same key refers to the same event.
        let again = browser.post(server, "/ui/default/publish", form).await;
        assert_eq!(location(&again), format!("/ui/default/events/{id}"));
        assert!(again.header("set-cookie").unwrap().contains("published%20before"), "{again:?}");
        let bare = browser.post(server, "/ui/default/publish", "type=mail").await;
        let id: i64 = location(&bare).rsplit('/').next().unwrap().parse().unwrap();
        assert_eq!(server.queue.get(id).await.unwrap().event.payload.get(), "null");
    }

    async fn field_error_keeps_the_typed_values(server) {
        let browser = Browser::without_token();
        let table = [
            ("type=&title=Kept+title", "type-error", "Kept title"),
            ("type=a&payload=%7B%22a%22%3A&title=Kept+title", "payload-error", "Kept title"),
            ("type=a&tags=a%2C%2Cb&payload=%5B1%2C%3C%5D", "payload-error", "[1,&#60;]"),
            ("type=a&tags=a%2C%2Cb&payload=%5B1%5D", "tags-error", "[1]"),
        ];
        for (form, error, kept) in table {
            let response = browser.post(server, "/ui/default/publish", form).await;
            let body = html(&response, 400);
            assert!(body.contains(&format!("id=\"{error}\"")) && body.contains(kept), "{form}: {body}");
            assert!(body.contains("aria-invalid=\"true\""), "{form}");
        }
        assert_eq!(server.get("/events").await.expect(200)["total"], 0);
    }

    async fn publish_page_requires_only_the_publish_scope(server) {
        let elsewhere = NewToken::new([Scope::Publish]).namespaces(["other"]);
        let elsewhere = Browser::with_token(&server.queue.create_token(elsewhere).await.unwrap().secret);
        let publisher = Browser::with_token(&token(server, [Scope::Publish]).await);
        let reader = Browser::with_token(&token(server, [Scope::Read]).await);
        html(&publisher.get(server, "/ui/default/publish").await, 200);
        html(&publisher.get(server, "/ui/default/events").await, 403);
        assert_eq!(location(&publisher.post(server, "/ui/default/publish", "type=a").await), "/ui/default/publish");
        html(&reader.get(server, "/ui/default/publish").await, 403);
        html(&reader.post(server, "/ui/default/publish", "type=a").await, 403);
        html(&elsewhere.post(server, "/ui/default/publish", "type=a").await, 403);
        assert_eq!(server.queue.stats(server.queue.clock().now()).await.unwrap().iter().map(|row| row.count).sum::<u64>(), 1);
    }
}
