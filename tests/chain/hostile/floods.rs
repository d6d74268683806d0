//! Floods of frames from either end of a tunnel. The sender reads nothing of the replies.

use anyhow::{Context, Result, ensure};
use culvert_lab::culvert::Options;
use culvert_lab::host::Host;
use culvert_lab::progress;
use culvert_lab::wait::{self, PATIENCE};

use super::agent::{DESCRIBE, HostileAgent, PLACE};
use super::proxy::{self, HostileProxy};
use super::wire::{
    CONTINUATION, DATA, END_HEADERS, END_STREAM, Flooded, HEADERS, PING, PRIORITY, PUSH_PROMISE,
    RST_STREAM, SETTINGS, UNKNOWN, WINDOW_MAX, WINDOW_UPDATE, Wire, frame, headers, initial_window,
};
use super::{Before, Bystanders};
use crate::world::{self, World};

/// Limit of a victim's growth over all floods together.
const MEMORY: u64 = 96 << 20;
/// Frames of one flood.
const MANY: u32 = 400_000;

/// A flood: the frames before it, and its frames by their number.
struct Flood {
    what: &'static str,
    first: fn() -> Vec<u8>,
    piece: fn(u32) -> Vec<u8>,
    /// The text in the victim's log, if HTTP/2 makes the victim end the connection.
    end: Option<&'static str>,
}

const fn harmless(what: &'static str, piece: fn(u32) -> Vec<u8>) -> Flood {
    Flood {
        what,
        first: Vec::new,
        piece,
        end: None,
    }
}

const fn fatal(what: &'static str, end: &'static str, piece: fn(u32) -> Vec<u8>) -> Flood {
    Flood {
        what,
        first: Vec::new,
        piece,
        end: Some(end),
    }
}

/// Floods that either end can send.
const COMMON: &[Flood] = &[
    harmless("PING", |_| frame(PING, 0, 0, &[7; 8])),
    harmless("SETTINGS", |number| {
        frame(SETTINGS, 0, 0, &initial_window(number % 3 * 65_535))
    }),
    harmless("PRIORITY", |number| {
        frame(PRIORITY, 0, odd(number), &[0; 5])
    }),
    harmless("frames of an unknown type", |number| {
        frame(UNKNOWN, 0xff, number % 9, &[7; 100])
    }),
    harmless("WINDOW_UPDATE", |_| {
        frame(WINDOW_UPDATE, 0, 0, &[0, 0, 0, 1])
    }),
    fatal(
        "WINDOW_UPDATE beyond the largest window",
        "flow-control",
        |_| frame(WINDOW_UPDATE, 0, 0, &WINDOW_MAX.to_be_bytes()),
    ),
    fatal("a window of 0", "unspecific protocol error", |_| {
        frame(WINDOW_UPDATE, 0, 0, &[0; 4])
    }),
    fatal(
        "CONTINUATION of nothing",
        "unspecific protocol error",
        |_| frame(CONTINUATION, 0, odd(0), &[0; 9]),
    ),
    fatal("frames of 16 MiB", "frame with invalid size", |_| {
        [&[255, 255, 255, DATA, 0, 0, 0, 0, 1][..], &[7; 999]].concat()
    }),
    fatal("no frames at all", "unspecific protocol error", |number| {
        number.to_be_bytes().repeat(25)
    }),
];

/// Floods of frames that only the agent's end may send.
const AGENT_FLOODS: &[Flood] = &[
    harmless("RST_STREAM of a call that has ended", |_| {
        frame(RST_STREAM, 0, DESCRIBE, &[0; 4])
    }),
    harmless("DATA of a call that has ended", |_| {
        frame(DATA, 0, DESCRIBE, &[])
    }),
    fatal(
        "RST_STREAM of streams that never were",
        "unspecific protocol error",
        |number| frame(RST_STREAM, 0, odd(number + 1000), &[0; 4]),
    ),
    fatal(
        "DATA of streams that never were",
        "unspecific protocol error",
        |number| frame(DATA, 0, odd(number + 1000), &[7; 9]),
    ),
    fatal(
        "HEADERS of streams of its own",
        "unspecific protocol error",
        |number| {
            frame(
                HEADERS,
                END_HEADERS,
                2 * number + 2,
                &headers(&[(":method", "POST"), (":path", "/")]),
            )
        },
    ),
    fatal("PUSH_PROMISE", "unspecific protocol error", |number| {
        let promised = (2 * number + 2).to_be_bytes();
        frame(
            PUSH_PROMISE,
            END_HEADERS,
            DESCRIBE,
            &[&promised[..], &headers(&[(":path", "/")])].concat(),
        )
    }),
];

