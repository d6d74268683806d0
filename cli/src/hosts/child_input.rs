//! The standard input of a program, whose end can be passed on.

use std::io::{self, ErrorKind};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::AsyncWrite;
use tokio::process::ChildStdin;

/// A pipe that a shutdown closes. That of tokio is closed by a drop alone, so that the program would
/// not see the end for as long as its output is read.
#[derive(Debug)]
pub(super) struct ChildInput {
    /// `None` once it is closed.
    pipe: Option<ChildStdin>,
}

impl ChildInput {
    pub(super) fn new(pipe: ChildStdin) -> Self {
        Self { pipe: Some(pipe) }
    }

    fn pipe(&mut self) -> io::Result<Pin<&mut ChildStdin>> {
        let pipe = self.pipe.as_mut().map(Pin::new);
        pipe.ok_or_else(|| ErrorKind::BrokenPipe.into())
    }
}

impl AsyncWrite for ChildInput {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.pipe()?.poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.pipe.as_mut() {
            Some(pipe) => Pin::new(pipe).poll_flush(context),
            None => Poll::Ready(Ok(())),
        }
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = ready!(self.as_mut().poll_flush(context));
        self.pipe = None;
        Poll::Ready(flushed)
    }
}

#[cfg(test)]
mod tests {
    use std::process::Stdio;
    use std::time::Duration;

    use anyhow::{Context, Result};
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::process::Command;
    use tokio::time::timeout;

    use super::*;

    #[tokio::test]
    async fn a_program_sees_the_end_while_its_output_is_read() -> Result<()> {
        let mut command = Command::new("sh");
        command
            .args(["-c", "cat; echo the end"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true);
        let mut child = command.spawn()?;
        let input = child.stdin.take().context("no input")?;
        let output = child.stdout.take().context("no output")?;
        let mut stream = tokio::io::join(output, ChildInput::new(input));
        stream.write_all(b"first\n").await?;
        stream.shutdown().await?;
        let mut said = String::new();
        let read = timeout(Duration::from_secs(60), stream.read_to_string(&mut said));
        read.await.context("no end")??;
        assert_eq!(said, "first\nthe end\n");
        let error = stream.write_all(b"more").await;
        error.expect_err("it is closed");
        Ok(())
    }
}
