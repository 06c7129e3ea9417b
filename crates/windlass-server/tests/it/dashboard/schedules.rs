//! Schedules: pages and forms.

use serde_json::{Value, json};

use super::{Browser, html, location};
use crate::harness::Server;

/// Creates a schedule, and returns its page and id.
async fn add(server: &Server) -> (String, String) {
    let schedule = json!({
        "name": "daily <report>", "cron": "0 6 * * MON-FRI", "timezone": "Europe/Berlin", "type": "report.due",
        "title": "Of {{tick.date}}", "description": "long", "tags": "a,b", "payload": { "n": 1 }, "group_id": "g",
        "priority": 3, "max_retries": 7, "metadata": { "k": "v" }, "expires_in_ms": 1_500, "missed": "all"
    });
    let id = server.post("/schedules", &schedule).await.expect(201)["id"].as_str().unwrap().to_owned();
    (format!("/ui/default/schedules/{id}"), id)
}

async fn shown(server: &Server, id: &str) -> Value {
    server.get(&format!("/schedules/{id}")).await.expect(200)
}

on_each_database! {
    async fn schedules_are_listed_with_their_ticks(server) {
        let (page, id) = add(server).await;
        let browser = Browser::without_token();
        let list = browser.get(server, "/ui/default/schedules").await;
        let list = html(&list, 200);
        assert!(list.contains("daily &#60;report&#62;") && !list.contains("<report>"), "{list}");
        assert!(list.contains("Monday to Friday at 06:00") && list.contains("1 schedule<"), "{list}");
        assert!(!html(&browser.get(server, "/ui/default/schedules?active=false").await, 200).contains(&id));
        let body = browser.get(server, &page).await;
        let body = html(&body, 200);
        assert_eq!(body.matches(" 06:00:00 CET").count(), 10, "{body}");
        assert!(body.contains("Thu 2025-12-25 06:00:00 CET") && body.contains("Mon 2025-12-29"), "{body}");
        html(&browser.get(server, "/ui/default/schedules/nothing").await, 400);
    }

    async fn fired_tick_links_to_its_event(server) {
        let (page, id) = add(server).await;
        let event = server.act(&format!("/schedules/{id}/run")).await.expect(201)["id"].clone();
        let body = Browser::without_token().get(server, &page).await;
        let body = html(&body, 200);
        assert!(body.contains(&format!("/ui/default/events/{event}")) && body.contains("manual"), "{body}");
    }

    async fn schedule_actions_ask_for_confirmation(server) {
        let (page, id) = add(server).await;
        let browser = Browser::without_token();
        let asked = browser.post(server, &page, "action=pause").await;
        let asked = html(&asked, 200);
        assert!(asked.contains("Pause the schedule “daily &#60;report&#62;”?"), "{asked}");
        assert_eq!(shown(server, &id).await["active"], true);

        assert_eq!(location(&browser.post(server, &page, "action=pause&confirmed=yes").await), page);
        assert_eq!(shown(server, &id).await["active"], false);
        assert!(html(&browser.get(server, &page).await, 200).contains("Would tick"));
        location(&browser.post(server, &page, "action=resume&confirmed=yes").await);
        assert_eq!(shown(server, &id).await["active"], true);
        location(&browser.post(server, &page, "action=run&confirmed=yes").await);
        assert_eq!(server.get("/events?types=report.due").await.expect(200)["total"], 1);
        let gone = browser.post(server, &page, "action=remove&confirmed=yes").await;
        assert_eq!(location(&gone), "/ui/default/schedules");
        html(&browser.get(server, &page).await, 404);
        html(&browser.post(server, &page, "action=explode&confirmed=yes").await, 400);
    }

    async fn unchanged_form_changes_nothing(server) {
        let (page, id) = add(server).await;
        let browser = Browser::without_token();
        let edit = format!("{page}/edit");
        let before = shown(server, &id).await;
        let form = filled(html(&browser.get(server, &edit).await, 200));
        assert_eq!(location(&browser.post(server, &edit, &form).await), page);
        let after = shown(server, &id).await;
        let same = |view: &Value| {
            let mut view = view.clone();
            view.as_object_mut().unwrap().remove("updated_at");
            view
        };
        assert_eq!(same(&after), same(&before));
    }

    async fn field_error_is_shown_next_to_the_field(server) {
        add(server).await;
        let browser = Browser::without_token();
        let new = "/ui/default/schedules/new";
        html(&browser.get(server, new).await, 200);
        let fine = [("name", "a"), ("cron", "0 6 * * *"), ("timezone", "UTC"), ("type", "t"), ("missed", "once")];
        let table = [
            ("cron", "0 0 30 2 *", "never comes"),
            ("timezone", "Mars/Olympus", "Mars/Olympus"),
            ("payload", "{", "is not JSON"),
            ("metadata", "[1]", "object"),
            ("priority", "high", "is not a valid number"),
            ("expires_in_s", "-1", "is not a valid duration"),
            ("type", "", ""),
            ("name", "daily <report>", "daily &#60;report&#62;"),
        ];
        for (field, value, sentence) in table {
            let mut fields = fine.to_vec();
            fields.retain(|(name, _)| *name != field);
            fields.push((field, value));
            let response = browser.post(server, new, &encoded(fields)).await;
            let status = if field == "name" { 409 } else { 400 };
            let body = html(&response, status);
            let error = body.split(&format!("id=\"{field}-error\"")).nth(1).unwrap_or_else(|| panic!("{field}: {body}"));
            assert!(error.split("</p>").next().unwrap().contains(sentence), "{field}: {error}");
        }
        let preview = encoded(fine.into_iter().chain([("preview", "yes")]));
        assert!(html(&browser.post(server, new, &preview).await, 200).contains("Thu 2025-12-25 06:00:00 UTC"));
        assert_eq!(server.get("/schedules").await.expect(200)["total"], 1);
        assert!(location(&browser.post(server, new, &encoded(fine)).await).starts_with("/ui/default/schedules/"));
        assert_eq!(server.get("/schedules").await.expect(200)["total"], 2);
    }
}

fn encoded<'a>(fields: impl IntoIterator<Item = (&'a str, &'a str)>) -> String {
    let percent = |text: &str| text.bytes().map(|byte| format!("%{byte:02X}")).collect::<String>();
    fields.into_iter().map(|(name, value)| format!("{name}={}", percent(value))).collect::<Vec<_>>().join("&")
}

/// The form as a browser would send it without changes.
fn filled(page: &str) -> String {
    let plain = |text: &str| {
        let entities = [("&#34;", "\""), ("&#60;", "<"), ("&#62;", ">"), ("&#39;", "'"), ("&#38;", "&")];
        entities.iter().fold(text.to_owned(), |text, (entity, plain)| text.replace(entity, plain))
    };
    let mut fields = Vec::new();
    for input in page.split("<input id=\"").skip(1) {
        let name = input.split('"').next().unwrap();
        let value = input.split("value=\"").nth(1).unwrap().split('"').next().unwrap();
        fields.push((name, plain(value)));
    }
    for area in page.split("<textarea id=\"").skip(1) {
        let value = area.split_once('>').unwrap().1.split("</textarea>").next().unwrap();
        fields.push((area.split('"').next().unwrap(), plain(value.trim_start_matches('\n'))));
    }
    let chosen = page.split("<option value=\"").find(|option| option.split('>').next().unwrap().contains("selected"));
    fields.push(("missed", chosen.unwrap().split('"').next().unwrap().to_owned()));
    encoded(fields.iter().map(|(name, value)| (*name, value.as_str())))
}
