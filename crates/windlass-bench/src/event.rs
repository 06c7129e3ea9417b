//! The event that all workloads publish.

use serde::{Deserialize, Serialize};
use windlass::{Error, NewEvent};

/// The default event type.
pub const PAID: &str = "order.paid";

#[derive(Serialize, Deserialize)]
pub struct Order {
    pub order_id: usize,
    amount: String,
    note: String,
}

/// A payload of about 200 bytes.
pub fn order_payload(order_id: usize) -> Order {
    Order { order_id, amount: "99.90".into(), note: "x".repeat(150) }
}

pub fn order(event_type: &str, order_id: usize) -> Result<NewEvent, Error> {
    NewEvent::new(event_type).payload(&order_payload(order_id))
}
