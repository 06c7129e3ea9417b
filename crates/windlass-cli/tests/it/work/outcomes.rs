//! What commands receive from `windlass work`, and the outcomes of their events.

use serde_json::{Value, json};
use windlass::NewEvent;
use windlass_testkit::wait_until;

use super::fixture::is_alive;

test_on_each_target! {
    fn exit_code_decides_the_outcome(fixture) {
        let ids: Vec<i64> = [0, 3, 65, 75].iter().map(|code| fixture.publish_payload(json!(code))).collect();
        let killed = fixture.publish_payload(json!("kill"));
        let stderr = fixture.work_until_empty(
            &["--concurrency", "3"],
            r#"code=$(cat); echo trouble >&2; if [ "$code" = '"kill"' ]; then kill -9 $$; fi; exit $code"#,
        );
        let outcome = |id: i64| {
            let (shown, end) = (fixture.delivery(id), fixture.last_log_entry(id));
            let text = |value: &Value| value.as_str().unwrap_or("–").to_owned();
            let message = text(&end["error_message"]);
            format!("{} {} {message} {}", text(&shown["status"]), text(&end["action"]), end["status_code"])
        };
        assert_eq!(outcome(ids[0]), "COMPLETED COMPLETED – 0");
        assert_eq!(outcome(ids[1]), "PENDING FAILED exit code 3: trouble 3");
        assert_eq!(outcome(ids[2]), "FAILED FAILED exit code 65: trouble 65");
        assert_eq!(outcome(ids[3]), "PENDING SNOOZED – 75");
        assert_eq!(outcome(killed), "PENDING FAILED ended by SIGKILL: trouble null");
        let retries: Vec<Value> = ids.iter().map(|id| fixture.delivery(*id)["retry_count"].clone()).collect();
        assert_eq!(retries, [0, 1, 1, 0]);
        assert!(stderr.contains(&format!("[{}] trouble", ids[0])), "{stderr}");
        for word in ["done", "failed", "dead-lettered", "snoozed"] {
            assert!(stderr.contains(word), "{word}: {stderr}");
        }
    }

    // O4
    fn group_run_stops_at_the_first_failure(fixture) {
        let event = |n: usize| NewEvent::new("t").group("g").payload(&n).unwrap();
        let ids: Vec<i64> = (0..6).map(|n| fixture.publish(event(n))).collect();
        let script = "n=$(cat); echo $n >> seen; [ $n != 3 ]";
        fixture.work_until_empty(&["--concurrency", "4", "--group-run", "5"], script);
        assert_eq!(fixture.read("seen"), "0\n1\n2\n3\n");
        let statuses: Vec<String> = ids.iter().map(|id| fixture.status(*id)).collect();
        assert_eq!(statuses[..3], ["COMPLETED"; 3]);
        assert_eq!(statuses[3..], ["PENDING"; 3]);
        // The later events were released and wait for the retry of the failed one.
        assert_eq!(fixture.delivery(ids[4])["attempts"], json!(0));
    }

    fn command_output_is_stored_with_the_attempt(fixture) {
        let id = fixture.publish_payload(json!(1));
        fixture.work_until_empty(&["--quiet"], "printf 'out\\nGrüße\\377'; echo err >&2; exit 1");
        let detail = json!({ "exit_code": 1, "stdout": "out\nGrüße\u{fffd}", "stderr": "err\n" });
        assert_eq!(fixture.last_log_entry(id)["detail"], detail);
        assert_eq!(fixture.last_log_entry(id)["error_message"], "exit code 1: err");
    }

    fn long_output_is_truncated_to_its_end(fixture) {
        let id = fixture.publish_payload(json!(1));
        let script = "yes 'quote \" and tab\t' | head -c 3000000; echo the end; echo x >&2";
        let stderr = fixture.work_until_empty(&["--quiet"], script);
        let detail = fixture.last_log_entry(id)["detail"].clone();
        assert_eq!((fixture.status(id).as_str(), &detail["stdout_bytes"]), ("COMPLETED", &json!(3_000_008)));
        let kept = detail["stdout"].as_str().unwrap();
        assert!(kept.ends_with("the end\n") && (10_000..=16_384).contains(&kept.len()), "{}", kept.len());
        assert!(!stderr.contains("quote") && !stderr.contains("] x"), "output in spite of --quiet: {stderr}");
    }

    fn command_gets_payload_on_stdin_and_fields_as_variables(fixture) {
        let odd = "{\"a\":  [1.50, \"ü\\n\\u0041\"],\n \"b\": \"\u{1F600}'\\\"$HOME`\"}";
        let raw = serde_json::value::RawValue::from_string(odd.to_owned()).unwrap();
        let trace = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
        let event = NewEvent::new("order.paid").title("Zeile 1\nZeile 2").tags_text("a, b").payload_raw(raw);
        let event = event.group("g").key("k").priority(-3).metadata(&json!({ "traceparent": trace })).unwrap();
        let id = fixture.publish(event);
        let bare = fixture.publish(NewEvent::new("bare"));
        let script = "cat > $WINDLASS_EVENT_ID.in; env -0 > $WINDLASS_EVENT_ID.env";
        fixture.work_until_empty(&["--worker-id", "me:1"], script);
        assert_eq!(fixture.read(&format!("{id}.in")), odd);
        assert_eq!(fixture.read(&format!("{bare}.in")), "null");
        let value = |id: i64, name: &str| {
            let all = fixture.read(&format!("{id}.env"));
            all.split('\0').find_map(|entry| entry.strip_prefix(&format!("{name}=")).map(str::to_owned))
        };
        let id_text = id.to_string();
        let expected = [
            ("WINDLASS_EVENT_ID", id_text.as_str()), ("WINDLASS_EVENT_TYPE", "order.paid"),
            ("WINDLASS_EVENT_TITLE", "Zeile 1\nZeile 2"), ("WINDLASS_EVENT_TAGS", "a, b"),
            ("WINDLASS_EVENT_GROUP", "g"), ("WINDLASS_EVENT_KEY", "k"), ("WINDLASS_EVENT_PRIORITY", "-3"),
            ("WINDLASS_ATTEMPT", "1"), ("WINDLASS_RETRY_COUNT", "0"), ("WINDLASS_MAX_RETRIES", "3"),
            ("WINDLASS_NAMESPACE", "default"), ("WINDLASS_SUBSCRIPTION", "main"), ("WINDLASS_WORKER_ID", "me:1"),
            ("TRACEPARENT", trace),
        ];
        for (name, expected) in expected {
            assert_eq!(value(id, name).as_deref(), Some(expected), "{name}");
        }
        for name in ["WINDLASS_EVENT_TITLE", "WINDLASS_EVENT_KEY", "WINDLASS_EVENT_METADATA", "TRACEPARENT"] {
            assert_eq!(value(bare, name), None, "{name}");
        }
    }

    fn large_payload_is_written_whole_or_left_unread(fixture) {
        let large = "x".repeat((1 << 20) - 2);
        let read = fixture.publish_payload(json!(large));
        let unread = fixture.publish(NewEvent::new("u").payload(&large).unwrap());
        fixture.work_until_empty(&["--type", "t"], "cat > in");
        fixture.work_until_empty(&["--type", "u"], "exec 0<&-; true");
        assert_eq!(fixture.read("in"), format!("\"{large}\""));
        assert_eq!((fixture.status(read), fixture.status(unread)), ("COMPLETED".into(), "COMPLETED".into()));
    }

    /// Each command counts the running commands and then waits until three have started, so fewer would hang.
    fn concurrency_limit_is_reached_but_not_exceeded(fixture) {
        let ids: Vec<i64> = (0..9).map(|n| fixture.publish_payload(json!(n))).collect();
        let script = "mkdir -p begun running; touch running/$WINDLASS_EVENT_ID; ls running | wc -l >> most; \
                      touch begun/$WINDLASS_EVENT_ID; \
                      while [ $(ls begun | wc -l) -lt 3 ]; do sleep 0.05; done; rm running/$WINDLASS_EVENT_ID";
        fixture.work_until_empty(&["--concurrency", "3"], script);
        let most = fixture.read("most").lines().map(|line| line.trim().parse::<u32>().unwrap()).max();
        assert_eq!(most, Some(3));
        assert!(ids.iter().all(|id| fixture.status(*id) == "COMPLETED"));
    }

    fn timeout_ends_the_command_and_its_children(fixture) {
        let id = fixture.publish_payload(json!(1));
        fixture.work_until_empty(&["--timeout", "1s"], "sleep 1000 & echo $! > child; echo waiting >&2; wait");
        let end = fixture.last_log_entry(id);
        assert_eq!((&end["action"], &end["error_message"]), (&json!("FAILED"), &json!("timed out after 1 s: waiting")));
        assert_eq!(end["detail"]["stderr"], "waiting\n");
        let child = fixture.wait_for("child");
        wait_until("the end of the child", || (!is_alive(&child)).then_some(()));
    }

    fn background_process_does_not_delay_the_outcome(fixture) {
        let id = fixture.publish_payload(json!(1));
        fixture.work_until_empty(&[], "sleep 1000 & echo $! > child; echo done");
        let stdout = fixture.last_log_entry(id)["detail"]["stdout"].clone();
        assert_eq!((fixture.status(id).as_str(), stdout), ("COMPLETED", json!("done\n")));
        let child = fixture.wait_for("child");
        wait_until("the end of the background process", || (!is_alive(&child)).then_some(()));
    }

    fn command_is_ended_when_its_lease_is_lost(fixture) {
        let id = fixture.publish_payload(json!(1));
        let worker = fixture.start_worker(&["--lease", "1s", "--max", "1"], "echo $$ > pid; exec sleep 1000");
        let pid = fixture.wait_for("pid");
        fixture.block_on(fixture.queue.reset(id, "main", "taken away")).unwrap();
        let (code, stderr) = worker.wait();
        assert_eq!(code, Some(0), "{stderr}");
        assert!(stderr.contains("the lease was lost") && !is_alive(&pid), "{stderr}");
        assert_eq!(fixture.actions(id), ["PICKED", "STARTED", "RESET"]);
    }

    fn lease_is_renewed_while_the_command_runs(fixture) {
        let id = fixture.publish_payload(json!(1));
        let script = "echo on > on; while [ ! -e go ]; do sleep 0.05; done";
        let worker = fixture.start_worker(&["--lease", "1s", "--max", "1"], script);
        fixture.wait_for("on");
        let expiry = || fixture.delivery(id)["lease_expires_at"].clone();
        let first = expiry();
        // Wait for a second change: the first one may replace the expiry that the claim has set.
        let second = wait_until("a renewal", || Some(expiry()).filter(|at| *at != first));
        wait_until("another", || Some(expiry()).filter(|at| *at != second));
        fixture.write("go", "");
        assert_eq!(worker.wait().0, Some(0));
        assert_eq!(fixture.actions(id), ["PICKED", "STARTED", "COMPLETED"]);
    }

    fn only_matching_events_are_claimed(fixture) {
        let publish = |event_type: &str, tag: &str| fixture.publish(NewEvent::new(event_type).tags_text(tag));
        let (mine, other_type, other_tag) = (publish("a.b", "x"), publish("b", "x"), publish("a.c", "y"));
        fixture.work_until_empty(&["--type", "a.*", "--tag", "x,z"], "true");
        let statuses = [mine, other_type, other_tag].map(|id| fixture.status(id));
        assert_eq!(statuses, ["COMPLETED", "PENDING", "PENDING"]);
    }

    fn program_that_cannot_run_fails_no_event(fixture) {
        let id = fixture.publish_payload(json!(1));
        let (code, _, stderr) = fixture.run(&["work", "--", "./no-such-program"], "");
        assert_eq!((code, stderr.as_str()), (2, "error: there is no program './no-such-program'\n"));
        // The file exists but cannot be executed, which is known only after a try.
        fixture.write("script", "#!/no/such/interpreter\n");
        let chmod = std::process::Command::new("chmod").args(["+x", "script"]).current_dir(fixture.folder()).status();
        assert!(chmod.unwrap().success());
        let (code, _, stderr) = fixture.run(&["work", "--", "./script"], "");
        assert_eq!(code, 1, "{stderr}");
        assert!(stderr.contains("error: cannot run './script': No such file"), "{stderr}");
        assert_eq!((fixture.status(id).as_str(), &fixture.delivery(id)["retry_count"]), ("PENDING", &json!(0)));
        assert_eq!(fixture.last_log_entry(id)["action"], "RELEASED");
    }

    /// Linux limits a variable to 128 KiB.
    fn event_too_large_for_the_environment_fails(fixture) {
        let event = NewEvent::new("t").description("x".repeat(200 << 10)).max_retries(0);
        let too_large = fixture.block_on(fixture.unlimited_queue().publish(event)).unwrap().event.id;
        let next = fixture.publish_payload(json!(1));
        fixture.work_until_empty(&[], "true");
        assert_eq!((fixture.status(too_large), fixture.status(next)), ("FAILED".into(), "COMPLETED".into()));
        let error = fixture.last_log_entry(too_large)["error_message"].as_str().unwrap().to_owned();
        assert!(error.starts_with("cannot run '") && error.contains("too long"), "{error}");
    }

    fn worker_is_registered_as_a_node(fixture) {
        let worker = fixture.start_worker(&["--type", "t", "--worker-id", "box:7"], "true");
        let nodes = || fixture.block_on(fixture.queue.nodes()).unwrap();
        let node = wait_until("the node", || nodes().into_iter().next());
        assert_eq!((node.node_id.as_str(), &node.event_types[..]), ("box:7", &["t".to_owned()][..]));
        worker.signal("TERM");
        assert_eq!(worker.wait().0, Some(0));
        assert_eq!(json!(nodes()[0].status), json!("stopped"));
    }
}
