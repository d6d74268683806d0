//! A connection with a socket, and the reason if it leads nowhere.

use std::any::Any;
use std::fmt;
use std::time::Duration;

use anyhow::anyhow;
use culvert_site::answered::NoAnswer;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite};
use tokio::time::timeout;

/// Bytes of an explanation.
const MAX_EXPLANATION: u64 = 4 << 10;
/// The time that a program has for its last words after it has closed its output.
const EXPLANATION_TIMEOUT: Duration = Duration::from_secs(1);

/// Bytes in both directions.
pub(crate) trait ByteStream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> ByteStream for T {}

/// A connection with a socket.
pub(crate) struct Connection {
    /// `None` once it is in use.
    stream: Option<Box<dyn ByteStream>>,
    /// The error output of the program that passes the bytes on.
    errors: Option<Box<dyn AsyncRead + Send + Unpin>>,
    /// What ends with the connection: programs and tasks.
    attached: Vec<Box<dyn Any + Send>>,
}

impl Connection {
    /// One that needs no program.
    pub(crate) fn direct(stream: impl ByteStream + 'static) -> Self {
        Self {
            stream: Some(Box::new(stream)),
            errors: None,
            attached: Vec::new(),
        }
    }

    /// One through a program, which ends with it.
    pub(crate) fn through(
        program: impl Any + Send,
        stream: impl ByteStream + 'static,
        errors: impl AsyncRead + Send + Unpin + 'static,
    ) -> Self {
        Self {
            stream: Some(Box::new(stream)),
            errors: Some(Box::new(errors)),
            attached: vec![Box::new(program)],
        }
    }

    /// Ends a task with the connection.
    pub(crate) fn attach(&mut self, task: impl Any + Send) {
        self.attached.push(Box::new(task));
    }

    /// The bytes, once.
    pub(crate) fn take_stream(&mut self) -> anyhow::Result<Box<dyn ByteStream>> {
        let stream = self.stream.take();
        stream.ok_or_else(|| anyhow!("the connection is in use"))
    }

    /// What the program that passes the bytes on says is wrong, or else `error`.
    pub(crate) async fn unanswered(&mut self, error: &anyhow::Error) -> NoAnswer {
        let mut said = Vec::new();
        if let Some(errors) = self.errors.take() {
            let mut errors = errors.take(MAX_EXPLANATION);
            // Whatever came until then.
            drop(timeout(EXPLANATION_TIMEOUT, errors.read_to_end(&mut said)).await);
        }
        let said = String::from_utf8_lossy(&said);
        match said.trim() {
            "" => NoAnswer::new(format!("{error:#}")),
            said => NoAnswer::new(said.to_owned()),
        }
    }
}

impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connection").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_program_that_says_what_is_wrong_is_believed() {
        let said: &[u8] = b"ssh: connect to host cloud-9 port 22: No route to host\n";
        let stream = tokio::io::join(tokio::io::empty(), tokio::io::sink());
        let mut connection = Connection::through((), stream, said);
        let unanswered = connection.unanswered(&anyhow!("broken pipe")).await;
        assert!(unanswered.text.contains("cloud-9"), "{unanswered:?}");
        assert!(!unanswered.is_absent);
        let again = connection.unanswered(&anyhow!("broken pipe")).await;
        assert_eq!(again.text, "broken pipe");
    }
}
