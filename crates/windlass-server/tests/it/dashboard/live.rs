//! Telling open pages when to look again.

use tokio::io::AsyncReadExt;
use tokio::net::TcpStream;
use windlass::{NewToken, Scope};

use super::token;
use crate::bed::Server;
use crate::http::read;

/// A page that listens, with these headers.
async fn listen(server: &Server, headers: &str) -> TcpStream {
    let head = format!("GET /ui/default/live HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n{headers}\r\n");
    server.begin(&head).await
}

/// Reads until this was told.
async fn until_told(connection: &mut TcpStream, event: &str) -> String {
    let (mut text, mut chunk) = (String::new(), [0; 4096]);
    while !text.contains(event) {
        let length = connection.read(&mut chunk).await.unwrap();
        assert_ne!(length, 0, "the stream ended: {text}");
        text.push_str(std::str::from_utf8(&chunk[..length]).unwrap());
    }
    text
}

on_each_database! {
    async fn a_page_is_told_of_changes_and_of_the_end(server) {
        let mut page = listen(server, "").await;
        let head = until_told(&mut page, "\r\n\r\n").await.to_lowercase();
        assert!(head.contains("200 ok") && head.contains("content-type: text/event-stream"), "{head}");
        assert!(head.contains("content-security-policy") && head.contains("cache-control: no-store"), "{head}");
        server.publish("a").await;
        until_told(&mut page, "event: changed").await;
        // Nothing happens any more, and still it is told to look.
        until_told(&mut page, "event: tick").await;
        server.stop();
        until_told(&mut page, "data: shutting_down").await;
    }

    async fn whoever_loses_the_token_is_told_so(server) {
        token(server, [Scope::Read]).await;
        let created = server.queue.create_token(NewToken::new([Scope::Read])).await.unwrap();
        let mut page = listen(server, &format!("cookie: windlass_token={}\r\n", created.secret)).await;
        until_told(&mut page, "200 OK").await;
        server.queue.revoke_token(&created.token.token_id).await.unwrap();
        until_told(&mut page, "data: wrong_token").await;
        let stranger = read(listen(server, "").await).await;
        assert_eq!(stranger.status, 303, "{stranger:?}");
    }

    async fn the_first_token_ends_what_needed_none(server) {
        let mut page = listen(server, "").await;
        until_told(&mut page, "200 OK").await;
        token(server, [Scope::Read]).await;
        until_told(&mut page, "data: wrong_token").await;
    }
}
