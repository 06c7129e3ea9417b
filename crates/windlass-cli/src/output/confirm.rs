//! Asks the user to confirm an action that cannot be undone.

use std::io::{IsTerminal, Write, stderr, stdin};

use crate::Result;
use crate::exit::UsageError;

/// Succeeds if `--yes` was given or the user confirms at the terminal. `what` begins with a verb, as in
/// "redrive 12 dead letters".
pub fn confirm(what: &str, yes: bool) -> Result {
    if yes {
        return Ok(());
    }
    if !stdin().is_terminal() || !stderr().is_terminal() {
        return Err(
            UsageError(format!("this would {what}; nobody is there to be asked, so say --yes if you mean it")).into()
        );
    }
    write!(stderr(), "This will {what}. Go on? [y/N] ")?;
    stderr().flush()?;
    let mut answer = String::new();
    stdin().read_line(&mut answer)?;
    match is_yes(&answer) {
        true => Ok(()),
        false => Err("not confirmed; nothing was changed".into()),
    }
}

fn is_yes(answer: &str) -> bool {
    matches!(answer.trim().to_ascii_lowercase().as_str(), "y" | "yes")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_y_and_yes_confirm() {
        assert!(is_yes("y\n") && is_yes(" YES\n"));
        assert!(!is_yes("\n") && !is_yes("") && !is_yes("yep\n") && !is_yes("n\n"));
    }
}
