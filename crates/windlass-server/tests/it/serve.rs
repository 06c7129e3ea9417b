//! Start, shutdown and restart of the server.

use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::http::{head, read};

on_each_database! {
    async fn restart_loses_nothing(server) {
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

    async fn in_flight_request_is_answered_before_shutdown(server) {
        let body = br#"{"title":"late"}"#;
        let mut under_way = TcpStream::connect(server.address).await.unwrap();
        let mut idle = TcpStream::connect(server.address).await.unwrap();
        // The server sends "100 Continue" when it waits for the body.
        let headers = "content-type: application/json\r\nexpect: 100-continue\r\n";
        under_way.write_all(head("POST", "/events", headers, body.len()).as_bytes()).await.unwrap();
        let mut interim_response = [0; b"HTTP/1.1 100 Continue\r\n\r\n".len()];
        under_way.read_exact(&mut interim_response).await.unwrap();
        idle.write_all(b"GET /healthz HTTP/1.1\r\nhost: test\r\n\r\n").await.unwrap();
        assert!(idle.read(&mut [0; 1000]).await.unwrap() > 0);

        server.stop();
        // The idle connection is closed, so the server is shutting down.
        assert_eq!(idle.read(&mut [0; 1000]).await.unwrap(), 0);
        assert!(TcpStream::connect(server.address).await.is_err());
        under_way.write_all(body).await.unwrap();
        let stored = read(under_way).await.expect(201);
        server.stopped().await;
        server.start_again().await;
        assert_eq!(server.get(&format!("/events/{}", stored["id"])).await.expect(200)["title"], "late");
    }

    async fn partial_request_does_not_delay_shutdown(server) {
        server.restart_with(|options| options.shutdown_grace = Duration::from_secs(3_600)).await;
        let _half = server.begin("GET /heal").await;
        let mut unread = server.begin("GET /events/stream HTTP/1.1\r\nhost: localhost\r\n\r\n").await;
        assert!(unread.read(&mut [0; 1]).await.unwrap() > 0);
        server.stop();
        server.stopped().await;
    }

    // A claim that is answered with `shutting_down` must not hold deliveries: no worker would know of them.
    async fn shutdown_leaves_no_delivery_without_a_holder(server) {
        let waiting = |n: usize| format!(r#"{{"worker_id":"w:{n}","max":1000,"wait_ms":30000}}"#);
        let mut pollers = Vec::new();
        for n in 0..4 {
            let body = waiting(n);
            let head = head("POST", "/events/claim", crate::harness::JSON, body.len());
            pollers.push(server.begin(&format!("{head}{body}")).await);
        }
        server.until_waiting(4).await;
        let queue = server.queue.clone();
        let publisher = tokio::spawn(async move {
            while queue.publish_all(vec![windlass::NewEvent::new("t"); 200]).await.is_ok() {}
        });
        let mut held = 0;
        server.stop();
        for poller in pollers {
            let answer = read(poller).await;
            match answer.status {
                200 => held += answer.json()["events"].as_array().unwrap().len(),
                _ => drop(answer.error(503, "shutting_down")),
            }
        }
        server.stopped().await;
        publisher.await.unwrap();
        server.start_again().await;
        assert_eq!(server.get("/events?status=PROCESSING").await.expect(200)["total"], held);
    }

    async fn endless_request_does_not_delay_shutdown(server) {
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
