//! A connection that fails if the client stops reading.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep};

/// Fails a write that makes no progress for too long: a response that the client does not read occupies memory.
pub(crate) struct WriteTimeout<C> {
    connection: C,
    timeout: Duration,
    /// Whether a write is pending.
    is_pending: bool,
    deadline: Pin<Box<Sleep>>,
}

impl<C> WriteTimeout<C> {
    pub fn new(connection: C, timeout: Duration) -> WriteTimeout<C> {
        WriteTimeout { connection, timeout, is_pending: false, deadline: Box::pin(tokio::time::sleep(timeout)) }
    }

    fn fail_if_stalled<T>(&mut self, cx: &mut Context<'_>, written: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        if written.is_ready() {
            self.is_pending = false;
            return written;
        }
        if !self.is_pending {
            self.is_pending = true;
            self.deadline.as_mut().reset(Instant::now() + self.timeout);
        }
        match self.deadline.as_mut().poll(cx) {
            Poll::Ready(()) => Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, "the client does not read"))),
            Poll::Pending => Poll::Pending,
        }
    }
}

impl<C: AsyncRead + Unpin> AsyncRead for WriteTimeout<C> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.connection).poll_read(cx, buffer)
    }
}

impl<C: AsyncWrite + Unpin> AsyncWrite for WriteTimeout<C> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.connection).poll_write(cx, bytes);
        self.fail_if_stalled(cx, written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.connection).poll_write_vectored(cx, parts);
        self.fail_if_stalled(cx, written)
    }

    fn is_write_vectored(&self) -> bool {
        self.connection.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = Pin::new(&mut self.connection).poll_flush(cx);
        self.fail_if_stalled(cx, flushed)
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
    async fn write_fails_if_the_client_stops_reading() {
        let (server_end, mut client_end) = tokio::io::duplex(10);
        let mut connection = WriteTimeout::new(server_end, Duration::from_secs(60));
        connection.write_all(b"0123456789").await.unwrap();
        let error = connection.write_all(b"x").await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        // A client that reads again is served again.
        client_end.read_exact(&mut [0; 10]).await.unwrap();
        connection.write_all(b"x").await.unwrap();
    }
}
