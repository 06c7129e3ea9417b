//! `windlass completions`: prints a completion script for a shell.

use clap::Args;
use clap_complete::Shell;

use crate::output::print;
use crate::{Result, command_definition};

/// Print what a shell needs to complete commands and options
#[derive(Args)]
#[command(after_help = "\
Examples:
  windlass completions bash > ~/.local/share/bash-completion/completions/windlass
  windlass completions zsh > ~/.zfunc/_windlass       with ~/.zfunc in $fpath
  windlass completions fish > ~/.config/fish/completions/windlass.fish")]
pub struct Completions {
    /// The shell
    #[arg(value_name = "SHELL")]
    shell: Shell,
}

impl Completions {
    pub fn run(self) -> Result {
        let mut script = Vec::new();
        clap_complete::generate(self.shell, &mut command_definition(), "windlass", &mut script);
        print(&String::from_utf8_lossy(&script).trim_end())
    }
}
