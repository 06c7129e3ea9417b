//! `windlass doctor` on each database and on a server.

use serde_json::Value;
use windlass_testkit::{sqlite_url, unused_address};

use crate::fixture::CliFixture;
use crate::windlass::{Server, run};

/// Runs the command. Returns the output and the exit code, with `N` for each number and `DB` for the location.
fn doctor(target: [&str; 2], args: &[&str]) -> String {
    let (code, stdout, stderr) = run(&[&["doctor"], args, &target[..]].concat());
    assert_eq!(stderr, "");
    format!("{}[exit code {code}]", normalize(&stdout.replace(target[1], "DB")))
}

fn normalize(text: &str) -> String {
    let mut normalized = String::new();
    for c in text.chars() {
        match c {
            '0'..='9' if normalized.ends_with('N') => {}
            '0'..='9' => normalized.push('N'),
            c => normalized.push(c),
        }
    }
    // Unify numbers, units and everything that depends on the machine.
    let mut normalized = normalized.replace("N.N", "N").replace("ahead of", "behind");
    while normalized.contains("N,N") {
        normalized = normalized.replace("N,N", "N");
    }
    for unit in ["N bytes", "N KiB", "N GiB", "N TiB"] {
        normalized = normalized.replace(unit, "N MiB");
    }
    let machine = ["local (", "PostgreSQL N", "Debian", "not known on this system", "the oldest table is "];
    let line = |line: &str| match machine.iter().find_map(|known| line.find(known)) {
        Some(at) => format!("{}…\n", &line[..at]),
        None => format!("{line}\n"),
    };
    normalized.lines().map(line).collect()
}

fn assert_doctor_snapshot(name: &str, found: &str) {
    let mut settings = insta::Settings::clone_current();
    settings.set_prepend_module_to_snapshot(false);
    settings.set_omit_expression(true);
    settings.bind(|| insta::assert_snapshot!(name, found));
}

fn migrate(url: &str) {
    assert_eq!(run(&["migrate", "up", "--database", url]).0, 0);
}

/// Pauses the default namespace, which is a finding on any database.
fn pause(url: &str) {
    let paused = run(&["namespace", "pause", "default", "--database", url]);
    assert_eq!(paused.0, 0, "{paused:?}");
}

#[test]
fn doctor_checks_sqlite() {
    let folder = tempfile::tempdir().unwrap();
    let url = &sqlite_url(folder.path());
    migrate(url);
    assert_doctor_snapshot("doctor_sqlite", &doctor(["--database", url], &[]));
    assert_eq!(doctor(["--database", url], &["--quiet"]), "[exit code 0]");
    pause(url);
    assert_doctor_snapshot("doctor_sqlite_quiet", &doctor(["--database", url], &["--quiet"]));
    let full = doctor(["--database", url], &["--full"]);
    assert!(full.contains("the whole file was read"), "{full}");
}

#[test]
fn doctor_checks_postgres() {
    let fixture = CliFixture::postgres();
    let [_, url] = &fixture.target_args();
    migrate(url);
    // Ignore the durability check: PostgreSQL servers for tests are usually configured for speed.
    let found = doctor(["--database", url], &[]);
    let is_relevant =
        |line: &&str| !["durability", "ALTER SYSTEM", "exit code"].iter().any(|other| line.contains(other));
    let lines: Vec<&str> = found.lines().filter(is_relevant).filter(|line| *line != "problem").skip(1).collect();
    assert_doctor_snapshot("doctor_postgres", lines.join("\n").trim_start());
    let (code, _, stderr) = run(&["doctor", "--full", "--database", url]);
    assert_eq!((code, stderr.as_str()), (2, "error: --full: is for SQLite; PostgreSQL has pg_amcheck\n"));
}

#[test]
fn doctor_checks_a_server() {
    let folder = tempfile::tempdir().unwrap();
    let url = &sqlite_url(folder.path());
    migrate(url);
    pause(url);
    let server = Server::start(url);
    let address = &format!("http://{}", server.address());
    assert_doctor_snapshot("doctor_server", &doctor(["--server", address], &[]));
    let (code, _, stderr) = run(&["doctor", "--full", "--server", address]);
    assert_eq!(code, 2);
    assert!(stderr.starts_with("error: --full: a server is not asked"), "{stderr}");
}

