//! Requests the pages of a server one after the other.

use std::net::SocketAddr;

use crate::AnyError;
use crate::http::connection::Connection;
use crate::latency::{Latencies, Percentiles};

/// The requested paths. One event in the middle represents all.
const PATHS: [&str; 23] = [
    "/ui/default",
    "/ui/default/events",
    "/ui/default/events?status=PENDING",
    "/ui/default/events?status=FAILED",
    "/ui/default/events?text=needle",
    "/ui/default/events/500000",
    "/ui/default/dead-letters",
    "/ui/default/dead-letters?type=order.paid",
    "/ui/default/schedules",
    "/ui/default/nodes",
    "/ui/default/subscriptions",
    "/ui/default/namespaces",
    "/ui/default/settings",
    "/ui/default/publish",
    "/ui/default/health",
    "/ui/default/health/findings",
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
        // The first visit counts: some pages then compute what later visits read from a cache.
        for _ in 0..rounds {
            let status = latencies.time(async { connection.get(path).await.map(|answer| answer.status) }).await?;
            if status != 200 {
                return Err(format!("{path}: {status}").into());
            }
        }
        times.extend(latencies.percentiles());
    }
    Ok(times)
}
