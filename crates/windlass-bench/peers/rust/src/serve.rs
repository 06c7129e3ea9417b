//! Answers the driver's requests for one peer.

use std::sync::Arc;

use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, BufReader};

use crate::board::Board;
use crate::peer::{Opened, Peer};
use crate::protocol::{Request, Result, answer};
use crate::workload::Bench;

/// Until the end of stdin.
pub async fn serve<P: Peer>() -> Result<()> {
    let mut lines = BufReader::new(tokio::io::stdin()).lines();
    let mut bench = None;
    while let Some(line) = lines.next_line().await? {
        let done = match serde_json::from_str(&line) {
            Ok(request) => respond::<P>(&mut bench, request).await,
            Err(error) => Err(error.into()),
        };
        println!("{}", answer(done));
    }
    Ok(())
}

async fn respond<P: Peer>(bench: &mut Option<Bench<P>>, request: Request) -> Result<Value> {
    if let Request::Open { url, variant } = request {
        let board = Arc::new(Board::new());
        let Opened { peer, version, about } = P::open(&url, variant, board.clone()).await?;
        *bench = Some(Bench::new(peer, board));
        return Ok(json!({ "version": version, "about": about }));
    }
    if matches!(request, Request::Close) {
        // All tasks have ended by now, so that the peer is in no other hands.
        if let Some(peer) = bench.take().and_then(|bench| Arc::into_inner(bench.peer)) {
            peer.close().await?;
        }
        return Ok(json!({}));
    }
    let bench = bench.as_ref().ok_or("nothing is open")?;
    match request {
        Request::Open { .. } | Request::Close => Ok(json!({})),
        Request::Publish { events, callers, batch, bytes } => bench.publish(events, callers, batch, bytes).await,
        Request::Drain { events, fail_percent } => bench.drain(events, fail_percent).await,
        Request::Latency { per_second, seconds, bytes } => bench.latency(per_second, seconds, bytes).await,
        Request::Steady { seconds, batch, publishers, bytes } => bench.steady(seconds, batch, publishers, bytes).await,
    }
}
