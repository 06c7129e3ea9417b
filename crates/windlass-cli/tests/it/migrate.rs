//! `windlass migrate`.

use serde_json::{Value, json};
use windlass_testkit::{sqlite_url, unused_address};

use crate::windlass::{run, windlass};

fn json(args: &[&str]) -> Value {
    let (code, stdout, stderr) = run(args);
    assert_eq!(code, 0, "{stderr}");
    serde_json::from_str(&stdout).unwrap()
}

#[test]
fn status_and_up_report_the_schema_version() {
    let folder = tempfile::tempdir().unwrap();
    let url = &sqlite_url(folder.path());
    let (status, up) = (["migrate", "status", "--database", url], ["migrate", "up", "--database", url]);
    let known = json(&["migrate", "status", "--json", "--database", url])["known"].as_i64().unwrap();

    let before = format!("{url}: schema version 0, version {known} is needed: run `windlass migrate up`\n");
    assert_eq!(run(&status), (0, before, String::new()));
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0, "asking for the status made a database");
    assert_eq!(run(&up), (0, format!("{url}: schema brought from version 0 to {known}\n"), String::new()));
    assert_eq!(run(&status), (0, format!("{url}: schema version {known}, up to date\n"), String::new()));
    assert_eq!(run(&up), (0, format!("{url}: schema version {known}, up to date already\n"), String::new()));
}

#[test]
fn json_output_has_versions() {
    let folder = tempfile::tempdir().unwrap();
    let url = &sqlite_url(folder.path());
    let status = || json(&["migrate", "status", "--json", "--database", url]);
    let before = status();
    let known = &before["known"];
    assert_eq!(before, json!({ "database": url, "found": 0, "known": known, "up_to_date": false }));
    let up = json(&["migrate", "up", "--json", "--database", url]);
    assert_eq!(up, json!({ "database": url, "from": 0, "to": known }));
    assert_eq!(status(), json!({ "database": url, "found": known, "known": known, "up_to_date": true }));
}

#[test]
fn database_can_come_from_the_environment() {
    let folder = tempfile::tempdir().unwrap();
    let url = sqlite_url(folder.path());
    let output = windlass(&["migrate", "up"]).env("WINDLASS_DATABASE", &url).output().unwrap();
    let stdout = String::from_utf8(output.stdout).unwrap();
    assert!(stdout.starts_with(&url), "{stdout}");
}

#[test]
fn unreachable_database_is_an_error() {
    let free = unused_address();
    let (code, stdout, stderr) =
        run(&["migrate", "status", "--database", &format!("postgres://me:secret@{free}/events")]);
    assert_eq!((code, stdout.as_str()), (5, ""));
    assert!(stderr.starts_with("error: ") && !stderr.contains("secret"), "{stderr}");
}
