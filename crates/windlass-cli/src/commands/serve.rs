//! `windlass serve`: runs the HTTP server and the maintenance tasks until a signal stops it.

use std::io::{self, Write};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueEnum};
use tokio::net::{TcpListener, TcpSocket, lookup_host};
use windlass::{Limits, Queue, schema_version};
use windlass_server::{Access, Dashboard, ServeOptions, Tls};

use crate::Result;
use crate::database::Database;
use crate::time::parse_duration;

/// Serve the HTTP API and look after the queue
///
/// It listens on this machine only, unless there are API tokens (`windlass token create`). SIGTERM and
/// SIGINT (Ctrl-C) stop it: requests that are under way are still answered.
#[derive(Args)]
#[command(after_help = "\
Examples:
  windlass serve
  windlass serve --listen 0.0.0.0:7700 --tls-cert fullchain.pem --tls-key privkey.pem")]
pub struct Serve {
    #[command(flatten)]
    database: Database,
    /// The address to listen on; port 0 takes a free one
    #[arg(long, value_name = "ADDR", env = "WINDLASS_LISTEN", default_value = "127.0.0.1:7700")]
    listen: String,
    /// Ask for no API token, on whatever address: anyone who can reach it may publish, take and read
    /// events
    #[arg(long)]
    insecure: bool,
    /// TLS certificate chain (PEM)
    #[arg(long, value_name = "PEM", env = "WINDLASS_TLS_CERT", requires = "tls_key")]
    tls_cert: Option<PathBuf>,
    /// The certificate's private key
    #[arg(long, value_name = "PEM", env = "WINDLASS_TLS_KEY", requires = "tls_cert")]
    tls_key: Option<PathBuf>,
    /// The dashboard at /: with actions, for looking only, or none
    #[arg(long, value_name = "MODE", env = "WINDLASS_DASHBOARD", value_enum, default_value_t = DashboardMode::On)]
    dashboard: DashboardMode,
    /// Where to write history before it is deleted, in namespaces whose policy says `archive`
    #[arg(long, value_name = "DIR", env = "WINDLASS_ARCHIVE_DIR")]
    archive_dir: Option<PathBuf>,
    /// How often to query the database while claims wait, if no notification arrives; from 10ms to 1h
    #[arg(long, value_name = "DURATION", env = "WINDLASS_IDLE_POLL", default_value = "1s", value_parser = idle_poll)]
    idle_poll: Duration,
    /// The largest payload of an event
    #[arg(long, value_name = "BYTES", env = "WINDLASS_PAYLOAD_BYTES_MAX", default_value_t = 1 << 20,
          value_parser = clap::value_parser!(u64).range(1..=1 << 30))]
    payload_bytes_max: u64,
    /// The most connections at once
    #[arg(long, value_name = "N", env = "WINDLASS_CONNECTIONS_MAX", default_value_t = 16_384,
          value_parser = clap::value_parser!(u32).range(1..))]
    connections_max: u32,
    /// How long a request may take, not counting the time that a claim waits
    #[arg(long, value_name = "SECONDS", env = "WINDLASS_REQUEST_TIMEOUT", default_value_t = 30,
          value_parser = clap::value_parser!(u64).range(1..=3600))]
    request_timeout: u64,
    /// How long requests that are under way may still take once it stops
    #[arg(long, value_name = "SECONDS", env = "WINDLASS_SHUTDOWN_GRACE", default_value_t = 30,
          value_parser = clap::value_parser!(u64).range(0..=3600))]
    shutdown_grace: u64,
}

/// A duration that may also be in milliseconds, as in `250ms`. The library checks its limits.
fn idle_poll(text: &str) -> std::result::Result<Duration, &'static str> {
    match text.strip_suffix("ms").map(str::parse) {
        Some(Ok(millis)) => Ok(Duration::from_millis(millis)),
        _ => parse_duration(text),
    }
}

#[derive(Clone, Copy, ValueEnum)]
enum DashboardMode {
    On,
    ReadOnly,
    Off,
}

impl From<DashboardMode> for Dashboard {
    fn from(mode: DashboardMode) -> Dashboard {
        match mode {
            DashboardMode::On => Dashboard::On,
            DashboardMode::ReadOnly => Dashboard::ReadOnly,
            DashboardMode::Off => Dashboard::Off,
        }
    }
}

impl Serve {
    pub async fn run(self) -> Result {
        let tls = self.tls()?;
        let addresses = self.addresses().await?;
        let access = self.access(&addresses).await?;
        let listener = bind(&addresses).map_err(|error| format!("cannot listen on {}: {error}", self.listen))?;
        let limits = Limits { payload_bytes_max: usize::try_from(self.payload_bytes_max)?, ..Limits::default() };
        let mut options = Queue::options(&self.database.url).limits(limits).idle_poll(self.idle_poll);
        if let Some(folder) = &self.archive_dir {
            options = options.archive_to(folder);
        }
        let queue = options.open().await?;
        let connections_max = allowed_connections(self.connections_max);
        // From here on a signal stops the server gracefully.
        let stopped = stop_signal()?;
        self.print_banner(listener.local_addr()?, access)?;
        let options = ServeOptions {
            access,
            tls,
            dashboard: self.dashboard.into(),
            connections_max: connections_max as usize,
            waiting_claims_max: connections_max as usize,
            request_timeout: Duration::from_secs(self.request_timeout),
            shutdown_grace: Duration::from_secs(self.shutdown_grace),
            ..ServeOptions::default()
        };
        windlass_server::serve(queue, listener, options, stopped).await?;
        Ok(())
    }

