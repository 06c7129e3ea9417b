//! `/ui/{namespace}`: how things stand, at a glance; and pausing a namespace.

use askama::Template;
use axum::Router;
use axum::routing::{get, post};

use super::Answer;
use super::confirm::Confirm;
use super::form::Form;
use super::shell::{Shell, Tab, page};
use super::visit::Visit;
use crate::app::App;
use crate::extract::FormBody;

pub(super) fn routes() -> Router<App> {
    Router::new()
        .route("/ui/{namespace}", get(show))
        .route("/ui/{namespace}/pause", post(pause))
        .route("/ui/{namespace}/resume", post(resume))
}

#[derive(Template)]
#[template(path = "overview.html")]
struct Overview {
    shell: Shell,
}

async fn show(visit: Visit) -> Answer {
    page(&Overview { shell: visit.shell(Tab::Overview, "Overview") })
}

async fn pause(visit: Visit, FormBody(fields, _room): FormBody) -> Answer {
    let form = Form(fields);
    let namespace = visit.queue.namespace();
    if !form.is_confirmed() {
        let confirm = Confirm {
            tab: Tab::Overview,
            question: format!("Pause the namespace {namespace}?"),
            detail: "Nothing more is handed out from it until it is resumed. What is running goes on, and publishing \
                     goes on."
                .to_owned(),
            button: "Pause".to_owned(),
            destructive: false,
            action: visit.path("pause"),
            back: visit.path(""),
        };
        return confirm.ask(&visit, form);
    }
    visit.queue.pause().await?;
    visit.done(&visit.path(""), &format!("The namespace {namespace} is paused."))
}

async fn resume(visit: Visit, FormBody(fields, _room): FormBody) -> Answer {
    let form = Form(fields);
    let namespace = visit.queue.namespace();
    if !form.is_confirmed() {
        let confirm = Confirm {
            tab: Tab::Overview,
            question: format!("Resume the namespace {namespace}?"),
            detail: "What is waiting is handed out again at once.".to_owned(),
            button: "Resume".to_owned(),
            destructive: false,
            action: visit.path("resume"),
            back: visit.path(""),
        };
        return confirm.ask(&visit, form);
    }
    visit.queue.resume().await?;
    visit.done(&visit.path(""), &format!("The namespace {namespace} hands out events again."))
}
