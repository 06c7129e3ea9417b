//! The question before an action: what exactly is going to happen.

use askama::Template;

use super::Answer;
use super::form::Form;
use super::shell::{Shell, Tab, page};
use super::visit::Visit;

/// Asks on a page of its own, which `app.js` shows as a dialog. The answer is the same form once more, with
/// `confirmed`: see [`Form::is_confirmed`].
pub(super) struct Confirm {
    pub tab: Tab,
    /// "Redrive 1,204 dead letters?"
    pub question: String,
    /// What follows from it.
    pub detail: String,
    /// On the button: "Redrive 1,204".
    pub button: String,
    /// Whether it cannot be undone.
    pub destructive: bool,
    /// Where the form goes.
    pub action: String,
    /// Back, for who thought better of it.
    pub back: String,
}

#[derive(Template)]
#[template(path = "confirm.html")]
struct ConfirmPage {
    shell: Shell,
    confirm: Confirm,
    fields: Vec<(String, String)>,
}

impl Confirm {
    /// Asks, and carries the form along.
    pub fn ask(self, visit: &Visit, form: Form) -> Answer {
        let shell = visit.shell(self.tab, self.question.clone());
        page(&ConfirmPage { shell, confirm: self, fields: form.0 })
    }
}
