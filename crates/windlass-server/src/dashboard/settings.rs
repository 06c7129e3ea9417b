//! `/ui/{namespace}/settings`: the namespace itself, whether it is paused, and its policy.

use askama::Template;
use axum::Router;
use axum::http::StatusCode;
use axum::routing::get;
use windlass::{Error, Namespace, NamespacePolicy};

use super::Answer;
use super::confirm::Confirm;
use super::form::Form;
use super::format::When;
use super::problem::Problem;
use super::shell::{Shell, Tab, with_status};
use super::visit::Visit;
use crate::app::App;
use crate::error::ApiError;
use crate::extract::FormBody;
use crate::routes::namespace::{PolicyBody, PolicyRequest};

pub(super) fn routes() -> Router<App> {
    Router::new().route("/ui/{namespace}/settings", get(show).post(change_policy))
}

#[derive(Template)]
#[template(path = "settings.html")]
struct Settings {
    shell: Shell,
    namespace: Namespace,
    created: When,
    policy: String,
    problem: Option<Problem>,
}

impl Settings {
    /// What is wrong with the policy.
    fn wrong(&self) -> &str {
        self.problem.as_ref().map_or("", |problem| problem.beside(&[]))
    }
}

async fn show(visit: Visit) -> Answer {
    shown(&visit, None)
}

/// The page, with a policy that could not be saved in place of the one in force.
fn shown(visit: &Visit, refused: Option<(String, Problem)>) -> Answer {
    let name = || visit.queue.namespace().to_owned();
    let namespace = visit.namespace.clone().ok_or_else(|| Error::NamespaceNotFound { namespace: name() })?;
    let (policy, problem) = match refused {
        Some((policy, problem)) => (policy, Some(problem)),
        None => (written(namespace.policy.clone())?, None),
    };
    let status = problem.as_ref().map_or(StatusCode::OK, |problem| problem.status);
    let shell = visit.shell(Tab::Namespaces, format!("Namespace {}", namespace.namespace));
    let created = When::new(namespace.created_at, visit.now);
    Ok(with_status(status, &Settings { shell, namespace, created, policy, problem }))
}

fn written(policy: NamespacePolicy) -> Result<String, ApiError> {
    serde_json::to_string_pretty(&PolicyBody::from(policy)).map_err(|error| ApiError::invalid("policy", error))
}

async fn change_policy(visit: Visit, FormBody(fields, _room): FormBody) -> Answer {
    let form = Form(fields);
    let text = form.text("policy").to_owned();
    let policy = match parsed(&text) {
        Ok(policy) => policy,
        Err(error) => return shown(&visit, Some((text, Problem::of(error)?))),
    };
    let name = visit.queue.namespace();
    if !form.is_confirmed() {
        let confirm = Confirm {
            tab: Tab::Namespaces,
            question: format!("Change the policy of the namespace {name}?"),
            detail: "It holds for what is published and claimed from now on, on every server.".to_owned(),
            button: "Change".to_owned(),
            destructive: false,
            action: visit.path("settings"),
            back: visit.path("settings"),
        };
        return confirm.ask(&visit, form);
    }
    match visit.queue.put_namespace(name, Some(policy), None).await {
        Ok(_) => visit.done(&visit.path("settings"), "The policy is changed."),
        Err(error) => shown(&visit, Some((text, Problem::of(error.into())?))),
    }
}

fn parsed(text: &str) -> Result<NamespacePolicy, ApiError> {
    let request: PolicyRequest = serde_json::from_str(text).map_err(|error| ApiError::invalid("policy", error))?;
    Ok(NamespacePolicy::try_from(request)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_shown_can_be_saved() {
        for preset in ["default", "queue", "bus", "tags", "core", "outbox"] {
            let policy = NamespacePolicy::from(windlass::Policy::preset(preset).unwrap());
            let text = written(policy.clone()).ok().unwrap();
            let again = parsed(&text).ok().unwrap();
            assert_eq!(written(again).ok().unwrap(), text, "{preset}");
        }
    }
}
