//! Runs: claims the next deliveries of a group under the lease of the first one.

use std::collections::HashMap;

use rusqlite::{Connection, OptionalExtension};

use super::claim::{LeaseTimesByLane, LeasedDelivery, consecutive, update_leases};
use crate::error::Result;
use crate::store::{Claim, ClaimSource, RunHead};

// Only first attempts, as `Claim::run_heads` requires.
const IN_GROUPS: &str = "
SELECT event_id, group_id FROM event_queue
WHERE subscription_id = ?1 AND event_id BETWEEN ?2 AND ?3 AND group_id IS NOT NULL AND attempts = 1";

/// Claims the deliveries that follow these in their groups, if the requests want runs. Each run is in order.
pub(super) fn claim_runs(
    conn: &Connection,
    claim: &Claim,
    leased: &[LeasedDelivery],
    lease_times: &mut LeaseTimesByLane<'_>,
    now: i64,
) -> Result<Vec<LeasedDelivery>> {
    if claim.requests.iter().all(|request| request.group_run <= 1) {
        return Ok(Vec::new());
    }
    let mut groups: HashMap<i64, String> = HashMap::new();
    let mut select = conn.prepare_cached(IN_GROUPS)?;
    for consecutive in consecutive(leased) {
        let (from, to) = (consecutive[0].event_id, consecutive[consecutive.len() - 1].event_id);
        let mut rows = select.query((claim.subscription_id, from, to))?;
        while let Some(row) = rows.next()? {
            groups.insert(row.get(0)?, row.get(1)?);
        }
    }
    let heads = leased.iter().filter_map(|head| {
        let (group_id, lease) = (groups.get(&head.event_id)?.as_str(), claim.requests[head.request].lease);
        Some(RunHead { event_id: head.event_id, group_id, lease })
    });
    let by_event: HashMap<i64, &LeasedDelivery> = leased.iter().map(|head| (head.event_id, head)).collect();
    let mut followers = Vec::new();
    for (head, more) in claim.run_heads(heads) {
        let Some(request) = by_event.get(&head.event_id).map(|leased| leased.request) else { continue };
        followers.extend(claim_run(conn, claim, (head, request), more, lease_times, now)?);
    }
    Ok(followers)
}

const STATE: &str = "
SELECT depth, last_at FROM event_groups WHERE group_id = ?1 AND subscription = ?2 AND namespace = ?3";

const WAITING: &str = "
SELECT event_id, lane_id, due_at, lease IS NOT NULL OR attempts > 0 OR expires_at <= ?4
FROM event_queue INDEXED BY event_queue_group
WHERE group_id = ?1 AND subscription = ?2 AND namespace = ?3 AND (ready_at = 9223372036854775807) = 1
ORDER BY due_at, event_id LIMIT ?5";

const NOTE: &str = "
UPDATE event_groups SET run_lease = ?4, run_left = ?5, run_to = ?6
WHERE group_id = ?1 AND subscription = ?2 AND namespace = ?3";

/// Claims the first waiting deliveries, up to one that cannot be part of the run: it is not due, was tried before, has
/// expired or is not among the claim's lanes.
fn claim_run(
    conn: &Connection,
    claim: &Claim,
    (head, request): (RunHead<'_>, usize),
    more: usize,
    lease_times: &mut LeaseTimesByLane<'_>,
    now: i64,
) -> Result<Vec<LeasedDelivery>> {
    let (subscription, namespace) = (&claim.subscription, &claim.namespace);
    let state = |row: &rusqlite::Row| Ok((row.get::<_, i64>(0)?, row.get::<_, i64>(1)?));
    let key = (head.group_id, subscription, namespace);
    let Some((depth, last_at)) = conn.prepare_cached(STATE)?.query_row(key, state).optional()? else {
        return Ok(Vec::new());
    };
    let (mut followers, mut run_to) = (Vec::new(), now);
    if depth > 1 {
        let mut select = conn.prepare_cached(WAITING)?;
        let mut rows = select.query((head.group_id, subscription, namespace, now, more as i64))?;
        while let Some(row) = rows.next()? {
            let (event_id, lane_id, due_at): (i64, i64, i64) = (row.get(0)?, row.get(1)?, row.get(2)?);
            let stops = row.get::<_, Option<bool>>(3)? == Some(true) || due_at > last_at.max(now);
            if stops || !selects(&claim.source, lane_id) {
                break;
            }
            let lease_expires_at = now.saturating_add(lease_times.of(conn, event_id, lane_id)?);
            followers.push(LeasedDelivery { event_id, request, picked_at: now, lease_expires_at });
            run_to = due_at;
        }
    }
    if !followers.is_empty() {
        update_leases(conn, claim, &followers, now)?;
        let left = followers.len() as i64 + 1;
        let noted = (head.group_id, subscription, namespace, head.lease.0, left, run_to);
        conn.prepare_cached(NOTE)?.execute(noted)?;
    }
    Ok(followers)
}

fn selects(source: &ClaimSource, lane_id: i64) -> bool {
    match source {
        ClaimSource::Subscription { lanes: None, .. } => true,
        ClaimSource::Subscription { lanes: Some(lanes), .. } => lanes.binary_search(&lane_id).is_ok(),
        ClaimSource::Lanes(lanes) => lanes.iter().any(|lane| lane.lane_id == lane_id),
    }
}
