//! `/ui/{namespace}/dead-letters`: what was given up, and bringing it back or throwing it away, many at once.

use std::borrow::Cow;
use std::collections::BTreeMap;

use askama::Template;
use axum::Router;
use axum::routing::{get, post};
use serde::Deserialize;
use windlass::{DeadLetter, DeadLetterFilter, Timestamp};

use super::Answer;
use super::confirm::Confirm;
use super::filter::{filled, instant, names};
use super::form::{Form, link, local_path};
use super::format::{Badge, When, count, counted};
use super::shell::{Shell, Tab, page};
use super::visit::Visit;
use crate::app::App;
use crate::error::ApiError;
use crate::extract::{Args, FormBody};

pub(super) fn routes() -> Router<App> {
    Router::new()
        .route("/ui/{namespace}/dead-letters", get(show))
        .route("/ui/{namespace}/dead-letters/redrive", post(redrive))
        .route("/ui/{namespace}/dead-letters/purge", post(purge))
}

/// A page has so many.
const PAGE: usize = 50;
/// So many groups are shown.
const GROUPS: usize = 6;

/// What was asked for, as it was typed.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct LetterArgs {
    subscription: Option<String>,
    status: Option<String>,
    #[serde(rename = "type")]
    event_type: Option<String>,
    reason: Option<String>,
    until: Option<String>,
    offset: Option<usize>,
}

impl LetterArgs {
    fn from_form(form: &Form) -> LetterArgs {
        let field = |name| form.get(name).map(str::to_owned);
        LetterArgs {
            subscription: field("subscription"),
            status: field("status"),
            event_type: field("type"),
            reason: field("reason"),
            until: field("until"),
            offset: None,
        }
    }

    fn filter(&self) -> Result<DeadLetterFilter, ApiError> {
        Ok(DeadLetterFilter {
            subscription: filled(self.subscription.as_deref()),
            status: filled(self.status.as_deref()).map(|status| status.parse()).transpose()?,
            types: names(self.event_type.as_deref()),
            reason: filled(self.reason.as_deref()),
            failed_before: instant("until", self.until.as_deref())?,
            limit: PAGE,
            offset: self.offset.unwrap_or(0),
            ..DeadLetterFilter::default()
        })
    }

    /// The address of the page that begins there.
    fn link(&self, path: &str, offset: usize) -> String {
        let text = |text: &'_ Option<String>| filled(text.as_deref()).map(Cow::Owned);
        let pairs = [
            ("subscription", text(&self.subscription)),
            ("status", text(&self.status)),
            ("type", text(&self.event_type)),
            ("reason", text(&self.reason)),
            ("until", text(&self.until)),
            ("offset", (offset > 0).then(|| Cow::Owned(offset.to_string()))),
        ];
        link(path, pairs)
    }

    fn value(&self, field: &str) -> &str {
        let value = match field {
            "subscription" => &self.subscription,
            "status" => &self.status,
            "type" => &self.event_type,
            "reason" => &self.reason,
            _ => &self.until,
        };
        value.as_deref().map_or("", str::trim)
    }

    fn is_filtered(&self) -> bool {
        !self.link("", 0).is_empty()
    }
}

#[derive(Template)]
#[template(path = "dead_letters.html")]
struct DeadLetters {
    shell: Shell,
    args: LetterArgs,
    subscriptions: Vec<String>,
    groups: Vec<Group>,
    rows: Vec<Row>,
    total: String,
    has_total: bool,
    shown: String,
    here: String,
    newer: Option<String>,
    older: Option<String>,
    several: bool,
}

struct Group {
    reason: String,
    event_type: String,
    count: String,
    newest: When,
    href: String,
}

struct Row {
    id: i64,
    /// What its box says when it is chosen.
    value: String,
    href: String,
    name: String,
    event_type: String,
    subscription: String,
    badge: Badge,
    reason: String,
    error: Option<String>,
    attempts: u32,
    failed: When,
}

