//! Checks that the files in `deploy/` and the `Dockerfile` are valid and name only existing settings and commands.

use std::collections::BTreeSet;
use std::path::PathBuf;

use serde_json::Value;
use yaml_rust2::{Yaml, YamlLoader};

use crate::windlass::run;

fn read(path: &str) -> String {
    let file = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../..").join(path);
    std::fs::read_to_string(&file).unwrap_or_else(|error| panic!("{path}: {error}"))
}

fn yaml(path: &str) -> Yaml {
    let mut documents = YamlLoader::load_from_str(&read(path)).unwrap_or_else(|error| panic!("{path}: {error}"));
    assert_eq!(documents.len(), 1, "{path}");
    documents.remove(0)
}

/// Returns the words of a text with this prefix.
fn words(text: &str, prefix: &str) -> BTreeSet<String> {
    let words = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    words.filter(|word| word.starts_with(prefix)).map(str::to_owned).collect()
}

/// Returns the help texts of the commands that deployments use.
fn help() -> String {
    let commands: [&[&str]; 5] = [&[], &["serve"], &["health"], &["token", "create"], &["migrate", "up"]];
    let of = |command: &&[&str]| run(&[*command, &["--help"]].concat()).1;
    commands.iter().map(of).collect::<Vec<_>>().join("\n")
}

#[test]
fn every_named_setting_exists() {
    let known = words(&help(), "WINDLASS_");
    for path in ["Dockerfile", "deploy/compose.yaml", "deploy/windlass.service", "deploy/windlass.env.example"] {
        let named = words(&read(path), "WINDLASS_");
        assert!(!named.is_empty(), "{path}");
        let unknown: Vec<&String> = named.difference(&known).collect();
        assert!(unknown.is_empty(), "{path}: {unknown:?}");
    }
    let example = words(&read("deploy/windlass.env.example"), "WINDLASS_");
    let settings = words(&run(&["serve", "--help"]).1, "WINDLASS_");
    let missing: Vec<&String> = settings.difference(&example).collect();
    assert!(missing.is_empty(), "not in the example: {missing:?}");
}

#[test]
fn every_named_command_exists() {
    for (path, commands) in [
        ("Dockerfile", &[&["health"][..], &["serve"], &["token", "create"]][..]),
        ("deploy/compose.yaml", &[&["token", "create"]]),
        ("deploy/windlass.service", &[&["serve"], &["token", "create"]]),
    ] {
        let text = read(path).replace(['"', ',', '[', ']'], " ");
        let words: Vec<&str> = text.split_whitespace().collect();
        for command in commands {
            assert!(words.windows(command.len()).any(|found| found == *command), "{path} does not say {command:?}");
            assert_eq!(run(&[*command, &["--help"]].concat()).0, 0, "{command:?}");
        }
    }
    for option in ["--scope", "--name", "--json"] {
        assert!(run(&["token", "create", "--help"]).1.contains(option), "{option}");
    }
}

#[test]
fn image_has_no_shell_and_no_root_user() {
    let dockerfile = read("Dockerfile");
    let last = dockerfile.rsplit("\nFROM ").next().unwrap();
    for line in [
        "USER 65532:65532",
        "VOLUME /data",
        "CMD [\"serve\"]",
        "STOPSIGNAL SIGTERM",
        "ENTRYPOINT [\"/usr/local/bin/windlass\"]",
    ] {
        assert!(last.lines().any(|found| found == line), "{line}");
    }
    assert!(
        last.contains("CMD [\"/usr/local/bin/windlass\", \"health\"]") && !last.contains("RUN "),
        "there is no shell"
    );
    assert!(dockerfile.contains("cargo build --locked --release"));
    let rust = read("Cargo.toml")
        .lines()
        .find_map(|line| line.strip_prefix("rust-version = \"")?.strip_suffix('"').map(str::to_owned));
    assert!(dockerfile.contains(&format!("FROM rust:{}-slim", rust.unwrap())), "the version of Cargo.toml");
}

#[test]
fn image_build_includes_all_sources() {
    let ignored = read(".dockerignore");
    for path in ["Cargo.toml", "Cargo.lock", "crates", "xtask"] {
        assert!(ignored.lines().any(|line| line == format!("!{path}")), "{path}");
    }
}

