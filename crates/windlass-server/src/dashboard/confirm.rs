//! The confirmation page before an action.

use askama::Template;

use super::PageResult;
use super::form::Form;
use super::layout::{Layout, Tab, render};
use super::page_context::PageContext;

/// A confirmation page, which `app.js` shows as a dialog. It submits the same form again with `confirmed`: see
/// [`Form::is_confirmed`].
pub(super) struct Confirm {
    pub tab: Tab,
    /// "Redrive 1,204 dead letters?"
    pub question: String,
    /// The consequences.
    pub detail: String,
    /// Label of the button: "Redrive 1,204".
    pub button: String,
    /// Whether the action cannot be undone.
    pub destructive: bool,
    /// The URL of the form.
    pub action: String,
    /// The URL of the cancel link.
    pub back: String,
}

#[derive(Template)]
#[template(path = "confirm.html")]
struct ConfirmPage {
    layout: Layout,
    confirm: Confirm,
    fields: Vec<(String, String)>,
}

impl Confirm {
    /// Renders the confirmation page with the fields of the form.
    pub fn ask(self, ctx: &PageContext, form: Form) -> PageResult {
        let layout = ctx.layout(self.tab, self.question.clone());
        render(&ConfirmPage { layout, confirm: self, fields: form.0 })
    }
}
