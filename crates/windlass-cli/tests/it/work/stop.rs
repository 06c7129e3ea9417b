//! How `windlass work` stops on signals.

use serde_json::json;

use super::fixture::is_alive;

/// Writes the file `on` and waits for the file `go`.
const WAIT_FOR_GO: &str = "echo $$ > on; while [ ! -e go ]; do sleep 0.05; done";

test_on_each_target! {
    fn first_signal_lets_commands_finish(fixture) {
        let id = fixture.publish_payload(json!(1));
        let mut worker = fixture.start_worker(&[], WAIT_FOR_GO);
        fixture.wait_for("on");
        worker.signal("INT");
        worker.read_until("stopping");
        let later = fixture.publish_payload(json!(2));
        fixture.write("go", "");
        let (code, stderr) = worker.wait();
        assert_eq!(code, Some(0), "{stderr}");
        assert_eq!((fixture.status(id), fixture.actions(later).len()), ("COMPLETED".into(), 0));
    }

    fn idle_worker_stops_immediately(fixture) {
        let mut worker = fixture.start_worker(&["--max", "2"], "true");
        fixture.publish_payload(json!(1));
        worker.read_until("done");
        worker.signal("TERM");
        assert_eq!(worker.wait().0, Some(0));
    }

    fn second_signal_ends_commands_and_releases_their_events(fixture) {
        let id = fixture.publish_payload(json!(1));
        // A command that exits with 0 on SIGTERM has not completed its work.
        let mut worker = fixture.start_worker(&[], "trap 'exit 0' TERM; echo $$ > on; while :; do sleep 0.05; done");
        let pid = fixture.wait_for("on");
        worker.signal("TERM");
        worker.read_until("stopping");
        assert!(is_alive(&pid));
        worker.signal("TERM");
        let (code, stderr) = worker.wait();
        assert_eq!(code, Some(0), "{stderr}");
        assert!(!is_alive(&pid));
        let shown = fixture.delivery(id);
        assert_eq!((&shown["status"], &shown["retry_count"]), (&json!("PENDING"), &json!(0)));
        assert_eq!(fixture.actions(id), ["PICKED", "STARTED", "RELEASED"]);
    }

    /// Otherwise its commands would continue without it.
    fn closed_terminal_stops_the_worker(fixture) {
        let id = fixture.publish_payload(json!(1));
        let mut worker = fixture.start_worker(&["--grace", "0s"], "echo $$ > on; exec sleep 1000");
        let pid = fixture.wait_for("on");
        worker.signal("HUP");
        worker.read_until("stopping");
        assert_eq!(worker.wait().0, Some(0));
        assert!(!is_alive(&pid));
        assert_eq!(fixture.actions(id), ["PICKED", "STARTED", "RELEASED"]);
    }

    fn commands_are_ended_after_the_grace_time(fixture) {
        let id = fixture.publish_payload(json!(1));
        let worker = fixture.start_worker(&["--grace", "1s"], "echo $$ > on; exec sleep 1000");
        let pid = fixture.wait_for("on");
        worker.signal("INT");
        let (code, stderr) = worker.wait();
        assert_eq!(code, Some(0), "{stderr}");
        assert!(!is_alive(&pid));
        assert_eq!(fixture.actions(id), ["PICKED", "STARTED", "RELEASED"]);
    }

    fn command_that_ignores_sigterm_is_killed(fixture) {
        let id = fixture.publish_payload(json!(1));
        let script = "trap '' TERM; echo $$ > on; while :; do sleep 0.05; done";
        let worker = fixture.start_worker(&["--grace", "0s"], script);
        let pid = fixture.wait_for("on");
        worker.signal("TERM");
        assert_eq!(worker.wait().0, Some(0));
        assert!(!is_alive(&pid));
        assert_eq!(fixture.actions(id).last().map(String::as_str), Some("RELEASED"));
    }
}
