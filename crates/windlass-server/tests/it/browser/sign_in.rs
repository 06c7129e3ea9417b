//! Who has the token gets in.

use windlass::{NewToken, Scope};

use crate::bed::until;

in_browser! {
    on sqlite postgres:
    async fn a_wrong_token_is_refused_and_the_right_one_accepted(server, page) {
        let created = server.queue.create_token(NewToken::new([Scope::Admin])).await.unwrap();
        let secret = created.secret;
        // Until the server has seen that there is one.
        until(async || (server.get("/events").await.status == 401).then_some(())).await;
        page.goto("/ui/default/schedules").await;
        page.until("location.pathname === '/ui/sign-in'").await;
        page.fill("#token", &format!("{}x", &secret[..secret.len() - 1])).await;
        page.click_text("button", "Sign in").await;
        page.until_shows("#token-error", "the API token is not known here").await;
        page.picture("refused").await;
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
    async fn a_revoked_token_ends_what_is_open(server, page) {
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
