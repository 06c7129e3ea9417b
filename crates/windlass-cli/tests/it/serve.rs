//! `windlass serve`.

use windlass_testkit::sqlite_url;

use crate::windlass::{Server, run, windlass};

const EVENT: &str = r#"{"title":"Say hello","tags":"greeting","payload":{"to":"world"}}"#;

#[test]
fn banner_names_settings_and_first_commands() {
    let folder = tempfile::tempdir().unwrap();
    let url = sqlite_url(folder.path());
    let server = Server::start(&url);
    let address = server.address().to_owned();
    assert!(!address.ends_with(":0"), "{address}");
    let expected = format!(
        "\
windlass {}
  database   {url}
  listening  http://{address}
  dashboard  http://{address}/
  access     this machine; once an API token exists, clients with a token

Publish an event:
  curl http://{address}/events -H 'content-type: application/json' \\
    -d '{{\"title\": \"Say hello\", \"tags\": \"greeting\", \"payload\": {{\"to\": \"world\"}}}}'
Claim it:
  curl 'http://{address}/events/subscribe?tags=greeting&worker_id=me:1'
API reference: http://{address}/openapi.json
",
        env!("CARGO_PKG_VERSION")
    );
    assert_eq!(server.banner, expected);
}

#[test]
fn event_is_processed_and_sigterm_stops_the_server() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start(&sqlite_url(folder.path()));
    assert_eq!(server.request("GET", "/healthz", ""), (200, r#"{"status":"ok"}"#.to_owned()));
    let id = server.json("POST", "/events", EVENT, 201)["id"].clone();
    let claimed = server.json("GET", "/events/subscribe?tags=greeting&worker_id=me:1", "", 200);
    assert_eq!((&claimed["id"], claimed["payload"].to_string()), (&id, r#"{"to":"world"}"#.to_owned()));
    server.json("POST", &format!("/events/{id}/complete"), r#"{"worker_id":"me:1"}"#, 200);
    assert_eq!(server.request("GET", "/events/subscribe?tags=greeting&worker_id=me:1", ""), (204, String::new()));

    server.signal("TERM");
    let (code, _, stderr) = server.wait();
    assert_eq!(code, Some(0), "{stderr}");
    assert!(stderr.contains("shutting down"), "{stderr}");
    assert!(!stderr.contains('\x1b'), "colors without a terminal: {stderr}");
}

// C6
#[test]
fn idle_poll_outside_its_limits_is_rejected() {
    let folder = tempfile::tempdir().unwrap();
    let url = sqlite_url(folder.path());
    let serve = |idle_poll| run(&["serve", "--database", &url, "--listen", "127.0.0.1:0", "--idle-poll", idle_poll]);
    for (idle_poll, shown) in [("5ms", "5ms"), ("2h", "7200s")] {
        let (code, _, stderr) = serve(idle_poll);
        assert!(code != 0 && stderr.contains(&format!("is {shown}; it must be from 10 ms to 1 hour")), "{stderr}");
    }
    let (code, _, stderr) = serve("1000");
    assert!(code == 2 && stderr.contains("--idle-poll"), "{stderr}");
    assert!(!folder.path().join("windlass.db").exists());
}

#[test]
fn sigint_stops_the_server() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start(&sqlite_url(folder.path()));
    server.signal("INT");
    assert_eq!(server.wait().0, Some(0));
}

#[test]
fn acknowledged_events_survive_kill_9() {
    let folder = tempfile::tempdir().unwrap();
    let url = sqlite_url(folder.path());
    let server = Server::start(&url);
    let first = server.json("POST", "/events", EVENT, 201)["id"].clone();
    let second = server.json("POST", "/events", EVENT, 201)["id"].clone();
    let claimed = server.json("GET", "/events/subscribe?tags=greeting&worker_id=me:1", "", 200)["id"].clone();
    assert_eq!(claimed, first);
    server.json("POST", &format!("/events/{claimed}/complete"), r#"{"worker_id":"me:1"}"#, 200);
    server.signal("KILL");
    assert_eq!(server.wait().0, None);

    let server = Server::start(&url);
    assert_eq!(server.json("GET", &format!("/events/{claimed}"), "", 200)["status"], "COMPLETED");
    assert_eq!(server.json("GET", "/events/subscribe?tags=greeting&worker_id=me:2", "", 200)["id"], second);
}

#[test]
fn public_address_without_token_is_rejected() {
    let folder = tempfile::tempdir().unwrap();
    let url = sqlite_url(folder.path());
    for address in ["0.0.0.0:0", "[::]:0"] {
        let (code, stdout, stderr) = run(&["serve", "--database", &url, "--listen", address]);
        assert_eq!((code, stdout.as_str()), (1, ""));
        assert_eq!(
            stderr,
            format!(
                "error: refusing to listen on {address}: other machines can reach it, and there is no API token yet; make \
                 one with `windlass token create --scope admin`, or use 127.0.0.1, or --insecure if the network itself \
                 keeps strangers out\n"
            )
        );
    }
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0, "the database was created");
}

#[test]
fn public_address_with_token_requires_it() {
    let folder = tempfile::tempdir().unwrap();
    let url = sqlite_url(folder.path());
    let (code, created, stderr) = run(&["token", "create", "--database", &url, "--scope", "publish", "--json"]);
    assert_eq!(code, 0, "{stderr}");
    let created: serde_json::Value = serde_json::from_str(&created).unwrap();
    let mut server = Server::start_with(&url, &["--listen", "0.0.0.0:0"]);
    assert!(server.banner.contains("  access     clients with an API token\n"), "{}", server.banner);
    assert_eq!(server.request("POST", "/events", EVENT).0, 401);
    server.token = created["secret"].as_str().map(str::to_owned);
    assert_eq!(server.request("POST", "/events", EVENT).0, 201);
    assert_eq!(server.request("GET", "/events", "").0, 403);
}

#[test]
fn insecure_server_requires_no_token() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start_with(&sqlite_url(folder.path()), &["--listen", "0.0.0.0:0", "--insecure"]);
    assert!(
        server.banner.contains("  access     every client that reaches it, without a token\n"),
        "{}",
        server.banner
    );
    assert_eq!(server.request("POST", "/events", EVENT).0, 201);
}

#[test]
fn payload_limit_can_be_set() {
    let folder = tempfile::tempdir().unwrap();
    let args = ["--listen", "127.0.0.1:0", "--payload-bytes-max", "10"];
    let server = Server::start_with(&sqlite_url(folder.path()), &args);
    let (status, body) = server.request("POST", "/events", EVENT);
    assert_eq!(status, 413, "{body}");
    assert!(body.contains("payload is 14 bytes; the limit is 10 bytes"), "{body}");
}

#[test]
fn certificate_and_key_are_both_required() {
    let (code, _, stderr) = run(&["serve", "--tls-cert", "nowhere.pem"]);
    assert_eq!(code, 2);
    assert!(stderr.contains("--tls-key <PEM>"), "{stderr}");
    let (code, _, stderr) = run(&["serve", "--tls-cert", "nowhere.pem", "--tls-key", "nowhere.pem"]);
    assert_eq!(code, 1);
    assert!(stderr.starts_with("error: nowhere.pem: "), "{stderr}");
}

#[test]
fn address_in_use_is_reported() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let (code, _, stderr) = run(&["serve", "--database", "sqlite:///nowhere/windlass.db", "--listen", &address]);
    assert_eq!(code, 1);
    assert!(stderr.starts_with(&format!("error: cannot listen on {address}: ")), "{stderr}");
}

#[test]
fn invalid_database_url_is_reported_without_password() {
    let (code, stdout, stderr) =
        run(&["serve", "--listen", "127.0.0.1:0", "--database", "mysql://me:secret@localhost/events"]);
    assert_eq!((code, stdout.as_str()), (1, ""));
    assert!(stderr.starts_with("error: database URL 'mysql://…@localhost/events': must begin with "), "{stderr}");
}

#[test]
fn wrong_usage_is_exit_code_2() {
    for args in [&["serve", "--port", "1"][..], &["haul"], &[]] {
        assert_eq!(run(args).0, 2, "{args:?}");
    }
    let (code, help, _) = run(&["--help"]);
    assert_eq!(code, 0);
    assert!(help.contains("Examples:") && help.contains("0 fine, 1 something failed, 2 wrong usage"));
}

#[test]
fn invalid_log_filter_is_reported() {
    let output = windlass(&["migrate", "status"]).env("WINDLASS_LOG", "windlass=loud").output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert!(stderr.starts_with("error: WINDLASS_LOG: 'windlass=loud': "), "{stderr}");
}
