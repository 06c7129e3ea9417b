//! Responses to invalid requests.

use serde_json::json;

use crate::harness::JSON;
use crate::http::request;

on_each_database! {
    async fn invalid_json_is_refused_with_its_position(server) {
        let cases = [
            ("", "invalid_json", "the body is not valid JSON: EOF while parsing a value at line 1 column 0"),
            ("{\n  \"title\": oops }", "invalid_json", "the body is not valid JSON: title: expected value at line 2 column 12"),
            (r#"{"title":"t"} x"#, "invalid_json", "the body is not valid JSON: trailing characters at line 1 column 15"),
            ("5", "invalid", "the body is not as expected: invalid type: integer `5`, expected an object at line 1 column 1"),
            (r#"{"title":5}"#, "invalid", "the body is not as expected: title: invalid type: integer `5`, expected a string at line 1 column 10"),
            (r#"{"title":"t","priority":99999}"#, "invalid", "the body is not as expected: priority: invalid value: integer `99999`, expected i16 at line 1 column 29"),
        ];
        for (body, code, error) in cases {
            assert_eq!(server.post_text("/events", body).await.error(400, code), error);
        }
    }

    async fn unknown_field_is_refused_by_name(server) {
        let error = server.post_text("/events", r#"{"title":"t","paylod":1}"#).await.error(400, "invalid");
        assert!(error.starts_with("the body is not as expected: paylod: unknown field `paylod`, expected one of `title`"), "{error}");
    }

    async fn invalid_value_is_refused_with_its_field(server) {
        let cases = [
            (r#"{"title":"t","run_at":"tomorrow"}"#, "the body is not as expected: run_at: "),
            (r#"{"title":"t","metadata":[1]}"#, "metadata: must be a JSON object"),
            (r#"{"title":"t","tags":"a,,b"}"#, "tags: must not be empty"),
            (r#"{"title":"t","type":"a*"}"#, "type: must not contain '*'"),
            (r#"{"title":"t","run_at":"2025-12-24T10:30:00Z","delay_ms":1}"#, "delay_ms: give either run_at or a delay, not both"),
        ];
        for (body, expected) in cases {
            let error = server.post_text("/events", body).await.error(400, "invalid");
            assert!(error.starts_with(expected), "{error}");
        }
    }

    async fn body_without_json_content_type_is_refused(server) {
        for headers in ["", "content-type: text/plain\r\n", "content-type: application/x-www-form-urlencoded\r\n"] {
            let response = request(server.address, "POST", "/events", headers, br#"{"title":"t"}"#).await;
            response.error(415, "unsupported_media_type");
        }
        let headers = "content-type: application/json; charset=utf-8\r\n";
        request(server.address, "POST", "/events", headers, br#"{"title":"t"}"#).await.expect(201);
    }

    async fn deeply_nested_json_is_refused(server) {
        let nested = |depth: usize| format!(r#"{{"title":"t","payload":{}{}}}"#, "[".repeat(depth), "]".repeat(depth));
        assert!(server.post_text("/events", &nested(100)).await.expect(201)["payload"].is_array());
        assert_eq!(server.post_text("/events", &nested(101)).await.bad_field(), "payload");
        assert_eq!(server.post_text("/events", &nested(500_000)).await.bad_field(), "payload");
        server.post_text("/events", &"[".repeat(1_000_000)).await.error(400, "invalid");
    }

    async fn invalid_utf8_and_garbage_are_refused(server) {
        for garbage in [&b"\xff\xfe"[..], b"{\"title\":\"\xff\"}", b"{\"title\":\"t\",\"payload\":\"\xc3\"}", b"\0", b"{'title':1}"] {
            let response = request(server.address, "POST", "/events", JSON, garbage).await;
            assert_eq!(response.status, 400, "{response:?}");
            assert!(response.json()["error"].is_string());
        }
        assert_eq!(server.get("/events").await.expect(200)["total"], 0);
    }

    async fn unusual_payloads_are_returned_unchanged(server) {
        for text in [r#""\u0000""#, r#""\ud83d\ude00""#, "1e400", "-0", r#""\/""#, "\"\u{1f600}\u{2028}\""] {
            let body = format!(r#"{{"title":"t","tags":"a","payload":{text}}}"#);
            assert_eq!(server.post_text("/events", &body).await.status, 201);
            let taken = server.get("/events/subscribe?tags=a&worker_id=w:1").await;
            assert!(taken.body.contains(&format!(r#""payload":{text},"#)), "{taken:?}");
        }
    }

    async fn lone_surrogate_in_a_payload_is_refused(server) {
        let body = r#"{"title":"t","payload":{"a":"\ud800"}}"#;
        assert_eq!(server.post_text("/events", body).await.bad_field(), "payload");
    }

    async fn nul_characters_are_refused_by_field(server) {
        for field in ["title", "description", "tags", "type", "group_id", "key", "producer"] {
            let body = format!(r#"{{"title":"t","{field}":"a\u0000b"}}"#).replace(r#""title":"t","title""#, r#""title""#);
            assert_eq!(server.post_text("/events", &body).await.bad_field(), field);
        }
    }

    async fn json_media_type_variants_are_accepted(server) {
        for kind in ["application/cloudevents+json", "Application/JSON"] {
            let headers = format!("content-type: {kind}\r\n");
            server.send("POST", "/events", &headers, r#"{"title":"t"}"#).await.expect(201);
        }
    }

    async fn malformed_query_is_refused(server) {
        for query in ["%FF=1", "limit=%FF", "=", "status=PENDING&status=FAILED"] {
            server.get(&format!("/events?{query}")).await.error(400, "invalid");
        }
    }

    async fn every_path_of_an_unknown_namespace_is_404(server) {
        let report = json!({ "worker_id": "w" });
        for path in ["events/batch", "events/finish"] {
            let item = json!({ "title": "t" });
            let body = match path {
                "events/batch" => json!({ "events": [item] }),
                _ => json!({ "items": [{ "event_id": 1, "outcome": "complete", "worker_id": "w" }] }),
            };
            let answer = server.post(&format!("/namespaces/nowhere/{path}"), &body).await;
            answer.error(404, "namespace_not_found");
        }
        for path in ["events/1/complete", "events/1/start", "events/1/heartbeat", "events/claim"] {
            assert_eq!(server.post(&format!("/namespaces/nowhere/{path}"), &report).await.status, 404, "{path}");
        }
        for path in ["events", "events/1", "events/search", "events/1/explain", "dead-letters", "dead-letters/1", "stuck", "workers", "samples", "stats", "stats/maintenance", "subscriptions", "subscriptions/main", "events/stream"] {
            assert_eq!(server.get(&format!("/namespaces/nowhere/{path}")).await.status, 404, "{path}");
        }
        for path in ["events/1/reset", "events/1/cancel", "pause", "resume", "subscriptions/main/pause", "dead-letters/1/redrive"] {
            assert_eq!(server.act(&format!("/namespaces/nowhere/{path}")).await.status, 404, "{path}");
        }
    }

    async fn unknown_paths_and_methods_are_refused_as_json(server) {
        for path in ["/nowhere", "/events/1/nowhere", "/namespaces/default/nowhere", "/namespaces/default/namespaces"] {
            assert_eq!(server.get(path).await.error(404, "unknown_path"), format!("there is nothing at {path}"));
        }
        for (method, path, allowed) in [
            ("DELETE", "/events/1", "get,head"),
            ("GET", "/events/1/complete", "post"),
            ("PUT", "/namespaces/default/events", "post,get,head"),
            ("POST", "/healthz", "get,head"),
        ] {
            let response = request(server.address, method, path, "", b"").await;
            assert_eq!(response.error(405, "wrong_method"), format!("{path} does not support {method}"));
            assert!(response.head.contains(&format!("allow: {allowed}")), "{response:?}");
        }
    }

    async fn stream_of_unknown_namespace_or_subscription_is_404(server) {
        server.get("/namespaces/nowhere/events/stream").await.error(404, "namespace_not_found");
        server.get("/events/stream?subscription=nobody").await.error(404, "subscription_not_found");
    }
}
