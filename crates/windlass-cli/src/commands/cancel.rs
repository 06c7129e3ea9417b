//! `windlass cancel`: cancels pending deliveries, by event id or by filter.

use clap::Args;
use windlass_api::{CancelRequest, CancelledBody, CancelledManyBody};

use super::NamespaceArgs;
use crate::Result;
use crate::api::responses::{SubscriptionNames, Total};
use crate::api::{Api, comma_separated, present_params};
use crate::exit::UsageError;
use crate::output::{confirm, pluralize, print, print_json};

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
    common: NamespaceArgs,
}

impl Cancel {
    pub async fn run(self) -> Result {
        let has_filter = !self.types.is_empty() || !self.tags.is_empty() || self.subscription.is_some();
        match (self.event_ids.is_empty(), has_filter, self.all) {
            (true, false, false) => {
                Err(UsageError("say which: by their ids, --type, --tag or --all".to_owned()).into())
            }
            (true, true, true) => Err(UsageError("--all makes no sense with a filter".to_owned()).into()),
            (true, ..) => self.common.target.with_api(async |api| self.cancel_matching(api).await).await,
            (false, ..) => self.common.target.with_api(async |api| self.cancel_by_id(api).await).await,
        }
    }

    async fn cancel_by_id(&self, api: &Api) -> Result {
        let query = present_params([("subscription", self.subscription.clone())]);
        for id in &self.event_ids {
            let response = api.post(&api.namespace_path(&format!("/events/{id}/cancel")), &query, &()).await?;
            if self.common.json {
                print_json(&response.text)?;
                continue;
            }
            let CancelledBody { cancelled, .. } = response.json()?;
            print(&format!("{} of event {id} cancelled.", pluralize(cancelled as u64, "delivery")))?;
        }
        Ok(())
    }

    async fn cancel_matching(&self, api: &Api) -> Result {
        let pending = self.count_pending(api).await?;
        if pending > 0 {
            confirm(&format!("cancel {}", pluralize(pending, "waiting delivery")), self.yes)?;
        }
        let response = api.post(&api.namespace_path("/events/cancel"), &[], &self.request()).await?;
        if self.common.json {
            return print_json(&response.text);
        }
        let CancelledManyBody { cancelled } = response.json()?;
        print(&format!("{} cancelled.", pluralize(cancelled as u64, "delivery")))
    }

    /// Counts the pending deliveries that match now.
    async fn count_pending(&self, api: &Api) -> Result<u64> {
        let names = match &self.subscription {
            Some(name) => vec![name.clone()],
            None => {
                let found: SubscriptionNames = api.get(&api.namespace_path("/subscriptions"), &[]).await?.json()?;
                found.subscriptions.into_iter().map(|found| found.subscription).collect()
            }
        };
        let mut pending = 0;
        for name in names {
            let query = present_params([
                ("status", Some("PENDING".to_owned())),
                ("types", comma_separated(&self.types)),
                ("tags", comma_separated(&self.tags)),
                ("subscription", Some(name)),
                ("limit", Some("1".to_owned())),
            ]);
            pending += api.get(&api.namespace_path("/events"), &query).await?.json::<Total>()?.total;
        }
        Ok(pending)
    }

    fn request(&self) -> CancelRequest {
        CancelRequest {
            event_ids: None,
            types: comma_separated(&self.types).map(Into::into),
            tags: comma_separated(&self.tags).map(Into::into),
            subscription: self.subscription.clone(),
            all: self.all,
        }
    }
}