#[test]
fn json_output_equals_the_api_response() {
    let folder = tempfile::tempdir().unwrap();
    let url = &sqlite_url(folder.path());
    migrate(url);
    let json = |args: &[&str]| -> Value {
        let (code, stdout, stderr) = run(args);
        assert_eq!(code, 0, "{stderr}");
        serde_json::from_str(&stdout).unwrap()
    };
    let of_database = json(&["doctor", "--json", "--database", url]);
    let server = Server::start(url);
    let of_server = json(&["doctor", "--json", "--server", &format!("http://{}", server.address())]);
    let of_api = server.json("GET", "/doctor", "", 200);
    let shape = |report: &Value| -> Vec<String> {
        let findings = report["findings"].as_array().unwrap().iter();
        let keys = |finding: &Value| finding.as_object().unwrap().keys().cloned().collect::<Vec<_>>().join(",");
        findings.map(|finding| format!("{} {}", finding["check"], keys(finding))).collect()
    };
    assert_eq!(shape(&of_server), shape(&of_api));
    // Only a server has the check of access.
    assert_eq!(shape(&of_database).len() + 1, shape(&of_server).len());
    assert_eq!(of_database["level"], "ok");
}

#[test]
fn problem_sets_the_exit_code() {
    let folder = tempfile::tempdir().unwrap();
    let url = &sqlite_url(folder.path());
    migrate(url);
    let connection = windlass::rusqlite::Connection::open(folder.path().join("windlass.db")).unwrap();
    connection.execute_batch("DROP INDEX dead_letters_by_time").unwrap();
    assert_doctor_snapshot("doctor_problem", &doctor(["--database", url], &["-q"]));
}

#[test]
fn unopened_database_is_reported_as_a_finding() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    let url = |name: &str| format!("sqlite://{}", path(name).display());
    std::fs::write(path("letter.db"), "Dear reader, this is no database at all.\n".repeat(100)).unwrap();
    std::fs::write(path("empty.db"), "").unwrap();
    windlass::rusqlite::Connection::open(path("old.db")).unwrap().execute_batch(OLD_SCHEMA).unwrap();
    let mut report = String::new();
    for name in ["missing.db", "letter.db", "empty.db", "old.db"] {
        let (code, stdout, stderr) = run(&["doctor", "--database", &url(name)]);
        assert_eq!(stderr, "");
        let stdout = stdout.replace(&folder.path().display().to_string(), "FOLDER");
        report += &format!("{name}\n{}[exit code {code}]\n\n", normalize(&stdout));
    }
    let free = unused_address();
    report += &format!("no server\n{}\n\n", doctor(["--server", &format!("http://{free}")], &[]));
    let postgres = format!("postgres://me:secret@{free}/events");
    let (code, stdout, stderr) = run(&["doctor", "--database", &postgres]);
    assert!(!stdout.contains("secret") && stderr.is_empty(), "{stdout}{stderr}");
    report += &format!("no PostgreSQL\n{}[exit code {code}]", normalize(&stdout.replace(&free.to_string(), "HOST")));
    assert_doctor_snapshot("doctor_unopened", &report);
    assert!(!path("missing.db").exists());

    let (code, stdout, _) = run(&["doctor", "--json", "--database", &url("missing.db")]);
    let report: Value = serde_json::from_str(&stdout).unwrap();
    assert_eq!((code, &report["level"]), (1, &Value::from("problem")));
    assert_eq!(report["findings"][0]["check"], "database");
}

const OLD_SCHEMA: &str = "
CREATE TABLE windlass_migrations (version INTEGER PRIMARY KEY, name TEXT NOT NULL, applied_at INTEGER NOT NULL);
INSERT INTO windlass_migrations VALUES (1, 'engine', 0);";
