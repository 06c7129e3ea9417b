//! `windlass subscription`: lists, shows, adds, pauses and removes subscriptions.

use clap::{Args, Subcommand};
use serde_json::{Value, json};
use windlass::Timestamp;
use windlass_api::{AddSubscriptionRequest, PolicyOverrides};

use super::{NamespaceArgs, print_response};
use crate::Result;
use crate::api::{ApiResponse, comma_separated, encode_segment, responses};
use crate::input::read_json_argument;
use crate::output::{
    Cell, GOOD, Table, WARN, confirm, format_fields, left, paint, print, print_json, sanitize, sanitize_lines,
    terminal_width, text,
};
use crate::time;

/// See and change who gets events
///
/// Each subscription has its own delivery of each event that matches. There is always one, `main`.
#[derive(Args)]
#[command(after_help = "\
Examples:
  windlass subscription list
  windlass subscription add audit --type 'order.*' --since 7d
  windlass subscription pause audit
  windlass subscription remove audit")]
pub struct Subscription {
    #[command(subcommand)]
    action: Action,
}

#[derive(Subcommand)]
enum Action {
    /// List the subscriptions
    List(List),
    /// Show a subscription, with its policy
    Show(Named),
    Add(Add),
    /// Hand out nothing more to a subscription; its deliveries still gather
    Pause(Named),
    /// Hand out to a subscription again
    Resume(Named),
    Remove(Remove),
}

#[derive(Args)]
struct List {
    #[command(flatten)]
    common: NamespaceArgs,
}

#[derive(Args)]
struct Named {
    /// The subscription
    #[arg(value_name = "NAME")]
    name: String,
    #[command(flatten)]
    common: NamespaceArgs,
}

/// Add a subscription
///
/// It gets its own delivery of each event that matches.
#[derive(Args)]
#[command(after_help = "\
Examples:
  windlass subscription add audit
  windlass subscription add billing --type 'order.*,invoice.*' --since 7d
  windlass subscription add mail --tag email --policy '{\"max_retries\": 10}'")]
struct Add {
    /// Its name
    #[arg(value_name = "NAME")]
    name: String,
    /// Only these types, exact or by prefix ending in `*`; several with commas
    #[arg(long = "type", short, value_name = "TYPE", value_delimiter = ',')]
    types: Vec<String>,
    /// Only events with any of these tags; several with commas
    #[arg(long = "tag", value_name = "TAG", value_delimiter = ',')]
    tags: Vec<String>,
    /// What it does differently from its namespace: JSON, @FILE, or - for stdin
    #[arg(long, value_name = "JSON")]
    policy: Option<String>,
    /// Also what was published since then and is still in the history: how long ago, a day or an instant
    #[arg(long, value_name = "WHEN", value_parser = time::parse_time_or_age)]
    since: Option<Timestamp>,
    #[command(flatten)]
    common: NamespaceArgs,
}

/// Remove a subscription, with its waiting deliveries and dead letters
#[derive(Args)]
struct Remove {
    /// The subscription
    #[arg(value_name = "NAME")]
    name: String,
    /// Do not ask
    #[arg(long, short)]
    yes: bool,
    #[command(flatten)]
    common: NamespaceArgs,
}

impl Subscription {
    pub async fn run(self) -> Result {
        match self.action {
            Action::List(list) => list.run().await,
            Action::Show(named) => named.show().await,
            Action::Add(add) => add.run().await,
            Action::Pause(named) => named.set_paused("pause").await,
            Action::Resume(named) => named.set_paused("resume").await,
            Action::Remove(remove) => remove.run().await,
        }
    }
}

impl List {
    async fn run(self) -> Result {
        let response =
            self.common.target.with_api(async |api| api.get(&api.namespace_path("/subscriptions"), &[]).await).await?;
        print_response(self.common.json, &response, |response| {
            Ok(table(&response.json::<responses::Subscriptions>()?.subscriptions).render(terminal_width()))
        })
    }
}

