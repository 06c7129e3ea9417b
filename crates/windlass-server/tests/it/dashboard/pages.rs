//! What holds for every page.

use super::{Browser, html, location};

/// Every page, below its namespace.
const PAGES: [&str; 8] =
    ["", "/schedules", "/schedules/new", "/nodes", "/subscriptions", "/namespaces", "/settings", "/health"];

on_each_database! {
    async fn every_page_is_there_and_guarded(server) {
        let browser = Browser::without_token();
        for page in PAGES {
            let response = browser.get(server, &format!("/ui/default{page}")).await;
            let body = html(&response, 200);
            assert!(body.contains("<h1") && body.contains("lang=\"en\""), "{page}: {body}");
            assert!(!body.contains(" style=") && !body.contains("<style") && !body.contains("onclick"), "{page}");
            let policy = response.header("content-security-policy").unwrap();
            assert!(policy.starts_with("default-src 'none'; script-src 'self'; style-src 'self'"), "{policy}");
            assert!(policy.contains("frame-ancestors 'none'") && !policy.contains("unsafe"), "{policy}");
            assert_eq!(response.header("x-content-type-options"), Some("nosniff"));
            assert_eq!(response.header("cache-control"), Some("no-store"));
            assert_eq!(response.header("referrer-policy"), Some("same-origin"));
        }
    }

    async fn the_root_leads_to_the_dashboard(server) {
        assert_eq!(location(&server.get("/").await), "/ui/default");
        assert_eq!(location(&server.get("/ui").await), "/ui/default");
    }

    async fn what_is_not_there_is_a_page_that_says_so(server) {
        let browser = Browser::without_token();
        let response = browser.get(server, "/ui/nowhere").await;
        let body = html(&response, 404);
        assert!(body.contains("namespace &#39;nowhere&#39;") || body.contains("'nowhere'"), "{body}");
        assert!(response.header("content-security-policy").is_some());
        html(&browser.get(server, "/ui/default/nothing").await, 404);
        html(&browser.get(server, "/ui/b%00d").await, 400);
    }
}
