//! `windlass health`: checks whether a server on this machine runs, for containers without other tools.

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

/// A server that takes longer counts as not running.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(4);
/// The response is read up to this length.
const RESPONSE_BYTES_MAX: u64 = 4 << 10;

impl Health {
    pub async fn run(self) -> Result {
        let address = lookup_host(&self.listen).await?.next().ok_or("the name stands for no address")?;
        let address = connect_address(address);
        let response = tokio::time::timeout(RESPONSE_TIMEOUT, request_health(address)).await;
        let response = response.map_err(|_| format!("http://{address} did not answer within {RESPONSE_TIMEOUT:?}"))?;
        let response = response.map_err(|error| format!("http://{address}: {error}"))?;
        match response.split_whitespace().nth(1) {
            Some("200") => Ok(()),
            _ => Err(format!("http://{address}: {}", response.lines().next().unwrap_or("an empty answer")).into()),
        }
    }
}

async fn request_health(address: SocketAddr) -> std::io::Result<String> {
    let mut connection = TcpStream::connect(address).await?;
    let request = format!("GET /healthz HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\n\r\n");
    connection.write_all(request.as_bytes()).await?;
    let mut response = Vec::new();
    connection.take(RESPONSE_BYTES_MAX).read_to_end(&mut response).await?;
    Ok(String::from_utf8_lossy(&response).into_owned())
}

/// Replaces an unspecified listen address by the loopback address.
fn connect_address(address: SocketAddr) -> SocketAddr {
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
    fn unspecified_address_is_checked_on_loopback() {
        let table = [
            ("0.0.0.0:7700", "127.0.0.1:7700"),
            ("[::]:7700", "[::1]:7700"),
            ("10.1.2.3:80", "10.1.2.3:80"),
            ("127.0.0.1:7700", "127.0.0.1:7700"),
        ];
        for (listen, expected) in table {
            assert_eq!(connect_address(listen.parse().unwrap()), expected.parse().unwrap());
        }
    }
}
