//! The token by which the node proves to the API server who it is, where its kubeconfig has no certificate:
//! written there, in a file, or made by a program (a credential plugin of client-go).

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, SystemTime};

use http::HeaderValue;
use serde::{Deserialize, Serialize};
use tokio::io::AsyncReadExt;
use tokio::process::Command;
use tokio::sync::Mutex;
use tokio::time::{Instant, timeout};

use crate::kubeconfig::{ExecPlugin, NodeCredential};

/// As client-go: files are read again, and programs that say nothing of an end run again when the API
/// server refuses their token.
const FILE_FOR: Duration = Duration::from_secs(10);
const WITHOUT_END_FOR: Duration = Duration::from_secs(3600);
/// A token that has expired already, by the clock of this host, is used for so long all the same: the
/// clock may be wrong, and the API server decides.
const SHORTEST_LIFE: Duration = Duration::from_secs(30);
/// A token is not used in the last part of its life.
const BEFORE_END: Duration = Duration::from_secs(60);
/// A program may ask a server of its own.
const PLUGIN_TIMEOUT: Duration = Duration::from_secs(20);
/// Between two runs of a program that failed, or whose token was refused.
const PLUGIN_PAUSE: Duration = Duration::from_secs(5);
/// Bytes of a token, in a file or made by a program.
const MAX_TOKEN: u64 = 256 << 10;

/// Why there is no token.
#[derive(Debug, thiserror::Error)]
pub(crate) enum TokenError {
    #[error("read the token of the node in {}", path.display())]
    Read {
        path: PathBuf,
        source: std::io::Error,
    },
    #[error("the token of the node cannot be sent in a header")]
    NotText,
    #[error("run {}, which makes the token of the node", command.display())]
    Run {
        command: PathBuf,
        source: std::io::Error,
    },
    #[error("{}, which makes the token of the node, did not end within {} s", command.display(), PLUGIN_TIMEOUT.as_secs())]
    TimedOut { command: PathBuf },
    #[error("{}, which makes the token of the node, printed no ExecCredential with a token: it ended with {status}", command.display())]
    NoCredential {
        command: PathBuf,
        status: std::process::ExitStatus,
    },
    #[error("{}, which makes the token of the node, has just failed, and is run again later", command.display())]
    Pause { command: PathBuf },
}

/// Where the token comes from, and the last one.
#[derive(Debug)]
pub(super) struct NodeToken {
    source: NodeCredential,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    last: Option<Fresh>,
    /// When a program may run again.
    next_run: Option<Instant>,
}

/// A token that need not be asked for again yet.
#[derive(Clone, Debug)]
struct Fresh {
    header: HeaderValue,
    until: Instant,
}

impl NodeToken {
    /// `None`: the node has a certificate.
    pub(super) fn of(credential: &NodeCredential) -> Option<Self> {
        match credential {
            NodeCredential::Certificate { .. } => None,
            NodeCredential::TokenFile(_) | NodeCredential::Token(_) | NodeCredential::Exec(_) => {
                Some(Self {
                    source: credential.clone(),
                    state: Mutex::default(),
                })
            }
        }
    }

    /// The value of the header `Authorization`.
    pub(super) async fn authorization(&self) -> Result<HeaderValue, TokenError> {
        let mut state = self.state.lock().await;
        let now = Instant::now();
        if let Some(fresh) = &state.last
            && now < fresh.until
        {
            return Ok(fresh.header.clone());
        }
        let fresh = match &self.source {
            NodeCredential::Token(token) => Fresh {
                header: header(&token.0)?,
                until: now + WITHOUT_END_FOR,
            },
            NodeCredential::TokenFile(path) => Fresh {
                header: header(read_file(path).await?.trim())?,
                until: now + FILE_FOR,
            },
            NodeCredential::Exec(plugin) => {
                if let Some(next) = state.next_run
                    && now < next
                {
                    let command = plugin.command.clone();
                    return Err(TokenError::Pause { command });
                }
                state.next_run = Some(now + PLUGIN_PAUSE);
                run(plugin).await?
            }
            NodeCredential::Certificate { .. } => return Err(TokenError::NotText),
        };
        state.last = Some(fresh.clone());
        Ok(fresh.header)
    }

    /// The API server has refused the last token: the next one is asked for again.
    pub(super) async fn forget(&self) {
        self.state.lock().await.last = None;
    }
}

fn header(token: &str) -> Result<HeaderValue, TokenError> {
    let value = HeaderValue::from_str(&format!("Bearer {token}"));
    let mut value = value.map_err(|_| TokenError::NotText)?;
    value.set_sensitive(true);
    Ok(value)
}

async fn read_file(path: &Path) -> Result<String, TokenError> {
    let read = async {
        let file = tokio::fs::File::open(path).await?;
        let mut text = String::new();
        file.take(MAX_TOKEN).read_to_string(&mut text).await?;
        Ok(text)
    };
    read.await.map_err(|source| TokenError::Read {
        path: path.to_owned(),
        source,
    })
}

