//! `windlass subscription`: who else is told.

use clap::{Args, Subcommand};
use serde::Deserialize;
use serde_json::{Map, Value, json};
use windlass::Timestamp;

use super::{Common, show};
use crate::Result;
use crate::api::{Answer, given, joined, segment};
use crate::input::json_argument;
use crate::output::{
    Cell, GOOD, Table, WARN, clean, clean_lines, confirm, fields, left, paint, print, print_json, text, width,
};
use crate::when;

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
    List(Only),
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
struct Only {
    #[command(flatten)]
    common: Common,
}

#[derive(Args)]
struct Named {
    /// The subscription
    #[arg(value_name = "NAME")]
    name: String,
    #[command(flatten)]
    common: Common,
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
    #[arg(long, value_name = "WHEN", value_parser = when::moment)]
    since: Option<Timestamp>,
    #[command(flatten)]
    common: Common,
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
    common: Common,
}

/// A subscription, as the API shows it.
#[derive(Deserialize)]
struct View {
    subscription: String,
    types: Vec<String>,
    tags: Vec<String>,
    policy: Map<String, Value>,
    paused: bool,
    starts_at: Timestamp,
    backfill_from: Option<i64>,
    created_at: Timestamp,
}

impl Subscription {
    pub async fn run(self) -> Result {
        match self.action {
            Action::List(list) => list.run().await,
            Action::Show(named) => named.show().await,
            Action::Add(add) => add.run().await,
            Action::Pause(named) => named.turn("pause").await,
            Action::Resume(named) => named.turn("resume").await,
            Action::Remove(remove) => remove.run().await,
        }
    }
}

impl Only {
    async fn run(self) -> Result {
        #[derive(Deserialize)]
        struct Body {
            subscriptions: Vec<View>,
        }
        let answer = self.common.target.with(async |api| api.get(&api.within("/subscriptions"), &[]).await).await?;
        show(self.common.json, &answer, |answer| Ok(table(answer.read::<Body>()?.subscriptions).render(width())))
    }
}

fn table(found: Vec<View>) -> Table<6> {
    let columns = [left("NAME"), left("STATUS"), text("TYPES"), text("TAGS"), left("SINCE"), text("POLICY")];
    let mut table = Table::new(columns);
    for view in found {
        let policy =
            if view.policy.is_empty() { String::new() } else { Value::Object(view.policy.clone()).to_string() };
        table.row([
            Cell::new(&view.subscription),
            state(&view),
            any(&view.types).into(),
            any(&view.tags).into(),
            when::shown(view.starts_at).into(),
            policy.into(),
        ]);
    }
    table
}

fn any(names: &[String]) -> String {
    if names.is_empty() { "all".to_owned() } else { names.join(", ") }
}

fn state(view: &View) -> Cell {
    match (view.paused, view.backfill_from) {
        (true, _) => Cell::styled("paused", WARN),
        (false, Some(_)) => Cell::styled("catching up", WARN),
        (false, None) => Cell::styled("active", GOOD),
    }
}

impl Named {
    async fn show(self) -> Result {
        let path = format!("/subscriptions/{}", segment(&self.name));
        let answer = self.common.target.with(async |api| api.get(&api.within(&path), &[]).await).await?;
        show(self.common.json, &answer, shown)
    }

    async fn turn(self, verb: &str) -> Result {
        let path = format!("/subscriptions/{}/{verb}", segment(&self.name));
        let answer = self.common.target.with(async |api| api.post(&api.within(&path), &[], &()).await).await?;
        show(self.common.json, &answer, |_| Ok(format!("Subscription {} was {verb}d.", clean(&self.name))))
    }
}

fn shown(answer: &Answer) -> Result<String> {
    let view: View = answer.read()?;
    let policy = serde_json::to_string_pretty(&view.policy)?;
    let status = match view.paused {
        true => paint("paused", WARN),
        false => paint("active", GOOD),
    };
    Ok(fields(&[
        ("subscription", Some(clean(&view.subscription))),
        ("status", Some(status)),
        ("types", Some(clean(&any(&view.types)))),
        ("tags", Some(clean(&any(&view.tags)))),
        ("since", Some(when::shown_with_age(view.starts_at))),
        ("catching up", view.backfill_from.map(|id| format!("from event {id} on"))),
        ("created", Some(when::shown_with_age(view.created_at))),
        ("policy", Some(if view.policy.is_empty() { "as its namespace".to_owned() } else { clean_lines(&policy) })),
    ]))
}

impl Add {
    async fn run(self) -> Result {
        let policy = self.policy.as_deref().map(|text| json_argument("--policy", text)).transpose()?;
        let texts = given([
            ("types", joined(&self.types)),
            ("tags", joined(&self.tags)),
            ("since", self.since.map(when::exact)),
        ]);
        let mut body = json!({ "subscription": self.name });
        for (name, value) in texts {
            body[name] = json!(value);
        }
        if let Some(policy) = policy {
            body["policy"] = serde_json::from_str(policy.get())?;
        }
        let answer = self.common.target.with(async |api| api.post(&api.within("/subscriptions"), &[], &body).await);
        let answer = answer.await?;
        show(self.common.json, &answer, |_| Ok(format!("Subscription {} was added.", clean(&self.name))))
    }
}

impl Remove {
    async fn run(self) -> Result {
        let name = clean(&self.name);
        confirm(&format!("remove subscription {name}, with its waiting deliveries and dead letters"), self.yes)?;
        let path = format!("/subscriptions/{}", segment(&self.name));
        self.common.target.with(async |api| api.delete(&api.within(&path), &[]).await).await?;
        match self.common.json {
            true => print_json(&json!({ "removed": self.name }).to_string()),
            false => print(&format!("Subscription {name} was removed.")),
        }
    }
}
