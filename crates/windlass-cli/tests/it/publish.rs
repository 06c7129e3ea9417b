//! `windlass publish`.

use std::io::Read;
use std::net::TcpListener;

use serde_json::{Value, json};
use windlass::{EventView, ListFilter};

use crate::windlass::run;
use crate::work::place::Place;

fn total(place: &Place) -> u64 {
    place.block_on(place.queue.list(ListFilter::default())).unwrap().total
}

fn stored(place: &Place, id: &str) -> Value {
    let EventView { event, .. } = place.block_on(place.queue.get(id.trim().parse().unwrap())).unwrap();
    json!(event)
}

/// Lines that are good, with keys that begin with this.
fn lines(count: usize, key: &str) -> String {
    (0..count).map(|n| format!("{{\"type\":\"a\",\"payload\":{n},\"key\":\"{key}{n}\"}}\n")).collect()
}

in_each_place! {
    fn an_event_is_published_with_all_it_is_given(place) {
        let args = [
            "publish", "order.paid", "--payload", "{\"order\":  17}", "--title", "Bestellung ü", "--description", "d",
            "--tag", "a,b", "--tag", "c", "--key", "k", "--group", "g", "--priority", "-2", "--run-at",
            "2027-01-31T12:00:00Z", "--expires-in", "2h", "--max-retries", "7", "--metadata", "by=me=you",
        ];
        let (code, id, stderr) = place.run(&args, "");
        assert_eq!((code, stderr.as_str()), (0, ""));
        let event = stored(place, &id);
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
        let (code, again, stderr) = place.run(&args, "");
        assert_eq!((code, &again), (0, &id));
        assert_eq!(stderr, format!("Event {} has this key already; nothing was stored.\n", id.trim()));
        assert_eq!(total(place), 1);
    }

    fn a_payload_may_come_from_a_file_or_stdin(place) {
        place.write("payload.json", "  [1,\n 2.50]\n");
        for source in [["--payload", "-"], ["--payload-file", "-"], ["--payload-file", "payload.json"]] {
            let (code, id, stderr) = place.run(&[&["publish", "t"], &source[..]].concat(), "[1,\n 2.50]\n");
            assert_eq!((code, stderr.as_str()), (0, ""));
            let view = place.block_on(place.queue.get(id.trim().parse().unwrap())).unwrap();
            assert_eq!(view.event.payload.get(), "[1,\n 2.50]");
        }
        let (code, _, stderr) = place.run(&["publish", "t", "--payload", "hello"], "");
        assert_eq!(code, 2);
        assert!(stderr.contains("--payload: is not JSON") && stderr.contains("'\"text\"'"), "{stderr}");
        assert_eq!(place.run(&["publish", "t", "--payload-file", "nope.json"], "").0, 2);
        assert_eq!(place.run(&["publish", "a,b\0".trim_end_matches('\0'), "--tag", ",,"], "").0, 2);
        assert_eq!(total(place), 3);
    }

    fn a_file_is_published_in_batches(place) {
        place.write("events.jsonl", &format!("{}\n", lines(2_500, "k")));
        let (code, stdout, stderr) = place.run(&["publish", "--bulk", "events.jsonl"], "");
        assert_eq!((code, stdout.as_str(), stderr.as_str()), (0, "Published 2500 events\n", ""));
        let (code, stdout, _) = place.run(&["publish", "--bulk", "-", "--json"], &lines(2_600, "k"));
        let expected = json!({
            "published": 100, "duplicates": 2_500, "bad": 0, "bad_lines": [], "done_lines": [[1, 2_600]],
            "not_published_lines": [], "unknown_lines": [], "stopped": null, "not_sent_from": null,
        });
        assert_eq!((code, serde_json::from_str::<Value>(&stdout).unwrap()), (0, expected));
        assert_eq!(total(place), 2_600);
    }

    fn a_bad_line_stops_it_with_an_exact_account(place) {
        let mut text = lines(1_500, "k");
        text.push_str("{\"type\":\"a\"\n");
        text.push_str(&lines(10, "l"));
        let (code, _, stderr) = place.run(&["publish", "--bulk", "-"], &text);
        let expected = "\
Published 1000 events
  published      lines 1–1000
  not published  lines 1001–1501
  not sent       from line 1502 on
error: line 1501: is not a JSON object: EOF while parsing an object at line 1 column 11
";
        assert_eq!((code, stderr.as_str()), (2, expected));
        assert_eq!(total(place), 1_000);
        let (code, stdout, _) = place.run(&["publish", "--bulk", "-", "--json"], &text);
        let told: Value = serde_json::from_str(&stdout).unwrap();
        assert_eq!((code, &told["done_lines"], &told["not_published_lines"]), (2, &json!([[1, 1000]]), &json!([[1001, 1501]])));
        assert_eq!((&told["duplicates"], &told["not_sent_from"]), (&json!(1_000), &json!(1_502)));
        assert!(told["stopped"].as_str().unwrap().starts_with("line 1501: is not a JSON object"), "{told}");
    }

    fn what_the_queue_refuses_is_named_by_its_line(place) {
        let text = format!("{}{{\"titel\":\"x\"}}\n{{\"tags\":\"a\"}}\n{}", lines(3, "k"), lines(3, "l"));
        let (code, _, stderr) = place.run(&["publish", "--bulk", "-"], &text);
        assert_eq!(code, 2);
        assert!(stderr.contains("not published  lines 1–8") && stderr.contains("error: line 4: titel: unknown field"));
        assert_eq!(total(place), 0);
        let (code, stdout, stderr) = place.run(&["publish", "--bulk", "-", "--skip-bad"], &text);
        assert_eq!((code, stdout.as_str()), (1, "Published 6 events; 2 bad lines passed over\n"));
        assert!(stderr.contains("line 4: titel: unknown field"), "{stderr}");
        assert!(stderr.contains("line 5: title: is required for an event without a type"), "{stderr}");
        assert!(stderr.ends_with("error: 2 bad lines passed over; all others are published\n"), "{stderr}");
        let (code, stdout, _) = place.run(&["publish", "--bulk", "-", "--from-line", "7"], &text);
        assert_eq!((code, stdout.as_str()), (0, "Published 0 events; 2 there already, by their key\n"));
    }

    fn events_of_a_group_keep_their_order_across_batches(place) {
        let text: String = (0..2_500).map(|n| format!("{{\"type\":\"a\",\"group_id\":\"g\",\"payload\":{n}}}\n")).collect();
        assert_eq!(place.run(&["publish", "--bulk", "-"], &text).0, 0);
        let mut payloads = Vec::new();
        for offset in [0, 1_000, 2_000] {
            let filter = ListFilter { limit: 1_000, offset, ..Default::default() };
            let page = place.block_on(place.queue.list(filter)).unwrap();
            payloads.extend(page.items.iter().map(|view| view.event.payload.get().parse::<u32>().unwrap()));
        }
        payloads.reverse();
        assert_eq!(payloads, (0..2_500).collect::<Vec<_>>());
    }
}

