//! Every action is refused without the scope, on a read-only dashboard, and from other sites.

use serde_json::json;
use windlass::Scope;
use windlass_server::Dashboard;
use windlass_testkit::until;

use super::{Browser, FORM, html, token};
use crate::harness::Server;

/// Every action of the dashboard: path below the namespace, and form.
async fn actions(server: &Server) -> Vec<(String, String)> {
    let schedule = json!({ "name": "a", "cron": "@daily", "type": "t" });
    let id = server.queue.add_schedule(of(&schedule)).await.unwrap().id;
    let event = server.queue.publish(windlass::NewEvent::new("t")).await.unwrap().event.id;
    server.publish_dead("d").await;
    let page = format!("/schedules/{id}");
    let mut all: Vec<(String, String)> =
        ["pause", "resume", "run", "remove"].map(|action| (page.clone(), format!("action={action}"))).into();
    all.push((format!("{page}/edit"), "name=b&cron=%40daily&type=t&missed=once".into()));
    all.push(("/schedules/new".into(), "name=c&cron=%40daily&type=t&missed=once".into()));
    for verb in ["cancel", "reset", "redrive"] {
        all.push((format!("/events/{event}/{verb}"), "subscription=main".into()));
    }
    all.push(("/events/cancel".into(), "what=matching".into()));
    all.push(("/dead-letters/redrive".into(), "what=matching".into()));
    all.push(("/dead-letters/purge".into(), "what=matching".into()));
    all.push(("/pause".into(), String::new()));
    all.push(("/resume".into(), String::new()));
    all.push(("/nodes".into(), format!("id={event}%2Fmain")));
    for action in ["pause", "resume", "remove", "resume_type"] {
        all.push(("/subscriptions".into(), format!("action={action}&name=main")));
    }
    all.push(("/subscriptions".into(), "action=add&subscription=x".into()));
    all.push(("/subscriptions".into(), "action=pause_type&type=t".into()));
    all.push(("/namespaces".into(), "name=x".into()));
    all.push(("/settings".into(), "policy=%7B%22lease_ms%22%3A90000%7D".into()));
    all
}

fn of(schedule: &serde_json::Value) -> windlass::NewSchedule {
    let text = |field: &str| schedule[field].as_str().unwrap().to_owned();
    windlass::NewSchedule::new(text("name"), text("cron"), windlass::NewEvent::new(text("type")))
}

/// Everything that the forms could change.
async fn state(server: &Server) -> String {
    let queue = &server.queue;
    let namespaces = queue.namespaces().await.unwrap();
    let schedules = queue.schedules(windlass::ScheduleFilter::default()).await.unwrap();
    let events = queue.list(windlass::ListFilter::default()).await.unwrap();
    let dead = queue.dead_letters(windlass::DeadLetterFilter::default()).await.unwrap().total;
    json!([namespaces, queue.subscriptions().await.unwrap(), schedules, events, dead]).to_string()
}

on_each_database! {
    async fn read_scope_changes_nothing(server) {
        let actions = actions(server).await;
        let reader = Browser::with_token(&token(server, [Scope::Read, Scope::Publish, Scope::Consume]).await);
        // Wait until the server has read the token.
        until(async || (server.get("/events").await.status == 401).then_some(())).await;
        let before = state(server).await;
        for (path, form) in actions {
            let response = reader.post(server, &format!("/ui/default{path}"), &format!("{form}&confirmed=yes")).await;
            assert!(html(&response, 403).contains("the scope &#39;admin&#39;"), "{path} {form}: {response:?}");
        }
        assert_eq!(state(server).await, before);
        for page in ["/schedules", "/nodes", "/subscriptions", "/namespaces", "/settings", "/health"] {
            let page = reader.get(server, &format!("/ui/default{page}")).await;
            let main = html(&page, 200).split("<main").nth(1).unwrap().split("</main>").next().unwrap();
            assert!(!main.contains("<button") && !main.contains("<input type=\"checkbox\""), "{main}");
        }
    }

    async fn read_only_dashboard_refuses_all_actions(server) {
        let actions = actions(server).await;
        server.restart_with(|options| options.dashboard = Dashboard::ReadOnly).await;
        let before = state(server).await;
        for (path, form) in actions {
            let form = format!("{form}&confirmed=yes");
            let response = Browser::without_token().post(server, &format!("/ui/default{path}"), &form).await;
            assert!(html(&response, 403).contains("read-only"), "{path} {form}: {response:?}");
        }
        assert_eq!(state(server).await, before);
    }

    async fn other_sites_are_refused_all_actions(server) {
        let actions = actions(server).await;
        let before = state(server).await;
        for (path, form) in actions {
            let headers = format!("sec-fetch-site: cross-site\r\norigin: http://localhost\r\n{FORM}");
            let form = format!("{form}&confirmed=yes");
            let response = server.send("POST", &format!("/ui/default{path}"), &headers, &form).await;
            assert!(html(&response, 403).contains("not sent by a page of this dashboard"), "{path} {form}");
        }
        assert_eq!(state(server).await, before);
    }
}