#[test]
fn compose_file_runs_two_servers_on_one_database() {
    let compose = yaml("deploy/compose.yaml");
    assert_eq!(compose["services"]["postgres"]["healthcheck"]["test"][0].as_str(), Some("CMD-SHELL"));
    let shared = &compose["x-windlass"];
    assert_eq!(shared["depends_on"]["postgres"]["condition"].as_str(), Some("service_healthy"));
    let grace: u64 = shared["environment"]["WINDLASS_SHUTDOWN_GRACE"].as_str().unwrap().parse().unwrap();
    let stop: u64 = shared["stop_grace_period"].as_str().unwrap().trim_end_matches('s').parse().unwrap();
    assert!(stop > grace);
    for server in ["windlass-1", "windlass-2"] {
        // It includes the settings of the anchor.
        assert!(!compose["services"][server].is_badvalue());
        let targets = &yaml("deploy/prometheus/prometheus.yml")["scrape_configs"][0]["static_configs"][0]["targets"];
        assert!(targets.as_vec().unwrap().iter().any(|target| target.as_str() == Some(&format!("{server}:7700"))));
    }
    for monitor in ["prometheus", "grafana"] {
        assert_eq!(compose["services"][monitor]["profiles"][0].as_str(), Some("monitoring"));
    }
}

#[test]
fn every_alert_has_a_runbook_and_a_test() {
    let alerts = yaml("deploy/prometheus/alerts.yml");
    let rules = alerts["groups"][0]["rules"].as_vec().unwrap();
    let tested = read("deploy/prometheus/alerts_test.yml");
    assert!(rules.len() >= 10);
    for rule in rules {
        let name = rule["alert"].as_str().unwrap();
        let severity = rule["labels"]["severity"].as_str().unwrap();
        assert!(["warning", "critical"].contains(&severity), "{name}");
        assert!(rule["annotations"]["summary"].as_str().unwrap().contains("{{"), "{name} says of what");
        assert!(rule["annotations"]["runbook"].as_str().unwrap().len() > 60, "{name} says what to do");
        assert!(tested.contains(name), "{name} is not in alerts_test.yml");
    }
    for path in [
        "deploy/prometheus/alerts_test.yml",
        "deploy/grafana/provisioning/datasources/prometheus.yml",
        "deploy/grafana/provisioning/dashboards/windlass.yml",
    ] {
        yaml(path);
    }
}

#[test]
fn dashboard_uses_its_data_source_and_namespace_variables() {
    let dashboard: Value = serde_json::from_str(&read("deploy/grafana/windlass.json")).unwrap();
    let variables: Vec<&str> =
        dashboard["templating"]["list"].as_array().unwrap().iter().map(|v| v["name"].as_str().unwrap()).collect();
    assert_eq!(variables, ["datasource", "namespace"]);
    let panels = dashboard["panels"].as_array().unwrap();
    let ids: BTreeSet<i64> = panels.iter().map(|panel| panel["id"].as_i64().unwrap()).collect();
    assert_eq!(ids.len(), panels.len(), "each id comes once");
    for panel in panels.iter().filter(|panel| panel["type"] != "row") {
        assert_eq!(panel["datasource"]["uid"], "${datasource}", "{}", panel["title"]);
        for target in panel["targets"].as_array().unwrap() {
            let expr = target["expr"].as_str().unwrap();
            let covers_all_namespaces = ["windlass_http", "windlass_database", "windlass_maintenance_duration"]
                .iter()
                .any(|name| expr.contains(name));
            assert!(covers_all_namespaces || expr.contains("namespace=~\"$namespace\""), "{}: {expr}", panel["title"]);
        }
    }
}

#[test]
fn service_is_sandboxed_and_has_time_to_stop() {
    let unit = read("deploy/windlass.service");
    let value = |key: &str| {
        unit.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix('=')).unwrap_or_else(|| panic!("{key}"))
    };
    for (key, expected) in [
        ("DynamicUser", "yes"),
        ("StateDirectory", "windlass"),
        ("NoNewPrivileges", "yes"),
        ("ProtectSystem", "strict"),
        ("Restart", "on-failure"),
        ("EnvironmentFile", "-/etc/windlass/windlass.env"),
        ("ExecStart", "/usr/local/bin/windlass serve"),
    ] {
        assert_eq!(value(key), expected, "{key}");
    }
    let example = read("deploy/windlass.env.example");
    let grace = example.lines().find_map(|line| line.strip_prefix("WINDLASS_SHUTDOWN_GRACE=")).unwrap();
    let stop = value("TimeoutStopSec").trim_end_matches('s');
    assert!(stop.parse::<u64>().unwrap() > grace.parse().unwrap());
}
