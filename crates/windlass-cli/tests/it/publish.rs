//! `windlass publish`.

use std::io::Read;
use std::net::TcpListener;

use serde_json::{Value, json};
use windlass::{EventView, ListFilter};

use crate::windlass::run;
use crate::work::fixture::WorkFixture;

fn total(fixture: &WorkFixture) -> u64 {
    fixture.block_on(fixture.queue.list(ListFilter::default())).unwrap().total
}

fn stored_event(fixture: &WorkFixture, id: &str) -> Value {
    let EventView { event, .. } = fixture.block_on(fixture.queue.get(id.trim().parse().unwrap())).unwrap();
    json!(event)
}

/// Returns valid lines with keys of this prefix.
fn lines(count: usize, key: &str) -> String {
    (0..count).map(|n| format!("{{\"type\":\"a\",\"payload\":{n},\"key\":\"{key}{n}\"}}\n")).collect()
}

test_on_each_target! {
    fn event_is_published_with_all_options(fixture) {
        let args = [
            "publish", "order.paid", "--payload", "{\"order\":  17}", "--title", "Bestellung ü", "--description", "d",
            "--tag", "a,b", "--tag", "c", "--key", "k", "--group", "g", "--priority", "-2", "--run-at",
            "2027-01-31T12:00:00Z", "--expires-in", "2h", "--max-retries", "7", "--metadata", "by=me=you",
        ];
        let (code, id, stderr) = fixture.run(&args, "");
        assert_eq!((code, stderr.as_str()), (0, ""));
        let event = stored_event(fixture, &id);
        let expected = [
            ("event_type", json!("order.paid")), ("title", json!("Bestellung ü")), ("description", json!("d")),
            ("tags", json!("a,b,c")), ("payload", json!({ "order": 17 })), ("key", json!("k")),
            ("group_id", json!("g")), ("priority", json!(-2)), ("run_at", json!("2027-01-31T12:00:00Z")),
            ("expires_at", json!("2027-01-31T14:00:00Z")), ("metadata", json!({ "by": "me=you" })),
        ];
        for (name, expected) in expected {
            let name = if name == "event_type" && event.get(name).is_none() { "type" } else { name };
            assert_eq!(event[name], expected, "{name}");
        }
        let (code, again, stderr) = fixture.run(&args, "");
        assert_eq!((code, &again), (0, &id));
        assert_eq!(stderr, format!("Event {} has this key already; nothing was stored.\n", id.trim()));
        assert_eq!(total(fixture), 1);
    }

    fn payload_can_come_from_a_file_or_stdin(fixture) {
        fixture.write("payload.json", "  [1,\n 2.50]\n");
        for source in [["--payload", "-"], ["--payload-file", "-"], ["--payload-file", "payload.json"]] {
            let (code, id, stderr) = fixture.run(&[&["publish", "t"], &source[..]].concat(), "[1,\n 2.50]\n");
            assert_eq!((code, stderr.as_str()), (0, ""));
            let view = fixture.block_on(fixture.queue.get(id.trim().parse().unwrap())).unwrap();
            assert_eq!(view.event.payload.get(), "[1,\n 2.50]");
        }
        let (code, _, stderr) = fixture.run(&["publish", "t", "--payload", "hello"], "");
        assert_eq!(code, 2);
        assert!(stderr.contains("--payload: is not JSON") && stderr.contains("'\"text\"'"), "{stderr}");
        assert_eq!(fixture.run(&["publish", "t", "--payload-file", "nope.json"], "").0, 2);
        assert_eq!(fixture.run(&["publish", "a,b\0".trim_end_matches('\0'), "--tag", ",,"], "").0, 2);
        assert_eq!(total(fixture), 3);
    }

    fn file_is_published_in_batches(fixture) {
        fixture.write("events.jsonl", &format!("{}\n", lines(2_500, "k")));
        let (code, stdout, stderr) = fixture.run(&["publish", "--bulk", "events.jsonl"], "");
        assert_eq!((code, stdout.as_str(), stderr.as_str()), (0, "Published 2500 events\n", ""));
        let (code, stdout, _) = fixture.run(&["publish", "--bulk", "-", "--json"], &lines(2_600, "k"));
        let expected = json!({
            "published": 100, "duplicates": 2_500, "bad": 0, "bad_lines": [], "done_lines": [[1, 2_600]],
            "not_published_lines": [], "unknown_lines": [], "stopped": null, "not_sent_from": null,
        });
        assert_eq!((code, serde_json::from_str::<Value>(&stdout).unwrap()), (0, expected));
        assert_eq!(total(fixture), 2_600);
    }

    fn invalid_line_stops_with_exact_line_ranges(fixture) {
        let mut text = lines(1_500, "k");
        text.push_str("{\"type\":\"a\"\n");
        text.push_str(&lines(10, "l"));
        let (code, _, stderr) = fixture.run(&["publish", "--bulk", "-"], &text);
        let expected = "\
Published 1000 events
  published      lines 1–1000
  not published  lines 1001–1501
  not sent       from line 1502 on
error: line 1501: is not a JSON object: EOF while parsing an object at line 1 column 11
";
        assert_eq!((code, stderr.as_str()), (2, expected));
        assert_eq!(total(fixture), 1_000);
        let (code, stdout, _) = fixture.run(&["publish", "--bulk", "-", "--json"], &text);
        let printed: Value = serde_json::from_str(&stdout).unwrap();
        let line_ranges = (&printed["done_lines"], &printed["not_published_lines"]);
        assert_eq!((code, line_ranges), (2, (&json!([[1, 1000]]), &json!([[1001, 1501]]))));
        assert_eq!((&printed["duplicates"], &printed["not_sent_from"]), (&json!(1_000), &json!(1_502)));
        assert!(printed["stopped"].as_str().unwrap().starts_with("line 1501: is not a JSON object"), "{printed}");
    }

    fn rejected_event_is_reported_with_its_line(fixture) {
        let text = format!("{}{{\"titel\":\"x\"}}\n{{\"tags\":\"a\"}}\n{}", lines(3, "k"), lines(3, "l"));
        let (code, _, stderr) = fixture.run(&["publish", "--bulk", "-"], &text);
        assert_eq!(code, 2);
        assert!(stderr.contains("not published  lines 1–8") && stderr.contains("error: line 4: titel: unknown field"));
        assert_eq!(total(fixture), 0);
        let (code, stdout, stderr) = fixture.run(&["publish", "--bulk", "-", "--skip-bad"], &text);
        assert_eq!((code, stdout.as_str()), (1, "Published 6 events; 2 bad lines passed over\n"));
        assert!(stderr.contains("line 4: titel: unknown field"), "{stderr}");
        assert!(stderr.contains("line 5: title: is required for an event without a type"), "{stderr}");
        assert!(stderr.ends_with("error: 2 bad lines passed over; all others are published\n"), "{stderr}");
        let (code, stdout, _) = fixture.run(&["publish", "--bulk", "-", "--from-line", "7"], &text);
        assert_eq!((code, stdout.as_str()), (0, "Published 0 events; 2 there already, by their key\n"));
    }

    fn group_order_is_kept_across_batches(fixture) {
        let text: String = (0..2_500).map(|n| format!("{{\"type\":\"a\",\"group_id\":\"g\",\"payload\":{n}}}\n")).collect();
        assert_eq!(fixture.run(&["publish", "--bulk", "-"], &text).0, 0);
        let mut payloads = Vec::new();
        for offset in [0, 1_000, 2_000] {
            let filter = ListFilter { limit: 1_000, offset, ..Default::default() };
            let page = fixture.block_on(fixture.queue.list(filter)).unwrap();
            payloads.extend(page.items.iter().map(|view| view.event.payload.get().parse::<u32>().unwrap()));
        }
        payloads.reverse();
        assert_eq!(payloads, (0..2_500).collect::<Vec<_>>());
    }
}

