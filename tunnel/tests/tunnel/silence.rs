//! Tests of silent tunnels, with simulated time.

use std::sync::atomic::{AtomicBool, Ordering};

use culvert_tunnel::TunnelSocket;
use tokio::io::{AsyncRead, AsyncWrite, DuplexStream, ReadHalf, WriteHalf, split};
use tokio::time::sleep;

use super::*;

const PREFACE: usize = 24;
const PING: u8 = 6;

/// The bytes that one end has sent.
type Sent = Arc<Mutex<Vec<u8>>>;

/// A tunnel, and the link between its ends.
struct Silent {
    tunnel: Tunnel,
    by_proxy: Sent,
    by_agent: Sent,
    cut: Arc<AtomicBool>,
    ends: JoinSet<Result<(), TunnelError>>,
    _link: JoinSet<()>,
}

async fn silent(keepalive_seconds: u32) -> Silent {
    let (near, agent_link) = tokio::io::duplex(1 << 16);
    let (proxy_link, far) = tokio::io::duplex(1 << 16);
    let by_proxy = Sent::default();
    let by_agent = Sent::default();
    let cut = Arc::<AtomicBool>::default();
    let mut link = JoinSet::new();
    let (agent_read, agent_write) = split(agent_link);
    let (proxy_read, proxy_write) = split(proxy_link);
    link.spawn(pass_on(
        agent_read,
        proxy_write,
        by_agent.clone(),
        cut.clone(),
    ));
    link.spawn(pass_on(
        proxy_read,
        agent_write,
        by_proxy.clone(),
        cut.clone(),
    ));
    let mut ends = JoinSet::new();
    ends.spawn(serve(near, keepalive_seconds));
    let io = ReadAhead::new(far);
    let socket_state = io.socket_state();
    let budget = Budget::new(1 << 20);
    let settings = ProxyTunnel {
        far_end: FarEnd::Agent,
        stream_window: 1 << 20,
        max_streams: 8,
        streams_in_life: 1 << 29,
        budget,
    };
    let (tunnel, driver) = settings.establish(io, socket_state).await.unwrap();
    ends.spawn(driver.run());
    tunnel.describe(&DescribeRequest::default()).await.unwrap();
    Silent {
        tunnel,
        by_proxy,
        by_agent,
        cut,
        ends,
        _link: link,
    }
}

async fn serve(
    io: impl AsyncRead + AsyncWrite + TunnelSocket + Unpin,
    keepalive_seconds: u32,
) -> Result<(), TunnelError> {
    let io = ReadAhead::new(io);
    let socket_state = io.socket_state();
    let describe = DescribeResponse {
        keepalive_seconds,
        ..Default::default()
    };
    let budget = Budget::new(1 << 20);
    let end = AgentTunnel {
        stream_window: 1 << 20,
        max_streams: 8,
        streams_in_life: 1 << 29,
        budget,
        movable: MovableStreams::default(),
        describe,
    };
    let state = AgentTunnelState::default();
    end.serve(
        io,
        socket_state,
        state,
        Arc::<Loopback>::default(),
        std::future::pending(),
    )
    .await
}

/// Records the bytes of one end, and forwards them unless the link is cut.
async fn pass_on(
    mut from: ReadHalf<DuplexStream>,
    mut to: WriteHalf<DuplexStream>,
    sent: Sent,
    cut: Arc<AtomicBool>,
) {
    let mut buffer = [0; 4096];
    while let Ok(count @ 1..) = from.read(&mut buffer).await {
        sent.lock().extend_from_slice(&buffer[..count]);
        if !cut.load(Ordering::Relaxed) && to.write_all(&buffer[..count]).await.is_err() {
            return;
        }
    }
}

/// Counts the HTTP/2 pings in the sent bytes; acknowledgements do not count.
fn pings(sent: &Sent, preface: usize) -> usize {
    let sent = sent.lock();
    let mut at = preface;
    let mut pings = 0;
    while let Some(head) = sent.get(at..at + 9) {
        pings += usize::from(head[3] == PING && head[4] == 0);
        at += 9 + u32::from_be_bytes([0, head[0], head[1], head[2]]) as usize;
    }
    pings
}

impl Silent {
    /// Numbers of pings by the proxy and by the agent.
    fn pings(&self) -> (usize, usize) {
        (pings(&self.by_proxy, PREFACE), pings(&self.by_agent, 0))
    }
}

#[tokio::test(start_paused = true)]
async fn an_idle_tunnel_is_pinged_by_one_end_as_often_as_the_agent_chose() {
    for (keepalive, expected) in [(0, 13), (6, 100), (60, 10), (300, 2)] {
        let idle = silent(keepalive).await;
        let (by_proxy, by_agent) = idle.pings();
        sleep(Duration::from_secs(605)).await;
        let (later, by_agent_later) = idle.pings();
        assert_eq!(
            (later - by_proxy, by_agent_later - by_agent),
            (expected, 0),
            "keepalive {keepalive}"
        );
        assert!(!idle.tunnel.is_silent());
    }
}

#[tokio::test(start_paused = true)]
async fn where_bytes_flow_nobody_pings() {
    let busy = silent(0).await;
    let before = busy.pings();
    for _ in 0..200 {
        sleep(Duration::from_secs(3)).await;
        busy.tunnel
            .describe(&DescribeRequest::default())
            .await
            .unwrap();
    }
    assert_eq!(busy.pings(), before);
}

#[tokio::test(start_paused = true)]
async fn both_ends_notice_that_the_other_is_dead_12_s_after_the_keepalive() {
    for (keepalive, least, most) in [(0, 56, 58), (6, 17, 19), (60, 71, 73)] {
        let mut tunnel = silent(keepalive).await;
        let cut_at = tokio::time::Instant::now();
        tunnel.cut.store(true, Ordering::Relaxed);
        for _ in 0..2 {
            let ended = tunnel.ends.join_next().await.unwrap().unwrap();
            assert!(
                matches!(ended, Err(TunnelError::PeerSilent(_))),
                "{ended:?}"
            );
            let noticed = cut_at.elapsed().as_secs();
            assert!(
                (least..=most).contains(&noticed),
                "keepalive {keepalive}: after {noticed} s"
            );
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_dead_tunnel_that_is_used_is_avoided_3_s_later_and_dead_12_s_later() {
    let mut tunnel = silent(60).await;
    sleep(Duration::from_secs(10)).await;
    tunnel.cut.store(true, Ordering::Relaxed);
    let used_at = tokio::time::Instant::now();
    let request = DescribeRequest::default();
    let used = tunnel.tunnel.describe(&request);
    let ended = async {
        sleep(Duration::from_millis(2900)).await;
        assert!(!tunnel.tunnel.is_silent());
        sleep(Duration::from_millis(200)).await;
        assert!(tunnel.tunnel.is_silent());
        tunnel.ends.join_next().await.unwrap().unwrap()
    };
    let (used, ended) = tokio::join!(used, ended);
    assert!(used.is_err());
    assert!(
        matches!(ended, Err(TunnelError::PeerSilent(_))),
        "{ended:?}"
    );
    let noticed = used_at.elapsed().as_secs();
    assert!((12..=13).contains(&noticed), "after {noticed} s");
}
