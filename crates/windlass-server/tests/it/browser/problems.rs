//! What must not happen in a page: errors, breaches of its policy, dialogs, requests to other hosts.

use serde_json::Value;

/// What is wrong about something that Chromium told, if anything.
pub fn problem(told: &Value, origin: &str) -> Option<String> {
    let params = &told["params"];
    match told["method"].as_str()? {
        "Runtime.exceptionThrown" => {
            let details = &params["exceptionDetails"];
            Some(format!("uncaught: {} {}", details["text"], details["exception"]["description"]))
        }
        "Runtime.consoleAPICalled" if matches!(params["type"].as_str()?, "error" | "warning" | "assert") => {
            Some(format!("console: {}", params["args"]))
        }
        "Log.entryAdded" if matches!(params["entry"]["level"].as_str()?, "error" | "warning") => {
            let entry = &params["entry"];
            Some(format!("log: {} {} {}", entry["source"], entry["text"], entry["url"]))
        }
        "Page.javascriptDialogOpening" => Some(format!("dialog: {}", params["message"])),
        "Network.requestWillBeSent" => elsewhere(params["request"]["url"].as_str()?, origin),
        _ => None,
    }
}

fn elsewhere(url: &str, origin: &str) -> Option<String> {
    let here = url.strip_prefix(origin).is_some_and(|path| path.starts_with('/'));
    let within = ["data:", "blob:", "about:"].iter().any(|scheme| url.starts_with(scheme));
    (!here && !within).then(|| format!("another host: {url}"))
}
