//! One tunnel with clients that do not read, or that leave in the middle: the other clients must
//! not notice.

use std::io::Read;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use culvert_lab::culvert::Options;
use culvert_lab::host::Host;
use culvert_lab::probe::{Client, Report};

use crate::connect;
use crate::world::{self, ECHO, GIB, SMALL, SMALL_SOURCE, SOURCE, World};

const EDGE: &[Host] = &[Host::Edge1];

/// Longer than a peer may be silent before its tunnel ends.
const STALLED: Duration = Duration::from_secs(20);

/// All streams share one tunnel.
fn one_tunnel() -> Options {
    Options {
        agent: world::one_tunnel(),
        ..Options::default()
    }
}

/// superedge #275 and #339; apiserver-network-proxy #180, #222 and #881.
#[test]
fn steered_and_connect_clients_that_stall_for_long_leave_bulk_messages_and_the_tunnel_alone() {
    world::with(EDGE, one_tunnel(), |world| {
        let mut held = world.hold(format!("edge-1:{ECHO}"), 1)?;
        let before = world.tunnel_numbers()?;
        let mut steered = world.stall(format!("10.0.3.7:{SMALL_SOURCE}"), 5)?;
        let mut connected = (0..5)
            .map(|_| stalled_connect(world))
            .collect::<Result<Vec<_>>>()?;
        let started = Instant::now();
        let whole = world.download(&format!("edge-1:{SOURCE}"))?;
        ensure!(whole.count == GIB, "{whole}");
        loop {
            world
                .client(&Client::PingPong {
                    target: format!("edge-1:{ECHO}"),
                    rounds: 200,
                })
                .context("a neighbour's messages")?;
            held.check()?;
            if started.elapsed() > STALLED {
                break;
            }
        }
        ensure!(world.tunnel_numbers()? == before, "the tunnel was replaced");
        // The stalled clients lost no data.
        steered.next(&Report::Drained(5 * SMALL))?;
        for client in &mut connected {
            let count = std::io::copy(client, &mut std::io::sink())?;
            ensure!(count == SMALL, "a CONNECT client got {count} bytes");
        }
        Ok(())
    });
}

/// A client that has the answer to its CONNECT, and does not read what follows.
fn stalled_connect(world: &World<'_>) -> Result<UnixStream> {
    let mut socket = connect::open(world, &format!("edge-1:{SMALL_SOURCE}"))?;
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        socket.read_exact(&mut byte)?;
        head.push(byte[0]);
    }
    ensure!(
        head.starts_with(b"HTTP/1.1 200 "),
        "{}",
        String::from_utf8_lossy(&head)
    );
    Ok(socket)
}

/// apiserver-network-proxy #167: after `kubectl logs -f` was interrupted a few times, all
/// connections of that agent stopped.
#[test]
fn followers_that_are_interrupted_again_and_again_wedge_nothing() {
    world::with(EDGE, one_tunnel(), |world| {
        let mut held = world.hold(format!("edge-1:{ECHO}"), 1)?;
        let before = world.tunnel_numbers()?;
        for _ in 0..5 {
            // Each has bytes in flight, and closes without reading them.
            let answered = world.count_answered(
                &format!("edge-1:{SMALL_SOURCE}"),
                40,
                Duration::from_millis(5_000),
            )?;
            ensure!(answered == 40, "{answered}");
            held.check()?;
        }
        let whole = world.download(&format!("edge-1:{SMALL_SOURCE}"))?;
        ensure!(whole.count == SMALL, "{whole}");
        drop(held);
        world.wait_for_no_streams()?;
        ensure!(world.tunnel_numbers()? == before, "the tunnel was replaced");
        Ok(())
    });
}
