//! The pod's service-account token: what an agent in a Kubernetes cluster enrols with. Kubelet
//! replaces the file before the token ends, so it is read again for each enrolment.

use std::path::{Path, PathBuf};

use data_encoding::BASE64URL_NOPAD;
use serde::Deserialize;

use crate::certificate::cluster::config::{ClusterError, read_bounded};
use crate::certificate::token::Token;

/// The file of a projected token, `--service-account-token`.
#[derive(Clone, Debug)]
pub(crate) struct TokenFile(PathBuf);

/// A token, and what it says of the pod that it is for.
#[derive(Debug)]
pub(crate) struct AccountToken {
    pub(crate) token: Token,
    /// The pod's UID; empty if the token does not say.
    pub(crate) pod: String,
    /// The node's name, since Kubernetes 1.30.
    pub(crate) node: Option<String>,
}

/// Why there is no token.
#[derive(Debug, thiserror::Error)]
pub(crate) enum TokenError {
    #[error("--service-account-token")]
    Read(#[from] ClusterError),
    #[error("--service-account-token {}: the file is empty", .0.display())]
    Empty(PathBuf),
}

#[derive(Deserialize, Default)]
struct Claims {
    #[serde(rename = "kubernetes.io", default)]
    kubernetes: Kubernetes,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Kubernetes {
    pod: Named,
    node: Named,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Named {
    name: String,
    uid: String,
}

impl TokenFile {
    pub(crate) fn new(path: &Path) -> Self {
        Self(path.to_owned())
    }

    /// The token as it is now.
    pub(crate) fn read(&self) -> Result<AccountToken, TokenError> {
        let text = read_bounded(&self.0)?.trim().to_owned();
        if text.is_empty() {
            return Err(TokenError::Empty(self.0.clone()));
        }
        let Kubernetes { pod, node } = claims(&text).unwrap_or_default().kubernetes;
        let node = Some(node.name).filter(|name| !name.is_empty());
        Ok(AccountToken {
            token: Token(text),
            pod: pod.uid,
            node,
        })
    }
}

/// What a JWT says of itself. The proxy has it checked; the agent only compares it with what it
/// knows.
fn claims(token: &str) -> Option<Claims> {
    let claims = BASE64URL_NOPAD
        .decode(token.split('.').nth(1)?.as_bytes())
        .ok()?;
    serde_json::from_slice(&claims).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<AccountToken, TokenError> {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join("token");
        std::fs::write(&path, text).unwrap();
        TokenFile::new(&path).read()
    }

    #[test]
    fn a_token_tells_its_pod_and_perhaps_its_node() {
        let jwt =
            |claims: &str| format!("e30.{}.c2ln\n", BASE64URL_NOPAD.encode(claims.as_bytes()));
        let old = read(&jwt(
            r#"{"kubernetes.io":{"namespace":"culvert-system","pod":{"name":"a","uid":"1"}}}"#,
        ))
        .unwrap();
        assert_eq!((old.pod.as_str(), old.node), ("1", None));
        let new = r#"{"kubernetes.io":{"pod":{"name":"a","uid":"1"},"node":{"name":"edge-1","uid":"2"}}}"#;
        assert_eq!(read(&jwt(new)).unwrap().node.as_deref(), Some("edge-1"));
    }

    #[test]
    fn what_says_nothing_is_left_to_the_proxy_to_judge() {
        let token = read("opaque\n").unwrap();
        assert_eq!((token.token.0.as_str(), token.pod.as_str()), ("opaque", ""));
        assert!(matches!(read("\n"), Err(TokenError::Empty(_))));
        assert!(matches!(
            TokenFile::new(Path::new("/nowhere")).read(),
            Err(TokenError::Read(_))
        ));
    }
}
