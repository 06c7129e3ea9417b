//! How it stops: signals.

use serde_json::json;

use super::place::lives;

/// Waits for the file `go`, and says when it is there to wait.
const WAITS: &str = "echo $$ > on; while [ ! -e go ]; do sleep 0.05; done";

in_each_place! {
    fn the_first_signal_lets_commands_finish(place) {
        let id = place.event(json!(1));
        let mut working = place.work(&[], WAITS);
        place.wait_for("on");
        working.signal("INT");
        working.says("stopping");
        let later = place.event(json!(2));
        place.write("go", "");
        let (code, stderr) = working.end();
        assert_eq!(code, Some(0), "{stderr}");
        assert_eq!((place.status(id), place.actions(later).len()), ("COMPLETED".into(), 0));
    }

    fn a_worker_without_work_stops_at_once(place) {
        let mut working = place.work(&["--max", "2"], "true");
        place.event(json!(1));
        working.says("done");
        working.signal("TERM");
        assert_eq!(working.end().0, Some(0));
    }

    fn the_second_signal_ends_commands_and_gives_their_events_back(place) {
        let id = place.event(json!(1));
        // Whoever exits with 0 when told to end has not done its work.
        let mut working = place.work(&[], "trap 'exit 0' TERM; echo $$ > on; while :; do sleep 0.05; done");
        let pid = place.wait_for("on");
        working.signal("TERM");
        working.says("stopping");
        assert!(lives(&pid));
        working.signal("TERM");
        let (code, stderr) = working.end();
        assert_eq!(code, Some(0), "{stderr}");
        assert!(!lives(&pid));
        let shown = place.show(id);
        assert_eq!((&shown["status"], &shown["retry_count"]), (&json!("PENDING"), &json!(0)));
        assert_eq!(place.actions(id), ["PICKED", "STARTED", "RELEASED"]);
    }

    /// Its commands would go on without it otherwise.
    fn a_terminal_that_is_closed_stops_it(place) {
        let id = place.event(json!(1));
        let mut working = place.work(&["--grace", "0s"], "echo $$ > on; exec sleep 1000");
        let pid = place.wait_for("on");
        working.signal("HUP");
        working.says("stopping");
        assert_eq!(working.end().0, Some(0));
        assert!(!lives(&pid));
        assert_eq!(place.actions(id), ["PICKED", "STARTED", "RELEASED"]);
    }

    fn after_the_grace_time_commands_are_ended(place) {
        let id = place.event(json!(1));
        let working = place.work(&["--grace", "1s"], "echo $$ > on; exec sleep 1000");
        let pid = place.wait_for("on");
        working.signal("INT");
        let (code, stderr) = working.end();
        assert_eq!(code, Some(0), "{stderr}");
        assert!(!lives(&pid));
        assert_eq!(place.actions(id), ["PICKED", "STARTED", "RELEASED"]);
    }

    fn who_does_not_listen_is_killed(place) {
        let id = place.event(json!(1));
        let working = place.work(&["--grace", "0s"], "trap '' TERM; echo $$ > on; while :; do sleep 0.05; done");
        let pid = place.wait_for("on");
        working.signal("TERM");
        assert_eq!(working.end().0, Some(0));
        assert!(!lives(&pid));
        assert_eq!(place.actions(id).last().map(String::as_str), Some("RELEASED"));
    }
}
