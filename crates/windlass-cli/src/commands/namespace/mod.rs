//! `windlass namespace`: namespaces and their policy.

mod view;

use clap::{Args, Subcommand};
use serde_json::{Map, Value, json};

use self::view::View;
use super::{Anywhere, show};
use crate::Result;
use crate::api::{Api, Refusal, Target, given, segment};
use crate::exit::Usage;
use crate::input::{json_argument, text_argument};
use crate::output::{clean, width};

/// See and change namespaces and their policy; pause them
#[derive(Args)]
#[command(after_help = "\
Examples:
  windlass namespace list
  windlass namespace create orders --preset outbox
  windlass namespace set orders --policy policy.json
  windlass namespace pause orders --type 'order.*'")]
pub struct Namespace {
    #[command(subcommand)]
    action: Action,
}

#[derive(Subcommand)]
enum Action {
    List(List),
    /// Show a namespace, with its policy
    Show(Named),
    /// Create a namespace
    ///
    /// Without --preset and --policy it has the default policy.
    #[command(after_help = "\
Examples:
  windlass namespace create orders
  windlass namespace create orders --preset queue
  echo '{\"max_retries\": 5, \"types\": {\"mail.*\": {\"lease_ms\": 60000}}}' | windlass namespace create orders --policy -")]
    Create(Put),
    /// Change a namespace's policy or metadata
    ///
    /// The policy is replaced as a whole: by the preset, with the settings of --policy in place of its own.
    #[command(after_help = "\
Examples:
  windlass namespace set orders --preset queue
  windlass namespace show orders --json | jq '.policy | .max_retries = 9' | windlass namespace set orders --policy -")]
    Set(Put),
    /// Hand out nothing more; publishing goes on, and so does what workers hold
    Pause(Turn),
    /// Hand out events again
    Resume(Turn),
}

/// List the namespaces
#[derive(Args)]
struct List {
    #[command(flatten)]
    at: Anywhere,
}

#[derive(Args)]
struct Named {
    /// The namespace
    #[arg(value_name = "NAME", default_value = "default")]
    name: String,
    #[command(flatten)]
    at: Anywhere,
}

#[derive(Args)]
struct Put {
    /// The namespace
    #[arg(value_name = "NAME")]
    name: String,
    /// Begin with this policy: default, queue, bus, tags, core or outbox
    #[arg(long, value_name = "NAME")]
    preset: Option<String>,
    /// A file with the settings of the policy, as JSON; - for stdin
    #[arg(long, value_name = "FILE")]
    policy: Option<String>,
    /// A JSON object with anything to keep with it; @FILE reads a file, - stdin
    #[arg(long, value_name = "JSON")]
    metadata: Option<String>,
    #[command(flatten)]
    at: Anywhere,
}

#[derive(Args)]
#[command(after_help = "\
Examples:
  windlass namespace pause orders
  windlass namespace pause orders --type 'newsletter.*'
  windlass namespace resume orders")]
struct Turn {
    /// The namespace
    #[arg(value_name = "NAME")]
    name: String,
    /// Only events of this type, exact or by prefix ending in `*`
    #[arg(long = "type", short, value_name = "TYPE")]
    event_type: Option<String>,
    #[command(flatten)]
    at: Anywhere,
}

impl Namespace {
    pub async fn run(self) -> Result {
        match self.action {
            Action::List(list) => list.run().await,
            Action::Show(named) => named.run().await,
            Action::Create(put) => put.run(true).await,
            Action::Set(put) => put.run(false).await,
            Action::Pause(turn) => turn.run("pause").await,
            Action::Resume(turn) => turn.run("resume").await,
        }
    }
}

impl List {
    async fn run(self) -> Result {
        let target = self.at.place.namespace("default");
        let answer = target.with(async |api| api.get("/namespaces", &[]).await).await?;
        show(self.at.json, &answer, |answer| Ok(view::table(answer)?.render(width())))
    }
}

impl Named {
    async fn run(self) -> Result {
        let target = self.at.place.namespace(self.name);
        let answer = target.with(async |api| api.get(&api.within(""), &[]).await).await?;
        show(self.at.json, &answer, |answer| view::shown(&answer.read::<View>()?))
    }
}

impl Put {
    async fn run(self, new: bool) -> Result {
        let body = self.body()?;
        if !new && body.is_empty() {
            return Err(Usage("say what to change: --preset, --policy or --metadata".to_owned()).into());
        }
        let target = self.at.place.clone().namespace(&self.name);
        let path = format!("/namespaces/{}", segment(&self.name));
        let answer = with(&target, new, async |api| match (new, exists(api, &path).await?) {
            (true, true) => {
                Err(format!("namespace '{}' exists already; `windlass namespace set` changes it", self.name).into())
            }
            (false, false) => Err(not_found(&self.name).into()),
            _ => api.put(&path, &[], &body).await,
        });
        let answer = answer.await?;
        let done = if new { "created" } else { "changed" };
        show(self.at.json, &answer, |_| Ok(format!("Namespace {} was {done}.", clean(&self.name))))
    }

    fn body(&self) -> Result<Map<String, Value>> {
        let mut body = Map::new();
        let mut policy: Option<Map<String, Value>> = None;
        if let Some(file) = &self.policy {
            policy = Some(settings(file)?);
        }
        if let Some(preset) = &self.preset {
            policy.get_or_insert_default().insert("preset".to_owned(), json!(preset));
        }
        body.extend(policy.map(|policy| ("policy".to_owned(), Value::Object(policy))));
        if let Some(metadata) = &self.metadata {
            let metadata = json_argument("--metadata", metadata)?;
            body.insert("metadata".to_owned(), serde_json::from_str(metadata.get())?);
        }
        Ok(body)
    }
}

/// The first namespace of a new database is worth making it.
async fn with<T>(target: &Target, new: bool, work: impl AsyncFnOnce(&Api) -> Result<T>) -> Result<T> {
    let api = if new { target.connect_or_create().await? } else { target.connect().await? };
    let done = work(&api).await;
    api.close().await;
    done
}

async fn exists(api: &Api, path: &str) -> Result<bool> {
    match api.get(path, &[]).await {
        Ok(_) => Ok(true),
        Err(error) if error.downcast_ref().is_some_and(|refusal: &Refusal| refusal.code == NOT_FOUND) => Ok(false),
        Err(error) => Err(error),
    }
}

const NOT_FOUND: &str = "namespace_not_found";

fn not_found(name: &str) -> Refusal {
    Refusal { status: 404, code: NOT_FOUND.to_owned(), sentence: format!("namespace '{name}' does not exist") }
}

/// The settings in a file.
fn settings(file: &str) -> Result<Map<String, Value>> {
    let whole = text_argument("--policy", &if file == "-" { file.to_owned() } else { format!("@{file}") })?;
    serde_json::from_str(&whole)
        .map_err(|error| Usage(format!("--policy: {file}: is not a JSON object: {error}")).into())
}

impl Turn {
    async fn run(self, verb: &str) -> Result {
        let query = given([("type", self.event_type.clone())]);
        let target = self.at.place.namespace(&self.name);
        let answer = target.with(async |api| api.post(&api.within(&format!("/{verb}")), &query, &()).await).await?;
        show(self.at.json, &answer, |answer| {
            let what = match &self.event_type {
                Some(event_type) => format!("Type {} in namespace {} was", clean(event_type), clean(&self.name)),
                None => format!("Namespace {} was", clean(&self.name)),
            };
            let view: View = answer.read()?;
            let still = view.still_paused().map(|still| format!(" {still}")).unwrap_or_default();
            Ok(format!("{what} {verb}d.{still}"))
        })
    }
}
