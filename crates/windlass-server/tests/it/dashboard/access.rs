//! Access to the dashboard.

use windlass::{NewToken, Scope};
use windlass_server::Dashboard;
use windlass_testkit::until;

use super::{Browser, FORM, SAME_ORIGIN, html, location, token};
use crate::http::read;

on_each_database! {
    async fn page_without_a_token_redirects_to_sign_in(server) {
        let secret = token(server, [Scope::Admin]).await;
        let stranger = Browser::without_token();
        let response = until(async || {
            let response = stranger.get(server, "/ui/default/nothing?a=b").await;
            (response.status == 303).then_some(response)
        })
        .await;
        assert_eq!(location(&response), "/ui/sign-in?next=%2fui%2fdefault%2fnothing%3fa%3db");
        html(&stranger.get(server, "/ui/sign-in").await, 200);
        let form = format!("token={secret}&next=%2Fui%2Fdefault%3Frange%3D6h");
        let response = stranger.post(server, "/ui/sign-in", &form).await;
        assert_eq!(location(&response), "/ui/default?range=6h");
        let cookie = response.header("set-cookie").unwrap();
        assert!(cookie.contains("; path=/ui; ") && cookie.contains("httponly; samesite=strict"), "{cookie}");
        html(&Browser::with_token(&secret).get(server, "/ui/default").await, 200);
        // The API requires the header and ignores the cookie.
        let response = server.send("GET", "/events", &format!("cookie: windlass_token={secret}\r\n"), "").await;
        response.error(401, "no_token");
    }

    async fn wrong_token_is_reported_and_not_stored(server) {
        let secret = token(server, [Scope::Admin]).await;
        let wrong = format!("{}x", &secret[..secret.len() - 1]);
        let response = Browser::without_token().post(server, "/ui/sign-in", &format!("token={wrong}&next=//evil")).await;
        let body = html(&response, 401);
        assert!(body.contains("not known here, was revoked or has expired") && !body.contains(&wrong), "{body}");
        assert!(response.header("set-cookie").is_none());
        assert_eq!(location(&Browser::with_token(&wrong).get(server, "/ui/default").await), "/ui/sign-in?next=%2fui%2fdefault");
    }

    async fn signing_out_deletes_the_cookie(server) {
        let browser = Browser::with_token(&token(server, [Scope::Read]).await);
        let response = browser.post(server, "/ui/sign-out", "").await;
        assert_eq!(location(&response), "/ui/sign-in");
        assert!(response.header("set-cookie").unwrap().starts_with("windlass_token=; path=/ui; max-age=0"));
    }

    async fn revoked_token_ends_the_session(server) {
        token(server, [Scope::Read]).await;
        let created = server.queue.create_token(NewToken::new([Scope::Read])).await.unwrap();
        let browser = Browser::with_token(&created.secret);
        html(&browser.get(server, "/ui/default").await, 200);
        server.queue.revoke_token(&created.token.token_id).await.unwrap();
        until(async || (browser.get(server, "/ui/default").await.status == 303).then_some(())).await;
    }

    async fn pages_are_limited_to_the_tokens_namespaces(server) {
        server.queue.put_namespace("orders", None, None).await.unwrap();
        server.queue.put_namespace("payroll", None, None).await.unwrap();
        let new = NewToken::new([Scope::Read]).namespaces(["orders"]);
        let secret = server.queue.create_token(new).await.unwrap().secret;
        let browser = Browser::with_token(&secret);
        let response = browser.get(server, "/ui/orders").await;
        assert!(!html(&response, 200).contains("payroll"));
        let response = browser.get(server, "/ui/payroll").await;
        assert!(html(&response, 403).contains("the token is not for the namespace"), "{response:?}");
        let form = format!("token={secret}");
        assert_eq!(location(&Browser::without_token().post(server, "/ui/sign-in", &form).await), "/ui/orders");
        for home in ["/", "/ui"] {
            assert_eq!(location(&browser.get(server, home).await), "/ui/orders");
        }
    }

    async fn findings_require_a_token_for_all_namespaces(server) {
        server.queue.put_namespace("orders", None, None).await.unwrap();
        let new = NewToken::new([Scope::Read]).namespaces(["orders"]);
        let bound = Browser::with_token(&server.queue.create_token(new).await.unwrap().secret);
        let whole = Browser::with_token(&token(server, [Scope::Read]).await);
        let response = bound.get(server, "/ui/orders/health/findings").await;
        assert!(html(&response, 403).contains("for some namespaces only"), "{response:?}");
        assert!(!html(&bound.get(server, "/ui/orders/health").await, 200).contains("/health/findings"));
        assert!(html(&whole.get(server, "/ui/orders/health").await, 200).contains("/health/findings"));
        let findings = whole.get(server, "/ui/orders/health/findings").await;
        assert!(html(&findings, 200).contains("<code>access</code>"), "as the API finds: {findings:?}");
    }

    async fn open_server_stores_no_token(server) {
        let response = Browser::without_token().post(server, "/ui/sign-in", "token=a%3B+Domain%3Dexample.com").await;
        assert_eq!(location(&response), "/ui/default");
        assert!(response.header("set-cookie").is_none(), "{response:?}");
    }

    async fn publish_link_requires_the_scope(server) {
        let link = "href=\"/ui/default/publish\"";
        let browser = Browser::without_token();
        assert!(html(&browser.get(server, "/ui/default").await, 200).contains(link));
        server.restart_with(|options| options.dashboard = Dashboard::ReadOnly).await;
        assert!(!html(&browser.get(server, "/ui/default").await, 200).contains(link));
        let response = browser.get(server, "/ui/default/publish").await;
        assert!(html(&response, 403).contains("read-only"), "{response:?}");
        let reader = Browser::with_token(&token(server, [Scope::Read]).await);
        assert!(!html(&reader.get(server, "/ui/default").await, 200).contains(link));
    }

    async fn read_scope_sees_no_buttons(server) {
        let reader = Browser::with_token(&token(server, [Scope::Read]).await);
        assert!(!html(&reader.get(server, "/ui/default").await, 200).contains("/pause"));
        let response = reader.post(server, "/ui/default/pause", "confirmed=yes").await;
        assert!(html(&response, 403).contains("admin"), "{response:?}");
        assert!(!server.queue.describe().await.unwrap().paused);
    }

    async fn read_only_dashboard_changes_nothing(server) {
        server.restart_with(|options| options.dashboard = Dashboard::ReadOnly).await;
        let browser = Browser::without_token();
        assert!(!html(&browser.get(server, "/ui/default").await, 200).contains("/pause"));
        let response = browser.post(server, "/ui/default/pause", "confirmed=yes").await;
        assert!(html(&response, 403).contains("read-only"), "{response:?}");
        assert!(!server.queue.describe().await.unwrap().paused);
    }

    async fn disabled_dashboard_serves_nothing(server) {
        server.restart_with(|options| options.dashboard = Dashboard::Off).await;
        for path in ["/", "/ui", "/ui/default", "/ui/sign-in", "/ui/assets/style.css"] {
            server.get(path).await.error(404, "unknown_path");
        }
    }

    async fn other_sites_cannot_act(server) {
        let path = "/ui/default/pause";
        let foreign = [
            "",
            "sec-fetch-site: cross-site\r\norigin: http://localhost\r\n",
            "sec-fetch-site: same-site\r\n",
            "sec-fetch-site: none\r\n",
            "origin: http://evil.example\r\n",
            "origin: null\r\n",
        ];
        for headers in foreign {
            let response = server.send("POST", path, &format!("{headers}{FORM}"), "confirmed=yes").await;
            assert!(html(&response, 403).contains("not sent by a page of this dashboard"), "{headers}");
        }
        assert!(!server.queue.describe().await.unwrap().paused);
        // Browsers that send no `Sec-Fetch-Site` are identified by `Origin`.
        let own = format!("origin: http://localhost\r\n{FORM}");
        assert_eq!(server.send("POST", path, &own, "confirmed=yes").await.status, 303);
        assert!(server.queue.describe().await.unwrap().paused);
    }

    async fn foreign_host_name_cannot_use_the_dashboard(server) {
        for (method, page, headers) in [("GET", "", ""), ("POST", "/pause", SAME_ORIGIN)] {
            let head = format!("{method} /ui/default{page} HTTP/1.1\r\nhost: evil.example\r\nconnection: close\r\n");
            let form = "content-length: 13\r\n\r\nconfirmed=yes";
            let response = read(server.begin(&format!("{head}{headers}{FORM}{form}")).await).await;
            assert!(html(&response, 403).contains("requests to localhost"), "{response:?}");
        }
        assert!(!server.queue.describe().await.unwrap().paused);
    }

    async fn link_from_another_site_keeps_the_session(server) {
        let secret = token(server, [Scope::Read]).await;
        let elsewhere = "sec-fetch-site: cross-site\r\n";
        let response = until(async || {
            let response = server.send("GET", "/ui/default?range=6h", elsewhere, "").await;
            (!response.body.contains("<main")).then_some(response)
        })
        .await;
        assert!(html(&response, 200).contains("content=\"0;url=/ui/default?range=6h\""), "{response:?}");
        let back = format!("sec-fetch-site: same-origin\r\ncookie: windlass_token={secret}\r\n");
        html(&server.send("GET", "/ui/default?range=6h", &back, "").await, 200);
    }
}
