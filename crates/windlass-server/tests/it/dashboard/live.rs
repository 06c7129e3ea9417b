//! Notifications to open pages.

use tokio::io::AsyncReadExt;
use tokio::net::TcpStream;
use windlass::{NewToken, Scope};

use super::token;
use crate::harness::Server;
use crate::http::read;

/// Opens the notification stream with these headers.
async fn listen(server: &Server, headers: &str) -> TcpStream {
    let head = format!("GET /ui/default/live HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n{headers}\r\n");
    server.begin(&head).await
}

/// Reads until the stream contains this text.
async fn read_until(connection: &mut TcpStream, event: &str) -> String {
    let (mut text, mut chunk) = (String::new(), [0; 4096]);
    while !text.contains(event) {
        let length = connection.read(&mut chunk).await.unwrap();
        assert_ne!(length, 0, "the stream ended: {text}");
        text.push_str(std::str::from_utf8(&chunk[..length]).unwrap());
    }
    text
}

on_each_database! {
    async fn page_is_notified_of_changes_and_shutdown(server) {
        let mut page = listen(server, "").await;
        let head = read_until(&mut page, "\r\n\r\n").await.to_lowercase();
        assert!(head.contains("200 ok") && head.contains("content-type: text/event-stream"), "{head}");
        assert!(head.contains("content-security-policy") && head.contains("cache-control: no-store"), "{head}");
        server.publish("a").await;
        read_until(&mut page, "event: changed").await;
        // Without activity, ticks still request updates.
        read_until(&mut page, "event: tick").await;
        server.stop();
        read_until(&mut page, "data: shutting_down").await;
    }

    async fn page_is_notified_of_a_revoked_token(server) {
        token(server, [Scope::Read]).await;
        let created = server.queue.create_token(NewToken::new([Scope::Read])).await.unwrap();
        let mut page = listen(server, &format!("cookie: windlass_token={}\r\n", created.secret)).await;
        read_until(&mut page, "200 OK").await;
        server.queue.revoke_token(&created.token.token_id).await.unwrap();
        read_until(&mut page, "data: wrong_token").await;
        let stranger = read(listen(server, "").await).await;
        assert_eq!(stranger.status, 303, "{stranger:?}");
    }

    async fn first_token_ends_sessions_without_one(server) {
        let mut page = listen(server, "").await;
        read_until(&mut page, "200 OK").await;
        token(server, [Scope::Read]).await;
        read_until(&mut page, "data: wrong_token").await;
    }
}
