//! Snapshots of the commands that change the configuration: namespaces, subscriptions, schedules.

use crate::fixture::CliFixture;

snapshot_on_each_target! { namespaces subscriptions schedules }

fn namespaces(mut fixture: CliFixture) {
    fixture.write_file("policy.json", r#"{"max_retries": 5, "types": {"mail.*": {"lease_ms": 90000}}}"#);
    fixture.write_file("bad.json", "[1]");
    fixture
        .seed(&[])
        .run("namespace create orders --preset queue --policy policy.json --metadata '{\"team\":\"shop\"}'")
        .run("namespace create orders")
        .run("namespace show orders")
        .run("namespace set orders")
        .run("namespace set nowhere --preset queue")
        .run("namespace set orders --preset nonsense")
        .run("namespace set orders --policy bad.json")
        .run("namespace set orders --policy missing.json")
        .run("namespace set orders --preset bus --json")
        .run("namespace pause orders --type 'mail.*'")
        .run("namespace pause orders")
        .run("namespace list")
        .run("namespace resume orders")
        .run("namespace resume orders --type 'mail.*' --json")
        .assert_snapshot("configure_namespaces");
}

fn subscriptions(mut fixture: CliFixture) {
    fixture
        .seed(&[("POST", "/events", r#"{"type":"order.paid","payload":1}"#)])
        .run("subscription add audit --type 'order.*' --tag shop,web --policy '{\"max_retries\":9}'")
        .run("subscription add audit")
        .run("subscription add billing --since 1h --json")
        .run("subscription pause audit")
        .run("subscription list")
        .run("subscription resume audit --json")
        .run("subscription remove billing")
        .run("subscription remove billing --yes")
        .run("subscription remove billing --yes --json")
        .run("subscription remove main --yes")
        .assert_snapshot("configure_subscriptions");
}

fn schedules(mut fixture: CliFixture) {
    fixture.write_file("payload.json", r#"{"day": "{{tick.date}}"}"#);
    fixture.seed(&[])
        .run("schedule add nightly --cron '0 3 * * *' --timezone Europe/Berlin --type report.due --payload @payload.json --title Report --tags daily --missed all --paused")
        .run("schedule add nightly --cron '0 4 * * *' --type report.due")
        .run("schedule add yearly --cron '0 0 1 1 *' --type year.begun --expires-in 10m --json")
        .run("schedule list")
        .run("schedule list --paused --json")
        .run("schedule edit nightly --cron '30 2 * * *' --title '' --group reports --max-retries 2")
        .run("schedule run nightly")
        .run("schedule show nightly")
        .run("schedule resume yearly")
        .run("schedule pause yearly")
        .run("schedule show nothing")
        .run("schedule show 00000000-0000-0000-0000-000000000000")
        .run("schedule remove nightly")
        .run("schedule remove nightly --yes")
        .run("schedule list")
        .assert_snapshot("configure_schedules");
}
