//! How commands connect to servers and databases, and their exit codes.

use windlass_testkit::sqlite_url;

use crate::windlass::{Server, run, windlass};

#[test]
fn exit_codes_distinguish_errors() {
    let folder = tempfile::tempdir().unwrap();
    let url = sqlite_url(folder.path());
    let (code, created, stderr) = run(&["token", "create", "--database", &url, "--scope", "read", "--json"]);
    assert_eq!(code, 0, "{stderr}");
    let created: serde_json::Value = serde_json::from_str(&created).unwrap();
    let token = created["secret"].as_str().unwrap();
    let server = Server::start(&url);
    let address = format!("http://{}", server.address());

    let run_on_server = |args: &[&str]| run(&[args, &["--server", &address]].concat());
    let (code, _, stderr) = run_on_server(&["stats"]);
    assert_eq!(code, 4, "{stderr}");
    assert!(stderr.contains("hint: give one by --token or WINDLASS_TOKEN"), "{stderr}");
    assert_eq!(run_on_server(&["stats", "--token", token]).0, 0);
    assert_eq!(run_on_server(&["stats", "--token", &format!("{token}0")]).0, 4);
    assert_eq!(run_on_server(&["stats", "--token", "a\nb"]).0, 2);
    let (code, _, stderr) = run_on_server(&["namespace", "pause", "default", "--token", token]);
    assert_eq!(code, 4, "{stderr}");
    assert!(stderr.contains("hint: `windlass token create`, where the database is, makes one that may"), "{stderr}");
    assert_eq!(run_on_server(&["get", "7", "--token", token]).0, 3);
    assert_eq!(run_on_server(&["reset"]).0, 2);

    let by_environment =
        windlass(&["stats"]).envs([("WINDLASS_SERVER", &*address), ("WINDLASS_TOKEN", token)]).output();
    assert_eq!(by_environment.unwrap().status.code(), Some(0));
    drop(server);
    let (code, _, stderr) = run_on_server(&["stats"]);
    assert_eq!(code, 5, "{stderr}");
    assert!(
        stderr.contains("cannot be reached") && stderr.contains("hint: is `windlass serve` running there?"),
        "{stderr}"
    );
}

#[test]
fn reading_commands_create_no_database() {
    let folder = tempfile::tempdir().unwrap();
    let (code, stdout, stderr) = run(&["list", "--database", &sqlite_url(folder.path())]);
    assert_eq!((code, stdout.as_str()), (1, ""));
    assert!(stderr.contains("hint: if another database was meant: --database or WINDLASS_DATABASE"), "{stderr}");
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
    let (code, _, stderr) = run(&["stats", "--server", "localhost"]);
    assert_eq!(code, 2, "{stderr}");
}

#[test]
fn help_and_completions_cover_all_commands() {
    let (code, stdout, stderr) = run(&[]);
    assert_eq!((code, stdout.as_str()), (2, ""));
    assert!(stderr.contains("Events:\n") && stderr.contains("  dead-letters  "), "{stderr}");
    let (code, help, _) = run(&["help", "dead-letters", "redrive"]);
    assert_eq!(code, 0);
    assert!(help.contains("Examples:\n  windlass dead-letters redrive 1001 1002"), "{help}");
    for shell in ["bash", "zsh", "fish", "powershell", "elvish"] {
        let (code, script, stderr) = run(&["completions", shell]);
        assert_eq!(code, 0, "{stderr}");
        assert!(script.contains("dead-letters") && script.contains("failed-before"), "{shell}");
    }
}

#[test]
fn closed_pipe_is_no_error() {
    let binary = env!("CARGO_BIN_EXE_windlass");
    let piped = format!("'{binary}' completions bash | head -n 1; exit ${{PIPESTATUS[0]}}");
    let output = std::process::Command::new("bash").args(["-c", &piped]).output().unwrap();
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert_eq!((output.status.code(), stderr.as_str()), (Some(0), ""));
}
