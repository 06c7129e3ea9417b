//! Every page, as it looks: on a desk and on a phone, by day and by night.

use super::page::{DESKTOP, PHONE, Page};
use super::scene;

/// Below the namespace, and what its pictures are called.
const PAGES: &[(&str, &str)] = &[
    ("", "overview"),
    ("/events", "events"),
    ("/events?status=FAILED&type=payment.*", "events-filtered"),
    ("/dead-letters", "dead-letters"),
    ("/publish", "publish"),
    ("/schedules", "schedules"),
    ("/schedules/new", "schedule-form"),
    ("/nodes", "nodes"),
    ("/subscriptions", "subscriptions"),
    ("/namespaces", "namespaces"),
    ("/settings", "settings"),
    ("/health", "health"),
    ("/health/findings", "findings"),
    ("/nothing", "no-such-page"),
];

/// At each size and in both schemes; it must fit.
async fn look(page: &mut Page, name: &str) {
    for size in [DESKTOP, PHONE] {
        page.size(size).await;
        for dark in [false, true] {
            page.dark(dark).await;
            page.check_width().await;
            if size == DESKTOP {
                page.check_scrolling().await;
            }
            page.picture(&if dark { format!("{name}-dark") } else { name.to_owned() }).await;
        }
    }
}

in_browser! {
    on sqlite:
    async fn every_page_fits(server, page) {
        let failed = scene::set(server).await;
        for (path, name) in PAGES {
            page.goto(&format!("/ui/default{path}")).await;
            look(page, name).await;
        }
        page.goto(&format!("/ui/default/events/{failed}")).await;
        look(page, "event").await;
        page.goto("/ui/default/schedules").await;
        page.click_text("#schedules a[data-open]", "daily report").await;
        page.until_shows("h1", "daily report").await;
        look(page, "schedule").await;
        page.click_text("button", "Delete").await;
        page.until_shows("#ask h1", "Delete").await;
        look(page, "question").await;
        page.goto("/ui/sign-in").await;
        look(page, "sign-in").await;
        page.check_problems(&["status of 404"]).await;
    }
}
