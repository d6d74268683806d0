//! A hostile agent with a valid certificate.

use std::net::TcpStream;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use culvert_api::{ALPN_TUNNEL, PROXY_SERVER_NAME};
use culvert_lab::culvert::PROXY_FOR_AGENTS;
use culvert_lab::host::Host;
use culvert_lab::inside;
use culvert_lab::wait::{self, PATIENCE};
use culvert_tunnel::proto::tunnel::{DescribeResponse, Frame, Opened, frame::Kind};
use rustls::{ClientConfig, ClientConnection, StreamOwned};

use super::wire::{
    self, DATA, END_HEADERS, END_STREAM, HEADERS, PREFACE, SETTINGS, Wire, frame, grpc, headers,
};
use crate::world::World;

/// The node of its certificate.
pub(super) const PLACE: Host = Host::Edge2;

/// If a write takes longer than this, the proxy reads no more.
const STUCK: Duration = Duration::from_secs(3);

/// The first stream that the proxy opens: its `Describe` call.
pub(super) const DESCRIBE: u32 = 1;
/// The stream of `SetProxies`, which follows at once.
const SET_PROXIES: u32 = 3;

/// A hand-written tunnel.
pub(super) struct HostileAgent {
    pub(super) wire: Wire,
}

impl HostileAgent {
    /// Gets a certificate for the hostile agent.
    pub(super) fn join(world: &World<'_>) -> Result<()> {
        let join = world.culvert.create_token(PLACE, &[])?;
        world.culvert.join(PLACE, &join)
    }

    /// Sets a tunnel up until the proxy calls `Describe`. `settings` are the HTTP/2 settings that
    /// it announces.
    fn connect(world: &World<'_>, settings: &[u8]) -> Result<Self> {
        let site = world.lab.site(PLACE);
        let socket = inside::run(site.netns(), || Ok(TcpStream::connect(PROXY_FOR_AGENTS)?))?;
        socket.set_read_timeout(Some(PATIENCE))?;
        socket.set_write_timeout(Some(STUCK))?;
        let identity = site.file("agent/identity.pem");
        let mut config = ClientConfig::builder_with_provider(wire::provider())
            .with_safe_default_protocol_versions()?
            .with_root_certificates(wire::roots(&site.file("agent/ca.pem"))?)
            .with_client_auth_cert(wire::certificates(&identity)?, wire::key(&identity)?)?;
        config.alpn_protocols = vec![ALPN_TUNNEL.to_vec()];
        let session = ClientConnection::new(Arc::new(config), PROXY_SERVER_NAME.try_into()?)?;
        let mut wire = Wire::new(StreamOwned::new(session, socket));
        ensure!(
            wire.read(PREFACE.len()).context("read HTTP/2's preface")? == PREFACE,
            "the proxy refuses it"
        );
        wire.send(&frame(SETTINGS, 0, 0, settings))?;
        let mut agent = Self { wire };
        let described = agent.call()?;
        ensure!(
            described == DESCRIBE,
            "the first call is stream {described}"
        );
        Ok(agent)
    }

    /// A tunnel that the proxy may use.
    pub(super) fn registered(world: &World<'_>) -> Result<Self> {
        Self::described(world, &[], &DescribeResponse::default())
    }

    /// The same with the given settings and description.
    pub(super) fn described(
        world: &World<'_>,
        settings: &[u8],
        describe: &DescribeResponse,
    ) -> Result<Self> {
        let before = world.culvert.tunnels(PLACE.name())?;
        let agent = Self::announced(world, settings, describe)?;
        wait::until("the hostile agent has a tunnel", PATIENCE, || {
            let tunnels = world.culvert.tunnels(PLACE.name())?;
            ensure!(tunnels > before, "{tunnels}");
            Ok(())
        })?;
        Ok(agent)
    }

    /// A tunnel that has just answered `Describe`.
    pub(super) fn announced(
        world: &World<'_>,
        settings: &[u8],
        describe: &DescribeResponse,
    ) -> Result<Self> {
        let mut agent = Self::connect(world, settings)?;
        let answer = [
            response(DESCRIBE),
            frame(DATA, 0, DESCRIBE, &grpc(describe)),
            frame(
                HEADERS,
                END_HEADERS | END_STREAM,
                DESCRIBE,
                &headers(&[("grpc-status", "0")]),
            ),
        ];
        agent.wire.send(&answer.concat())?;
        Ok(agent)
    }

    /// Waits for the next call, except `SetProxies`, which it leaves without an answer; returns its
    /// stream.
    pub(super) fn call(&mut self) -> Result<u32> {
        loop {
            let received = self.wire.next().context("wait for a call")?;
            if received.kind == HEADERS && received.stream != SET_PROXIES {
                return Ok(received.stream);
            }
        }
    }
}

/// The headers of an answer.
pub(super) fn response(stream: u32) -> Vec<u8> {
    frame(
        HEADERS,
        END_HEADERS,
        stream,
        &headers(&[(":status", "200"), ("content-type", "application/grpc")]),
    )
}

/// An answer to a dial, as a DATA frame of the stream.
pub(super) fn opened(code: i32, message: &str) -> Vec<u8> {
    grpc(&Frame {
        kind: Some(Kind::Opened(Opened {
            code,
            message: message.to_owned(),
        })),
    })
}

/// A backend's bytes, as a DATA frame of the stream.
pub(super) fn data(bytes: &[u8]) -> Vec<u8> {
    grpc(&Frame {
        kind: Some(Kind::Data(bytes.to_vec().into())),
    })
}
