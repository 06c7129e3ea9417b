//! `windlass work` when the worker or the server is killed.

use serde_json::json;
use windlass_testkit::wait_until;

use super::fixture::WorkFixture;

test_on_each_target! {
    fn killed_worker_loses_no_events(fixture) {
        let ids: Vec<i64> = (0..3).map(|n| fixture.publish_payload(json!(n))).collect();
        let script = "cat >> seen; echo >> seen; if [ ! -e crashed ]; then echo on > on; exec sleep 30; fi";
        let worker = fixture.start_worker(&["--lease", "1s"], script);
        fixture.wait_for("on");
        worker.signal("KILL");
        assert_eq!(worker.wait().0, None);
        fixture.write("crashed", "");
        let next = fixture.start_worker(&["--lease", "1s", "--max", "3"], script);
        assert_eq!(next.wait().0, Some(0));
        let statuses: Vec<String> = ids.iter().map(|id| fixture.status(*id)).collect();
        assert_eq!(statuses, ["COMPLETED"; 3]);
        // Only the event of the expired lease is processed again.
        let mut seen: Vec<String> = fixture.read("seen").lines().map(str::to_owned).collect();
        seen.sort();
        assert_eq!(seen, ["0", "0", "1", "2"]);
        assert!(fixture.actions(ids[0]).contains(&"ABANDONED".to_owned()));
    }
}

#[test]
fn killed_server_loses_no_events() {
    let mut fixture = WorkFixture::server();
    let id = fixture.publish_payload(json!(1));
    // The outcome of a command that ended while the server was down is reported after its restart.
    let mut worker =
        fixture.start_worker(&["--max", "2"], "echo on > on; while [ ! -e crashed ]; do sleep 0.05; done; echo done");
    fixture.wait_for("on");
    fixture.crash_server();
    wait_until("the report", || (fixture.status(id) == "COMPLETED").then_some(()));
    assert_eq!(fixture.last_log_entry(id)["detail"]["stdout"], "done\n");
    let next = fixture.publish_payload(json!(2));
    worker.read_until("[2] done");
    let (code, stderr) = worker.wait();
    assert_eq!((code, fixture.status(next)), (Some(0), "COMPLETED".into()), "{stderr}");
    assert_eq!(fixture.actions(id), ["PICKED", "STARTED", "COMPLETED"]);
}
