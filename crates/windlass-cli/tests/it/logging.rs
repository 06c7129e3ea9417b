//! `--log-format`.

use serde_json::Value;
use windlass_testkit::sqlite_url;

use crate::windlass::{Server, run};

/// Returns the log of a server on which an event fails once and then becomes a dead letter.
fn log_of(args: &[&str]) -> String {
    let folder = tempfile::tempdir().unwrap();
    let all = [&["--listen", "127.0.0.1:0"], args].concat();
    let server = Server::start_with(&sqlite_url(folder.path()), &all);
    let event = r#"{"type":"order.paid","title":"Paid","tags":"orders"}"#;
    for retry in ["true", "false"] {
        let id = server.json("POST", "/events", event, 201)["id"].clone();
        server.json("GET", "/events/subscribe?tags=orders&worker_id=me:1", "", 200);
        let report = format!(r#"{{"worker_id":"me:1","error_message":"card \"4711\" declined","retry":{retry}}}"#);
        server.json("POST", &format!("/events/{id}/fail"), &report, 200);
    }
    server.signal("TERM");
    let (code, _, stderr) = server.wait();
    assert_eq!(code, Some(0), "{stderr}");
    stderr
}

// O2
#[test]
fn json_log_lines_are_objects_with_fields() {
    let log = log_of(&["--log-format", "json"]);
    let lines: Vec<Value> =
        log.lines().map(|line| serde_json::from_str(line).unwrap_or_else(|_| panic!("{line}"))).collect();
    for line in &lines {
        assert!(
            line["level"].is_string() && line["target"].is_string() && line["fields"]["message"].is_string(),
            "{line}"
        );
        let timestamp = line["timestamp"].as_str().unwrap();
        assert!(timestamp.len() > 19 && timestamp.contains('T') && timestamp.ends_with('Z'), "{timestamp}");
    }
    let fields_at_level = |level: &str| {
        let found: Vec<&Value> = lines.iter().filter(|line| line["level"] == level).collect();
        assert_eq!(found.len(), 1, "{log}");
        found[0]["fields"].clone()
    };
    for (level, message) in
        [("WARN", "an event failed and will be retried"), ("ERROR", "an event failed and is a dead letter now")]
    {
        let fields = fields_at_level(level);
        assert_eq!(fields["message"], message);
        assert_eq!((&fields["namespace"], &fields["type"]), (&"default".into(), &"order.paid".into()));
        assert_eq!((&fields["subscription"], &fields["worker_id"]), (&"main".into(), &"me:1".into()));
        assert_eq!((&fields["attempt"], &fields["error"]), (&1.into(), &"card \"4711\" declined".into()));
        assert!(fields["event_id"].is_i64(), "{fields}");
    }
}

#[test]
fn default_log_format_is_text() {
    let log = log_of(&[]);
    assert!(log.lines().all(|line| serde_json::from_str::<Value>(line).is_err()), "{log}");
    assert!(log.contains("an event failed and will be retried"), "{log}");
}

#[test]
fn log_format_is_a_global_option_and_validated() {
    for args in [["--log-format", "json", "migrate"], ["migrate", "--log-format", "json"]] {
        let args: Vec<&str> = args.into_iter().chain(["status", "--database", "sqlite:///nowhere/a.db"]).collect();
        assert_eq!(run(&args).0, run(&["migrate", "status", "--database", "sqlite:///nowhere/a.db"]).0);
    }
    let (code, _, stderr) = run(&["serve", "--log-format", "xml"]);
    assert_eq!(code, 2);
    assert!(stderr.contains("[possible values: text, json]"), "{stderr}");
}
