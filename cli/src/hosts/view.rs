//! The view of a proxy in a cluster, for users who may not exec in its pod. The way there is the API
//! server's proxy for pods, which checks the user's token and does not pass it on: so it goes along a
//! second time, in a header of its own.

use anyhow::{Context, Result, ensure};
use culvert_api::NodeName;
use culvert_api::view::{PROTOCOL, TOKEN_HEADER};
use http::header::{AUTHORIZATION, CONNECTION, UPGRADE};
use http::{HeaderValue, Request, Response, StatusCode};
use http_body_util::{BodyExt, Limited};
use hyper_util::rt::TokioIo;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Status;
use kube::client::{Body, ConfigExt};
use kube::{Client, Config};
use tower::{BoxError, Layer, ServiceExt};

use super::{Connection, NoAnswer, Socket};

/// The name of the port in the pod.
const PORT_NAME: &str = "view";
/// The fix where nothing serves it.
const NO_VIEW: &str =
    "do the proxies have --view-listen (component view, or view.enabled of the chart)?";
/// The fixes where the user may not.
const MAY_NOT_READ: &str =
    "ask for the Role culvert-view in the namespace of the proxies (docs/culvert.md)";
const MAY_NOT_CONNECT: &str =
    "ask for the Role culvert-connect in the namespace of the proxies (docs/connect.md)";
/// Bytes of a refusal.
const MAX_REFUSAL: usize = 16 << 10;

/// The API server as the user reaches it.
#[derive(Clone)]
pub(super) struct ViewAccess {
    client: Client,
    config: Config,
}

/// What a connection is to lead to.
#[derive(Clone, Copy)]
pub(super) enum ViewTarget<'a> {
    Socket(Socket),
    Node(&'a NodeName, u16),
}

impl ViewTarget<'_> {
    fn path(self) -> String {
        match self {
            Self::Socket(socket) => socket.flag_value().to_owned(),
            Self::Node(node, port) => format!("connect/{node}:{port}"),
        }
    }

    /// The fix where the user may not.
    fn permission(self) -> &'static str {
        match self {
            Self::Socket(_) => MAY_NOT_READ,
            Self::Node(..) => MAY_NOT_CONNECT,
        }
    }
}

/// Why there is no connection.
pub(super) enum ViewError {
    /// The API server or the proxy refuses.
    Refused {
        status: StatusCode,
        text: String,
        /// The fix where the user may not.
        permission: &'static str,
    },
    /// There was no answer.
    Failed(anyhow::Error),
    /// The pod has no port for it.
    NoPort,
}

impl ViewAccess {
    /// # Errors
    /// The settings are not usable.
    pub(super) fn new(mut config: Config) -> Result<Self> {
        // The client would ask again after a refusal for too many connections, until its caller
        // gives up.
        config.default_retry = false;
        let client = Client::try_from(config.clone()).context("use the kubeconfig")?;
        Ok(Self { client, config })
    }

    /// Connects by way of this pod.
    pub(super) async fn connect(
        &self,
        [namespace, pod]: [&str; 2],
        port: Option<u16>,
        target: ViewTarget<'_>,
    ) -> Result<Connection, ViewError> {
        let port = port.ok_or(ViewError::NoPort)?;
        let path = format!(
            "/api/v1/namespaces/{namespace}/pods/https:{pod}:{port}/proxy/view/{}",
            target.path()
        );
        let response = self.ask(&path).await.map_err(ViewError::Failed)?;
        if response.status() != StatusCode::SWITCHING_PROTOCOLS {
            return Err(ViewError::read(response, target).await);
        }
        let connection = hyper::upgrade::on(response).await;
        let connection = connection.map_err(|error| ViewError::Failed(error.into()))?;
        Ok(Connection::direct(TokioIo::new(connection)))
    }

    async fn ask(&self, path: &str) -> Result<Response<Body>> {
        let request = Request::get(path)
            .header(TOKEN_HEADER, self.authorization().await?)
            .header(CONNECTION, "Upgrade")
            .header(UPGRADE, PROTOCOL)
            .body(Body::empty())?;
        let answer = self.client.send(request).await;
        answer.context("ask for the view")
    }