/// Floods of frames that only the proxy's end may send.
const PROXY_FLOODS: &[Flood] = &[
    harmless("HEADERS and RST_STREAM", |number| {
        [
            open(odd(number), END_HEADERS),
            frame(RST_STREAM, 0, odd(number), &[0, 0, 0, 8]),
        ]
        .concat()
    }),
    harmless("HEADERS of calls that make no sense", |number| {
        frame(
            HEADERS,
            END_HEADERS | END_STREAM,
            odd(number),
            &headers(&[(":status", "200")]),
        )
    }),
    harmless("HEADERS of calls that there are not", |number| {
        let list = [
            (":method", "POST"),
            (":scheme", "https"),
            (":authority", "x"),
            (":path", "/rubbish"),
        ];
        frame(
            HEADERS,
            END_HEADERS | END_STREAM,
            odd(number),
            &headers(&list),
        )
    }),
    Flood {
        what: "DATA of streams that are passed over",
        first: || open(WINDOW_MAX, END_HEADERS),
        piece: |number| frame(DATA, 0, odd(number), &[]),
        end: None,
    },
    Flood {
        what: "headers without end",
        first: || open(odd(0), 0),
        piece: |_| {
            frame(
                CONTINUATION,
                0,
                odd(0),
                &headers(&[("x-more", "of the same, and then some")]).repeat(100),
            )
        },
        end: Some(""),
    },
    fatal("PUSH_PROMISE", "unspecific protocol error", |number| {
        frame(
            PUSH_PROMISE,
            END_HEADERS,
            1,
            &(2 * number + 2).to_be_bytes(),
        )
    }),
];

#[test]
fn whatever_an_agent_floods_its_tunnel_with_the_proxy_and_other_nodes_go_on() {
    world::with(&[Host::Edge1], Options::default(), |world| {
        let mut bystanders = Bystanders::of(world, "edge-1")?;
        HostileAgent::join(world)?;
        let before = Before::of("the proxy", &world.culvert.proxy)?;
        for flood in COMMON.iter().chain(AGENT_FLOODS) {
            let ends = ends(world).len();
            let mut agent = HostileAgent::registered(world)?;
            let became = bystanders
                .during(world, "edge-1", || flood.send(&mut agent.wire))
                .context(flood.what)?;
            flood.check(became)?;
            drop(agent);
            wait::until("the tunnel is gone", PATIENCE, || {
                ensure!(world.culvert.tunnels(PLACE.name())? == 0, "it is there");
                Ok(())
            })?;
            wait::until("the log tells of its end", PATIENCE, || {
                let told = self::ends(world).split_off(ends);
                ensure!(
                    told.iter()
                        .any(|line| line.contains(flood.end.unwrap_or_default())),
                    "{}: {told:?}",
                    flood.what
                );
                Ok(())
            })?;
            before.check_memory(&mut world.culvert.proxy, MEMORY, flood.what)?;
        }
        before.wait_restored(&world.culvert.proxy)
    });
}

#[test]
fn whatever_a_proxy_floods_an_agent_with_the_agent_serves_its_other_proxy() {
    proxy::with_hostile_proxy(|world, hostile| {
        let mut bystanders = Bystanders::of(world, "edge-1")?;
        let before = Before::of("the agent", world.culvert.agent(0))?;
        for flood in COMMON.iter().chain(PROXY_FLOODS) {
            let mut tunnel = hostile.tunnel().context(flood.what)?;
            let became = bystanders
                .during(world, "edge-1", || flood.send(&mut tunnel.wire))
                .context(flood.what)?;
            flood.check(became)?;
            drop(tunnel);
            before.check_memory(world.culvert.agent(0), MEMORY, flood.what)?;
        }
        restored(world, hostile, &before)
    });
}

/// The reasons in the proxy's log for the ends of the hostile agent's tunnels.
fn ends(world: &World<'_>) -> Vec<String> {
    let lines = world
        .culvert
        .proxy
        .logged("tunnel down", &[("node", PLACE.name())]);
    lines.iter().map(|line| line.field("reason")).collect()
}

/// Waits until the agent is restored. Its other connections to the hostile proxy may differ by a
/// tunnel.
fn restored(world: &mut World<'_>, hostile: &HostileProxy, before: &Before) -> Result<()> {
    let _tunnel = hostile.tunnel()?;
    before.wait_restored(world.culvert.agent(0))
}

impl Flood {
    fn send(&self, wire: &mut Wire) -> Flooded {
        match wire.send(&(self.first)()) {
            Ok(()) => wire.flood(MANY, self.piece),
            Err(_gone) => Flooded::CutOff,
        }
    }

    fn check(&self, became: Flooded) -> Result<()> {
        progress::say(&format!("    {MANY} times {}: {became:?}", self.what));
        ensure!(
            self.end.is_none() || became == Flooded::CutOff,
            "{}: {became:?}",
            self.what
        );
        Ok(())
    }
}

/// The numbers of streams after the first one, which was that of `Describe`.
fn odd(number: u32) -> u32 {
    2 * number + 3
}

/// The headers of a call of `Open`.
fn open(stream: u32, flags: u8) -> Vec<u8> {
    frame(HEADERS, flags, stream, &proxy::request_headers())
}
