//! `windlass token`: creates, lists and revokes API tokens.

use std::time::Duration;

use clap::{Args, Subcommand};
use serde_json::{Value, json};
use windlass::{CreatedToken, NewToken, Queue, Scope, Timestamp};

use crate::Result;
use crate::database::Database;
use crate::output::{Table, left, print, print_table, text};
use crate::time;

/// Create, list and revoke API tokens
///
/// A token belongs to the whole database, and is allowed what its scopes say in its namespaces. No server can be asked
/// for one: this works on the database itself.
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub struct Token {
    #[command(subcommand)]
    action: Action,
}

const EXAMPLES: &str = "\
Examples:
  windlass token create --scope publish --namespace orders --name 'web shop' --expires-in 90d
  windlass token create --scope admin
  windlass token list
  windlass token revoke 0123456789ab";

const SCOPES: &str = "\
Scopes:
  publish  publish events
  consume  take events and finish them; includes read
  read     look at events, dead letters, subscriptions and counts
  admin    everything

Examples:
  windlass token create --scope publish,consume --namespace orders,billing
  windlass token create --scope publish --name 'web shop' --expires-in 90d
  windlass token create --scope admin --json";

#[derive(Subcommand)]
enum Action {
    #[command(after_help = SCOPES)]
    Create(Create),
    List(List),
    Revoke(Revoke),
}

/// Create a token and show it, this once
///
/// Where there is no database yet it is made, and its schema is brought up to date.
#[derive(Args)]
struct Create {
    #[command(flatten)]
    database: Database,
    /// What it allows: publish, consume, read or admin; several with commas
    #[arg(long = "scope", value_name = "SCOPE", value_delimiter = ',', required = true)]
    scopes: Vec<Scope>,
    /// Only in these namespaces, which need not exist yet; all of them if not given
    #[arg(long = "namespace", value_name = "NAMESPACE", value_delimiter = ',')]
    namespaces: Vec<String>,
    /// What to call it; its scopes if not given
    #[arg(long)]
    name: Option<String>,
    /// How long it is valid, as in 30m, 12h or 90d; forever if not given
    #[arg(long, value_name = "SPAN", value_parser = time::parse_duration)]
    expires_in: Option<Duration>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// List the tokens, the oldest first; their secrets cannot be shown again
#[derive(Args)]
struct List {
    #[command(flatten)]
    database: Database,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Revoke a token
#[derive(Args)]
struct Revoke {
    #[command(flatten)]
    database: Database,
    /// Its id, as `windlass token list` shows it
    #[arg(value_name = "ID")]
    token_id: String,
}

impl Token {
    pub async fn run(self) -> Result {
        match self.action {
            Action::Create(create) => create.run().await,
            Action::List(list) => list.run().await,
            Action::Revoke(revoke) => revoke.run().await,
        }
    }
}

impl Create {
    async fn run(self) -> Result {
        let queue = Queue::open(&self.database.url).await?;
        let mut new = NewToken::new(self.scopes).namespaces(self.namespaces);
        if let Some(name) = self.name {
            new = new.name(name);
        }
        if let Some(lifetime) = self.expires_in {
            new = new.expires_in(lifetime);
        }
        let created = queue.create_token(new).await?;
        queue.close().await;
        if self.json { print(&to_json(&created)?) } else { print(&format_created(&created)) }
    }
}

/// Returns the fields of `list --json`, and the secret.
fn to_json(created: &CreatedToken) -> Result<Value> {
    let mut shown = serde_json::to_value(&created.token)?;
    shown["secret"] = json!(created.secret);
    Ok(shown)
}

fn format_created(CreatedToken { token, secret }: &CreatedToken) -> String {
    let [token_id, name, scopes, namespaces, _, expires] = token_cells(token, token.created_at);
    format!(
        "\
Token {token_id} \"{name}\" was created.
  scopes      {scopes}
  namespaces  {namespaces}
  expires     {expires}

{secret}

It is shown only this once: the database keeps no more than a hash of it. Send it with every request:
  curl -H 'authorization: Bearer TOKEN' http://127.0.0.1:7700/…"
    )
}

impl List {
    async fn run(self) -> Result {
        let queue = self.database.open_existing().await?;
        let (tokens, now) = (queue.tokens().await?, queue.clock().now());
        queue.close().await;
        if self.json {
            return print(&serde_json::to_value(&tokens)?);
        }
        if tokens.is_empty() {
            return print(&"There are no tokens; `windlass token create` makes one.");
        }
        let columns = ["SCOPES", "NAMESPACES", "CREATED", "EXPIRES"].map(left);
        let [scopes, namespaces, created, expires] = columns;
        let mut table = Table::new([left("ID"), text("NAME"), scopes, namespaces, created, expires]);
        tokens.iter().for_each(|token| table.row(token_cells(token, now).map(Into::into)));
        print_table(&table)
    }
}

/// Returns id, name, scopes, namespaces, creation and expiry.
fn token_cells(token: &windlass::Token, now: Timestamp) -> [String; 6] {
    let scopes: Vec<&str> = token.scopes.iter().map(|scope| scope.as_str()).collect();
    let namespaces = if token.namespaces.is_empty() { "all".to_owned() } else { token.namespaces.join(",") };
    let expires = match token.expires_at {
        None => "never".to_owned(),
        Some(at) if token.is_expired(now) => format!("{} (expired)", time::format_timestamp(at)),
        Some(at) => time::format_timestamp(at),
    };
    [
        token.token_id.clone(),
        token.name.clone(),
        scopes.join(","),
        namespaces,
        time::format_timestamp(token.created_at),
        expires,
    ]
}

impl Revoke {
    async fn run(self) -> Result {
        let queue = self.database.open_existing().await?;
        // Accept a whole token in place of its id, and do not print its secret.
        let token_id = windlass::Token::id_of(&self.token_id).unwrap_or(&self.token_id);
        queue.revoke_token(token_id).await?;
        queue.close().await;
        print(&format!("Token {token_id} was revoked."))
    }
}
