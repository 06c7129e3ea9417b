//! A client of Chromium's DevTools protocol: commands and events.

use futures_util::{SinkExt, StreamExt};
use serde_json::{Value, json};
use tokio::net::TcpStream;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::{WebSocketStream, client_async};

pub struct Devtools {
    socket: WebSocketStream<TcpStream>,
    /// The tab that receives the commands.
    session: Option<String>,
    last_id: u64,
    events: Vec<Value>,
}

impl Devtools {
    /// Opens a tab.
    pub async fn open(url: &str) -> Devtools {
        let address = url.trim_start_matches("ws://").split('/').next().unwrap();
        let stream = TcpStream::connect(address).await.unwrap();
        let (socket, _) = client_async(url, stream).await.unwrap();
        let mut devtools = Devtools { socket, session: None, last_id: 0, events: Vec::new() };
        let tab = devtools.call("Target.createTarget", json!({ "url": "about:blank" })).await.unwrap();
        let attach = json!({ "targetId": tab["targetId"], "flatten": true });
        let attached = devtools.call("Target.attachToTarget", attach).await.unwrap();
        devtools.session = Some(attached["sessionId"].as_str().unwrap().to_owned());
        devtools
    }

    /// Runs a command, and returns its result or error.
    pub async fn call(&mut self, method: &str, params: Value) -> Result<Value, String> {
        let id = self.send(method, params).await;
        let mut answer = self.answer(&[id]).await;
        match answer["error"]["message"].as_str() {
            Some(error) => Err(format!("{method}: {error}")),
            None => Ok(answer["result"].take()),
        }
    }

    /// Sends commands without waiting in between, then waits for all responses and ignores them.
    pub async fn call_all(&mut self, method: &str, params: Vec<Value>) {
        let mut ids = Vec::new();
        for params in params {
            ids.push(self.send(method, params).await);
        }
        while !ids.is_empty() {
            let answer = self.answer(&ids).await;
            ids.retain(|id| answer["id"] != *id);
        }
    }

    /// The next response to one of these commands.
    async fn answer(&mut self, ids: &[u64]) -> Value {
        loop {
            let message = self.receive().await;
            if ids.iter().any(|id| message["id"] == *id) {
                return message;
            }
            // A dialog blocks the page until it is closed.
            if message["method"] == "Page.javascriptDialogOpening" {
                self.send("Page.handleJavaScriptDialog", json!({ "accept": true })).await;
            }
            if message["method"].is_string() {
                self.events.push(message);
            }
        }
    }

    /// The events received since the last call.
    pub fn take_events(&mut self) -> Vec<Value> {
        std::mem::take(&mut self.events)
    }

    async fn send(&mut self, method: &str, params: Value) -> u64 {
        self.last_id += 1;
        let mut command = json!({ "id": self.last_id, "method": method, "params": params });
        if let Some(session) = &self.session {
            command["sessionId"] = json!(session);
        }
        self.socket.send(Message::text(command.to_string())).await.unwrap();
        self.last_id
    }

    async fn receive(&mut self) -> Value {
        loop {
            match self.socket.next().await.expect("Chromium is gone").unwrap() {
                Message::Text(text) => return serde_json::from_str(&text).unwrap(),
                _ => continue,
            }
        }
    }
}