    /// The user's bearer token as it is now, as a header.
    async fn authorization(&self) -> Result<HeaderValue> {
        let layer = self.config.auth_layer().context("the user's token")?;
        let layer = layer.context(
            "the kubeconfig has no bearer token, and the API server passes no certificate on: the \
             view needs a user with a token",
        )?;
        let shown = layer.layer(tower::service_fn(show_authorization));
        let shown = shown.oneshot(Request::new(Body::empty())).await;
        let shown = shown.map_err(anyhow::Error::from_boxed)?;
        let header = shown.headers().get(AUTHORIZATION).cloned();
        let header = header.context("the kubeconfig gives no token")?;
        ensure!(
            header.as_bytes().starts_with(b"Bearer "),
            "the kubeconfig has a password in place of a token"
        );
        Ok(header)
    }
}

/// Answers with the header that a request has got on its way.
async fn show_authorization(request: Request<Body>) -> Result<Response<()>, BoxError> {
    let mut response = Response::new(());
    if let Some(header) = request.headers().get(AUTHORIZATION) {
        response.headers_mut().insert(AUTHORIZATION, header.clone());
    }
    Ok(response)
}

/// The port of a proxy's view. `None`: its pod does not say that it has one, and no other port gets a
/// user's token.
pub(super) fn view_port(pod: &Pod) -> Option<u16> {
    for container in &pod.spec.as_ref()?.containers {
        for port in container.ports.iter().flatten() {
            if port.name.as_deref() == Some(PORT_NAME) {
                return u16::try_from(port.container_port).ok();
            }
        }
    }
    None
}

impl ViewError {
    /// Reads a refusal.
    async fn read(response: Response<Body>, target: ViewTarget<'_>) -> Self {
        let status = response.status();
        let body = Limited::new(response.into_body(), MAX_REFUSAL);
        let body = match body.collect().await {
            Ok(body) => body.to_bytes(),
            Err(error) => return Self::Failed(anyhow::Error::from_boxed(error)),
        };
        // The API server's own refusal, or else the proxy's.
        let text = match serde_json::from_slice::<Status>(&body) {
            Ok(said) => said.message.unwrap_or_default(),
            Err(_) => String::from_utf8_lossy(&body).trim().to_owned(),
        };
        Self::Refused {
            status,
            text,
            permission: target.permission(),
        }
    }

    /// Whether the API server has no such pod.
    pub(super) fn is_absent_pod(&self) -> bool {
        matches!(self, Self::Refused { status, .. } if *status == StatusCode::NOT_FOUND)
    }
}

impl From<ViewError> for NoAnswer {
    fn from(error: ViewError) -> Self {
        let (status, text, permission) = match error {
            ViewError::Refused {
                status,
                text,
                permission,
            } => (status, text, permission),
            ViewError::Failed(error) => return error.into(),
            ViewError::NoPort => {
                return Self {
                    text: "view: the proxy's pod has no port `view`".to_owned(),
                    fix: NO_VIEW,
                    is_absent: false,
                };
            }
        };
        let fix = match status {
            StatusCode::UNAUTHORIZED => "log in to the cluster again: the token has expired",
            StatusCode::FORBIDDEN => permission,
            StatusCode::TOO_MANY_REQUESTS => {
                "close other connections and dashboards of this user, and try again"
            }
            StatusCode::SERVICE_UNAVAILABLE => NO_VIEW,
            _ => return Self::new(text),
        };
        Self {
            text: format!("view: {text}"),
            fix,
            is_absent: false,
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_token_goes_to_the_port_that_the_pod_calls_view_and_to_no_other() {
        let pod = |ports: serde_json::Value| -> Pod {
            let container = json!({"name": "culvert-proxy", "ports": ports});
            serde_json::from_value(json!({"spec": {"containers": [container]}})).expect("a pod")
        };
        let named = json!([{"name": "agents", "containerPort": 7400},
            {"name": "view", "containerPort": 7999}]);
        assert_eq!(view_port(&pod(named)), Some(7999));
        assert_eq!(view_port(&pod(json!([]))), None);
    }

    #[test]
    fn a_redirector_that_is_not_there_is_absent_by_this_way_too() {
        let refused = ViewError::Refused {
            status: StatusCode::BAD_GATEWAY,
            text: "nothing answers on /run: No such file or directory (os error 2)".to_owned(),
            permission: MAY_NOT_READ,
        };
        assert!(NoAnswer::from(refused).is_absent);
    }
}
