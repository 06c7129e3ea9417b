//! `windlass cancel`: call off what has not begun.

use clap::Args;
use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::Common;
use crate::Result;
use crate::api::{Api, given, joined};
use crate::exit::Usage;
use crate::output::{confirm, counted, print, print_json};

/// Call events off that are waiting
///
/// By id, or all that match. What a worker holds goes on.
#[derive(Args)]
#[command(after_help = "\
Examples:
  windlass cancel 1001 1002
  windlass cancel --type 'newsletter.*' --tag spring
  windlass cancel --type report.due --subscription audit --yes")]
pub struct Cancel {
    /// The events' ids
    #[arg(value_name = "ID", conflicts_with_all = ["types", "tags"])]
    event_ids: Vec<i64>,
    /// All of these types, exact or by prefix ending in `*`; several with commas
    #[arg(long = "type", short, value_name = "TYPE", value_delimiter = ',')]
    types: Vec<String>,
    /// All with any of these tags; several with commas
    #[arg(long = "tag", value_name = "TAG", value_delimiter = ',')]
    tags: Vec<String>,
    /// Only the deliveries to this subscription; to all of them if not given
    #[arg(long, value_name = "NAME")]
    subscription: Option<String>,
    /// Do not ask
    #[arg(long, short)]
    yes: bool,
    #[command(flatten)]
    common: Common,
}

#[derive(Deserialize)]
struct Cancelled {
    cancelled: u64,
}

impl Cancel {
    pub async fn run(self) -> Result {
        if self.event_ids.is_empty() && self.types.is_empty() && self.tags.is_empty() {
            return Err(Usage("say which: by their ids, --type or --tag".to_owned()).into());
        }
        self.common
            .target
            .with(async |api| match self.event_ids.is_empty() {
                true => self.all_that_match(api).await,
                false => self.each(api).await,
            })
            .await
    }

    async fn each(&self, api: &Api) -> Result {
        let query = given([("subscription", self.subscription.clone())]);
        for id in &self.event_ids {
            let answer = api.post(&api.within(&format!("/events/{id}/cancel")), &query, &()).await?;
            if self.common.json {
                print_json(&answer.text)?;
                continue;
            }
            let Cancelled { cancelled } = answer.read()?;
            print(&format!("{} of event {id} cancelled.", counted(cancelled, "delivery")))?;
        }
        Ok(())
    }

    async fn all_that_match(&self, api: &Api) -> Result {
        confirm(&format!("cancel every waiting event {}", self.described()), self.yes)?;
        let answer = api.post(&api.within("/events/cancel"), &[], &self.filter()).await?;
        if self.common.json {
            return print_json(&answer.text);
        }
        let Cancelled { cancelled } = answer.read()?;
        print(&format!("{} cancelled.", counted(cancelled, "delivery")))
    }

    fn filter(&self) -> Value {
        let mut filter = Map::new();
        for (name, value) in [("types", joined(&self.types)), ("tags", joined(&self.tags))] {
            filter.extend(value.map(|value| (name.to_owned(), json!(value))));
        }
        filter.extend(self.subscription.as_ref().map(|name| ("subscription".to_owned(), json!(name))));
        Value::Object(filter)
    }

    fn described(&self) -> String {
        let parts = given([
            ("of type", joined(&self.types)),
            ("tagged", joined(&self.tags)),
            ("of subscription", self.subscription.clone()),
        ]);
        let parts: Vec<String> = parts.into_iter().map(|(what, value)| format!("{what} {value}")).collect();
        parts.join(" ")
    }
}
