//! Problems of a page: errors, policy violations, dialogs, and requests to other hosts.

use serde_json::Value;

/// The problem that a DevTools event reports, if any.
pub fn problem(event: &Value, origin: &str) -> Option<String> {
    let params = &event["params"];
    match event["method"].as_str()? {
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
        "Network.requestWillBeSent" => foreign_request(params["request"]["url"].as_str()?, origin),
        _ => None,
    }
}

fn foreign_request(url: &str, origin: &str) -> Option<String> {
    let here = url.strip_prefix(origin).is_some_and(|path| path.starts_with('/'));
    let within = ["data:", "blob:", "about:"].iter().any(|scheme| url.starts_with(scheme));
    (!here && !within).then(|| format!("another host: {url}"))
}