async fn run(plugin: &ExecPlugin) -> Result<Fresh, TokenError> {
    let command = || plugin.command.clone();
    let run_error = |source| TokenError::Run {
        command: command(),
        source,
    };
    let mut program = Command::new(&plugin.command);
    program
        .args(&plugin.args)
        .env("KUBERNETES_EXEC_INFO", question(plugin))
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .kill_on_drop(true);
    for variable in &plugin.env {
        program.env(&variable.name, &variable.value);
    }
    let ran = async {
        let mut child = program.spawn()?;
        let mut printed = Vec::new();
        if let Some(stdout) = child.stdout.take() {
            stdout.take(MAX_TOKEN).read_to_end(&mut printed).await?;
        }
        Ok((child.wait().await?, printed))
    };
    let ran = timeout(PLUGIN_TIMEOUT, ran).await;
    let ran = ran.map_err(|_| TokenError::TimedOut { command: command() })?;
    let (status, printed) = ran.map_err(run_error)?;
    match made_of(&printed) {
        Some(made) if status.success() => fresh(&made),
        Some(_) | None => Err(TokenError::NoCredential {
            command: command(),
            status,
        }),
    }
}

fn made_of(printed: &[u8]) -> Option<Made> {
    let credential: ExecCredential = serde_json::from_slice(printed).ok()?;
    credential.status
}

fn fresh(made: &Made) -> Result<Fresh, TokenError> {
    let end = made.expiration_timestamp.as_deref();
    let end = end.and_then(|text| humantime::parse_rfc3339(text).ok());
    let life = match end {
        Some(end) => end.duration_since(SystemTime::now()).unwrap_or_default(),
        None => WITHOUT_END_FOR,
    };
    Ok(Fresh {
        header: header(&made.token)?,
        until: Instant::now() + life.saturating_sub(BEFORE_END).max(SHORTEST_LIFE),
    })
}

/// `client.authentication.k8s.io`, as far as it is needed.
#[derive(Deserialize)]
struct ExecCredential {
    status: Option<Made>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Made {
    token: String,
    expiration_timestamp: Option<String>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Question<'a> {
    kind: &'a str,
    api_version: &'a str,
    spec: QuestionSpec,
}

#[derive(Serialize)]
struct QuestionSpec {
    interactive: bool,
}

fn question(plugin: &ExecPlugin) -> String {
    let question = Question {
        kind: "ExecCredential",
        api_version: &plugin.api_version,
        spec: QuestionSpec { interactive: false },
    };
    serde_json::to_string(&question).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kubeconfig::ExecVariable;

    /// A shell script as a plug-in.
    fn plugin(script: &str) -> NodeToken {
        let variable = ExecVariable {
            name: "NAME".to_owned(),
            value: "edge".to_owned(),
        };
        let plugin = ExecPlugin {
            api_version: "client.authentication.k8s.io/v1".to_owned(),
            command: "sh".into(),
            args: vec!["-c".to_owned(), script.to_owned()],
            env: vec![variable],
        };
        NodeToken::of(&NodeCredential::Exec(plugin)).unwrap()
    }

    #[tokio::test]
    async fn a_program_makes_the_token_again_when_it_ends() {
        let directory = tempfile::tempdir().unwrap();
        let runs = directory.path().join("runs");
        let made = |end: &str| {
            plugin(&format!(
                r#"echo run >> {}; echo "$KUBERNETES_EXEC_INFO" | grep -q '"interactive":false' || exit 1
                echo '{{"kind":"ExecCredential","status":{{"token":"'$NAME'","expirationTimestamp":"{end}"}}}}'"#,
                runs.display()
            ))
        };
        let count = || std::fs::read_to_string(&runs).unwrap().lines().count();
        let lasting = made("2999-01-01T00:00:00Z");
        for _ in 0..2 {
            assert_eq!(lasting.authorization().await.unwrap(), "Bearer edge");
        }
        assert_eq!(count(), 1);
        lasting.forget().await;
        let error = lasting.authorization().await.unwrap_err();
        assert!(matches!(error, TokenError::Pause { .. }), "{error}");
    }

    #[tokio::test]
    async fn a_clock_that_is_ahead_does_not_keep_the_node_from_its_token() {
        let expired = plugin(
            r#"echo '{"status":{"token":"t","expirationTimestamp":"2020-01-01T00:00:00Z"}}'"#,
        );
        for _ in 0..2 {
            assert_eq!(expired.authorization().await.unwrap(), "Bearer t");
        }
        expired.forget().await;
        expired.authorization().await.unwrap_err();
    }

    #[tokio::test]
    async fn a_program_that_fails_is_an_error_that_names_it() {
        for script in [
            "exit 3",
            "echo nonsense",
            r#"echo '{"status":{"token":"t"}}'; exit 1"#,
        ] {
            let error = plugin(script).authorization().await.unwrap_err();
            assert!(matches!(error, TokenError::NoCredential { .. }), "{error}");
        }
    }

    #[tokio::test]
    async fn a_file_is_read_and_its_end_of_line_is_not_the_tokens() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("token");
        std::fs::write(&path, "secret\n").unwrap();
        let token = NodeToken::of(&NodeCredential::TokenFile(path.clone())).unwrap();
        assert_eq!(token.authorization().await.unwrap(), "Bearer secret");
        std::fs::remove_file(&path).unwrap();
        token.forget().await;
        token.authorization().await.unwrap_err();
    }
}
