//! Groups the commands in the output of `windlass help` by their purpose.

use clap::Command;

use crate::output::{HEADING, paint};

/// Every command is in exactly one group. Commands that this build does not include are skipped.
const GROUPS: [(&str, &[&str]); 4] = [
    ("Events", &["publish", "work", "get", "list", "tail", "cancel", "reset", "dead-letters"]),
    ("State", &["stats", "top", "stuck", "worker", "node", "doctor"]),
    ("Configuration", &["namespace", "subscription", "schedule", "token"]),
    ("Operation", &["serve", "health", "migrate", "history", "completions", "help"]),
];

/// Lists the subcommands in groups. clap has no option for this.
pub fn group_subcommands(command: Command) -> Command {
    let listing = format_groups(&command);
    let usage = paint("Usage:", HEADING);
    let options = paint("Options:", HEADING);
    command
        .help_template(format!(
            "{{about-with-newline}}\n{usage} {{usage}}\n\n{listing}{options}\n{{options}}{{after-help}}"
        ))
        .subcommand_required(true)
        .arg_required_else_help(true)
}

fn format_groups(command: &Command) -> String {
    let about = |name: &str| match command.find_subcommand(name) {
        Some(found) => found.get_about().map(ToString::to_string),
        None => (name == "help").then(|| "Show this, or the help of a command".to_owned()),
    };
    let mut text = String::new();
    for (heading, names) in GROUPS {
        text.push_str(&format!("{}\n", paint(&format!("{heading}:"), HEADING)));
        for (name, about) in names.iter().filter_map(|name| Some((name, about(name)?))) {
            text.push_str(&format!("  {name:NAME_WIDTH$}  {about}\n"));
        }
        text.push('\n');
    }
    text
}

/// Width of the longest command name.
const NAME_WIDTH: usize = "dead-letters".len();

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;
    use crate::Cli;

    #[test]
    fn every_command_is_in_one_group_and_has_a_summary() {
        let command = Cli::command();
        for found in command.get_subcommands() {
            let groups = GROUPS.iter().filter(|(_, names)| names.contains(&found.get_name())).count();
            assert_eq!(groups, 1, "{}", found.get_name());
            assert!(found.get_name().len() <= NAME_WIDTH, "{}", found.get_name());
            let about = found.get_about().map(ToString::to_string).unwrap_or_default();
            assert!((1..=80 - NAME_WIDTH - 4).contains(&about.len()), "{}: {about}", found.get_name());
        }
    }

    #[test]
    fn command_definitions_pass_clap_checks() {
        group_subcommands(Cli::command()).debug_assert();
    }
}
