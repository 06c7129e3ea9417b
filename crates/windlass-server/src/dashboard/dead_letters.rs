//! `/ui/{namespace}/dead-letters`: list dead letters, and redrive or purge many.

use std::borrow::Cow;
use std::collections::BTreeMap;

use askama::Template;
use axum::Router;
use axum::routing::{get, post};
use serde::Deserialize;
use windlass::{DeadLetter, DeadLetterFilter, Timestamp};

use super::PageResult;
use super::confirm::Confirm;
use super::filter::{non_blank, parse_timestamp, split_names};
use super::form::{Form, link, local_path};
use super::format::{Badge, RelativeTime, count, pluralize};
use super::layout::{Layout, Tab, render};
use super::page_context::PageContext;
use crate::app::App;
use crate::error::ApiError;
use crate::extract::{FormBody, QueryArgs};

pub(super) fn routes() -> Router<App> {
    Router::new()
        .route("/ui/{namespace}/dead-letters", get(show))
        .route("/ui/{namespace}/dead-letters/redrive", post(redrive))
        .route("/ui/{namespace}/dead-letters/purge", post(purge))
}

/// Dead letters per page.
const PAGE_SIZE: usize = 50;
/// Maximum number of groups to show.
const GROUPS_MAX: usize = 6;

/// The filter, as it was typed.
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
            subscription: non_blank(self.subscription.as_deref()),
            status: non_blank(self.status.as_deref()).map(|status| status.parse()).transpose()?,
            types: split_names(self.event_type.as_deref()),
            reason: non_blank(self.reason.as_deref()),
            failed_before: parse_timestamp("until", self.until.as_deref())?,
            limit: PAGE_SIZE,
            offset: self.offset.unwrap_or(0),
            ..DeadLetterFilter::default()
        })
    }

    /// The URL of the page at this offset.
    fn link(&self, path: &str, offset: usize) -> String {
        let text = |text: &'_ Option<String>| non_blank(text.as_deref()).map(Cow::Owned);
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
    layout: Layout,
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
    newest: RelativeTime,
    href: String,
}

struct Row {
    id: i64,
    /// Value of its checkbox: `event_id:subscription`.
    value: String,
    href: String,
    name: String,
    event_type: String,
    subscription: String,
    badge: Badge,
    reason: String,
    error: Option<String>,
    attempts: u32,
    failed: RelativeTime,
}

impl Row {
    fn new(ctx: &PageContext, letter: DeadLetter) -> Row {
        let event = letter.event;
        Row {
            id: event.id,
            value: format!("{}:{}", event.id, letter.subscription),
            href: ctx.path(&format!("events/{}", event.id)),
            name: event.title.unwrap_or_else(|| event.event_type.clone()),
            event_type: event.event_type,
            subscription: letter.subscription,
            badge: letter.status.into(),
            reason: letter.reason,
            error: letter.error,
            attempts: letter.attempts,
            failed: RelativeTime::new(letter.failed_at, ctx.now),
        }
    }
}

async fn show(ctx: PageContext, QueryArgs(args): QueryArgs<LetterArgs>) -> PageResult {
    let found = ctx.queue.dead_letters(args.filter()?).await?;
    let subscriptions = ctx.queue.subscriptions().await?;
    let path = ctx.path("dead-letters");
    let offset = args.offset.unwrap_or(0);
    let next = offset.saturating_add(found.items.len());
    let has_more = !found.items.is_empty() && (next as u64) < found.total;
    let range =
        if found.items.is_empty() { String::new() } else { format!("{}–{} of ", count(offset + 1), count(next)) };
    render(&DeadLetters {
        layout: ctx.layout(Tab::DeadLetters, "Dead letters"),
        several: subscriptions.len() > 1,
        subscriptions: subscriptions.into_iter().map(|subscription| subscription.subscription).collect(),
        groups: groups(&ctx).await?,
        rows: found.items.into_iter().map(|letter| Row::new(&ctx, letter)).collect(),
        shown: format!("{range}{}", count(found.total)),
        total: count(found.total),
        has_total: found.total > 0,
        here: args.link(&path, offset),
        newer: (offset > 0).then(|| args.link(&path, offset.saturating_sub(PAGE_SIZE))),
        older: has_more.then(|| args.link(&path, next)),
        args,
    })
}

async fn groups(ctx: &PageContext) -> Result<Vec<Group>, ApiError> {
    let groups = ctx.queue.dead_letter_groups(GROUPS_MAX).await?;
    let path = ctx.path("dead-letters");
    let group = |group: windlass::DeadLetterGroup| {
        let pairs = [("type", Some(group.event_type.as_str().into())), ("reason", Some(group.reason.as_str().into()))];
        Group {
            href: link(&path, pairs),
            count: count(group.count),
            newest: RelativeTime::new(group.newest_at, ctx.now),
            reason: group.reason,
            event_type: group.event_type,
        }
    };
    Ok(groups.into_iter().map(group).collect())
}

