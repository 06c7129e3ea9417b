//! Starting, stopping, starting again.

use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::http::{head, read};

on_each_database! {
    async fn a_restart_loses_nothing(server) {
        let (waiting, taken, done) = (server.publish("a").await, server.publish("b").await, server.publish("c").await);
        server.subscribe("b", "w:1").await.unwrap();
        server.subscribe("c", "w:1").await.unwrap();
        server.complete(done, "w:1").await.expect(200);
        server.restart().await;
        for (id, status) in [(waiting, "PENDING"), (taken, "PROCESSING"), (done, "COMPLETED")] {
            assert_eq!(server.get(&format!("/events/{id}")).await.expect(200)["status"], status);
        }
        assert_eq!(server.subscribe("a,b,c", "w:2").await.unwrap()["id"], waiting);
        server.complete(taken, "w:1").await.expect(200);
    }

    async fn a_request_under_way_is_answered_before_the_server_ends(server) {
        let body = br#"{"title":"late"}"#;
        let mut under_way = TcpStream::connect(server.address).await.unwrap();
        let mut idle = TcpStream::connect(server.address).await.unwrap();
        // The server says "100 Continue" once it waits for the body.
        let headers = "content-type: application/json\r\nexpect: 100-continue\r\n";
        under_way.write_all(head("POST", "/events", headers, body.len()).as_bytes()).await.unwrap();
        let mut go_on = [0; b"HTTP/1.1 100 Continue\r\n\r\n".len()];
        under_way.read_exact(&mut go_on).await.unwrap();
        idle.write_all(b"GET /healthz HTTP/1.1\r\nhost: test\r\n\r\n").await.unwrap();
        assert!(idle.read(&mut [0; 1000]).await.unwrap() > 0);

        server.stop();
        // The idle connection is closed, so the server is stopping.
        assert_eq!(idle.read(&mut [0; 1000]).await.unwrap(), 0);
        assert!(TcpStream::connect(server.address).await.is_err());
        under_way.write_all(body).await.unwrap();
        let stored = read(under_way).await.expect(201);
        server.stopped().await;
        server.start_again().await;
        assert_eq!(server.get(&format!("/events/{}", stored["id"])).await.expect(200)["title"], "late");
    }

    async fn a_request_that_never_ends_does_not_hold_up_the_end(server) {
        server.options.shutdown_grace = Duration::from_millis(100);
        server.restart().await;
        let mut stuck = TcpStream::connect(server.address).await.unwrap();
        let headers = "content-type: application/json\r\nexpect: 100-continue\r\n";
        stuck.write_all(head("POST", "/events", headers, 10).as_bytes()).await.unwrap();
        assert!(stuck.read(&mut [0; 1000]).await.unwrap() > 0);
        server.stop();
        server.stopped().await;
    }
}