impl Row {
    fn new(visit: &Visit, letter: DeadLetter) -> Row {
        let event = letter.event;
        Row {
            id: event.id,
            value: format!("{}:{}", event.id, letter.subscription),
            href: visit.path(&format!("events/{}", event.id)),
            name: event.title.unwrap_or_else(|| event.event_type.clone()),
            event_type: event.event_type,
            subscription: letter.subscription,
            badge: letter.status.into(),
            reason: letter.reason,
            error: letter.error,
            attempts: letter.attempts,
            failed: When::new(letter.failed_at, visit.now),
        }
    }
}

async fn show(visit: Visit, Args(args): Args<LetterArgs>) -> Answer {
    let found = visit.queue.dead_letters(args.filter()?).await?;
    let subscriptions = visit.queue.subscriptions().await?;
    let path = visit.path("dead-letters");
    let offset = args.offset.unwrap_or(0);
    let next = offset.saturating_add(found.items.len());
    let has_more = !found.items.is_empty() && (next as u64) < found.total;
    let range =
        if found.items.is_empty() { String::new() } else { format!("{}–{} of ", count(offset + 1), count(next)) };
    page(&DeadLetters {
        shell: visit.shell(Tab::DeadLetters, "Dead letters"),
        several: subscriptions.len() > 1,
        subscriptions: subscriptions.into_iter().map(|subscription| subscription.subscription).collect(),
        groups: groups(&visit).await?,
        rows: found.items.into_iter().map(|letter| Row::new(&visit, letter)).collect(),
        shown: format!("{range}{}", count(found.total)),
        total: count(found.total),
        has_total: found.total > 0,
        here: args.link(&path, offset),
        newer: (offset > 0).then(|| args.link(&path, offset.saturating_sub(PAGE))),
        older: has_more.then(|| args.link(&path, next)),
        args,
    })
}

async fn groups(visit: &Visit) -> Result<Vec<Group>, ApiError> {
    let groups = visit.queue.dead_letter_groups(GROUPS).await?;
    let path = visit.path("dead-letters");
    let group = |group: windlass::DeadLetterGroup| {
        let pairs = [("type", Some(group.event_type.as_str().into())), ("reason", Some(group.reason.as_str().into()))];
        Group {
            href: link(&path, pairs),
            count: count(group.count),
            newest: When::new(group.newest_at, visit.now),
            reason: group.reason,
            event_type: group.event_type,
        }
    };
    Ok(groups.into_iter().map(group).collect())
}

/// Which dead letters an action is about.
struct Meant {
    /// One for each subscription, where they were chosen one by one.
    filters: Vec<DeadLetterFilter>,
    /// What is given up later is not meant: the number would not be the one that was confirmed.
    asked_at: Timestamp,
}

impl Meant {
    fn new(visit: &Visit, form: &Form) -> Result<Meant, ApiError> {
        let asked_at = instant("asked_at", form.get("asked_at"))?.unwrap_or(visit.now);
        let mut filters = match form.get("what") {
            Some("matching") => vec![LetterArgs::from_form(form).filter()?],
            _ => chosen(form)?,
        };
        for filter in &mut filters {
            // The instant itself is still meant.
            let latest = asked_at + chrono::TimeDelta::milliseconds(1);
            filter.failed_before = Some(filter.failed_before.map_or(latest, |before| before.min(latest)));
        }
        Ok(Meant { filters, asked_at })
    }

    async fn count(&self, visit: &Visit) -> Result<u64, ApiError> {
        let mut number = 0;
        for filter in &self.filters {
            let filter = DeadLetterFilter { limit: 1, offset: 0, ..filter.clone() };
            number += visit.queue.dead_letters(filter).await?.total;
        }
        Ok(number)
    }
}

