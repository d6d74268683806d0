use super::*;
use crate::load::StreamPermit;
use crate::proto::tunnel::Open;
use crate::socket::Socket;
use crate::transferred::Transferred;

/// Largest future that relays one stream, in bytes. Every idle stream takes that much.
const RELAY_MAX: usize = 896;
/// Largest future that opens one stream, in bytes.
const OPEN_MAX: usize = 1152;

async fn load() -> Arc<Load> {
    let socket_state = crate::ReadAhead::new(tokio::io::empty()).socket_state();
    Arc::new(Load::new(Keepalive::of(0, socket_state)))
}

#[tokio::test(start_paused = true)]
async fn clients_that_give_up_count_against_a_tunnel_only_while_its_link_is_cut() {
    let load = load().await;
    let given_up = || load.given_up_in_silence.load(Ordering::Relaxed);
    drop(StreamPermit::acquire(&load, 1).unwrap());
    assert_eq!(given_up(), 0);
    tokio::time::advance(Duration::from_secs(10)).await;
    load.keepalive.pinged();
    drop(StreamPermit::acquire(&load, 1).unwrap());
    assert_eq!(given_up(), 0, "the ping may be answered");
    tokio::time::advance(Duration::from_secs(10)).await;
    drop(StreamPermit::acquire(&load, 1).unwrap());
    assert_eq!(given_up(), 1);
}

fn size_of_relay<'a, F>(_: impl Fn(&'a mut Stream, &'a Socket, &'a Transferred) -> F) -> usize {
    size_of::<F>()
}

fn size_of_open<'a, F>(_: impl Fn(&'a Tunnel, Open, Option<EarlyClient<'a>>) -> F) -> usize {
    size_of::<F>()
}

#[test]
fn the_futures_of_a_stream_are_small() {
    let relay = size_of_relay(Stream::relay);
    let open = size_of_open(Tunnel::open);
    assert!(relay <= RELAY_MAX, "relay: {relay} bytes");
    assert!(open <= OPEN_MAX, "open: {open} bytes");
}
