//! The brokers among the peers: started for each measurement in a temporary folder and on a free port.

use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use tempfile::TempDir;

use super::process_group::ProcessGroup;
use crate::AnyError;

const START_TIMEOUT: Duration = Duration::from_secs(10);

/// Stopped, and its files removed, when dropped.
pub struct Broker {
    pub address: SocketAddr,
    _group: ProcessGroup,
    _folder: TempDir,
}

impl Broker {
    /// JetStream with file storage. By default it syncs every two minutes, not with each message.
    pub async fn nats(program: &Path) -> Result<Broker, AnyError> {
        Broker::start(program, |command, port, folder| {
            command.args(["-a", "127.0.0.1", "-p", port, "-js", "-sd"]).arg(folder);
        })
        .await
    }

    /// With a write-ahead log that is synced with each job.
    pub async fn beanstalkd(program: &Path) -> Result<Broker, AnyError> {
        Broker::start(program, |command, port, folder| {
            command.args(["-l", "127.0.0.1", "-p", port, "-f", "0", "-b"]).arg(folder);
        })
        .await
    }

    async fn start(program: &Path, arguments: fn(&mut Command, &str, &Path)) -> Result<Broker, AnyError> {
        let folder = tempfile::tempdir()?;
        let address = free_address()?;
        let mut command = Command::new(program);
        arguments(&mut command, &address.port().to_string(), folder.path());
        let mut group = ProcessGroup::start(command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()))?;
        let started = Instant::now();
        while TcpStream::connect(address).is_err() {
            if group.has_ended() || started.elapsed() > START_TIMEOUT {
                return Err(format!("{} does not start", program.display()).into());
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        Ok(Broker { address, _group: group, _folder: folder })
    }
}

fn free_address() -> Result<SocketAddr, AnyError> {
    Ok(TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?)
}
