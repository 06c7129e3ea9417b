//! Authentication and authorization of the API.

use std::time::Duration;

use serde_json::{Value, json};
use windlass::{NewToken, Scope};
use windlass_server::Access;
use windlass_testkit::until;

use crate::harness::{JSON, Server};
use crate::http::Response;

async fn token(server: &Server, scopes: impl IntoIterator<Item = Scope>) -> String {
    server.queue.create_token(NewToken::new(scopes)).await.unwrap().secret
}

async fn send(server: &Server, token: &str, method: &str, path: &str) -> Response {
    server.send(method, path, &format!("{JSON}authorization: Bearer {token}\r\n"), "{}").await
}

/// Whether the request was authorized, regardless of its result.
fn is_authorized(response: &Response) -> bool {
    !matches!(response.status, 401 | 403)
}

/// Waits until a request without a token is refused. The server caches tokens for one second.
async fn until_refused(server: &Server) {
    until(async || (server.get("/events").await.status == 401).then_some(())).await;
}

async fn refusal_count(server: &Server, token: &str, reason: &str) -> u64 {
    let metrics = send(server, token, "GET", "/metrics").await.body;
    let line = format!("windlass_http_refused_total{{reason=\"{reason}\"}} ");
    metrics.lines().find_map(|found| found.strip_prefix(&line)).unwrap().parse().unwrap()
}

/// One route of each kind, with the required scope.
const PATHS: [(&str, &str, Scope); 28] = [
    ("POST", "/events", Scope::Publish),
    ("POST", "/events/batch", Scope::Publish),
    ("GET", "/events/subscribe", Scope::Consume),
    ("POST", "/events/claim", Scope::Consume),
    ("POST", "/events/1/complete", Scope::Consume),
    ("POST", "/events/1/heartbeat", Scope::Consume),
    ("POST", "/events/finish", Scope::Consume),
    ("GET", "/events", Scope::Read),
    ("GET", "/events/1", Scope::Read),
    ("GET", "/events/search", Scope::Read),
    ("GET", "/events/1/explain", Scope::Read),
    ("GET", "/dead-letters", Scope::Read),
    ("GET", "/samples", Scope::Read),
    ("GET", "/stats", Scope::Read),
    ("GET", "/stats/maintenance", Scope::Read),
    ("GET", "/metrics", Scope::Read),
    ("GET", "/doctor", Scope::Read),
    ("GET", "/namespaces", Scope::Read),
    ("GET", "/namespaces/default", Scope::Read),
    ("PUT", "/namespaces/default", Scope::Admin),
    ("POST", "/events/1/reset", Scope::Admin),
    ("POST", "/events/1/cancel", Scope::Admin),
    ("POST", "/events/cancel", Scope::Admin),
    ("POST", "/dead-letters/redrive", Scope::Admin),
    ("DELETE", "/dead-letters/1", Scope::Admin),
    ("POST", "/subscriptions", Scope::Admin),
    ("POST", "/pause?type=x", Scope::Admin),
    ("POST", "/namespaces/default/events", Scope::Publish),
];

