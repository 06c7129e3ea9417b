//! Output on a terminal: colors, fitting tables, escaped control characters and confirmations.

use std::process::Command;

use crate::fixture::CliFixture;

/// Runs a command on a pseudo-terminal of this width.
fn on_a_terminal(fixture: &CliFixture, args: &str, width: usize, environment: &str) -> String {
    let (binary, target) = (env!("CARGO_BIN_EXE_windlass"), fixture.target_args().join("' '"));
    let command = format!("stty cols {width} rows 24 && {environment} '{binary}' {args} '{target}'");
    let output = Command::new("script")
        .args(["--quiet", "--return", "--command", &command, "/dev/null"])
        .env_remove("NO_COLOR")
        .env_remove("COLUMNS")
        .env("TERM", "xterm")
        .stdin(std::process::Stdio::null())
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap().replace("\r\n", "\n")
}

#[test]
fn terminal_output_is_colored_fitted_and_escaped() {
    let mut fixture = CliFixture::sqlite();
    fixture.seed(&[(
        "POST",
        "/events",
        r#"{"type":"order.paid","title":"\u001b]0;owned\u0007 a title that is much longer than there is room for in a line",
            "payload":"\u009b2J","tags":"some,tags,that,can,be,spared"}"#,
    )]);
    let shown = on_a_terminal(&fixture, "list", 72, "");
    assert!(shown.contains("\x1b[33mPENDING\x1b[0m"), "{shown:?}");
    let plain = shown.replace("\x1b[33m", "").replace("\x1b[2m", "").replace("\x1b[0m", "");
    assert!(!plain.contains(['\x1b', '\x07']), "{plain:?}");
    assert!(plain.contains("order.paid") && plain.contains(r"\u{1b}]0;ow") && !plain.contains("spared"), "{plain}");
    assert!(plain.lines().all(|line| line.chars().count() <= 72), "{plain}");
    assert!(plain.lines().any(|line| line.ends_with('…')), "{plain}");

    assert!(!on_a_terminal(&fixture, "list", 72, "NO_COLOR=1").contains('\x1b'));
    let json = on_a_terminal(&fixture, "get 1 --json", 72, "");
    assert!(json.contains(r#""payload":"\u009b2J""#) && !json.contains('\u{9b}'), "{json:?}");
    let piped = fixture.output_of("list").1;
    assert!(piped.contains("for in a line") && piped.contains("spared") && !piped.contains('\x1b'), "{piped}");
}

#[test]
fn purge_needs_a_confirmation() {
    let mut fixture = CliFixture::sqlite();
    fixture.seed(&[
        ("POST", "/events", r#"{"type":"mail.send","payload":1,"max_retries":0}"#),
        ("POST", "/events/claim", r#"{"worker_id":"w"}"#),
        ("POST", "/events/finish", r#"{"worker_id":"w","items":[{"event_id":1,"outcome":"fail"}]}"#),
    ]);
    let (binary, target) = (env!("CARGO_BIN_EXE_windlass"), fixture.target_args().join("' '"));
    let purge_with = |answer: &str| {
        let purge = format!("'{binary}' dead-letters purge --all '{target}'");
        let script = format!("echo {answer} | script --quiet --return --command \"{purge}\" /dev/null");
        let output = Command::new("bash").args(["-c", &script]).output().unwrap();
        (output.status.code(), String::from_utf8(output.stdout).unwrap())
    };
    let (code, shown) = purge_with("n");
    assert_eq!(code, Some(1), "{shown}");
    assert!(shown.contains("This will purge 1 dead letter. Go on? [y/N] "), "{shown}");
    assert!(shown.contains("not confirmed; nothing was changed"), "{shown}");
    let (code, shown) = purge_with("y");
    assert_eq!(code, Some(0), "{shown}");
    assert!(shown.contains("1 dead letter purged."), "{shown}");
}
