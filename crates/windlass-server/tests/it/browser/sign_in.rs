//! Signing in and out in the browser.

use windlass::{NewToken, Scope};
use windlass_testkit::until;

in_browser! {
    on sqlite postgres:
    async fn sign_in_refuses_a_wrong_token_and_accepts_a_right_one(server, page) {
        let created = server.queue.create_token(NewToken::new([Scope::Admin])).await.unwrap();
        let secret = created.secret;
        // Wait until the server has read the token.
        until(async || (server.get("/events").await.status == 401).then_some(())).await;
        page.goto("/ui/default/schedules").await;
        page.until("location.pathname === '/ui/sign-in'").await;
        page.fill("#token", &format!("{}x", &secret[..secret.len() - 1])).await;
        page.click_text("button", "Sign in").await;
        page.until_shows("#token-error", "the API token is not known here").await;
        page.screenshot("refused").await;
        assert_eq!(page.eval("document.querySelector('#token').value").await, "");
        page.fill("#token", &secret).await;
        page.click_text("button", "Sign in").await;
        page.until_shows("h1", "Schedules").await;
        assert_eq!(page.eval("document.cookie").await, "", "no script may read it");

        page.click_text("button", "Sign out").await;
        page.until("location.pathname === '/ui/sign-in'").await;
        page.goto("/ui/default/schedules").await;
        page.until("location.pathname === '/ui/sign-in'").await;
        page.check_problems(&["status of 401"]).await;
    }

    on sqlite:
    async fn revoked_token_closes_open_pages(server, page) {
        let created = server.queue.create_token(NewToken::new([Scope::Read])).await.unwrap();
        until(async || (server.get("/events").await.status == 401).then_some(())).await;
        page.goto("/ui/default/schedules").await;
        page.fill("#token", &created.secret).await;
        page.press("Enter").await;
        page.until_shows("h1", "Schedules").await;
        assert_eq!(page.eval("[...document.querySelectorAll('a, button')].filter(e => e.innerText === 'New schedule').length").await, 0);
        page.until("document.querySelector('#live-switch').dataset.state === 'live'").await;
        server.queue.revoke_token(&created.token.token_id).await.unwrap();
        page.until("location.pathname === '/ui/sign-in'").await;
    }
}
