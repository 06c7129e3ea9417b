//! Generates `docs/cli.md` from the command definitions and checks that the file is current.

use std::path::Path;

use clap::Command;

use crate::command_definition;
use crate::database::CONNECTION;

/// If this environment variable is set, the test writes the document instead of comparing it.
const UPDATE: &str = "WINDLASS_UPDATE_DOCS";
const WIDTH: usize = 100;

const BEGIN: &str = "\
# The command line

Every command that `windlass` knows, as `windlass help` shows it. This page is made from the program itself:
`WINDLASS_UPDATE_DOCS=1 cargo test -p windlass-cli reference` writes it.

- Commands look at a database (`--database URL`, or `WINDLASS_DATABASE`; `sqlite://windlass.db` if not given) or ask a
  server (`--server URL` and `--token TOKEN`, or `WINDLASS_SERVER` and `WINDLASS_TOKEN`); what they print is the same.
  `token`, `migrate` and `history` work on a database alone.
- They are about one namespace (`-n NAME`, `--namespace NAME`, or `WINDLASS_NAMESPACE`; `default` if not given). These
  options, and those of `windlass` itself, are left out below.
- `--json` prints what the [HTTP API](http.md) answers, in one line, for programs. All else is for people and may change.
- Tables fit the terminal; away from one nothing is cut. Colours are for terminals only, and never with `NO_COLOR`. What
  others wrote – titles, errors, names – is shown with its control characters escaped.
- Whatever cannot be undone, or concerns all that match, is asked about first. Where nobody can be asked it is refused
  without `--yes`.
- Exit codes: 0 fine, 1 something failed, 2 wrong usage or input, 3 not found, 4 not allowed, 5 the database or server
  cannot be reached.
- `windlass completions SHELL` makes a shell complete all of this.
";

fn render_document() -> String {
    let mut command = command_definition().term_width(WIDTH);
    command.build();
    let mut text = BEGIN.to_owned();
    append_command(&mut text, command, "windlass", 2);
    text
}

/// Appends a command and its subcommands.
fn append_command(text: &mut String, command: Command, path: &str, depth: usize) {
    let mut shown = command.clone().term_width(WIDTH).mut_args(|arg| {
        let global = arg.is_global_set() && path != "windlass";
        let is_common = global || arg.get_help_heading() == Some(CONNECTION);
        arg.hide_env_values(true).hide(is_common)
    });
    if let Some(about) = command.get_long_about() {
        shown = shown.about(about.clone());
    }
    let help = shown.render_help().to_string();
    let lines: Vec<&str> = help.lines().map(str::trim_end).collect();
    text.push_str(&format!("\n{} {path}\n\n```text\n{}\n```\n", "#".repeat(depth), lines.join("\n").trim_end()));
    for inner in command.get_subcommands().filter(|inner| inner.get_name() != "help" && !inner.is_hide_set()) {
        let depth = if depth == 2 && path == "windlass" { 2 } else { 3 };
        append_command(text, inner.clone(), &format!("{path} {}", inner.get_name()), depth);
    }
}

#[test]
fn cli_reference_is_current() {
    let path = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/cli.md"));
    let document = render_document();
    if std::env::var_os(UPDATE).is_some() {
        std::fs::write(path, &document).expect("the document can be written");
    }
    let found = std::fs::read_to_string(path).unwrap_or_default();
    assert!(found == document, "docs/cli.md is not up to date: {UPDATE}=1 writes it");
}

#[test]
fn every_command_needing_examples_has_them() {
    fn collect_without_examples(command: &Command, path: &str, found: &mut Vec<String>) {
        let inner: Vec<&Command> = command.get_subcommands().filter(|inner| inner.get_name() != "help").collect();
        for inner in &inner {
            collect_without_examples(inner, &format!("{path} {}", inner.get_name()), found);
        }
        let help = command.clone().render_long_help().to_string();
        if inner.is_empty() && !help.contains("Examples:") {
            found.push(path.to_owned());
        }
    }
    let mut found = Vec::new();
    collect_without_examples(&command_definition(), "windlass", &mut found);
    // These commands take at most a name and need no example.
    let self_explanatory = ["list", "pause", "remove", "resume", "revoke", "run", "show", "status", "up"];
    found.retain(|path| !self_explanatory.iter().any(|verb| path.ends_with(&format!(" {verb}"))));
    assert!(found.is_empty(), "without examples: {found:?}");
}
