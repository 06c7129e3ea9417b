//! What the server says to requests that it cannot serve.

use crate::http::request;

on_each_database! {
    async fn bad_json_is_refused_with_its_position(server) {
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

    async fn an_unknown_field_is_refused_by_name(server) {
        let error = server.post_text("/events", r#"{"title":"t","paylod":1}"#).await.error(400, "invalid");
        assert!(error.starts_with("the body is not as expected: paylod: unknown field `paylod`, expected one of `title`"), "{error}");
    }

    async fn a_bad_value_is_refused_with_its_field(server) {
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

    async fn a_body_that_is_not_called_json_is_refused(server) {
        for headers in ["", "content-type: text/plain\r\n", "content-type: application/x-www-form-urlencoded\r\n"] {
            let response = request(server.address, "POST", "/events", headers, br#"{"title":"t"}"#).await;
            response.error(415, "unsupported_media_type");
        }
        let headers = "content-type: application/json; charset=utf-8\r\n";
        request(server.address, "POST", "/events", headers, br#"{"title":"t"}"#).await.expect(201);
    }

    async fn unknown_paths_and_methods_are_refused_in_json(server) {
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
            assert_eq!(response.error(405, "wrong_method"), format!("{path} does not answer to {method}"));
            assert!(response.head.contains(&format!("allow: {allowed}")), "{response:?}");
        }
    }

    async fn a_stream_of_what_is_not_there_is_404(server) {
        server.get("/namespaces/nowhere/events/stream").await.error(404, "namespace_not_found");
        server.get("/events/stream?subscription=nobody").await.error(404, "subscription_not_found");
    }
}
