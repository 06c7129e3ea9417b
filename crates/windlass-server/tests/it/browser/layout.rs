//! Layout of every page, on desktop and phone, in light and dark mode.

use super::fixture;
use super::page::{DESKTOP, PHONE, Page};

/// Path below the namespace, and name of the screenshots.
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

/// Checks that the page fits at each size, and takes screenshots in both color schemes.
async fn check_layout(page: &mut Page, name: &str) {
    for size in [DESKTOP, PHONE] {
        page.size(size).await;
        for dark in [false, true] {
            page.dark(dark).await;
            page.check_width().await;
            if size == DESKTOP {
                page.check_scrolling().await;
            }
            page.screenshot(&if dark { format!("{name}-dark") } else { name.to_owned() }).await;
        }
    }
}

in_browser! {
    on sqlite:
    async fn every_page_fits_the_window(server, page) {
        let failed = fixture::set(server).await;
        for (path, name) in PAGES {
            page.goto(&format!("/ui/default{path}")).await;
            check_layout(page, name).await;
        }
        page.goto(&format!("/ui/default/events/{failed}")).await;
        check_layout(page, "event").await;
        page.goto("/ui/default/schedules").await;
        page.click_text("#schedules a[data-open]", "daily report").await;
        page.until_shows("h1", "daily report").await;
        check_layout(page, "schedule").await;
        page.click_text("button", "Delete").await;
        page.until_shows("#ask h1", "Delete").await;
        check_layout(page, "question").await;
        page.goto("/ui/sign-in").await;
        check_layout(page, "sign-in").await;
        page.check_problems(&["status of 404"]).await;
    }
}
