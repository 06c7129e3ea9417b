//! `windlass namespace`: lists, shows, creates, changes, pauses and resumes namespaces.

mod view;

use clap::{Args, Subcommand};
use serde_json::{Map, Value, json};

use super::{LocationArgs, print_response};
use crate::Result;
use crate::api::{Api, ApiError, NamespaceTarget, encode_segment, present_params};
use crate::exit::UsageError;
use crate::input::{read_json_argument, read_text_argument};
use crate::output::{sanitize, terminal_width};

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
    Pause(SetPaused),
    /// Hand out events again
    Resume(SetPaused),
}

/// List the namespaces
#[derive(Args)]
struct List {
    #[command(flatten)]
    common: LocationArgs,
}

#[derive(Args)]
struct Named {
    /// The namespace
    #[arg(value_name = "NAME", default_value = "default")]
    name: String,
    #[command(flatten)]
    common: LocationArgs,
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
    common: LocationArgs,
}

#[derive(Args)]
#[command(after_help = "\
Examples:
  windlass namespace pause orders
  windlass namespace pause orders --type 'newsletter.*'
  windlass namespace resume orders")]
struct SetPaused {
    /// The namespace
    #[arg(value_name = "NAME")]
    name: String,
    /// Only events of this type, exact or by prefix ending in `*`
    #[arg(long = "type", short, value_name = "TYPE")]
    event_type: Option<String>,
    #[command(flatten)]
    common: LocationArgs,
}

impl Namespace {
    pub async fn run(self) -> Result {
        match self.action {
            Action::List(list) => list.run().await,
            Action::Show(named) => named.run().await,
            Action::Create(put) => put.run(true).await,
            Action::Set(put) => put.run(false).await,
            Action::Pause(pause) => pause.run("pause").await,
            Action::Resume(resume) => resume.run("resume").await,
        }
    }
}

impl List {
    async fn run(self) -> Result {
        let target = self.common.location.namespace("default");
        let response = target.with_api(async |api| api.get("/namespaces", &[]).await).await?;
        print_response(self.common.json, &response, |response| {
            Ok(view::format_table(response)?.render(terminal_width()))
        })
    }
}

impl Named {
    async fn run(self) -> Result {
        let target = self.common.location.namespace(self.name);
        let response = target.with_api(async |api| api.get(&api.namespace_path(""), &[]).await).await?;
        print_response(self.common.json, &response, |response| Ok(view::format_namespace(&response.json()?)))
    }
}

impl Put {
    async fn run(self, new: bool) -> Result {
        let body = self.body()?;
        if !new && body.is_empty() {
            return Err(UsageError("say what to change: --preset, --policy or --metadata".to_owned()).into());
        }
        let target = self.common.location.clone().namespace(&self.name);
        let path = format!("/namespaces/{}", encode_segment(&self.name));
        let response = with_api(&target, new, async |api| match (new, exists(api, &path).await?) {
            (true, true) => {
                Err(format!("namespace '{}' exists already; `windlass namespace set` changes it", self.name).into())
            }
            (false, false) => Err(not_found(&self.name).into()),
            _ => api.put(&path, &[], &body).await,
        });
        let response = response.await?;
        let done = if new { "created" } else { "changed" };
        print_response(self.common.json, &response, |_| Ok(format!("Namespace {} was {done}.", sanitize(&self.name))))
    }

    fn body(&self) -> Result<Map<String, Value>> {
        let mut body = Map::new();
        let mut policy: Option<Map<String, Value>> = None;
        if let Some(file) = &self.policy {
            policy = Some(read_settings(file)?);
        }
        if let Some(preset) = &self.preset {
            policy.get_or_insert_default().insert("preset".to_owned(), json!(preset));
        }
        body.extend(policy.map(|policy| ("policy".to_owned(), Value::Object(policy))));
        if let Some(metadata) = &self.metadata {
            let metadata = read_json_argument("--metadata", metadata)?;
            body.insert("metadata".to_owned(), serde_json::from_str(metadata.get())?);
        }
        Ok(body)
    }
}

/// Connects and runs `work`. Creating a namespace also creates a missing database.
async fn with_api<T>(target: &NamespaceTarget, new: bool, work: impl AsyncFnOnce(&Api) -> Result<T>) -> Result<T> {
    let api = if new { target.connect_or_create().await? } else { target.connect().await? };
    let result = work(&api).await;
    api.close().await;
    result
}

async fn exists(api: &Api, path: &str) -> Result<bool> {
    match api.get(path, &[]).await {
        Ok(_) => Ok(true),
        Err(error) if error.downcast_ref().is_some_and(|api_error: &ApiError| api_error.code == NOT_FOUND) => Ok(false),
        Err(error) => Err(error),
    }
}

const NOT_FOUND: &str = "namespace_not_found";

fn not_found(name: &str) -> ApiError {
    ApiError { status: 404, code: NOT_FOUND.to_owned(), message: format!("namespace '{name}' does not exist") }
}

/// Reads the policy settings from a file.
fn read_settings(file: &str) -> Result<Map<String, Value>> {
    let text = read_text_argument("--policy", &if file == "-" { file.to_owned() } else { format!("@{file}") })?;
    serde_json::from_str(&text)
        .map_err(|error| UsageError(format!("--policy: {file}: is not a JSON object: {error}")).into())
}

impl SetPaused {
    async fn run(self, verb: &str) -> Result {
        let query = present_params([("type", self.event_type.clone())]);
        let target = self.common.location.namespace(&self.name);
        let response =
            target.with_api(async |api| api.post(&api.namespace_path(&format!("/{verb}")), &query, &()).await).await?;
        print_response(self.common.json, &response, |response| {
            let subject = match &self.event_type {
                Some(event_type) => format!("Type {} in namespace {} was", sanitize(event_type), sanitize(&self.name)),
                None => format!("Namespace {} was", sanitize(&self.name)),
            };
            let still = view::still_paused(&response.json()?).map(|still| format!(" {still}")).unwrap_or_default();
            Ok(format!("{subject} {verb}d.{still}"))
        })
    }
}
