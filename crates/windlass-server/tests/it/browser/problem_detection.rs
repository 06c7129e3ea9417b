//! Checks that the browser tests detect problems: this page has all of them.

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use windlass_testkit::until;

use super::page::Page;

const BAD_PAGE: &str = "HTTP/1.1 200 OK\r\ncontent-type: text/html\r\nconnection: close\r\n\
    content-security-policy: script-src 'nonce-good'\r\n\r\n\
    <!doctype html><title>Bad</title><p style=width:2000px>wide</p><img src='http://localhost:1/'>\
    <script>inline()</script>\
    <script nonce=good>alert('look'); console.error('said so'); setTimeout(() => { throw new Error('thrown') })</script>";

/// Answers every request with the page.
async fn serve(listener: TcpListener) {
    loop {
        let (mut connection, _) = listener.accept().await.unwrap();
        tokio::spawn(async move {
            let _ = connection.read(&mut [0; 4096]).await;
            let _ = connection.write_all(BAD_PAGE.as_bytes()).await;
        });
    }
}

#[test]
fn page_problems_are_detected() {
    let _lock = super::lock_browser();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    runtime.block_on(async {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(serve(listener));
        let mut page = Page::open("problem-detection", address).await;
        page.goto("/").await;
        let mut problems = String::new();
        for expected in
            ["another host: http://localhost:1/", "dialog: \"look\"", "said so", "thrown", "Content Security"]
        {
            until(async || {
                problems.extend(page.take_problems().await);
                problems.contains(expected).then_some(())
            })
            .await;
        }
        assert_eq!(page.eval("document.documentElement.scrollWidth > innerWidth").await, true);
    });
}