/// A server that takes a request and never answers: at the first Ctrl-C it is waited for, at the second no longer.
#[cfg(unix)]
#[test]
fn who_is_told_twice_to_stop_waits_no_longer_and_tells_what_is_unknown() {
    use std::io::{BufRead, BufReader, Write};
    use std::process::Stdio;

    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = format!("http://{}", listener.local_addr().unwrap());
    let mut command = crate::windlass::windlass(&["publish", "--server", &address, "--bulk", "-"]);
    let mut process = command.stdin(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    // A whole batch, and then no end, so that it waits for more while the answer is missing.
    let mut input = process.stdin.take().unwrap();
    input.write_all(lines(1_000, "k").as_bytes()).unwrap();
    let (mut connection, _) = listener.accept().unwrap();
    assert!(connection.read(&mut [0; 100]).unwrap() > 0);
    let pid = process.id();
    let interrupt = || crate::work::place::signal(pid, "INT");
    let mut stderr = BufReader::new(process.stderr.take().unwrap());
    interrupt();
    let mut said = String::new();
    stderr.read_line(&mut said).unwrap();
    assert!(said.starts_with("Waiting for the answers"), "{said}");
    interrupt();
    stderr.read_to_string(&mut said).unwrap();
    let account =
        "Published 0 events\n  unknown        lines 1–1000\n  not sent       from line 1001 on\nerror: interrupted\n";
    assert!(said.ends_with(account), "{said}");
    assert_eq!(process.wait().unwrap().code(), Some(1));
}

#[test]
fn the_exit_code_tells_where_nobody_reads_the_account() {
    use std::io::Write;
    use std::process::Stdio;

    let place = Place::sqlite();
    let mut command = place.command(&["publish", "--bulk", "-", "--skip-bad"]);
    let mut process = command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    drop(process.stderr.take());
    process.stdin.take().unwrap().write_all(b"oops\n{\"type\":\"a\"}\n").unwrap();
    assert_eq!(process.wait().unwrap().code(), Some(1));
    assert_eq!(total(&place), 1);
}

/// A server that takes a request, and is gone before it answers.
#[test]
fn where_the_connection_is_lost_nobody_knows_and_it_says_so() {
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
