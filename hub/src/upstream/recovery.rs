//! Asks servers that failed whether they answer again. Then new connections go there as the order
//! says, and requests that are under way go on where they are.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use culvert_daemon::{Drain, jittered};
use http::{HeaderValue, Request, Uri, header};
use hyper::client::conn::http1;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use super::Upstream;
use super::connector::{Connector, Protocols};
use super::servers::Server;
use super::{Body, empty};

/// Between two questions.
const ASK_EVERY: Duration = Duration::from_secs(10);
/// For connection and answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);
/// Answers in a row after which a server counts as good again: one that flaps stays away.
const NEEDED: u32 = 2;

impl Upstream {
    /// Asks failed servers until the drain begins.
    ///
    /// # Errors
    /// None; the type is that of a supervised task.
    pub(crate) async fn ask_failed_servers(self: Arc<Self>, drain: Drain) -> Result<()> {
        let mut answered = vec![0; self.servers.configured().len()];
        let asking = async {
            loop {
                sleep(jittered(ASK_EVERY)).await;
                for (server, answered) in self.servers.configured().iter().zip(&mut answered) {
                    if !server.is_failed() {
                        continue;
                    }
                    let is_ready = timeout(ANSWER_TIMEOUT, self.is_ready(server)).await;
                    *answered = if is_ready.unwrap_or(false) {
                        *answered + 1
                    } else {
                        0
                    };
                    if *answered >= NEEDED {
                        *answered = 0;
                        server.record_answer();
                        tracing::info!(server = %server.authority, "an API server answers again");
                        drop(self.renew_pools());
                    }
                }
            }
        };
        tokio::select! {
            () = asking => {}
            () = drain.begun() => {}
        }
        Ok(())
    }

    /// Whether a server answers a request without credentials: 401 and 403 are answers too.
    async fn is_ready(&self, server: &Server) -> bool {
        let servers = self.servers.clone();
        let tls = self.tls();
        let connector = Connector::new(servers, &tls.bearer, Protocols::Http1, self.link.clone());
        let Ok(stream) = connector.dial_server(server).await else {
            return false;
        };
        let Ok((mut sender, connection)) = http1::handshake::<_, Body>(stream).await else {
            return false;
        };
        let mut tasks = JoinSet::new();
        tasks.spawn(connection);
        let mut request = Request::new(empty());
        *request.uri_mut() = Uri::from_static("/readyz");
        let Ok(host) = HeaderValue::from_str(server.authority.as_str()) else {
            return false;
        };
        request.headers_mut().insert(header::HOST, host);
        match sender.send_request(request).await {
            Ok(answer) => !answer.status().is_server_error(),
            Err(_) => false,
        }
    }
}
