//! Settings for the API server from a kubeconfig. What it has of secrets is in no error: neither the
//! lines of a file that is not YAML, nor the password of a forward proxy.
#![forbid(unsafe_code)]

use std::path::Path;

use kube::Config;
use kube::config::{KubeConfigOptions, Kubeconfig, KubeconfigError};

/// What the client is given as the cluster's forward proxy, so that it looks into no environment
/// variable, and whose URL it would otherwise show in errors. Nothing is ever sent there.
const NAMED: &str = "http://named.invalid";
const NOT_NAMED: &str = "http://not-named.invalid";

/// Where the kubeconfig is.
#[derive(Clone, Copy, Debug)]
pub enum Source<'a> {
    /// In this file.
    File(&'a Path),
    /// Where kubectl looks: in the files of `KUBECONFIG`, or `~/.kube/config`.
    Kubectl,
}

/// Why a kubeconfig cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum Unusable {
    /// It is not YAML, or not of the shape. The text of the source would show lines of it.
    #[error("line {line}, column {column}: not YAML of a kubeconfig")]
    Parse {
        /// From 1; 0: unknown.
        line: u64,
        /// From 1; 0: unknown.
        column: u64,
    },
    /// Something else is wrong.
    #[error(transparent)]
    Other(KubeconfigError),
}

impl From<KubeconfigError> for Unusable {
    fn from(error: KubeconfigError) -> Self {
        let KubeconfigError::Parse(error) = error else {
            return Self::Other(error);
        };
        match error.location() {
            Some(place) => Self::Parse {
                line: place.line(),
                column: place.column(),
            },
            None => Self::Parse { line: 0, column: 0 },
        }
    }
}

/// The settings of a kubeconfig. The API server is dialled directly.
#[derive(Debug)]
pub struct Loaded {
    /// For a client.
    pub config: Config,
    /// Which forward proxy is not used.
    pub left_out: Option<ForwardProxy>,
}

/// Who names a forward proxy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ForwardProxy {
    /// `proxy-url` of the kubeconfig.
    Kubeconfig,
    /// `HTTPS_PROXY` of the environment.
    Environment,
}

/// Reads the kubeconfig, and of it `context`, or the current one.
///
/// # Errors
/// It cannot be read, or lacks something. No text has a secret of it.
pub async fn load(source: Source<'_>, context: Option<&str>) -> Result<Loaded, Unusable> {
    let mut kubeconfig = match source {
        Source::File(path) => Kubeconfig::read_from(path)?,
        Source::Kubectl => Kubeconfig::read()?,
    };
    for named in &mut kubeconfig.clusters {
        let Some(cluster) = &mut named.cluster else {
            continue;
        };
        let stand_in = match &cluster.proxy_url {
            Some(url) if !url.is_empty() => NAMED,
            Some(_) | None => NOT_NAMED,
        };
        cluster.proxy_url = Some(stand_in.to_owned());
    }
    let mut options = KubeConfigOptions::default();
    if let Some(context) = context {
        options.context = Some(context.to_owned());
    }
    let mut config = Config::from_custom_kubeconfig(kubeconfig, &options).await?;
    let left_out = match config.proxy_url.take() {
        Some(stand_in) if stand_in == NAMED => Some(ForwardProxy::Kubeconfig),
        _ if has_proxy_in_environment() => Some(ForwardProxy::Environment),
        _ => None,
    };
    Ok(Loaded { config, left_out })
}

fn has_proxy_in_environment() -> bool {
    for name in ["HTTPS_PROXY", "https_proxy"] {
        if let Some(url) = std::env::var_os(name)
            && !url.is_empty()
        {
            return true;
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use kube::Client;

    use super::*;

    async fn loaded(text: &str) -> Result<Loaded, Unusable> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("kubeconfig");
        std::fs::write(&path, text).unwrap();
        load(Source::File(&path), None).await
    }

    fn with_proxy(url: &str) -> String {
        let kubeconfig = serde_json::json!({
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "c", "cluster": {
                "server": "https://127.0.0.1:1",
                "proxy-url": url,
            }}],
            "users": [{"name": "u", "user": {}}],
            "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
            "current-context": "x",
        });
        kubeconfig.to_string()
    }

    #[tokio::test]
    async fn a_proxy_in_front_of_the_api_server_is_left_out_and_its_password_not_shown() {
        for url in [
            "http://user:S3cret@127.0.0.1:1",
            "https://user:S3cret@127.0.0.1:1",
            "socks5://user:S3cret@127.0.0.1:1",
            "ftp://user:S3cret@127.0.0.1:1",
            "http://user:S3cret with blanks@127.0.0.1:1",
        ] {
            let loaded = loaded(&with_proxy(url)).await.unwrap();
            assert_eq!(loaded.left_out, Some(ForwardProxy::Kubeconfig), "{url}");
            assert!(!format!("{loaded:?}").contains("S3cret"), "{loaded:?}");
            let client = Client::try_from(loaded.config);
            assert!(client.is_ok(), "{:?}", client.err());
        }
        assert!(
            loaded(&with_proxy(""))
                .await
                .unwrap()
                .config
                .proxy_url
                .is_none()
        );
    }

    #[tokio::test]
    async fn what_is_wrong_with_a_kubeconfig_is_told_without_its_secrets() {
        for broken in [
            "users:\n- name: u\n  user:\n    token: S3cret\n   client-key: [\n",
            "users:\n- name: u\n  user: S3cret\n",
            "users:\n- name: u\n  user:\n    token: [S3cret]\n",
            "current-context: [S3cret",
        ] {
            let error = loaded(broken).await.unwrap_err();
            assert!(
                matches!(error, Unusable::Parse { line: 1.., .. }),
                "{error}"
            );
            let text = format!("{error} {error:?}");
            assert!(!text.contains("S3cret"), "{text}");
        }
    }
}
