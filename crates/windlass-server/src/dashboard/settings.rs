//! `/ui/{namespace}/settings`: one namespace and its policy.

use askama::Template;
use axum::Router;
use axum::http::StatusCode;
use axum::routing::get;
use windlass::{Error, Namespace, NamespacePolicy};

use super::PageResult;
use super::confirm::Confirm;
use super::form::Form;
use super::form_error::FormError;
use super::format::RelativeTime;
use super::layout::{Layout, Tab, render_with_status};
use super::page_context::PageContext;
use crate::app::App;
use crate::error::ApiError;
use crate::extract::FormBody;
use crate::routes::namespace::{namespace_policy, policy_body};

pub(super) fn routes() -> Router<App> {
    Router::new().route("/ui/{namespace}/settings", get(show).post(change_policy))
}

#[derive(Template)]
#[template(path = "settings.html")]
struct Settings {
    layout: Layout,
    namespace: Namespace,
    created: RelativeTime,
    policy: String,
    problem: Option<FormError>,
}

impl Settings {
    /// The error of the policy, or an empty text.
    fn field_error(&self) -> &str {
        self.problem.as_ref().map_or("", |problem| problem.message_unless_in(&[]))
    }
}

async fn show(ctx: PageContext) -> PageResult {
    shown(&ctx, None)
}

/// Renders the page, with the refused policy instead of the current one, if there is any.
fn shown(ctx: &PageContext, refused: Option<(String, FormError)>) -> PageResult {
    let name = || ctx.queue.namespace().to_owned();
    let namespace = ctx.namespace.clone().ok_or_else(|| Error::NamespaceNotFound { namespace: name() })?;
    let (policy, problem) = match refused {
        Some((policy, problem)) => (policy, Some(problem)),
        None => (written(namespace.policy.clone())?, None),
    };
    let status = problem.as_ref().map_or(StatusCode::OK, |problem| problem.status);
    let layout = ctx.layout(Tab::Namespaces, format!("Namespace {}", namespace.namespace));
    let created = RelativeTime::new(namespace.created_at, ctx.now);
    Ok(render_with_status(status, &Settings { layout, namespace, created, policy, problem }))
}

fn written(policy: NamespacePolicy) -> Result<String, ApiError> {
    serde_json::to_string_pretty(&policy_body(policy)).map_err(|error| ApiError::invalid("policy", error))
}

async fn change_policy(ctx: PageContext, FormBody(fields, _memory): FormBody) -> PageResult {
    let form = Form(fields);
    let text = form.text("policy").to_owned();
    let policy = match parsed(&text) {
        Ok(policy) => policy,
        Err(error) => return shown(&ctx, Some((text, FormError::from_api_error(error)?))),
    };
    let name = ctx.queue.namespace();
    if !form.is_confirmed() {
        let confirm = Confirm {
            tab: Tab::Namespaces,
            question: format!("Change the policy of the namespace {name}?"),
            detail: "It applies to events published and claimed from now on, on every server.".to_owned(),
            button: "Change".to_owned(),
            destructive: false,
            action: ctx.path("settings"),
            back: ctx.path("settings"),
        };
        return confirm.ask(&ctx, form);
    }
    match ctx.queue.put_namespace(name, Some(policy), None).await {
        Ok(_) => ctx.redirect_with_notice(&ctx.path("settings"), "The policy is changed."),
        Err(error) => shown(&ctx, Some((text, FormError::from_api_error(error.into())?))),
    }
}

fn parsed(text: &str) -> Result<NamespacePolicy, ApiError> {
    let request = serde_json::from_str(text).map_err(|error| ApiError::invalid("policy", error))?;
    Ok(namespace_policy(request)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shown_policy_can_be_saved() {
        for preset in ["default", "queue", "bus", "tags", "core", "outbox"] {
            let policy = NamespacePolicy::from(windlass::Policy::preset(preset).unwrap());
            let text = written(policy.clone()).ok().unwrap();
            let again = parsed(&text).ok().unwrap();
            assert_eq!(written(again).ok().unwrap(), text, "{preset}");
        }
    }
}
