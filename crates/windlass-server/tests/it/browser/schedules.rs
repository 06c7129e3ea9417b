//! Schedules in the browser.

use serde_json::json;

in_browser! {
    on sqlite postgres:
    async fn schedule_is_paused_by_click(server, page) {
        let schedule = json!({ "name": "daily report", "cron": "0 6 * * *", "type": "report.due" });
        let id = server.post("/schedules", &schedule).await.expect(201)["id"].as_str().unwrap().to_owned();
        page.goto("/ui/default/schedules").await;
        page.click_text("#schedules a", "daily report").await;
        page.click_text("main button", "Pause").await;
        page.until_shows("#ask h1", "Pause the schedule “daily report”?").await;
        assert!(server.queue.schedule(&id).await.unwrap().active, "not confirmed yet");
        page.click_text("#ask a", "Keep everything as it is").await;
        page.until("!document.querySelector('dialog[open]')").await;
        page.click_text("main button", "Pause").await;
        page.click_text("#ask button", "Pause").await;
        page.until_shows("#notices", "“daily report” is paused").await;
        page.until_shows("#schedule .badge", "paused").await;
        assert!(!server.queue.schedule(&id).await.unwrap().active);
        page.click_text("main button", "Resume").await;
        page.click_text("#ask button", "Resume").await;
        page.until_shows("#schedule .badge", "active").await;
        assert!(server.queue.schedule(&id).await.unwrap().active);
    }

    on sqlite:
    async fn schedule_is_created_in_the_form(server, page) {
        page.goto("/ui/default/schedules").await;
        page.click_text("a", "New schedule").await;
        page.fill("#name", "nightly").await;
        page.fill("#cron", "61 2 * * *").await;
        page.click_text("button", "Preview").await;
        page.until_shows("#cron-error", "'61 2 * * *'").await;
        page.fill("#cron", "30 2 * * *").await;
        page.fill("#timezone", "Europe/Berlin").await;
        page.fill("#type", "night.begun").await;
        page.fill("#payload", "{ \"day\": ").await;
        page.click_text("button", "Preview").await;
        page.until_shows("#preview", "Thu 2025-12-25 02:30:00 CET").await;
        page.until_shows("h3", "every day at 02:30").await;
        page.click_text("button", "Create").await;
        page.until_shows("#payload-error", "is not JSON").await;
        page.fill("#payload", "{ \"day\": \"{{tick.date}}\" }").await;
        page.click_text("button", "Create").await;
        page.until_shows("#notices", "“nightly” is created").await;
        page.click_text("main button", "Run now").await;
        page.click_text("#ask button", "Run now").await;
        page.until_shows("#notices", "published event").await;
        page.until_shows("#fires", "manual").await;
        let taken = server.claim(&json!({ "worker_id": "w:1", "types": "night.begun" })).await;
        assert_eq!(taken[0]["payload"], json!({ "day": "2025-12-24" }));
        // The page explains the 400.
        page.check_problems(&["status of 400"]).await;
    }

    on sqlite:
    async fn forms_work_without_scripts(server, page) {
        let schedule = json!({ "name": "daily report", "cron": "0 6 * * *", "type": "report.due" });
        let id = server.post("/schedules", &schedule).await.expect(201)["id"].as_str().unwrap().to_owned();
        page.without_scripts().await;
        page.goto(&format!("/ui/default/schedules/{id}")).await;
        page.click_text("main button", "Pause").await;
        page.until_shows("main h1", "Pause the schedule").await;
        page.click_text("main button", "Pause").await;
        page.until_shows("#notices", "“daily report” is paused").await;
        assert!(!server.queue.schedule(&id).await.unwrap().active);
    }
}
