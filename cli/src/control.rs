//! The other end of a proxy's control socket, over one connection with it.

use std::future::ready;

use anyhow::{Result, anyhow};
use culvert_api::proto::control as proto;
use culvert_api::proto::control::control_client::ControlClient;
use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use tonic::transport::{Channel, Endpoint, Uri};
use tonic::{Status, Streaming};

use crate::hosts::{ByteStream, Connection, Host, NoAnswer, Socket};

/// A list of all nodes of a large site is larger than gRPC's usual 4 MiB.
const MAX_ANSWER_BYTES: usize = 64 << 20;

/// A connection with a running proxy. All calls share it.
pub(crate) struct Control {
    client: ControlClient<Channel>,
    connection: Connection,
}

/// A call of the control service, without its client.
macro_rules! calls {
    ($($name:ident($request:ident) -> $response:ident;)+) => {
        impl Control {
            $(
                /// The call of this name; an error is the proxy's own sentence.
                pub(crate) async fn $name(
                    &mut self,
                    request: proto::$request,
                ) -> Result<proto::$response, NoAnswer> {
                    match self.client.$name(request).await {
                        Ok(response) => Ok(response.into_inner()),
                        Err(status) => Err(self.refusal(&status).await),
                    }
                }
            )+
        }
    };
}

calls! {
    list_nodes(ListNodesRequest) -> ListNodesResponse;
    list_proxies(ListProxiesRequest) -> ListProxiesResponse;
    list_streams(ListStreamsRequest) -> ListStreamsResponse;
    list_certificates(ListCertificatesRequest) -> ListCertificatesResponse;
    remove_node(RemoveNodeRequest) -> RemoveNodeResponse;
    create_token(CreateTokenRequest) -> CreateTokenResponse;
    list_tokens(ListTokensRequest) -> ListTokensResponse;
    revoke_token(RevokeTokenRequest) -> RevokeTokenResponse;
    explain(ExplainRequest) -> ExplainResponse;
    ping(PingRequest) -> PingResponse;
}

impl Control {
    /// Connects with the proxy of a host.
    pub(crate) async fn connect(host: &Host) -> Result<Self, NoAnswer> {
        let mut connection = host.connect(Socket::Control).await?;
        let channel = match connection.take_stream() {
            Ok(stream) => channel(stream).await,
            Err(error) => Err(error),
        };
        match channel {
            Ok(channel) => Ok(Self {
                client: ControlClient::new(channel).max_decoding_message_size(MAX_ANSWER_BYTES),
                connection,
            }),
            Err(error) => Err(connection.unanswered(&error).await),
        }
    }

    /// Events of connections, for as long as this lives.
    pub(crate) async fn observe(
        &mut self,
        request: proto::ObserveRequest,
    ) -> Result<Streaming<proto::StreamEvent>, NoAnswer> {
        match self.client.observe(request).await {
            Ok(response) => Ok(response.into_inner()),
            Err(status) => Err(self.refusal(&status).await),
        }
    }

    /// The proxy's own sentence, or else why its answer did not come.
    async fn refusal(&mut self, status: &Status) -> NoAnswer {
        use std::error::Error;
        if status.source().is_none() && !status.message().is_empty() {
            return NoAnswer::new(status.message().to_owned());
        }
        let error = anyhow!("{}", culvert_daemon::chain(status));
        self.connection.unanswered(&error).await
    }
}

/// HTTP/2 over a connection that exists. It is not made again.
async fn channel(stream: Box<dyn ByteStream>) -> Result<Channel> {
    let stream = Mutex::new(Some(stream));
    let connector = tower::service_fn(move |_: Uri| {
        let stream = stream.lock().take();
        let gone = std::io::Error::other("the connection with the proxy is gone");
        ready(stream.map(TokioIo::new).ok_or(gone))
    });
    // The address is never dialled; HTTP/2 wants an authority.
    let endpoint = Endpoint::from_static("http://control.invalid");
    Ok(endpoint.connect_with_connector(connector).await?)
}
