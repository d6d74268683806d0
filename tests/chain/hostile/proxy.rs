//! A hostile proxy with a valid certificate, beside the real one.

use std::cell::OnceCell;
use std::io::ErrorKind;
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use culvert_api::{ALPN_TUNNEL, PROXY_SERVER_NAME};
use culvert_lab::culvert::PROXY_FOR_AGENTS;
use culvert_lab::host::Host;
use culvert_lab::wait::{self, PATIENCE};
use culvert_lab::{Lab, inside};
use culvert_tunnel::proto::tunnel::{DescribeRequest, Frame, Open, Opened, frame::Kind};
use prost::Message;
use rustls::{ServerConfig, ServerConnection, StreamOwned};

use super::wire::{
    self, DATA, END_HEADERS, END_STREAM, HEADERS, PREFACE, RST_STREAM, SETTINGS, Wire, frame, grpc,
    headers,
};
use crate::world::{self, World};
use culvert_lab::pki::{Authority, Use};

/// The address at which the agent dials it.
const ADDRESS: &str = "203.0.113.1:7500";
/// If a write takes longer than this, the agent reads no more.
const STUCK: Duration = Duration::from_secs(3);

/// The listener of the hostile proxy.
pub(super) struct HostileProxy {
    listener: TcpListener,
    config: Arc<ServerConfig>,
}

/// A tunnel from the agent to it.
pub(super) struct HostileTunnel {
    pub(super) wire: Wire,
    next: u32,
}

/// Runs a test with edge-1's agent on both proxies, with one tunnel to each.
pub(super) fn with_hostile_proxy(test: impl FnOnce(&mut World<'_>, &HostileProxy) -> Result<()>) {
    let hostile = OnceCell::new();
    let options = |lab: &Lab| {
        let authority = Authority::at(lab.site(Host::Cloud).file("operator")).make()?;
        hostile
            .set(HostileProxy::listen(lab, &authority)?)
            .ok()
            .context("it listens already")?;
        let mut options = world::proxy_options(authority.proxy_flags());
        let proxies = ["--proxy", PROXY_FOR_AGENTS, "--proxy", ADDRESS].map(str::to_owned);
        options.agent = world::one_tunnel();
        options.agent.extend(proxies);
        Ok(options)
    };
    world::prepared(&[Host::Edge1], options, |world| {
        // The agent is ready with any tunnel, that to the hostile proxy included.
        world.wait_greeting("edge-1", PATIENCE)?;
        test(world, hostile.get().context("it does not listen")?)
    });
}

impl HostileProxy {
    fn listen(lab: &Lab, authority: &Authority) -> Result<Self> {
        let listener = inside::run(lab.site(Host::Cloud).netns(), || {
            Ok(TcpListener::bind(ADDRESS)?)
        })?;
        listener.set_nonblocking(true)?;
        let issued = authority.issue(PROXY_SERVER_NAME, Use::Server)?;
        let mut config = ServerConfig::builder_with_provider(wire::provider())
            .with_safe_default_protocol_versions()?
            .with_no_client_auth()
            .with_single_cert(
                wire::certificates(&issued.certificate)?,
                wire::key(&issued.key)?,
            )?;
        config.alpn_protocols = vec![ALPN_TUNNEL.to_vec()];
        Ok(Self {
            listener,
            config: Arc::new(config),
        })
    }

    /// The agent's next tunnel, after the frames that every proxy sends first.
    pub(super) fn tunnel(&self) -> Result<HostileTunnel> {
        self.tunnel_with(&[])
    }

    /// The same with the given settings.
    pub(super) fn tunnel_with(&self, settings: &[u8]) -> Result<HostileTunnel> {
        let mut wire = self.connection()?;
        wire.send(&[PREFACE, &frame(SETTINGS, 0, 0, settings)].concat())?;
        let mut tunnel = HostileTunnel { wire, next: 1 };
        tunnel.describe()?;
        Ok(tunnel)
    }

    /// The agent's next connection, before any frame was sent. Skips connections that the agent has
    /// closed meanwhile.
    pub(super) fn connection(&self) -> Result<Wire> {
        wait::until("the agent dials the hostile proxy", PATIENCE, || {
            let (socket, _) = self.listener.accept()?;
            self.handshake(socket)
        })
    }

    fn handshake(&self, socket: TcpStream) -> Result<Wire> {
        socket.set_nonblocking(false)?;
        socket.set_read_timeout(Some(PATIENCE))?;
        socket.set_write_timeout(Some(STUCK))?;
        let mut tls = StreamOwned::new(ServerConnection::new(self.config.clone())?, socket);
        while tls.conn.is_handshaking() {
            tls.conn.complete_io(&mut tls.sock)?;
        }
        // A connection that the agent has closed has its end directly after the handshake.
        tls.sock.set_nonblocking(true)?;
        let said = tls.sock.peek(&mut [0; 1]);
        tls.sock.set_nonblocking(false)?;
        ensure!(
            matches!(&said, Err(error) if error.kind() == ErrorKind::WouldBlock),
            "the agent has left: {said:?}"
        );
        Ok(Wire::new(tls))
    }
}

impl HostileTunnel {
    /// Introduces the proxy: an agent gives up a tunnel that is not used. Nobody waits for the
    /// answer.
    fn describe(&mut self) -> Result<()> {
        let stream = self.next;
        self.next += 2;
        let headers = headers_of("/culvert.tunnel.v1.Agent/Describe");
        self.wire
            .send(&frame(HEADERS, END_HEADERS, stream, &headers))?;
        let message = grpc(&DescribeRequest::default());
        Ok(self.wire.send(&frame(DATA, END_STREAM, stream, &message))?)
    }

    /// Sends the headers of a call of `Open`; returns its stream.
    pub(super) fn send_headers(&mut self) -> Result<u32> {
        let stream = self.next;
        self.next += 2;
        self.wire
            .send(&frame(HEADERS, END_HEADERS, stream, &request_headers()))?;
        Ok(stream)
    }

    /// Calls `Open`; returns its stream.
    pub(super) fn open(&mut self, open: &Open) -> Result<u32> {
        let stream = self.send_headers()?;
        let first = grpc(&Frame {
            kind: Some(Kind::Open(open.clone())),
        });
        self.wire.send(&frame(DATA, 0, stream, &first))?;
        Ok(stream)
    }

    /// The agent's answer on that stream; `None` if the stream was reset.
    pub(super) fn dialled(&mut self, stream: u32) -> Result<Option<Opened>> {
        loop {
            let received = self.wire.next().context("wait for the agent's answer")?;
            if received.stream != stream {
                continue;
            }
            match received.kind {
                RST_STREAM => return Ok(None),
                DATA => {
                    let message = received.payload.get(5..).context("no message")?;
                    let Some(Kind::Opened(opened)) = Frame::decode(message)?.kind else {
                        continue;
                    };
                    return Ok(Some(opened));
                }
                _ => {}
            }
        }
    }
}

/// The headers of a call of `Open`.
pub(super) fn request_headers() -> Vec<u8> {
    headers_of("/culvert.tunnel.v1.Agent/Open")
}

fn headers_of(path: &str) -> Vec<u8> {
    headers(&[
        (":method", "POST"),
        (":scheme", "https"),
        (":authority", "agent"),
        (":path", path),
        ("content-type", "application/grpc"),
        ("te", "trailers"),
    ])
}
