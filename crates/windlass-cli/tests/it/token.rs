//! `windlass token`.

use serde_json::{Value, json};
use windlass_testkit::sqlite_url;

use crate::windlass::run;

/// A database for one test.
struct TokenFixture {
    url: String,
    folder: tempfile::TempDir,
}

impl TokenFixture {
    fn new() -> TokenFixture {
        let folder = tempfile::tempdir().unwrap();
        TokenFixture { url: sqlite_url(folder.path()), folder }
    }

    /// Runs `windlass token`. Returns exit code, stdout and stderr.
    fn run(&self, args: &[&str]) -> (i32, String, String) {
        run(&[&["token"], args, &["--database", &self.url]].concat())
    }

    fn stdout_of(&self, args: &[&str]) -> String {
        let (code, stdout, stderr) = self.run(args);
        assert_eq!((code, stderr.as_str()), (0, ""), "{args:?}");
        stdout
    }

    fn json(&self, args: &[&str]) -> Value {
        serde_json::from_str(&self.stdout_of(&[args, &["--json"]].concat())).unwrap()
    }

    /// Runs a command that must fail with this exit code. Returns stderr.
    fn error(&self, args: &[&str], code: i32) -> String {
        let (found, stdout, stderr) = self.run(args);
        assert_eq!((found, stdout.as_str()), (code, ""), "{args:?}: {stderr}");
        stderr
    }
}

/// Returns the token, which is on a line of its own.
fn secret(out: &str) -> &str {
    out.lines().find(|line| line.starts_with("wl_")).expect("a token on a line of its own")
}

fn id(secret: &str) -> &str {
    secret.split('_').nth(1).unwrap()
}

#[test]
fn create_shows_the_token_once() {
    let tokens = TokenFixture::new();
    let out =
        tokens.stdout_of(&["create", "--scope", "consume,publish", "--namespace", "orders,billing", "--name", "shop"]);
    let secret = secret(&out);
    let id = id(secret);
    let expected = format!(
        "\
Token {id} \"shop\" was created.
  scopes      publish,consume
  namespaces  billing,orders
  expires     never

{secret}

It is shown only this once: the database keeps no more than a hash of it. Send it with every request:
  curl -H 'authorization: Bearer TOKEN' http://127.0.0.1:7700/…
"
    );
    assert_eq!(out, expected);
    let (_, digits) = secret.rsplit_once('_').unwrap();
    let listed = tokens.stdout_of(&["list"]) + &tokens.json(&["list"]).to_string();
    assert!(listed.contains(id) && !listed.contains(digits), "{listed}");
}

#[test]
fn list_is_an_aligned_table() {
    let tokens = TokenFixture::new();
    tokens.stdout_of(&["create", "--scope", "admin"]);
    tokens.stdout_of(&[
        "create",
        "--scope",
        "publish",
        "--scope",
        "read",
        "--namespace",
        "a",
        "--namespace",
        "b,c",
        "--name",
        "Zoë's laptop",
        "--expires-in",
        "90d",
    ]);
    let listed = tokens.json(&["list"]);
    let second = |at: &Value| format!("{}Z", &at.as_str().unwrap()[..19]);
    let (one, two) = (&listed[0], &listed[1]);
    let (id_one, id_two) = (one["token_id"].as_str().unwrap(), two["token_id"].as_str().unwrap());
    let (at_one, at_two, end) = (second(&one["created_at"]), second(&two["created_at"]), second(&two["expires_at"]));
    let expected = format!(
        "\
ID            NAME          SCOPES        NAMESPACES  CREATED               EXPIRES
{id_one}  admin         admin         all         {at_one}  never
{id_two}  Zoë's laptop  publish,read  a,b,c       {at_two}  {end}
"
    );
    assert_eq!(tokens.stdout_of(&["list"]), expected);
}

#[test]
fn json_output_has_all_fields() {
    let tokens = TokenFixture::new();
    let created = tokens.json(&["create", "--scope", "publish", "--namespace", "orders", "--expires-in", "12h"]);
    let secret = created["secret"].as_str().unwrap();
    let mut expected = json!({
        "token_id": id(secret), "name": "publish", "scopes": ["publish"], "namespaces": ["orders"],
        "created_at": created["created_at"], "expires_at": created["expires_at"], "secret": secret,
    });
    assert_eq!(created, expected);
    expected.as_object_mut().unwrap().remove("secret");
    assert_eq!(tokens.json(&["list"]), json!([expected]));
}

#[test]
fn revoked_token_is_removed() {
    let tokens = TokenFixture::new();
    let (one, two) =
        (tokens.stdout_of(&["create", "--scope", "read"]), tokens.stdout_of(&["create", "--scope", "read"]));
    let (one, two) = (secret(&one), secret(&two));
    assert_eq!(tokens.stdout_of(&["revoke", id(one)]), format!("Token {} was revoked.\n", id(one)));
    assert_eq!(tokens.json(&["list"])[0]["token_id"], id(two));
    let error = tokens.error(&["revoke", id(one)], 3);
    assert_eq!(error.lines().next().unwrap(), format!("error: token '{}' does not exist", id(one)));
    // The whole token is accepted as well, and its secret is not printed.
    assert_eq!(tokens.stdout_of(&["revoke", two]), format!("Token {} was revoked.\n", id(two)));
    let error = tokens.error(&["revoke", two], 3);
    assert_eq!(error.lines().next().unwrap(), format!("error: token '{}' does not exist", id(two)));
    assert_eq!(tokens.stdout_of(&["list"]), "There are no tokens; `windlass token create` makes one.\n");
    assert_eq!(tokens.json(&["list"]), json!([]));
}

#[test]
fn list_and_revoke_create_no_database() {
    let tokens = TokenFixture::new();
    for args in [&["list"][..], &["revoke", "0123456789ab"]] {
        let error = tokens.error(args, 1);
        assert!(error.starts_with("error: the database has schema version 0, but version "), "{error}");
    }
    assert_eq!(std::fs::read_dir(tokens.folder.path()).unwrap().count(), 0, "the command created a database");
}

#[test]
fn invalid_options_are_reported() {
    let tokens = TokenFixture::new();
    let error = tokens.error(&["create"], 2);
    assert!(error.contains("--scope <SCOPE>"), "{error}");
    let error = tokens.error(&["create", "--scope", "publish,write"], 2);
    assert!(error.contains("'write' is not one of publish, consume, read, admin"), "{error}");
    let error = tokens.error(&["create", "--scope", "read", "--expires-in", "90"], 2);
    assert!(error.contains("give a number and a unit, as in 30s, 15m, 12h or 90d"), "{error}");
    let error = tokens.error(&["create", "--scope", "read", "--expires-in", "40000d"], 2);
    assert_eq!(error, "error: expires_in: must be at most 100 years\n");
    let error = tokens.error(&["create", "--scope", "read", "--expires-in", "0d"], 2);
    assert_eq!(error, "error: expires_in: must be more than zero\n");
    // An empty namespace, for example from an unset variable, must not mean all namespaces.
    for empty in ["", "orders,"] {
        let error = tokens.error(&["create", "--scope", "read", "--namespace", empty], 2);
        assert!(error.starts_with("error: namespaces: '' is not a valid name: "), "{error}");
    }
    assert_eq!(tokens.json(&["list"]), json!([]));
}

#[test]
fn help_has_examples() {
    for args in [&["token", "--help"][..], &["token", "create", "--help"]] {
        let (code, help, _) = run(args);
        assert!(code == 0 && help.contains("windlass token create --scope publish"), "{help}");
    }
}
