//! beanstalkd: a work queue with a protocol of lines, spoken here over plain TCP.

use std::sync::{Arc, Mutex, PoisonError};

use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufStream};
use tokio::net::TcpStream;

use crate::board::{Board, Outcome};
use crate::peer::{Opened, Peer, Stopping, Workers};
use crate::protocol::{Payload, Result, Variant};

/// Priority and seconds of delay and of time to run.
const PUT: &str = "put 0 0 60";

pub struct Beanstalkd {
    address: String,
    idle: Mutex<Vec<Connection>>,
    board: Arc<Board>,
    workers: usize,
    window: usize,
}

impl Peer for Beanstalkd {
    async fn open(url: &str, variant: Variant, board: Arc<Board>) -> Result<Opened<Self>> {
        let address = url.strip_prefix("beanstalkd://").ok_or("the URL begins with beanstalkd://")?.to_owned();
        let mut connection = Connection::open(&address).await?;
        let version = connection.version().await?;
        let (workers, window) = variant.choose((10, 1), (4, 100));
        let about = format!(
            "{workers} workers, each a connection that reserves and deletes {window} at a time (in one write); a batch of \
             puts is one write, and its answers are awaited together; finished jobs are deleted"
        );
        let idle = Mutex::new(vec![connection]);
        Ok(Opened { peer: Self { address, idle, board, workers, window }, version, about })
    }

    /// Each caller has a connection.
    async fn publish(&self, events: Vec<Payload>) -> Result<()> {
        let idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let mut connection = match idle {
            Some(connection) => connection,
            None => Connection::open(&self.address).await?,
        };
        connection.put(&events).await?;
        self.idle.lock().unwrap_or_else(PoisonError::into_inner).push(connection);
        Ok(())
    }

    async fn start(&self) -> Result<Workers> {
        let mut workers = Workers::new();
        for _ in 0..self.workers {
            let connection = Connection::open(&self.address).await?;
            let (board, window) = (self.board.clone(), self.window);
            workers.spawn(&self.board, |stopping| work(connection, board, window, stopping));
        }
        Ok(workers)
    }

    async fn close(self) -> Result<()> {
        Ok(())
    }
}

async fn work(mut connection: Connection, board: Arc<Board>, window: usize, stopping: Stopping) -> Result<()> {
    while !stopping.now() {
        let reserved = connection.reserve(window).await?;
        let mut done = Vec::with_capacity(reserved.len());
        for (id, body) in &reserved {
            match board.handle(&serde_json::from_slice(body)?) {
                Outcome::Succeed => done.push(*id),
                Outcome::Fail => connection.release(*id).await?,
            }
        }
        connection.delete(&done).await?;
        board.finish(done.len() as u64);
    }
    Ok(())
}

struct Connection(BufStream<TcpStream>);

impl Connection {
    async fn open(address: &str) -> Result<Self> {
        let stream = TcpStream::connect(address).await?;
        stream.set_nodelay(true)?;
        Ok(Self(BufStream::new(stream)))
    }

    async fn line(&mut self) -> Result<String> {
        let mut line = String::new();
        if self.0.read_line(&mut line).await? == 0 {
            return Err("beanstalkd closed the connection".into());
        }
        line.truncate(line.trim_end().len());
        Ok(line)
    }

    async fn expect(&mut self, start: &str) -> Result<String> {
        let line = self.line().await?;
        match line.strip_prefix(start) {
            Some(rest) => Ok(rest.trim_start().to_owned()),
            None => Err(format!("beanstalkd answered {line}, not {start}").into()),
        }
    }

    async fn version(&mut self) -> Result<String> {
        self.0.write_all(b"stats\r\n").await?;
        self.0.flush().await?;
        let bytes: usize = self.expect("OK").await?.parse()?;
        let stats = String::from_utf8(self.body(bytes).await?)?;
        let version = stats.lines().find_map(|line| line.strip_prefix("version: "));
        Ok(version.unwrap_or("unknown").trim_matches('"').to_owned())
    }

    async fn body(&mut self, bytes: usize) -> Result<Vec<u8>> {
        let mut body = vec![0; bytes + 2];
        self.0.read_exact(&mut body).await?;
        body.truncate(bytes);
        Ok(body)
    }

    async fn put(&mut self, events: &[Payload]) -> Result<()> {
        for event in events {
            let body = serde_json::to_string(event)?;
            self.0.write_all(format!("{PUT} {}\r\n{body}\r\n", body.len()).as_bytes()).await?;
        }
        self.0.flush().await?;
        for _ in events {
            self.expect("INSERTED").await?;
        }
        Ok(())
    }

    /// Waits up to a second for the first one, and for no further one.
    async fn reserve(&mut self, count: usize) -> Result<Vec<(u64, Vec<u8>)>> {
        let mut reserved = Vec::with_capacity(count);
        self.0.write_all(b"reserve-with-timeout 1\r\n").await?;
        self.0.flush().await?;
        reserved.extend(self.reserved().await?);
        if reserved.is_empty() || count == 1 {
            return Ok(reserved);
        }
        self.0.write_all("reserve-with-timeout 0\r\n".repeat(count - 1).as_bytes()).await?;
        self.0.flush().await?;
        for _ in 1..count {
            reserved.extend(self.reserved().await?);
        }
        Ok(reserved)
    }

    async fn reserved(&mut self) -> Result<Option<(u64, Vec<u8>)>> {
        let line = self.line().await?;
        if line == "TIMED_OUT" {
            return Ok(None);
        }
        let words: Vec<&str> = line.split(' ').collect();
        match words[..] {
            ["RESERVED", id, bytes] => Ok(Some((id.parse()?, self.body(bytes.parse()?).await?))),
            _ => Err(format!("beanstalkd answered {line} to a reserve").into()),
        }
    }

    async fn delete(&mut self, ids: &[u64]) -> Result<()> {
        for id in ids {
            self.0.write_all(format!("delete {id}\r\n").as_bytes()).await?;
        }
        self.0.flush().await?;
        for _ in ids {
            self.expect("DELETED").await?;
        }
        Ok(())
    }

    async fn release(&mut self, id: u64) -> Result<()> {
        self.0.write_all(format!("release {id} 0 0\r\n").as_bytes()).await?;
        self.0.flush().await?;
        self.expect("RELEASED").await.map(|_| ())
    }
}
