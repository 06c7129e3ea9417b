//! What commands are given, and what becomes of their events.

use serde_json::{Value, json};
use windlass::NewEvent;

use super::place::{lives, until};

in_each_place! {
    fn the_exit_code_is_the_outcome(place) {
        let ids: Vec<i64> = [0, 3, 65, 75].iter().map(|code| place.event(json!(code))).collect();
        let killed = place.event(json!("kill"));
        let stderr = place.work_off(
            &["--concurrency", "3"],
            r#"code=$(cat); echo trouble >&2; if [ "$code" = '"kill"' ]; then kill -9 $$; fi; exit $code"#,
        );
        let told = |id: i64| {
            let (shown, end) = (place.show(id), place.end(id));
            let text = |value: &Value| value.as_str().unwrap_or("–").to_owned();
            let said = text(&end["error_message"]);
            format!("{} {} {said} {}", text(&shown["status"]), text(&end["action"]), end["status_code"])
        };
        assert_eq!(told(ids[0]), "COMPLETED COMPLETED – 0");
        assert_eq!(told(ids[1]), "PENDING FAILED exit code 3: trouble 3");
        assert_eq!(told(ids[2]), "FAILED FAILED exit code 65: trouble 65");
        assert_eq!(told(ids[3]), "PENDING SNOOZED – 75");
        assert_eq!(told(killed), "PENDING FAILED ended by SIGKILL: trouble null");
        let retries: Vec<Value> = ids.iter().map(|id| place.show(*id)["retry_count"].clone()).collect();
        assert_eq!(retries, [0, 1, 1, 0]);
        assert!(stderr.contains(&format!("[{}] trouble", ids[0])), "{stderr}");
        for word in ["done", "failed", "given up", "put back"] {
            assert!(stderr.contains(word), "{word}: {stderr}");
        }
    }

    // O4
    fn events_of_a_group_run_in_order_until_one_fails(place) {
        let event = |n: usize| NewEvent::new("t").group("g").payload(&n).unwrap();
        let ids: Vec<i64> = (0..6).map(|n| place.publish(event(n))).collect();
        let script = "n=$(cat); echo $n >> seen; [ $n != 3 ]";
        place.work_off(&["--concurrency", "4", "--group-run", "5"], script);
        assert_eq!(place.read("seen"), "0\n1\n2\n3\n");
        let statuses: Vec<String> = ids.iter().map(|id| place.status(*id)).collect();
        assert_eq!(statuses[..3], ["COMPLETED"; 3]);
        assert_eq!(statuses[3..], ["PENDING"; 3]);
        // The later ones were released, and wait for the retry of the failed one.
        assert_eq!(place.show(ids[4])["attempts"], json!(0));
    }

    fn what_a_command_prints_is_kept_with_the_attempt(place) {
        let id = place.event(json!(1));
        place.work_off(&["--quiet"], "printf 'out\\nGrüße\\377'; echo err >&2; exit 1");
        let detail = json!({ "exit_code": 1, "stdout": "out\nGrüße\u{fffd}", "stderr": "err\n" });
        assert_eq!(place.end(id)["detail"], detail);
        assert_eq!(place.end(id)["error_message"], "exit code 1: err");
    }

    fn a_flood_of_output_is_cut_to_its_end(place) {
        let id = place.event(json!(1));
        let stderr = place.work_off(&["--quiet"], "yes 'quote \" and tab\t' | head -c 3000000; echo the end; echo x >&2");
        let detail = place.end(id)["detail"].clone();
        assert_eq!((place.status(id).as_str(), &detail["stdout_bytes"]), ("COMPLETED", &json!(3_000_008)));
        let kept = detail["stdout"].as_str().unwrap();
        assert!(kept.ends_with("the end\n") && (10_000..=16_384).contains(&kept.len()), "{}", kept.len());
        assert!(!stderr.contains("quote") && !stderr.contains("] x"), "it was told to be quiet: {stderr}");
    }

    fn a_command_is_given_the_payload_and_the_rest_in_its_environment(place) {
        let odd = "{\"a\":  [1.50, \"ü\\n\\u0041\"],\n \"b\": \"\u{1F600}'\\\"$HOME`\"}";
        let raw = serde_json::value::RawValue::from_string(odd.to_owned()).unwrap();
        let trace = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
        let event = NewEvent::new("order.paid").title("Zeile 1\nZeile 2").tags_text("a, b").payload_raw(raw);
        let event = event.group("g").key("k").priority(-3).metadata(&json!({ "traceparent": trace })).unwrap();
        let id = place.publish(event);
        let bare = place.publish(NewEvent::new("bare"));
        place.work_off(&["--worker-id", "me:1"], "cat > $WINDLASS_EVENT_ID.in; env -0 > $WINDLASS_EVENT_ID.env");
        assert_eq!(place.read(&format!("{id}.in")), odd);
        assert_eq!(place.read(&format!("{bare}.in")), "null");
        let value = |id: i64, name: &str| {
            let all = place.read(&format!("{id}.env"));
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

    fn a_large_payload_is_given_whole_and_need_not_be_read(place) {
        let large = "x".repeat((1 << 20) - 2);
        let (read, unread) = (place.event(json!(large)), place.publish(NewEvent::new("u").payload(&large).unwrap()));
        place.work_off(&["--type", "t"], "cat > in");
        place.work_off(&["--type", "u"], "exec 0<&-; true");
        assert_eq!(place.read("in"), format!("\"{large}\""));
        assert_eq!((place.status(read), place.status(unread)), ("COMPLETED".into(), "COMPLETED".into()));
    }

    /// Each counts who runs beside it, and then waits until three have counted, so fewer would hang.
    fn no_more_run_at_once_than_were_asked_for(place) {
        let ids: Vec<i64> = (0..9).map(|n| place.event(json!(n))).collect();
        let script = "mkdir -p begun running; touch running/$WINDLASS_EVENT_ID; ls running | wc -l >> most; \
                      touch begun/$WINDLASS_EVENT_ID; \
                      while [ $(ls begun | wc -l) -lt 3 ]; do sleep 0.05; done; rm running/$WINDLASS_EVENT_ID";
        place.work_off(&["--concurrency", "3"], script);
        let most = place.read("most").lines().map(|line| line.trim().parse::<u32>().unwrap()).max();
        assert_eq!(most, Some(3));
        assert!(ids.iter().all(|id| place.status(*id) == "COMPLETED"));
    }

    fn a_command_that_takes_too_long_is_ended_with_all_it_started(place) {
        let id = place.event(json!(1));
        place.work_off(&["--timeout", "1s"], "sleep 1000 & echo $! > child; echo waiting >&2; wait");
        let end = place.end(id);
        assert_eq!((&end["action"], &end["error_message"]), (&json!("FAILED"), &json!("timed out after 1 s: waiting")));
        assert_eq!(end["detail"]["stderr"], "waiting\n");
        let child = place.wait_for("child");
        until("the end of what it started", || (!lives(&child)).then_some(()));
    }

    fn what_a_command_leaves_behind_does_not_hold_it_up(place) {
        let id = place.event(json!(1));
        place.work_off(&[], "sleep 1000 & echo $! > child; echo done");
        assert_eq!((place.status(id).as_str(), &place.end(id)["detail"]["stdout"]), ("COMPLETED", &json!("done\n")));
        let child = place.wait_for("child");
        until("the end of what was left behind", || (!lives(&child)).then_some(()));
    }

    fn a_command_whose_event_is_taken_away_is_ended(place) {
        let id = place.event(json!(1));
        let working = place.work(&["--lease", "1s", "--max", "1"], "echo $$ > pid; exec sleep 1000");
        let pid = place.wait_for("pid");
        place.block_on(place.queue.reset(id, "main", "taken away")).unwrap();
        let (code, stderr) = working.end();
        assert_eq!(code, Some(0), "{stderr}");
        assert!(stderr.contains("the lease was lost") && !lives(&pid), "{stderr}");
        assert_eq!(place.actions(id), ["PICKED", "STARTED", "RESET"]);
    }

    fn a_lease_is_renewed_while_the_command_runs(place) {
        let id = place.event(json!(1));
        let working = place.work(&["--lease", "1s", "--max", "1"], "echo on > on; while [ ! -e go ]; do sleep 0.05; done");
        place.wait_for("on");
        let first = place.show(id)["lease_expires_at"].clone();
        // Twice, so that it is not the claim's own.
        let second = until("a renewal", || Some(place.show(id)["lease_expires_at"].clone()).filter(|at| *at != first));
        until("another", || Some(place.show(id)["lease_expires_at"].clone()).filter(|at| *at != second));
        place.write("go", "");
        assert_eq!(working.end().0, Some(0));
        assert_eq!(place.actions(id), ["PICKED", "STARTED", "COMPLETED"]);
    }

    fn only_what_was_asked_for_is_taken(place) {
        let publish = |event_type: &str, tag: &str| place.publish(NewEvent::new(event_type).tags_text(tag));
        let (mine, other_type, other_tag) = (publish("a.b", "x"), publish("b", "x"), publish("a.c", "y"));
        place.work_off(&["--type", "a.*", "--tag", "x,z"], "true");
        let statuses = [mine, other_type, other_tag].map(|id| place.status(id));
        assert_eq!(statuses, ["COMPLETED", "PENDING", "PENDING"]);
    }

    fn what_cannot_be_run_is_told_before_anything_is_taken(place) {
        let id = place.event(json!(1));
        let (code, _, stderr) = place.run(&["work", "--", "./no-such-program"], "");
        assert_eq!((code, stderr.as_str()), (2, "error: there is no program './no-such-program'\n"));
        // There, but nothing that the system can run: known only when it is tried.
        place.write("script", "#!/no/such/interpreter\n");
        let chmod = std::process::Command::new("chmod").args(["+x", "script"]).current_dir(place.path()).status();
        assert!(chmod.unwrap().success());
        let (code, _, stderr) = place.run(&["work", "--", "./script"], "");
        assert_eq!(code, 1, "{stderr}");
        assert!(stderr.contains("error: cannot run './script': No such file"), "{stderr}");
        assert_eq!((place.status(id).as_str(), &place.show(id)["retry_count"]), ("PENDING", &json!(0)));
        assert_eq!(place.end(id)["action"], "RELEASED");
    }

    /// Linux gives a variable 128 KiB.
    fn what_does_not_fit_into_an_environment_is_a_failure_of_that_event(place) {
        let event = NewEvent::new("t").description("x".repeat(200 << 10)).max_retries(0);
        let too_large = place.block_on(place.without_bounds().publish(event)).unwrap().event.id;
        let next = place.event(json!(1));
        place.work_off(&[], "true");
        assert_eq!((place.status(too_large), place.status(next)), ("FAILED".into(), "COMPLETED".into()));
        let error = place.end(too_large)["error_message"].as_str().unwrap().to_owned();
        assert!(error.starts_with("cannot run '") && error.contains("too long"), "{error}");
    }

    fn a_worker_is_known_as_a_node_while_it_works(place) {
        let working = place.work(&["--type", "t", "--worker-id", "box:7"], "true");
        let nodes = || place.block_on(place.queue.nodes()).unwrap();
        let node = until("the node", || nodes().into_iter().next());
        assert_eq!((node.node_id.as_str(), &node.event_types[..]), ("box:7", &["t".to_owned()][..]));
        working.signal("TERM");
        assert_eq!(working.end().0, Some(0));
        assert_eq!(json!(nodes()[0].status), json!("stopped"));
    }
}
