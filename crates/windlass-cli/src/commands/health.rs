//! `windlass health`: whether a server on this machine runs, for containers that have no other program to ask.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use clap::Args;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpStream, lookup_host};

use crate::Result;

/// Ask a server whether it runs; the exit code is the answer
///
/// It says nothing about the database: that is `/readyz`. A server that speaks TLS cannot be asked so.
#[derive(Args)]
#[command(after_help = "\
Examples:
  windlass health
  windlass health --listen 127.0.0.1:8080")]
pub struct Health {
    /// The address that the server listens on
    #[arg(long, value_name = "ADDR", env = "WINDLASS_LISTEN", default_value = "127.0.0.1:7700")]
    listen: String,
}

/// A server that takes longer is not well.
const ANSWER_MAX: Duration = Duration::from_secs(4);
/// An answer is shorter than this.
const ANSWER_BYTES_MAX: u64 = 4 << 10;

impl Health {
    pub async fn run(self) -> Result {
        let address = lookup_host(&self.listen).await?.next().ok_or("the name stands for no address")?;
        let address = reachable(address);
        let answer = tokio::time::timeout(ANSWER_MAX, ask(address)).await;
        let answer = answer.map_err(|_| format!("http://{address} did not answer within {ANSWER_MAX:?}"))?;
        let answer = answer.map_err(|error| format!("http://{address}: {error}"))?;
        match answer.split_whitespace().nth(1) {
            Some("200") => Ok(()),
            _ => Err(format!("http://{address}: {}", answer.lines().next().unwrap_or("an empty answer")).into()),
        }
    }
}

async fn ask(address: SocketAddr) -> std::io::Result<String> {
    let mut connection = TcpStream::connect(address).await?;
    let request = format!("GET /healthz HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\n\r\n");
    connection.write_all(request.as_bytes()).await?;
    let mut answer = Vec::new();
    connection.take(ANSWER_BYTES_MAX).read_to_end(&mut answer).await?;
    Ok(String::from_utf8_lossy(&answer).into_owned())
}

/// Who listens on every address is asked on this machine's own.
fn reachable(address: SocketAddr) -> SocketAddr {
    let ip = match address.ip() {
        ip if !ip.is_unspecified() => ip,
        IpAddr::V4(_) => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(_) => Ipv6Addr::LOCALHOST.into(),
    };
    SocketAddr::new(ip, address.port())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_listens_everywhere_is_asked_here() {
        let table = [
            ("0.0.0.0:7700", "127.0.0.1:7700"),
            ("[::]:7700", "[::1]:7700"),
            ("10.1.2.3:80", "10.1.2.3:80"),
            ("127.0.0.1:7700", "127.0.0.1:7700"),
        ];
        for (listen, asked) in table {
            assert_eq!(reachable(listen.parse().unwrap()), asked.parse().unwrap());
        }
    }
}
