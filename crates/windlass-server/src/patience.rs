//! A connection whose other side has to read what it is sent.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep};

/// Fails a write that makes no progress for too long: an answer that nobody reads is memory that nobody uses.
pub(crate) struct Patience<C> {
    connection: C,
    limit: Duration,
    /// Set while a write waits.
    waiting: bool,
    until: Pin<Box<Sleep>>,
}

impl<C> Patience<C> {
    pub fn new(connection: C, limit: Duration) -> Patience<C> {
        Patience { connection, limit, waiting: false, until: Box::pin(tokio::time::sleep(limit)) }
    }

    fn check<T>(&mut self, cx: &mut Context<'_>, written: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        if written.is_ready() {
            self.waiting = false;
            return written;
        }
        if !self.waiting {
            self.waiting = true;
            self.until.as_mut().reset(Instant::now() + self.limit);
        }
        match self.until.as_mut().poll(cx) {
            Poll::Ready(()) => Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, "the client does not read"))),
            Poll::Pending => Poll::Pending,
        }
    }
}

impl<C: AsyncRead + Unpin> AsyncRead for Patience<C> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.connection).poll_read(cx, buffer)
    }
}

impl<C: AsyncWrite + Unpin> AsyncWrite for Patience<C> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.connection).poll_write(cx, bytes);
        self.check(cx, written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.connection).poll_write_vectored(cx, parts);
        self.check(cx, written)
    }

    fn is_write_vectored(&self) -> bool {
        self.connection.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = Pin::new(&mut self.connection).poll_flush(cx);
        self.check(cx, flushed)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.connection).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn who_does_not_read_is_given_up() {
        let (here, mut there) = tokio::io::duplex(10);
        let mut patient = Patience::new(here, Duration::from_secs(60));
        patient.write_all(b"0123456789").await.unwrap();
        let error = patient.write_all(b"x").await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        // Who reads again is served again.
        there.read_exact(&mut [0; 10]).await.unwrap();
        patient.write_all(b"x").await.unwrap();
    }
}
