//! `windlass serve`: HTTP and upkeep, until a signal ends it.

use std::io::Write;
use std::net::SocketAddr;

use clap::Args;
use tokio::net::{TcpListener, lookup_host};
use windlass::Queue;
use windlass_server::ServeOptions;

use crate::Result;
use crate::database::Database;

/// Serve the HTTP API and look after the queue
///
/// SIGTERM and SIGINT (Ctrl-C) stop it: requests that are under way are still answered.
#[derive(Args)]
pub struct Serve {
    #[command(flatten)]
    database: Database,
    /// The address to listen on; port 0 takes a free one
    #[arg(long, value_name = "ADDR", env = "WINDLASS_LISTEN", default_value = "127.0.0.1:7700")]
    listen: String,
    /// Listen on an address that other machines can reach, although anyone there may then publish,
    /// take and read events
    #[arg(long)]
    insecure: bool,
}

impl Serve {
    pub async fn run(self) -> Result {
        let addresses = self.addresses().await?;
        let listener = TcpListener::bind(&addresses[..]).await;
        let listener = listener.map_err(|error| format!("cannot listen on {}: {error}", self.listen))?;
        let queue = Queue::open(&self.database.url).await?;
        // From here on a signal must not cut anything off.
        let stopped = stop_signal()?;
        self.say_hello(listener.local_addr()?)?;
        windlass_server::serve(queue, listener, ServeOptions::default(), stopped).await?;
        Ok(())
    }

    async fn addresses(&self) -> Result<Vec<SocketAddr>> {
        let bad = |error| format!("--listen {}: {error}; give address and port, as in 127.0.0.1:7700", self.listen);
        let found: Vec<SocketAddr> = lookup_host(&self.listen).await.map_err(bad)?.collect();
        let open = found.iter().find(|address| !address.ip().to_canonical().is_loopback());
        match open {
            Some(address) if !self.insecure => Err(format!(
                "refusing to listen on {address}: other machines can reach it, and there are no API tokens yet to \
                 keep strangers out; use 127.0.0.1, or --insecure if the network itself keeps them out"
            )
            .into()),
            _ => Ok(found),
        }
    }

    fn say_hello(&self, address: SocketAddr) -> Result {
        let (version, database) = (env!("CARGO_PKG_VERSION"), self.database.shown());
        write!(
            std::io::stdout(),
            "\
windlass {version}
  database   {database}
  listening  http://{address}

Publish an event:
  curl http://{address}/events -H 'content-type: application/json' \\
    -d '{{\"title\": \"Say hello\", \"tags\": \"greeting\", \"payload\": {{\"to\": \"world\"}}}}'
Take it:
  curl 'http://{address}/events/subscribe?tags=greeting&worker_id=me:1'

"
        )?;
        Ok(())
    }
}

/// Ready when the process is asked to end. From this call on the process no longer ends by itself.
#[cfg(unix)]
fn stop_signal() -> Result<impl Future<Output = ()> + Send + 'static> {
    use tokio::signal::unix::{SignalKind, signal};
    let (mut terminate, mut interrupt) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    Ok(async move {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
    })
}

#[cfg(not(unix))]
fn stop_signal() -> Result<impl Future<Output = ()> + Send + 'static> {
    Ok(async { drop(tokio::signal::ctrl_c().await) })
}
