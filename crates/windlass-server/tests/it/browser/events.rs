//! Events and dead letters in the browser.

use serde_json::{Value, json};

use super::fixture;
use super::page::Page;
use crate::harness::Server;

/// Marks the page, to detect whether it was reloaded.
async fn mark(page: &mut Page) {
    page.until("document.querySelector('#live-switch').dataset.state === 'live'").await;
    page.eval("window.marked = true").await;
}

async fn is_marked(page: &mut Page) -> bool {
    page.eval("window.marked === true").await == json!(true)
}

async fn dead(server: &Server, event_type: &str) -> Value {
    server.get(&format!("/dead-letters?types={event_type}")).await.expect(200)["total"].clone()
}

/// True when the script has started. Keys pressed before that are ignored.
const SCRIPT_STARTED: &str = "!document.querySelector('#help-open').hidden";

in_browser! {
    on sqlite postgres:
    async fn published_event_appears_without_reload(server, page) {
        page.goto("/ui/default/events").await;
        page.until_shows("#events", "No events yet").await;
        mark(page).await;
        let id = server.publish_as(json!({ "type": "order.paid", "title": "A new order" })).await;
        page.until_shows("#events tbody tr", "A new order").await;
        assert_eq!(server.claim_ids(&json!({ "worker_id": "w:1" })).await, [id]);
        page.until_shows("#events .badge", "PROCESSING").await;
        server.complete(id, "w:1").await.expect(200);
        page.until_shows("#events .badge", "COMPLETED").await;
        assert!(is_marked(page).await, "it was loaded anew");
    }

    on sqlite postgres:
    async fn failed_event_is_found_and_redriven(server, page) {
        let id = fixture::set(server).await;
        page.goto("/ui/default/events").await;
        page.choose("#status", "FAILED").await;
        page.fill("#type", "payment.*").await;
        page.click_text("button", "Filter").await;
        page.until("location.search.includes('status=FAILED') && document.querySelectorAll('#events tbody tr').length === 1").await;
        page.click_text("#events a[data-open]", "Settle order 7").await;
        page.until_shows("#timeline", "the bank did not answer: 502 Bad Gateway").await;
        page.screenshot("failed").await;
        page.click_text("#deliveries button", "Redrive").await;
        page.until_shows("#ask h1", &format!("{id}")).await;
        assert_eq!(server.status(id).await, "FAILED", "not confirmed yet");
        page.click_text("#ask button", "Redrive").await;
        page.until_shows("#deliveries .badge", "PENDING").await;
        mark(page).await;
        assert_eq!(server.claim_ids(&json!({ "worker_id": "pay:2", "types": "payment.*" })).await, [id]);
        page.until_shows("#deliveries .badge", "PROCESSING").await;
        server.complete(id, "pay:2").await.expect(200);
        page.until_shows("#deliveries .badge", "COMPLETED").await;
        page.until_shows("#timeline", "pay:2").await;
        assert!(is_marked(page).await, "it was loaded anew");
        page.screenshot("completed").await;
    }

    on sqlite postgres:
    async fn thousand_dead_letters_are_redriven_together(server, page) {
        server.publish_dead("payment.settle").await;
        fixture::dead_letters(server, 1_000).await;
        assert_eq!(dead(server, "mail.send").await, 1_000);
        page.goto("/ui/default/dead-letters").await;
        page.fill("#type", "mail.*").await;
        page.click_text("button", "Filter").await;
        page.until_shows("#total", "1,000").await;
        page.screenshot("many").await;
        page.click_text("#letters button", "Redrive all 1,000").await;
        page.until_shows("#ask h1", "1,000").await;
        page.screenshot("many-question").await;
        assert_eq!(dead(server, "mail.send").await, 1_000, "not confirmed yet");
        page.click_text("#ask button", "1,000").await;
        page.until_shows("#notices", "1,000").await;
        page.until_shows("#letters", "No dead letter matches").await;
        assert_eq!((dead(server, "mail.send").await, dead(server, "payment.settle").await), (json!(0), json!(1)));
        let claim = json!({ "worker_id": "mail:2", "types": "mail.send", "max": 1_000 });
        assert_eq!(server.claim(&claim).await.len(), 1_000);
    }

    on sqlite:
    async fn selected_dead_letters_are_redriven(server, page) {
        fixture::dead_letters(server, 3).await;
        page.goto("/ui/default/dead-letters").await;
        page.until("document.querySelectorAll('#letters tbody tr').length === 3").await;
        page.click("#letters tbody tr:nth-child(1) input[name=id]").await;
        page.click("#letters tbody tr:nth-child(3) input[name=id]").await;
        page.until_shows("#letters [data-chosen]", "(2)").await;
        page.click_text("#letters button", "Redrive selected").await;
        page.click_text("#ask button", "Redrive").await;
        page.until("document.querySelectorAll('#letters tbody tr').length === 1").await;
        assert_eq!(dead(server, "mail.send").await, 1);
    }

    on sqlite:
    async fn user_html_is_shown_as_text(server, page) {
        let html = fixture::UNSAFE_HTML;
        let event = json!({
            "type": "a.b", "title": html, "description": html, "tags": "x", "group_id": html,
            "payload": { "html": html, "</pre>": "<img src=x onerror=alert(2)>" }, "metadata": { "a": html }
        });
        let id = server.publish_as(event).await;
        assert_eq!(server.claim_ids(&json!({ "worker_id": "w:1" })).await, [id]);
        let report = json!({ "worker_id": "w:1", "retry": false, "error_message": html });
        server.post(&format!("/events/{id}/fail"), &report).await.expect(200);
        for list in ["/ui/default/events", "/ui/default/dead-letters"] {
            page.goto(list).await;
            page.until_shows("a[data-open]", html).await;
        }
        page.click_text("a[data-open]", html).await;
        page.until_shows("h1", html).await;
        page.until_shows("pre", html).await;
        page.until_shows("pre", "<img src=x onerror=alert(2)>").await;
        page.until_shows("#timeline", html).await;
        assert_eq!(page.eval("document.scripts.length").await, 1);
        assert_eq!(page.eval("document.querySelectorAll('main img').length").await, 0);
        page.screenshot("html").await;
    }

    on sqlite:
    async fn edited_field_is_not_replaced(server, page) {
        page.goto("/ui/default/subscriptions").await;
        mark(page).await;
        page.fill("#type", "order.*").await;
        page.click("h1").await;
        page.until("document.activeElement.id !== 'type'").await;
        server.act("/pause?type=mail.*").await.expect(200);
        server.post("/subscriptions", &json!({ "subscription": "audit" })).await.expect(201);
        page.until_shows("#subscriptions", "audit").await;
        assert_eq!(page.eval("document.querySelector('#type').value").await, "order.*");
        page.fill("#type", "").await;
        page.click("h1").await;
        page.until_shows("#types", "mail.*").await;
        assert!(is_marked(page).await, "it was loaded anew");
    }

    on sqlite:
    async fn double_click_publishes_once(server, page) {
        page.goto("/ui/default/publish").await;
        page.fill("#type", "order.paid").await;
        page.eval("for (let n = 0; n < 2; n++) document.querySelector('main button.primary').click()").await;
        page.until("location.pathname.startsWith('/ui/default/events/')").await;
        page.until_shows("#notices", "is published").await;
        assert_eq!(server.get("/events").await.expect(200)["total"], json!(1));
    }

    on sqlite:
    async fn enter_does_not_confirm_a_deletion(server, page) {
        fixture::dead_letters(server, 2).await;
        page.goto("/ui/default/dead-letters").await;
        page.click_text("#letters button", "Delete all 2").await;
        page.until_shows("#ask h1", "Delete 2 dead letters?").await;
        page.until("document.activeElement.hasAttribute('data-close')").await;
        page.press("Enter").await;
        page.until("!document.querySelector('dialog[open]')").await;
        assert_eq!(dead(server, "mail.send").await, 2);
    }

    on sqlite:
    async fn events_can_be_used_by_keyboard(server, page) {
        let first = server.publish_as(json!({ "type": "a", "title": "The first" })).await;
        server.publish_as(json!({ "type": "a", "title": "The second" })).await;
        page.goto("/ui/default/events").await;
        page.until_shows("#events", "The second").await;
        page.until(SCRIPT_STARTED).await;
        page.press("/").await;
        page.until("document.activeElement.id === 'text'").await;
        page.press("Escape").await;
        page.until("document.activeElement === document.body").await;
        page.press("?").await;
        page.until("document.querySelector('#help').open").await;
        page.screenshot("help").await;
        page.press("Escape").await;
        page.until("!document.querySelector('#help').open").await;
        page.press("j").await;
        page.until_shows("tr.marked", "The second").await;
        page.press("j").await;
        page.until_shows("tr.marked", "The first").await;
        page.press("Enter").await;
        page.until_shows("h1", "The first").await;
        page.until(&format!("location.pathname === '/ui/default/events/{first}'")).await;
        page.until(SCRIPT_STARTED).await;
        page.press_all(&["g", "s"]).await;
        page.until_shows("h1", "Schedules").await;
    }

    on sqlite:
    async fn enter_opens_the_marked_row_after_closing_a_dialog(server, page) {
        server.publish_as(json!({ "type": "a", "title": "The first" })).await;
        page.goto("/ui/default/events").await;
        page.until(SCRIPT_STARTED).await;
        page.press("j").await;
        page.until_shows("tr.marked", "The first").await;
        // Immediately, before the page is drawn again.
        page.eval(
            "help.showModal(); help.close();
             document.activeElement.dispatchEvent(new KeyboardEvent('keydown', { key: 'Enter', bubbles: true }))",
        )
        .await;
        page.until_shows("h1", "The first").await;
    }
}
