//! What one of the hosts that are asked at the same time answers, or why it does not.

use std::time::Duration;

use crate::fixes;

/// What a host answered, or why it did not.
#[derive(Debug)]
pub struct Answered<T> {
    /// The name by which it was asked.
    pub host: String,
    /// What it said.
    pub answer: Result<T, NoAnswer>,
}

/// Why there is no answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NoAnswer {
    /// As a program or the system says it.
    pub text: String,
    /// What to do.
    pub fix: &'static str,
    /// There is no such socket: the program does not run there, and perhaps is not to.
    pub is_absent: bool,
}

impl<T> Answered<T> {
    /// The answer, if there is one.
    pub fn ok(&self) -> Option<&T> {
        self.answer.as_ref().ok()
    }
}

/// The answers that there are.
pub fn all_ok<T>(answers: &[Answered<T>]) -> Vec<&T> {
    let mut all = Vec::new();
    for answered in answers {
        all.extend(answered.ok());
    }
    all
}

impl NoAnswer {
    /// Reads what a program or the system says.
    pub fn new(text: String) -> Self {
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
    pub fn late(deadline: Duration) -> Self {
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

    #[test]
    fn a_missing_socket_is_absent() {
        let missing = std::os::unix::net::UnixStream::connect("/nowhere/socket");
        let error = missing.expect_err("there is none");
        assert!(NoAnswer::new(error.to_string()).is_absent);
    }
}
