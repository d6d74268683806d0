//! A connection with a socket, and the reason if it leads nowhere.

use std::any::Any;
use std::fmt;
use std::time::Duration;

use anyhow::anyhow;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite};
use tokio::time::timeout;

use crate::fixes;

/// Bytes of an explanation.
const MAX_EXPLANATION: u64 = 4 << 10;
/// The time that a program has for its last words after it has closed its output.
const LAST_WORDS: Duration = Duration::from_secs(1);

/// Bytes in both directions.
pub(crate) trait ByteStream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> ByteStream for T {}

/// A connection with a socket.
pub(crate) struct Connection {
    /// `None` once it is in use.
    stream: Option<Box<dyn ByteStream>>,
    /// The error output of the program that passes the bytes on.
    errors: Option<Box<dyn AsyncRead + Send + Unpin>>,
    /// What ends with the connection.
    _program: Option<Box<dyn Any + Send>>,
}

/// Why there is no answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct NoAnswer {
    pub(crate) text: String,
    /// What to do.
    pub(crate) fix: &'static str,
    /// There is no such socket: the program does not run there, and perhaps is not to.
    pub(crate) is_absent: bool,
}

impl Connection {
    /// One that needs no program.
    pub(crate) fn direct(stream: impl ByteStream + 'static) -> Self {
        Self {
            stream: Some(Box::new(stream)),
            errors: None,
            _program: None,
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
            _program: Some(Box::new(program)),
        }
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
            drop(timeout(LAST_WORDS, errors.read_to_end(&mut said)).await);
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

impl NoAnswer {
    /// Reads what a program or the system says.
    pub(crate) fn new(text: String) -> Self {
        // ENOENT, as Rust's errors have it wherever it was met.
        let is_absent = text.contains("(os error 2)");
        let fix = if text.contains("os error 13") {
            "ask as root: only root and the proxy's own user may use its socket"
        } else if text.contains("unrecognized subcommand") {
            "upgrade culvert-proxy there: it has no control-stdio"
        } else if is_absent || text.contains("os error 111") {
            fixes::START_PROXY
        } else {
            "is the host up and reachable? Then look at culvert-proxy there"
        };
        Self {
            text,
            fix,
            is_absent,
        }
    }

    /// The host has taken too long.
    pub(crate) fn late(deadline: Duration) -> Self {
        Self {
            text: format!("no answer within {} s", deadline.as_secs()),
            fix: "it is stopped, overloaded or unreachable; --timeout gives it longer",
            is_absent: false,
        }
    }
}

impl From<anyhow::Error> for NoAnswer {
    fn from(error: anyhow::Error) -> Self {
        Self::new(format!("{error:#}"))
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

    #[test]
    fn a_missing_socket_is_absent() {
        let missing = std::os::unix::net::UnixStream::connect("/nowhere/socket");
        let error = missing.expect_err("there is none");
        assert!(NoAnswer::new(error.to_string()).is_absent);
    }
}
