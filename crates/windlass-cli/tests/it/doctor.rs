//! `windlass doctor`, on a database of each kind and on a server.

use serde_json::Value;

use crate::bed::Bed;
use crate::windlass::{Server, run, sqlite_url};

/// Exit code and what was printed, with `N` for each number and `DB` for where it was.
fn doctor(place: [&str; 2], args: &[&str]) -> String {
    let (code, stdout, stderr) = run(&[&["doctor"], args, &place[..]].concat());
    assert_eq!(stderr, "");
    format!("{}[exit code {code}]", steady(&stdout.replace(place[1], "DB")))
}

fn steady(text: &str) -> String {
    let mut steady = String::new();
    for c in text.chars() {
        match c {
            '0'..='9' if steady.ends_with('N') => {}
            '0'..='9' => steady.push('N'),
            c => steady.push(c),
        }
    }
    // Sizes and the like, and what depends on the machine.
    let mut steady = steady.replace("N.N", "N").replace("ahead of", "behind");
    while steady.contains("N,N") {
        steady = steady.replace("N,N", "N");
    }
    for unit in ["N bytes", "N KiB", "N GiB", "N TiB"] {
        steady = steady.replace(unit, "N MiB");
    }
    let machine = ["local (", "PostgreSQL N", "Debian", "not known on this system", "the oldest table is "];
    let line = |line: &str| match machine.iter().find_map(|known| line.find(known)) {
        Some(at) => format!("{}…\n", &line[..at]),
        None => format!("{line}\n"),
    };
    steady.lines().map(line).collect()
}

fn snapshot(name: &str, found: &str) {
    let mut settings = insta::Settings::clone_current();
    settings.set_prepend_module_to_snapshot(false);
    settings.set_omit_expression(true);
    settings.bind(|| insta::assert_snapshot!(name, found));
}

fn migrate(url: &str) {
    assert_eq!(run(&["migrate", "up", "--database", url]).0, 0);
}

/// Something that is wrong on any database.
fn pause(url: &str) {
    let paused = run(&["namespace", "pause", "default", "--database", url]);
    assert_eq!(paused.0, 0, "{paused:?}");
}

#[test]
fn sqlite_is_examined() {
    let folder = tempfile::tempdir().unwrap();
    let url = &sqlite_url(folder.path());
    migrate(url);
    snapshot("doctor_sqlite", &doctor(["--database", url], &[]));
    assert_eq!(doctor(["--database", url], &["--quiet"]), "[exit code 0]");
    pause(url);
    snapshot("doctor_sqlite_quiet", &doctor(["--database", url], &["--quiet"]));
    let full = doctor(["--database", url], &["--full"]);
    assert!(full.contains("all of it was read"), "{full}");
}

#[test]
fn postgres_is_examined() {
    let bed = Bed::postgres();
    let [_, url] = &bed.reach();
    migrate(url);
    // Whether the server of the tests is durable is not the test's business: the usual one is fast instead.
    let found = doctor(["--database", url], &[]);
    let own = |line: &&str| !["durability", "ALTER SYSTEM", "exit code"].iter().any(|other| line.contains(other));
    let lines: Vec<&str> = found.lines().filter(own).filter(|line| *line != "problem").skip(1).collect();
    snapshot("doctor_postgres", lines.join("\n").trim_start());
    let (code, _, stderr) = run(&["doctor", "--full", "--database", url]);
    assert_eq!((code, stderr.as_str()), (2, "error: --full: is for SQLite; PostgreSQL has pg_amcheck\n"));
}

#[test]
fn a_server_is_examined() {
    let folder = tempfile::tempdir().unwrap();
    let url = &sqlite_url(folder.path());
    migrate(url);
    pause(url);
    let server = Server::start(url);
    let address = &format!("http://{}", server.address());
    snapshot("doctor_server", &doctor(["--server", address], &[]));
    let (code, _, stderr) = run(&["doctor", "--full", "--server", address]);
    assert_eq!(code, 2);
    assert!(stderr.starts_with("error: --full: a server is not asked"), "{stderr}");
}

#[test]
fn json_is_the_answer_of_the_api() {
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
    // A database has nobody who could get in.
    assert_eq!(shape(&of_database).len() + 1, shape(&of_server).len());
    assert_eq!(of_database["level"], "ok");
}

#[test]
fn what_is_wrong_shows_in_the_exit_code() {
    let folder = tempfile::tempdir().unwrap();
    let url = &sqlite_url(folder.path());
    migrate(url);
    let connection = windlass::rusqlite::Connection::open(folder.path().join("windlass.db")).unwrap();
    connection.execute_batch("DROP INDEX dead_letters_by_time").unwrap();
    snapshot("doctor_problem", &doctor(["--database", url], &["-q"]));
}

#[test]
fn a_database_that_cannot_be_opened_is_the_report() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    let url = |name: &str| format!("sqlite://{}", path(name).display());
    std::fs::write(path("letter.db"), "Dear reader, this is no database at all.\n".repeat(100)).unwrap();
    std::fs::write(path("empty.db"), "").unwrap();
    windlass::rusqlite::Connection::open(path("old.db")).unwrap().execute_batch(OLD).unwrap();
    let mut report = String::new();
    for name in ["missing.db", "letter.db", "empty.db", "old.db"] {
        let (code, stdout, stderr) = run(&["doctor", "--database", &url(name)]);
        assert_eq!(stderr, "");
        let stdout = stdout.replace(&folder.path().display().to_string(), "FOLDER");
        report += &format!("{name}\n{}[exit code {code}]\n\n", steady(&stdout));
    }
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    report += &format!("no server\n{}\n\n", doctor(["--server", &format!("http://{free}")], &[]));
    let postgres = format!("postgres://me:secret@{free}/events");
    let (code, stdout, stderr) = run(&["doctor", "--database", &postgres]);
    assert!(!stdout.contains("secret") && stderr.is_empty(), "{stdout}{stderr}");
    report += &format!("no PostgreSQL\n{}[exit code {code}]", steady(&stdout.replace(&free.to_string(), "HOST")));
    snapshot("doctor_unopened", &report);
    assert!(!path("missing.db").exists());

    let (code, stdout, _) = run(&["doctor", "--json", "--database", &url("missing.db")]);
    let report: Value = serde_json::from_str(&stdout).unwrap();
    assert_eq!((code, &report["level"]), (1, &Value::from("problem")));
    assert_eq!(report["findings"][0]["check"], "database");
}

const OLD: &str = "
CREATE TABLE windlass_migrations (version INTEGER PRIMARY KEY, name TEXT NOT NULL, applied_at INTEGER NOT NULL);
INSERT INTO windlass_migrations VALUES (1, 'engine', 0);";
