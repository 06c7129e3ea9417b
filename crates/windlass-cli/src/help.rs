//! The list of commands that `windlass help` shows, by what they are for.

use clap::Command;

use crate::output::{HEADING, paint};

/// Every command is in one of these; those that a build does not have are passed over.
const GROUPS: [(&str, &[&str]); 4] = [
    ("Events", &["publish", "work", "get", "list", "tail", "cancel", "reset", "dead-letters"]),
    ("State", &["stats", "top", "stuck", "worker", "node", "doctor"]),
    ("Configuration", &["namespace", "subscription", "schedule", "token"]),
    ("Operation", &["serve", "health", "migrate", "history", "completions", "help"]),
];

/// The command with its subcommands in groups, which clap itself does not do.
pub fn grouped(command: Command) -> Command {
    let listing = listing(&command);
    let usage = paint("Usage:", HEADING);
    let options = paint("Options:", HEADING);
    command
        .help_template(format!(
            "{{about-with-newline}}\n{usage} {{usage}}\n\n{listing}{options}\n{{options}}{{after-help}}"
        ))
        .subcommand_required(true)
        .arg_required_else_help(true)
}

fn listing(command: &Command) -> String {
    let about = |name: &str| match command.find_subcommand(name) {
        Some(found) => found.get_about().map(ToString::to_string),
        None => (name == "help").then(|| "Show this, or the help of a command".to_owned()),
    };
    let mut text = String::new();
    for (heading, names) in GROUPS {
        text.push_str(&format!("{}\n", paint(&format!("{heading}:"), HEADING)));
        for (name, about) in names.iter().filter_map(|name| Some((name, about(name)?))) {
            text.push_str(&format!("  {name:WIDTH$}  {about}\n"));
        }
        text.push('\n');
    }
    text
}

/// Of the longest name.
const WIDTH: usize = "dead-letters".len();

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;
    use crate::Cli;

    #[test]
    fn every_command_is_in_one_group_and_says_what_it_does() {
        let command = Cli::command();
        for found in command.get_subcommands() {
            let groups = GROUPS.iter().filter(|(_, names)| names.contains(&found.get_name())).count();
            assert_eq!(groups, 1, "{}", found.get_name());
            assert!(found.get_name().len() <= WIDTH, "{}", found.get_name());
            let about = found.get_about().map(ToString::to_string).unwrap_or_default();
            assert!((1..=80 - WIDTH - 4).contains(&about.len()), "{}: {about}", found.get_name());
        }
    }

    #[test]
    fn definitions_are_sound() {
        grouped(Cli::command()).debug_assert();
    }
}
