//! The event that is published everywhere.

use serde::{Deserialize, Serialize};
use windlass::{Error, NewEvent};

/// Its usual type.
pub const PAID: &str = "order.paid";

#[derive(Serialize, Deserialize)]
pub struct Order {
    pub order_id: usize,
    amount: String,
    note: String,
}

/// About 200 bytes.
pub fn contents(order_id: usize) -> Order {
    Order { order_id, amount: "99.90".into(), note: "x".repeat(150) }
}

pub fn order(event_type: &str, order_id: usize) -> Result<NewEvent, Error> {
    NewEvent::new(event_type).payload(&contents(order_id))
}
