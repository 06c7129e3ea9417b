//! The pages of a server, one after the other.

use std::net::SocketAddr;

use crate::AnyError;
use crate::http::connection::Connection;
use crate::latency::{Latencies, Percentiles};

/// What is asked for. An event of the middle stands for all.
const PATHS: [&str; 18] = [
    "/ui/default",
    "/ui/default/events",
    "/ui/default/events?status=PENDING",
    "/ui/default/events?status=FAILED",
    "/ui/default/events?text=needle",
    "/ui/default/events/500000",
    "/ui/default/dead-letters",
    "/ui/default/dead-letters?types=order.paid",
    "/ui/default/schedules",
    "/ui/default/nodes",
    "/ui/default/subscriptions",
    "/stats",
    "/events?limit=20",
    "/events?status=FAILED",
    "/events/search?text=needle",
    "/events/500000/explain",
    "/dead-letters",
    "/workers",
];

pub async fn measure(address: SocketAddr, rounds: u16) -> Result<Vec<Percentiles>, AnyError> {
    let mut times = Vec::new();
    for path in PATHS {
        let mut latencies = Latencies::new(path);
        let mut connection = Connection::open(address).await?;
        let status = connection.get(path).await?.status;
        if status != 200 {
            eprintln!("{path}: {status}");
            continue;
        }
        for _ in 0..rounds {
            latencies.time(async { connection.get(path).await.map(drop) }).await?;
        }
        times.extend(latencies.percentiles());
    }
    Ok(times)
}
