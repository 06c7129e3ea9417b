//! Properties of every page.

use super::{Browser, html, location};

/// Every page, below its namespace.
const PAGES: [&str; 13] = [
    "",
    "/events",
    "/events/1",
    "/dead-letters",
    "/publish",
    "/schedules",
    "/schedules/new",
    "/nodes",
    "/subscriptions",
    "/namespaces",
    "/settings",
    "/health",
    "/health/findings",
];

on_each_database! {
    async fn every_page_has_security_headers(server) {
        let browser = Browser::without_token();
        assert_eq!(server.publish("a").await, 1);
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

    async fn invalid_query_renders_an_error_page(server) {
        let browser = Browser::without_token();
        let questions = [
            ("?range=2h", "range: must be one of 1h, 6h, 24h, 7d"),
            ("/events?status=LOST", "is not one of PENDING"),
            ("/events?from=yesterday", "from: must be a date and a time in UTC"),
            ("/events?nonsense=1", "unknown field"),
            ("/events?before=x", "query string"),
            ("/events?text=%00", "U+0000"),
            ("/events/x", "is not the number of an event"),
            ("/dead-letters?until=x", "until: must be a date and a time in UTC"),
            ("/dead-letters?offset=-1", "query string"),
        ];
        for (question, sentence) in questions {
            let response = browser.get(server, &format!("/ui/default{question}")).await;
            let body = html(&response, 400);
            assert!(body.contains(sentence) && body.contains("<nav"), "{question}: {body}");
        }
        let response = browser.get(server, "/ui/default/events?subscription=nobody").await;
        assert!(html(&response, 404).contains("nobody"));
    }

    async fn assets_are_served_and_cached(server) {
        let page = Browser::without_token().get(server, "/ui/default").await;
        for (file, kind) in [("style.css", "text/css"), ("app.js", "text/javascript"), ("favicon.svg", "image/svg+xml")] {
            let at = page.body.find(&format!("/ui/assets/{file}?v=")).unwrap_or_else(|| panic!("{file}"));
            let href = page.body[at..].split('"').next().unwrap();
            let response = server.get(href).await;
            assert_eq!(response.status, 200);
            assert!(response.header("content-type").unwrap().starts_with(kind), "{response:?}");
            assert_eq!(response.header("cache-control"), Some("public, max-age=31536000, immutable"));
            // Another server may have a different file under its version.
            for other in [format!("/ui/assets/{file}?v=0"), format!("/ui/assets/{file}")] {
                assert_eq!(server.get(&other).await.header("cache-control"), Some("no-store"), "{other}");
            }
        }
    }

    async fn root_redirects_to_the_dashboard(server) {
        assert_eq!(location(&server.get("/").await), "/ui/default");
        assert_eq!(location(&server.get("/ui").await), "/ui/default");
    }

    async fn missing_page_renders_an_error_page(server) {
        let browser = Browser::without_token();
        let response = browser.get(server, "/ui/nowhere").await;
        let body = html(&response, 404);
        assert!(body.contains("namespace &#39;nowhere&#39;") || body.contains("'nowhere'"), "{body}");
        assert!(response.header("content-security-policy").is_some());
        html(&browser.get(server, "/ui/default/nothing").await, 404);
        html(&browser.get(server, "/ui/default/events/7").await, 404);
        let response = browser.get(server, "/ui/default/pause").await;
        assert!(html(&response, 405).contains("only for what a page sends"), "{response:?}");
        html(&browser.get(server, "/ui/b%00d").await, 400);
    }
}
