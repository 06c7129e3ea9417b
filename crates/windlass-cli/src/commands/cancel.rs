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
    #[arg(value_name = "ID", conflicts_with_all = ["types", "tags", "all"])]
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
    /// All that wait in the namespace
    #[arg(long)]
    all: bool,
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

#[derive(Deserialize)]
struct Total {
    total: u64,
}

#[derive(Deserialize)]
struct Subscriptions {
    subscriptions: Vec<Subscription>,
}

#[derive(Deserialize)]
struct Subscription {
    subscription: String,
}

impl Cancel {
    pub async fn run(self) -> Result {
        let filters = !self.types.is_empty() || !self.tags.is_empty() || self.subscription.is_some();
        match (self.event_ids.is_empty(), filters, self.all) {
            (true, false, false) => Err(Usage("say which: by their ids, --type, --tag or --all".to_owned()).into()),
            (true, true, true) => Err(Usage("--all makes no sense with a filter".to_owned()).into()),
            (true, ..) => self.common.target.with(async |api| self.all_that_match(api).await).await,
            (false, ..) => self.common.target.with(async |api| self.each(api).await).await,
        }
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
        let waiting = self.waiting(api).await?;
        if waiting > 0 {
            confirm(&format!("cancel {}", counted(waiting, "waiting delivery")), self.yes)?;
        }
        let answer = api.post(&api.within("/events/cancel"), &[], &self.filter()).await?;
        if self.common.json {
            return print_json(&answer.text);
        }
        let Cancelled { cancelled } = answer.read()?;
        print(&format!("{} cancelled.", counted(cancelled, "delivery")))
    }

    /// How many match by now.
    async fn waiting(&self, api: &Api) -> Result<u64> {
        let names = match &self.subscription {
            Some(name) => vec![name.clone()],
            None => {
                let found: Subscriptions = api.get(&api.within("/subscriptions"), &[]).await?.read()?;
                found.subscriptions.into_iter().map(|found| found.subscription).collect()
            }
        };
        let mut waiting = 0;
        for name in names {
            let query = given([
                ("status", Some("PENDING".to_owned())),
                ("types", joined(&self.types)),
                ("tags", joined(&self.tags)),
                ("subscription", Some(name)),
                ("limit", Some("1".to_owned())),
            ]);
            waiting += api.get(&api.within("/events"), &query).await?.read::<Total>()?.total;
        }
        Ok(waiting)
    }

    fn filter(&self) -> Value {
        let texts = given([
            ("types", joined(&self.types)),
            ("tags", joined(&self.tags)),
            ("subscription", self.subscription.clone()),
        ]);
        let mut filter: Map<String, Value> =
            texts.into_iter().map(|(name, value)| (name.to_owned(), json!(value))).collect();
        if self.all {
            filter.insert("all".to_owned(), json!(true));
        }
        Value::Object(filter)
    }
}
