//! `windlass health`.

use windlass_testkit::sqlite_url;

use crate::windlass::{Server, run, windlass};

#[test]
fn health_reports_whether_a_server_runs() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start(&sqlite_url(folder.path()));
    let address = server.address().to_owned();
    assert_eq!(run(&["health", "--listen", &address]), (0, String::new(), String::new()));
    let unspecified = address.replace("127.0.0.1", "0.0.0.0");
    let status = windlass(&["health"]).env("WINDLASS_LISTEN", &unspecified).status().unwrap();
    assert_eq!(status.code(), Some(0));

    server.signal("TERM");
    server.wait();
    let (code, stdout, stderr) = run(&["health", "--listen", &address]);
    assert_eq!((code, stdout), (1, String::new()));
    assert!(stderr.starts_with(&format!("error: http://{address}: ")), "{stderr}");
}

#[test]
fn unexpected_response_is_a_failure() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let responder = std::thread::spawn(move || {
        use std::io::{Read, Write};
        let mut connection = listener.accept().unwrap().0;
        let _ = connection.read(&mut [0; 1024]).unwrap();
        connection.write_all(b"HTTP/1.1 503 Service Unavailable\r\n\r\n").unwrap();
    });
    let (code, _, stderr) = run(&["health", "--listen", &address]);
    responder.join().unwrap();
    assert_eq!((code, stderr), (1, format!("error: http://{address}: HTTP/1.1 503 Service Unavailable\n")));
}
