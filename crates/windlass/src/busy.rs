//! Work that must not be cut off by closing.

use tokio::sync::watch;

/// How much of it is under way.
#[derive(Debug)]
pub(crate) struct Busy(watch::Sender<usize>);

/// A piece of it, until it is dropped.
#[derive(Debug)]
pub(crate) struct Piece(watch::Sender<usize>);

impl Busy {
    pub fn new() -> Busy {
        Busy(watch::Sender::new(0))
    }

    pub fn begin(&self) -> Piece {
        self.0.send_modify(|count| *count += 1);
        Piece(self.0.clone())
    }

    /// Ready when there is none.
    pub async fn idle(&self) {
        // The sender is ours: it does not go away.
        let _ = self.0.subscribe().wait_for(|count| *count == 0).await;
    }
}

impl Drop for Piece {
    fn drop(&mut self) {
        self.0.send_modify(|count| *count -= 1);
    }
}