/// The server accepts a request and never responds. The first Ctrl-C waits for the response, the second one does not.
#[cfg(unix)]
#[test]
fn second_interrupt_stops_waiting_and_reports_unknown_lines() {
    use std::io::{BufRead, BufReader, Write};
    use std::process::Stdio;

    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = format!("http://{}", listener.local_addr().unwrap());
    let mut command = crate::windlass::windlass(&["publish", "--server", &address, "--bulk", "-"]);
    let mut process = command.stdin(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    // Send a whole batch and keep stdin open, so that the command waits for more lines without a response.
    let mut input = process.stdin.take().unwrap();
    input.write_all(lines(1_000, "k").as_bytes()).unwrap();
    let (mut connection, _) = listener.accept().unwrap();
    assert!(connection.read(&mut [0; 100]).unwrap() > 0);
    let pid = process.id();
    let interrupt = || windlass_testkit::send_signal(pid, "INT");
    let mut stderr = BufReader::new(process.stderr.take().unwrap());
    interrupt();
    let mut said = String::new();
    stderr.read_line(&mut said).unwrap();
    assert!(said.starts_with("Waiting for the answers"), "{said}");
    interrupt();
    stderr.read_to_string(&mut said).unwrap();
    let details =
        "Published 0 events\n  unknown        lines 1–1000\n  not sent       from line 1001 on\nerror: interrupted\n";
    assert!(said.ends_with(details), "{said}");
    assert_eq!(process.wait().unwrap().code(), Some(1));
}

#[test]
fn exit_code_is_set_when_stderr_is_closed() {
    use std::io::Write;
    use std::process::Stdio;

    let fixture = WorkFixture::sqlite();
    let mut command = fixture.command(&["publish", "--bulk", "-", "--skip-bad"]);
    let mut process = command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    drop(process.stderr.take());
    process.stdin.take().unwrap().write_all(b"oops\n{\"type\":\"a\"}\n").unwrap();
    assert_eq!(process.wait().unwrap().code(), Some(1));
    assert_eq!(total(&fixture), 1);
}

/// The server accepts requests and closes the connection without a response.
#[test]
fn lost_connection_reports_unknown_lines() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = format!("http://{}", listener.local_addr().unwrap());
    std::thread::spawn(move || {
        for connection in listener.incoming() {
            let _ = connection.unwrap().read(&mut [0; 100]);
        }
    });
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("events.jsonl");
    std::fs::write(&file, "{\"type\":\"a\"}\n{\"type\":\"b\"}\n").unwrap();
    let (code, stdout, stderr) = run(&["publish", "--server", &address, "--bulk", file.to_str().unwrap()]);
    assert_eq!((code, stdout.as_str()), (5, ""), "{stderr}");
    let expected =
        "Published 0 events\n  unknown        lines 1–2\n  not sent       from line 3 on\nerror: the server at ";
    assert!(stderr.starts_with(expected), "{stderr}");
}
