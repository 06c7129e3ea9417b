//! What happens when something is killed in the middle.

use serde_json::json;

use super::place::{Place, until};

in_each_place! {
    fn a_worker_that_is_killed_loses_nothing(place) {
        let ids: Vec<i64> = (0..3).map(|n| place.event(json!(n))).collect();
        let script = "cat >> seen; echo >> seen; if [ ! -e crashed ]; then echo on > on; exec sleep 30; fi";
        let working = place.work(&["--lease", "1s"], script);
        place.wait_for("on");
        working.signal("KILL");
        assert_eq!(working.end().0, None);
        place.write("crashed", "");
        let next = place.work(&["--lease", "1s", "--max", "3"], script);
        assert_eq!(next.end().0, Some(0));
        let statuses: Vec<String> = ids.iter().map(|id| place.status(*id)).collect();
        assert_eq!(statuses, ["COMPLETED"; 3]);
        // Handled again after its lease, and only that one.
        let mut seen: Vec<String> = place.read("seen").lines().map(str::to_owned).collect();
        seen.sort();
        assert_eq!(seen, ["0", "0", "1", "2"]);
        assert!(place.actions(ids[0]).contains(&"ABANDONED".to_owned()));
    }
}

#[test]
fn a_server_that_is_killed_and_comes_back_loses_nothing() {
    let mut place = Place::server();
    let id = place.event(json!(1));
    // What was done while the server was away is reported when it is back.
    let mut working =
        place.work(&["--max", "2"], "echo on > on; while [ ! -e crashed ]; do sleep 0.05; done; echo done");
    place.wait_for("on");
    place.crash_server();
    until("the report", || (place.status(id) == "COMPLETED").then_some(()));
    assert_eq!(place.end(id)["detail"]["stdout"], "done\n");
    let next = place.event(json!(2));
    working.says("[2] done");
    let (code, stderr) = working.end();
    assert_eq!((code, place.status(next)), (Some(0), "COMPLETED".into()), "{stderr}");
    assert_eq!(place.actions(id), ["PICKED", "STARTED", "COMPLETED"]);
}