    fn tls(&self) -> Result<Option<Tls>> {
        let (Some(certificate), Some(key)) = (&self.tls_cert, &self.tls_key) else { return Ok(None) };
        Ok(Some(Tls::from_pem_files(certificate, key)?))
    }

    async fn addresses(&self) -> Result<Vec<SocketAddr>> {
        let bad = |error| format!("--listen {}: {error}; give address and port, as in 127.0.0.1:7700", self.listen);
        Ok(lookup_host(&self.listen).await.map_err(bad)?.collect())
    }

    /// Decides who may send requests. An address that other machines can reach requires an existing token.
    async fn access(&self, addresses: &[SocketAddr]) -> Result<Access> {
        let public_address = addresses.iter().find(|address| !address.ip().to_canonical().is_loopback());
        match public_address {
            _ if self.insecure => Ok(Access::Open),
            None => Ok(Access::Local),
            Some(_) if self.has_tokens().await? => Ok(Access::Tokens),
            Some(address) => Err(format!(
                "refusing to listen on {address}: other machines can reach it, and there is no API token yet; make one \
                 with `windlass token create --scope admin`, or use 127.0.0.1, or --insecure if the network itself \
                 keeps strangers out"
            )
            .into()),
        }
    }

    /// Whether the database has tokens. A missing database is not created.
    async fn has_tokens(&self) -> Result<bool> {
        if schema_version(&self.database.url).await?.found == 0 {
            return Ok(false);
        }
        let queue = Queue::open(&self.database.url).await?;
        let tokens = queue.tokens().await?;
        queue.close().await;
        Ok(!tokens.is_empty())
    }

    fn print_banner(&self, address: SocketAddr, access: Access) -> Result {
        let (version, database) = (env!("CARGO_PKG_VERSION"), self.database.display_url());
        let scheme = if self.tls_cert.is_some() { "https" } else { "http" };
        let access = match access {
            Access::Open => "every client that reaches it, without a token",
            Access::Local => "this machine; once an API token exists, clients with a token",
            Access::Tokens => "clients with an API token",
        };
        let archive = self.archive_dir.as_ref().map(|folder| format!("  archive    {}\n", folder.display()));
        let archive = archive.unwrap_or_default();
        let dashboard = match self.dashboard {
            DashboardMode::On => format!("  dashboard  {scheme}://{address}/\n"),
            DashboardMode::ReadOnly => format!("  dashboard  {scheme}://{address}/, read-only\n"),
            DashboardMode::Off => String::new(),
        };
        write!(
            std::io::stdout(),
            "\
windlass {version}
  database   {database}
{archive}  listening  {scheme}://{address}
{dashboard}  access     {access}

Publish an event:
  curl {scheme}://{address}/events -H 'content-type: application/json' \\
    -d '{{\"title\": \"Say hello\", \"tags\": \"greeting\", \"payload\": {{\"to\": \"world\"}}}}'
Claim it:
  curl '{scheme}://{address}/events/subscribe?tags=greeting&worker_id=me:1'
API reference: {scheme}://{address}/openapi.json

"
        )?;
        Ok(())
    }
}

/// Connections that may wait to be accepted. Beyond the limit, a client retries only after a second.
const LISTEN_BACKLOG: u32 = 4_096;

/// Listens on the first address that can be bound.
fn bind(addresses: &[SocketAddr]) -> io::Result<TcpListener> {
    let mut result = Err(io::Error::other("the name stands for no address"));
    for address in addresses {
        result = bind_one(*address);
        if result.is_ok() {
            break;
        }
    }
    result
}

fn bind_one(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
    // Allows a restart while old connections are in TIME_WAIT.
    #[cfg(unix)]
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    socket.listen(LISTEN_BACKLOG)
}

/// Open files other than connections: the database, the log.
const OTHER_FILES: u64 = 256;

/// Returns the connection limit, reduced to what the system's limit on open files allows.
fn allowed_connections(connections_max: u32) -> u32 {
    let needed = u64::from(connections_max) + OTHER_FILES;
    let allowed = rlimit::increase_nofile_limit(needed).unwrap_or(1024);
    if allowed >= needed {
        return connections_max;
    }
    let connections_max = u32::try_from(allowed.saturating_sub(OTHER_FILES)).unwrap_or(u32::MAX).max(1);
    tracing::warn!(connections_max, "the system allows fewer open files than --connections-max needs; see `ulimit -n`");
    connections_max
}

/// Returns a future that completes on SIGTERM or SIGINT. From this call on these signals no longer end the process.
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