fn table(subscriptions: &[responses::Subscription]) -> Table<6> {
    let columns = [left("NAME"), left("STATUS"), text("TYPES"), text("TAGS"), left("SINCE"), text("POLICY")];
    let mut table = Table::new(columns);
    for view in subscriptions {
        let policy = overrides(view).map(|policy| policy.to_string());
        table.row([
            Cell::new(&view.subscription),
            status_cell(view),
            format_filter(&view.types).into(),
            format_filter(&view.tags).into(),
            time::format_timestamp(view.starts_at).into(),
            policy.into(),
        ]);
    }
    table
}

/// Returns the overrides of the policy. Returns `None` if there are none.
fn overrides(view: &responses::Subscription) -> Option<Value> {
    (!view.policy.is_empty()).then(|| Value::Object(view.policy.clone()))
}

fn format_filter(names: &[String]) -> String {
    if names.is_empty() { "all".to_owned() } else { names.join(", ") }
}

fn status_cell(view: &responses::Subscription) -> Cell {
    match (view.paused, view.backfill_from) {
        (true, _) => Cell::styled("paused", WARN),
        (false, Some(_)) => Cell::styled("catching up", WARN),
        (false, None) => Cell::styled("active", GOOD),
    }
}

impl Named {
    async fn show(self) -> Result {
        let path = format!("/subscriptions/{}", encode_segment(&self.name));
        let response = self.common.target.with_api(async |api| api.get(&api.namespace_path(&path), &[]).await).await?;
        print_response(self.common.json, &response, format_subscription)
    }

    async fn set_paused(self, verb: &str) -> Result {
        let path = format!("/subscriptions/{}/{verb}", encode_segment(&self.name));
        let response =
            self.common.target.with_api(async |api| api.post(&api.namespace_path(&path), &[], &()).await).await?;
        print_response(self.common.json, &response, |_| {
            Ok(format!("Subscription {} was {verb}d.", sanitize(&self.name)))
        })
    }
}

fn format_subscription(response: &ApiResponse) -> Result<String> {
    let view: responses::Subscription = response.json()?;
    let policy = overrides(&view).map(|policy| sanitize_lines(&format!("{policy:#}")));
    let status = match view.paused {
        true => paint("paused", WARN),
        false => paint("active", GOOD),
    };
    Ok(format_fields(&[
        ("subscription", Some(sanitize(&view.subscription))),
        ("status", Some(status)),
        ("types", Some(sanitize(&format_filter(&view.types)))),
        ("tags", Some(sanitize(&format_filter(&view.tags)))),
        ("since", Some(time::format_with_age(view.starts_at))),
        ("catching up", view.backfill_from.map(|id| format!("from event {id} on"))),
        ("created", Some(time::format_with_age(view.created_at))),
        ("policy", policy.or_else(|| Some("as its namespace".to_owned()))),
    ]))
}

impl Add {
    async fn run(self) -> Result {
        let policy = self.policy.as_deref().map(|text| read_json_argument("--policy", text)).transpose()?;
        let request = AddSubscriptionRequest {
            subscription: self.name.clone(),
            types: comma_separated(&self.types).map(Into::into),
            tags: comma_separated(&self.tags).map(Into::into),
            policy: PolicyOverrides::default(),
            since: self.since,
        };
        let mut body = serde_json::to_value(request)?;
        // The policy is sent as it was given; the server checks it.
        if let Some(policy) = policy {
            body["policy"] = serde_json::from_str(policy.get())?;
        }
        let response =
            self.common.target.with_api(async |api| api.post(&api.namespace_path("/subscriptions"), &[], &body).await);
        let response = response.await?;
        print_response(self.common.json, &response, |_| Ok(format!("Subscription {} was added.", sanitize(&self.name))))
    }
}

impl Remove {
    async fn run(self) -> Result {
        let name = sanitize(&self.name);
        confirm(&format!("remove subscription {name}, with its waiting deliveries and dead letters"), self.yes)?;
        let path = format!("/subscriptions/{}", encode_segment(&self.name));
        self.common.target.with_api(async |api| api.delete(&api.namespace_path(&path), &[]).await).await?;
        match self.common.json {
            true => print_json(&json!({ "removed": self.name }).to_string()),
            false => print(&format!("Subscription {name} was removed.")),
        }
    }
}
