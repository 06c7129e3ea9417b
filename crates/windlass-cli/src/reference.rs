//! `docs/cli.md`, made from the definitions of the commands.

use std::path::Path;

use clap::Command;

use crate::database::CONNECTION;
use crate::definition;

/// Set, it makes the document say what the commands say.
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

fn document() -> String {
    let mut command = definition().term_width(WIDTH);
    command.build();
    let mut text = BEGIN.to_owned();
    add(&mut text, command, "windlass", 2);
    text
}

/// A command, and those within it.
fn add(text: &mut String, command: Command, path: &str, depth: usize) {
    let mut shown = command.clone().term_width(WIDTH).mut_args(|arg| {
        let global = arg.is_global_set() && path != "windlass";
        let everywhere = global || arg.get_help_heading() == Some(CONNECTION);
        arg.hide_env_values(true).hide(everywhere)
    });
    if let Some(about) = command.get_long_about() {
        shown = shown.about(about.clone());
    }
    let help = shown.render_help().to_string();
    let lines: Vec<&str> = help.lines().map(str::trim_end).collect();
    text.push_str(&format!("\n{} {path}\n\n```text\n{}\n```\n", "#".repeat(depth), lines.join("\n").trim_end()));
    for inner in command.get_subcommands().filter(|inner| inner.get_name() != "help" && !inner.is_hide_set()) {
        let depth = if depth == 2 && path == "windlass" { 2 } else { 3 };
        add(text, inner.clone(), &format!("{path} {}", inner.get_name()), depth);
    }
}

#[test]
fn the_reference_is_up_to_date() {
    let path = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/cli.md"));
    let document = document();
    if std::env::var_os(UPDATE).is_some() {
        std::fs::write(path, &document).expect("the document can be written");
    }
    let found = std::fs::read_to_string(path).unwrap_or_default();
    assert!(found == document, "docs/cli.md is not up to date: {UPDATE}=1 writes it");
}

#[test]
fn every_command_has_examples_or_is_plain() {
    fn without(command: &Command, path: &str, found: &mut Vec<String>) {
        let inner: Vec<&Command> = command.get_subcommands().filter(|inner| inner.get_name() != "help").collect();
        for inner in &inner {
            without(inner, &format!("{path} {}", inner.get_name()), found);
        }
        let help = command.clone().render_long_help().to_string();
        if inner.is_empty() && !help.contains("Examples:") {
            found.push(path.to_owned());
        }
    }
    let mut found = Vec::new();
    without(&definition(), "windlass", &mut found);
    // Those that take a name and do what they are called.
    let plain = ["list", "pause", "remove", "resume", "revoke", "run", "show", "status", "up"];
    found.retain(|path| !plain.iter().any(|verb| path.ends_with(&format!(" {verb}"))));
    assert!(found.is_empty(), "without examples: {found:?}");
}