/// Of each subscription, those that were chosen.
fn chosen(form: &Form) -> Result<Vec<DeadLetterFilter>, ApiError> {
    let mut by_subscription: BTreeMap<&str, Vec<i64>> = BTreeMap::new();
    for value in form.all("id") {
        let parsed = value.split_once(':').and_then(|(id, subscription)| Some((id.parse().ok()?, subscription)));
        let (id, subscription) = parsed.ok_or_else(|| ApiError::invalid("id", "must be a dead letter of the list"))?;
        by_subscription.entry(subscription).or_default().push(id);
    }
    if by_subscription.is_empty() {
        return Err(ApiError::invalid("id", "select at least one dead letter first"));
    }
    let filter = |(subscription, event_ids): (&str, _)| DeadLetterFilter {
        event_ids,
        subscription: Some(subscription.to_owned()),
        ..DeadLetterFilter::default()
    };
    Ok(by_subscription.into_iter().map(filter).collect())
}

async fn redrive(visit: Visit, FormBody(fields, _room): FormBody) -> Answer {
    let form = Form(fields);
    let meant = Meant::new(&visit, &form)?;
    if !form.is_confirmed() {
        let detail = "Each is put back into the queue with fresh retries, and handed out again: the oldest first.";
        return ask(&visit, form, &meant, ("Redrive", "redrive"), detail, false).await;
    }
    let mut redriven = 0;
    for filter in meant.filters {
        redriven += visit.queue.redrive(filter).await?;
    }
    visit.done(
        &back(&visit, &form),
        &format!("{} put back into the queue.", counted(redriven, "dead letter", "dead letters")),
    )
}

async fn purge(visit: Visit, FormBody(fields, _room): FormBody) -> Answer {
    let form = Form(fields);
    let meant = Meant::new(&visit, &form)?;
    if !form.is_confirmed() {
        let detail = "They can no longer be redriven. The events stay in the history. This cannot be undone.";
        return ask(&visit, form, &meant, ("Delete", "purge"), detail, true).await;
    }
    let mut purged = 0;
    for filter in meant.filters {
        purged += visit.queue.purge(filter).await?;
    }
    visit.done(&back(&visit, &form), &format!("{} deleted.", counted(purged, "dead letter", "dead letters")))
}

fn back(visit: &Visit, form: &Form) -> String {
    form.get("back").and_then(local_path).map_or_else(|| visit.path("dead-letters"), str::to_owned)
}

async fn ask(
    visit: &Visit,
    mut form: Form,
    meant: &Meant,
    (label, verb): (&str, &str),
    detail: &str,
    destructive: bool,
) -> Answer {
    let number = meant.count(visit).await?;
    form.0.retain(|(name, _)| name != "asked_at");
    form.0.push(("asked_at".to_owned(), meant.asked_at.to_rfc3339()));
    let confirm = Confirm {
        tab: Tab::DeadLetters,
        question: format!("{label} {}?", counted(number, "dead letter", "dead letters")),
        detail: detail.to_owned(),
        button: format!("{label} {}", count(number)),
        destructive,
        action: visit.path(&format!("dead-letters/{verb}")),
        back: back(visit, &form),
    };
    confirm.ask(visit, form)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn form(pairs: &[(&str, &str)]) -> Form {
        Form(pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect())
    }

    #[test]
    fn what_is_chosen_is_taken_by_subscription() {
        let filters = chosen(&form(&[("id", "1:main"), ("x", "9"), ("id", "2:audit"), ("id", "3:main")])).unwrap();
        let taken: Vec<_> = filters.iter().map(|f| (f.subscription.as_deref().unwrap(), &f.event_ids[..])).collect();
        assert_eq!(taken, [("audit", &[2][..]), ("main", &[1, 3])]);
        for bad in [&[][..], &[("id", "1")], &[("id", "x:main")]] {
            assert!(chosen(&form(bad)).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn filters_survive_in_links() {
        let asked = form(&[("type", "a b"), ("reason", "x&y"), ("status", " ")]);
        assert_eq!(LetterArgs::from_form(&asked).link("/d", 50), "/d?type=a+b&reason=x%26y&offset=50");
    }
}