on_each_database! {
    async fn request_without_token_is_refused_once_a_token_exists(server) {
        server.get("/events").await.expect(200);
        let admin = token(server, [Scope::Admin]).await;
        until_refused(server).await;
        let response = server.post("/events", &json!({ "title": "t" })).await;
        let error = response.error(401, "no_token");
        assert_eq!(error, "an API token is needed: send `Authorization: Bearer <token>`");
        assert_eq!(response.header("www-authenticate"), Some("bearer realm=\"windlass\""));
        let list = send(server, &admin, "GET", "/events").await.expect(200);
        assert_eq!(list["total"], 0);
    }

    async fn wrong_token_is_refused(server) {
        let good = token(server, [Scope::Admin]).await;
        let other = good.replace(['1', '2', '3', '4'], "5");
        let cases = [
            format!("Bearer {other}"),
            format!("Bearer {}", good.to_uppercase()),
            format!("Bearer {}x", good),
            format!("Basic {good}"),
            format!("Bearer{good}"),
            good.clone(),
            "Bearer ".into(),
            "Bearer x".into(),
            "x".into(),
        ];
        for case in cases {
            let response = server.send("GET", "/events", &format!("authorization: {case}\r\n"), "").await;
            response.error(401, "wrong_token");
            assert_eq!(response.header("www-authenticate"), Some("bearer realm=\"windlass\""), "{case}");
        }
        let lower = server.send("GET", "/events", &format!("authorization: bearer  {good}\r\n"), "").await;
        lower.expect(200);
    }

    async fn revoked_token_is_refused(server) {
        let kept = token(server, [Scope::Read]).await;
        let created = server.queue.create_token(NewToken::new([Scope::Read])).await.unwrap();
        send(server, &created.secret, "GET", "/events").await.expect(200);
        server.queue.revoke_token(&created.token.token_id).await.unwrap();
        let response = until(async || {
            let response = send(server, &created.secret, "GET", "/events").await;
            (response.status != 200).then_some(response)
        })
        .await;
        response.error(401, "wrong_token");
        send(server, &kept, "GET", "/events").await.expect(200);
    }

    async fn revoking_the_last_token_does_not_open_the_server(server) {
        let created = server.queue.create_token(NewToken::new([Scope::Read])).await.unwrap();
        server.get("/events").await.error(401, "no_token");
        server.queue.revoke_token(&created.token.token_id).await.unwrap();
        until(async || (send(server, &created.secret, "GET", "/events").await.status == 401).then_some(())).await;
        server.get("/events").await.error(401, "no_token");
    }

    async fn expired_token_is_refused(server) {
        let new = NewToken::new([Scope::Read]).expires_in(Duration::from_secs(60));
        let secret = server.queue.create_token(new).await.unwrap().secret;
        send(server, &secret, "GET", "/events").await.expect(200);
        server.advance_secs(60);
        send(server, &secret, "GET", "/events").await.error(401, "wrong_token");
        server.get("/events").await.error(401, "no_token");
    }

    async fn token_in_the_url_is_refused(server) {
        let secret = token(server, [Scope::Admin]).await;
        for name in ["token", "access_token"] {
            let response = server.get(&format!("/events?limit=1&{name}={secret}")).await;
            response.error(401, "token_in_query");
            assert!(!response.body.contains(&secret), "{response:?}");
        }
    }

    async fn token_allows_only_what_its_scope_includes(server) {
        server.publish("a").await;
        let admin = token(server, [Scope::Admin]).await;
        let mut tokens = Vec::new();
        for scope in Scope::ALL {
            tokens.push((scope, token(server, [scope]).await));
        }
        until_refused(server).await;
        let mut wrong = 0;
        for (method, path, needed) in PATHS {
            for (scope, secret) in &tokens {
                let response = send(server, secret, method, path).await;
                assert_eq!(is_authorized(&response), scope.includes(needed), "{scope}: {method} {path}: {response:?}");
                if !is_authorized(&response) {
                    let error = response.error(403, "wrong_scope");
                    assert_eq!(error, format!("this needs a token with the scope '{needed}'"));
                    wrong += 1;
                }
            }
            server.send(method, path, JSON, "{}").await.error(401, "no_token");
        }
        assert_eq!(refusal_count(server, &admin, "wrong_scope").await, wrong);
    }

    async fn scopes_of_a_token_are_combined(server) {
        let secret = token(server, [Scope::Publish, Scope::Read]).await;
        assert!(is_authorized(&send(server, &secret, "POST", "/events").await));
        assert!(is_authorized(&send(server, &secret, "GET", "/events").await));
        send(server, &secret, "POST", "/events/claim").await.error(403, "wrong_scope");
    }

    async fn read_scope_cannot_claim(server) {
        let id = server.publish("a").await;
        let secret = token(server, [Scope::Read]).await;
        until_refused(server).await;
        let taken = send(server, &secret, "GET", "/events/subscribe?tags=a&worker_id=w:1").await;
        taken.error(403, "wrong_scope");
        assert_eq!(send(server, &secret, "GET", &format!("/events/{id}")).await.expect(200)["status"], "PENDING");
    }

    async fn token_is_limited_to_its_namespaces(server) {
        for namespace in ["orders", "billing"] {
            server.queue.put_namespace(namespace, None, None).await.unwrap();
        }
        let new = NewToken::new([Scope::Admin]).namespaces(["orders", "later"]);
        let secret = server.queue.create_token(new).await.unwrap().secret;
        send(server, &secret, "GET", "/namespaces/orders/events").await.expect(200);
        for path in ["/events", "/stats", "/namespaces/default/events", "/namespaces/billing", "/namespaces/billing/stats"] {
            let error = send(server, &secret, "GET", path).await.error(403, "other_namespace");
            assert!(error.starts_with("the token is not for the namespace '"), "{error}");
        }
        let list = send(server, &secret, "GET", "/namespaces").await.expect(200)["namespaces"].clone();
        let names: Vec<&Value> = list.as_array().unwrap().iter().map(|namespace| &namespace["namespace"]).collect();
        assert_eq!(names, ["orders"]);
        send(server, &secret, "PUT", "/namespaces/later").await.expect(201);
        send(server, &secret, "PUT", "/namespaces/other").await.error(403, "other_namespace");
        assert_eq!(refusal_count(server, &secret, "other_namespace").await, 6);
    }

    async fn health_and_openapi_need_no_token(server) {
        token(server, [Scope::Admin]).await;
        until_refused(server).await;
        for path in ["/healthz", "/readyz", "/openapi.json"] {
            server.get(path).await.expect(200);
        }
        server.get("/metrics").await.error(401, "no_token");
    }

    async fn head_requires_the_same_scope_as_get(server) {
        let (publish, read) = (token(server, [Scope::Publish]).await, token(server, [Scope::Read]).await);
        let consume = token(server, [Scope::Consume]).await;
        let subscribe = "/events/subscribe?tags=a&worker_id=w";
        assert_eq!(server.send("HEAD", "/events", "", "").await.status, 401);
        for (secret, path, status) in [
            (&publish, "/events", 403),
            (&read, "/events", 200),
            (&read, subscribe, 403),
            (&consume, subscribe, 405),
            (&consume, "/events", 200),
        ] {
            let headers = format!("authorization: Bearer {secret}\r\n");
            assert_eq!(server.send("HEAD", path, &headers, "").await.status, status, "{path}");
        }
    }

    async fn refusals_are_counted_by_reason(server) {
        let secret = token(server, [Scope::Read]).await;
        server.get("/events").await.error(401, "no_token");
        server.get("/events?token=x").await.error(401, "token_in_query");
        send(server, "x", "GET", "/events").await.error(401, "wrong_token");
        server.send("GET", "/events", "authorization: x\r\n", "").await.error(401, "wrong_token");
        for (reason, count) in [("no_token", 1), ("token_in_query", 1), ("wrong_token", 2), ("wrong_scope", 0)] {
            assert_eq!(refusal_count(server, &secret, reason).await, count, "{reason}");
        }
    }

    async fn open_server_requires_no_token(server) {
        token(server, [Scope::Admin]).await;
        server.restart_with(|options| options.access = Access::Open).await;
        server.publish("a").await;
        server.send("GET", "/events", "authorization: x\r\nsec-fetch-site: cross-site\r\n", "").await.expect(200);
    }

    async fn token_only_server_refuses_all_without_tokens(server) {
        server.restart_with(|options| options.access = Access::Tokens).await;
        server.get("/events").await.error(401, "no_token");
        send(server, "x", "GET", "/events").await.error(401, "wrong_token");
        server.get("/healthz").await.expect(200);
        let secret = token(server, [Scope::Read]).await;
        until(async || (send(server, &secret, "GET", "/events").await.status == 200).then_some(())).await;
    }

    async fn requests_from_other_sites_are_refused(server) {
        let foreign = ["sec-fetch-site: cross-site", "sec-fetch-site: same-site", "origin: http://evil.example", "origin: null"];
        for header in foreign {
            let response = server.send("POST", "/events", &format!("{JSON}{header}\r\n"), r#"{"title":"t"}"#).await;
            response.error(403, "cross_site");
        }
        for header in ["sec-fetch-site: none", "sec-fetch-site: same-origin", "origin: http://localhost"] {
            server.send("GET", "/events", &format!("{header}\r\n"), "").await.expect(200);
        }
        let metrics = server.get("/metrics").await.body;
        assert!(metrics.contains("windlass_http_refused_total{reason=\"cross_site\"} 4"), "{metrics}");
        assert_eq!(server.get("/events").await.expect(200)["total"], 0);
    }

    async fn foreign_host_name_is_refused(server) {
        for (host, status) in [("evil.example", 403), ("localhost.evil.example:80", 403), ("127.0.0.1:1", 200), ("[::1]", 200)] {
            let request = format!("GET /events HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\n\r\n");
            let response = crate::http::read(server.begin(&request).await).await;
            assert_eq!(response.status, status, "{host}: {response:?}");
        }
    }

    async fn requests_with_a_token_may_come_from_any_site(server) {
        let secret = token(server, [Scope::Read]).await;
        let headers = format!("authorization: Bearer {secret}\r\nsec-fetch-site: cross-site\r\n");
        server.send("GET", "/events", &headers, "").await.expect(200);
    }
}
