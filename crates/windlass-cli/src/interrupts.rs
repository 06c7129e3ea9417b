//! Receives Ctrl-C. Once listening, no signal is lost between two calls of `next`.

use crate::Result;

#[cfg(unix)]
pub struct Interrupts(tokio::signal::unix::Signal);

#[cfg(unix)]
impl Interrupts {
    pub fn listen() -> Result<Interrupts> {
        Ok(Interrupts(tokio::signal::unix::signal(tokio::signal::unix::SignalKind::interrupt())?))
    }

    /// The next one.
    pub async fn next(&mut self) {
        self.0.recv().await;
    }
}

#[cfg(windows)]
pub struct Interrupts(tokio::signal::windows::CtrlC);

#[cfg(windows)]
impl Interrupts {
    pub fn listen() -> Result<Interrupts> {
        Ok(Interrupts(tokio::signal::windows::ctrl_c()?))
    }

    /// The next one.
    pub async fn next(&mut self) {
        self.0.recv().await;
    }
}