/// The dead letters that an action applies to.
struct Selection {
    /// One filter, or one for each subscription if dead letters were selected individually.
    filters: Vec<DeadLetterFilter>,
    /// Dead letters that fail after this are excluded, so that the confirmed number is right.
    asked_at: Timestamp,
}

impl Selection {
    fn new(ctx: &PageContext, form: &Form) -> Result<Selection, ApiError> {
        let asked_at = parse_timestamp("asked_at", form.get("asked_at"))?.unwrap_or(ctx.now);
        let mut filters = match form.get("what") {
            Some("matching") => vec![LetterArgs::from_form(form).filter()?],
            _ => selected(form)?,
        };
        for filter in &mut filters {
            // `failed_before` is exclusive, and dead letters that failed at `asked_at` are included.
            let latest = asked_at + chrono::TimeDelta::milliseconds(1);
            filter.failed_before = Some(filter.failed_before.map_or(latest, |before| before.min(latest)));
        }
        Ok(Selection { filters, asked_at })
    }

    async fn count(&self, ctx: &PageContext) -> Result<u64, ApiError> {
        let mut number = 0;
        for filter in &self.filters {
            let filter = DeadLetterFilter { limit: 1, offset: 0, ..filter.clone() };
            number += ctx.queue.dead_letters(filter).await?.total;
        }
        Ok(number)
    }
}

/// The selected dead letters, as one filter for each subscription.
fn selected(form: &Form) -> Result<Vec<DeadLetterFilter>, ApiError> {
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

async fn redrive(ctx: PageContext, FormBody(fields, _memory): FormBody) -> PageResult {
    let form = Form(fields);
    let selection = Selection::new(&ctx, &form)?;
    if !form.is_confirmed() {
        let detail = "Each is put back into the queue with its retries reset. The oldest is delivered first.";
        return ask(&ctx, form, &selection, ("Redrive", "redrive"), detail, false).await;
    }
    let mut redriven = 0;
    for filter in selection.filters {
        redriven += ctx.queue.redrive(filter).await?;
    }
    ctx.redirect_with_notice(
        &back(&ctx, &form),
        &format!("{} put back into the queue.", pluralize(redriven, "dead letter", "dead letters")),
    )
}

async fn purge(ctx: PageContext, FormBody(fields, _memory): FormBody) -> PageResult {
    let form = Form(fields);
    let selection = Selection::new(&ctx, &form)?;
    if !form.is_confirmed() {
        let detail = "They can no longer be redriven. The events stay in the history. This cannot be undone.";
        return ask(&ctx, form, &selection, ("Delete", "purge"), detail, true).await;
    }
    let mut purged = 0;
    for filter in selection.filters {
        purged += ctx.queue.purge(filter).await?;
    }
    ctx.redirect_with_notice(
        &back(&ctx, &form),
        &format!("{} deleted.", pluralize(purged, "dead letter", "dead letters")),
    )
}

fn back(ctx: &PageContext, form: &Form) -> String {
    form.get("back").and_then(local_path).map_or_else(|| ctx.path("dead-letters"), str::to_owned)
}

async fn ask(
    ctx: &PageContext,
    mut form: Form,
    selection: &Selection,
    (label, verb): (&str, &str),
    detail: &str,
    destructive: bool,
) -> PageResult {
    let number = selection.count(ctx).await?;
    form.0.retain(|(name, _)| name != "asked_at");
    form.0.push(("asked_at".to_owned(), selection.asked_at.to_rfc3339()));
    let confirm = Confirm {
        tab: Tab::DeadLetters,
        question: format!("{label} {}?", pluralize(number, "dead letter", "dead letters")),
        detail: detail.to_owned(),
        button: format!("{label} {}", count(number)),
        destructive,
        action: ctx.path(&format!("dead-letters/{verb}")),
        back: back(ctx, &form),
    };
    confirm.ask(ctx, form)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn form(pairs: &[(&str, &str)]) -> Form {
        Form(pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect())
    }

    #[test]
    fn selected_dead_letters_are_grouped_by_subscription() {
        let filters = selected(&form(&[("id", "1:main"), ("x", "9"), ("id", "2:audit"), ("id", "3:main")])).unwrap();
        let taken: Vec<_> = filters.iter().map(|f| (f.subscription.as_deref().unwrap(), &f.event_ids[..])).collect();
        assert_eq!(taken, [("audit", &[2][..]), ("main", &[1, 3])]);
        for bad in [&[][..], &[("id", "1")], &[("id", "x:main")]] {
            assert!(selected(&form(bad)).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn filters_are_kept_in_links() {
        let asked = form(&[("type", "a b"), ("reason", "x&y"), ("status", " ")]);
        assert_eq!(LetterArgs::from_form(&asked).link("/d", 50), "/d?type=a+b&reason=x%26y&offset=50");
    }
}
