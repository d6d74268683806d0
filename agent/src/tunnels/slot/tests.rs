use culvert_daemon::Readiness;
use culvert_tunnel::proto::tunnel::Open;
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::worn_out::OVERLAP;
use super::*;
use crate::backends::allow_list::DialRules;
use crate::test_pki::Authority;
use crate::test_proxy::{TestProxy, UsedTunnel};
use crate::tunnels::placement::Spread;
use crate::tunnels::states::Tunnels;

/// One tunnel in all.
const ONE: Spread = Spread {
    proxies: 1,
    tunnels: 1,
    extra: 0,
};

/// An agent with one slot, of node `edge-1`.
struct Agent {
    shared: Arc<Shared>,
    readiness: Readiness,
    drain: Drain,
    task: JoinSet<()>,
    root: TempDir,
}

impl Agent {
    fn start(proxy: &TestProxy, allow: DialRules) -> Self {
        Self::with_life(proxy, allow, culvert_tunnel::STREAMS_IN_LIFE)
    }

    fn with_life(proxy: &TestProxy, allow: DialRules, streams_in_life: u32) -> Self {
        let root = tempfile::tempdir().unwrap();
        let shared = Shared {
            allow: allow.fixed(),
            streams_in_life,
            ..Shared::for_tests(&proxy.authority, root.path(), ONE)
        };
        shared.placement.list([proxy.address.clone()].into());
        Self::of(shared, root)
    }

    fn of(shared: Shared, root: TempDir) -> Self {
        let readiness = Readiness::default();
        let drain = Drain::default();
        let number = SlotNumber(0);
        let shared = Arc::new(shared);
        let slot = TunnelSlot {
            number,
            shared: shared.clone(),
            entry: Tunnels::new(readiness.gate("tunnel")).entry(number),
        };
        let mut task = JoinSet::new();
        task.spawn(slot.run(drain.clone()));
        Self {
            shared,
            readiness,
            drain,
            task,
            root,
        }
    }

    /// Waits until the tunnel's gate says so.
    async fn until_missing(&self, expected: impl Fn(&str) -> bool) {
        let wait = async {
            while !self
                .readiness
                .missing()
                .iter()
                .any(|(_, reason)| expected(reason))
            {
                tokio::task::yield_now().await;
            }
        };
        timeout(Duration::from_secs(10), wait)
            .await
            .unwrap_or_else(|_| panic!("{:?}", self.readiness.missing()));
    }
}

#[tokio::test]
async fn a_tunnel_that_ends_is_followed_by_another_in_the_same_slot() {
    let mut proxy = TestProxy::start().await;
    let _agent = Agent::start(&proxy, DialRules::default());
    for sequence in 1..=2 {
        let described = proxy.next_tunnel().await.described;
        let slot = (
            described.slot.as_str(),
            described.sequence,
            described.started,
        );
        assert_eq!(slot, ("0", sequence, 1));
        assert_eq!(
            (described.instance.as_str(), described.version.as_str()),
            ("test", VERSION)
        );
    }
}

#[tokio::test]
async fn a_proxy_that_asks_again_hears_which_ports_were_opened_meanwhile() {
    let mut proxy = TestProxy::start().await;
    let root = tempfile::tempdir().unwrap();
    let rules = watch::Sender::new(DialRules::for_port(9100));
    let shared = Shared {
        allow: rules.subscribe(),
        ..Shared::for_tests(&proxy.authority, root.path(), ONE)
    };
    shared.placement.list([proxy.address.clone()].into());
    let _agent = Agent::of(shared, root);
    let UsedTunnel {
        tunnel,
        described,
        driver: _driver,
    } = proxy.next_tunnel().await;
    assert_eq!(described.allowed.unwrap().ports, [9100]);
    rules.send_replace(DialRules::for_port(9051));
    let now = tunnel.describe(&DescribeRequest::default()).await.unwrap();
    assert_eq!(now.allowed.unwrap().ports, [9051]);
    assert_eq!(now.addresses, described.addresses);
}

#[tokio::test]
async fn a_renewed_certificate_gets_a_tunnel_of_its_own_and_open_streams_go_on() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let mut proxy = TestProxy::start().await;
    let mut agent = Agent::start(&proxy, DialRules::for_port(port));
    let UsedTunnel {
        tunnel: first,
        driver: _first,
        ..
    } = proxy.next_tunnel().await;
    let stream = first
        .open(
            Open {
                port: port.into(),
                ..Open::default()
            },
            None,
        )
        .await
        .unwrap();
    let (mut backend, _) = listener.accept().await.unwrap();

    let state = crate::certificate::store::StateDir::new(agent.root.path());
    state
        .store_join(
            &proxy.identity("edge-1"),
            std::slice::from_ref(&proxy.address),
        )
        .unwrap();
    agent.shared.certificates.refresh();
    let UsedTunnel {
        tunnel: second,
        driver: _second,
        ..
    } = proxy.next_tunnel().await;
    while first
        .open(
            Open {
                port: port.into(),
                ..Open::default()
            },
            None,
        )
        .await
        .is_ok()
    {
        tokio::task::yield_now().await;
    }
    backend.write_all(b"still here").await.unwrap();
    assert_eq!(agent.readiness.missing(), []);
    agent.drain.start();
    assert!(
        agent.task.try_join_next().is_none(),
        "the open stream holds its tunnel"
    );
    drop((stream, backend, first, second));
    agent.task.join_next().await.unwrap().unwrap();
}

#[tokio::test]
async fn a_drain_lets_open_streams_end_first() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let mut proxy = TestProxy::start().await;
    let mut agent = Agent::start(&proxy, DialRules::for_port(port));
    let UsedTunnel {
        tunnel, mut driver, ..
    } = proxy.next_tunnel().await;
    let stream = tunnel
        .open(
            Open {
                port: port.into(),
                ..Open::default()
            },
            None,
        )
        .await
        .unwrap();
    let (mut backend, _) = listener.accept().await.unwrap();
    agent.drain.start();
    while tunnel
        .open(
            Open {
                port: port.into(),
                ..Open::default()
            },
            None,
        )
        .await
        .is_ok()
    {}
    assert!(
        agent.task.try_join_next().is_none(),
        "the open stream holds the tunnel"
    );
    backend.write_all(b"last words").await.unwrap();
    drop((stream, backend, tunnel));
    agent.task.join_next().await.unwrap().unwrap();
    driver.join_next().await.unwrap().unwrap().unwrap();
}

#[tokio::test]
async fn a_worn_out_tunnel_is_replaced_before_it_is_left_and_no_stream_is_cut() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let mut proxy = TestProxy::start().await;
    let allow = DialRules::for_port(port);
    let agent = Agent::with_life(&proxy, allow, 3);
    let open = || Open {
        port: port.into(),
        ..Open::default()
    };
    let UsedTunnel {
        tunnel: first,
        driver: mut first_driver,
        ..
    } = proxy.next_tunnel().await;
    let stream = first.open(open(), None).await.unwrap();
    let (mut backend, _) = listener.accept().await.unwrap();
    drop(first.open(open(), None).await.unwrap());
    let tunnel = timeout(Duration::from_secs(10), proxy.tunnel_rx.recv())
        .await
        .expect("another tunnel")
        .unwrap();
    drop(
        first
            .open(open(), None)
            .await
            .expect("until it is used, the first takes streams"),
    );
    let second = UsedTunnel::of(tunnel, &proxy.instance)
        .await
        .expect("it is wanted");
    let UsedTunnel {
        tunnel: second,
        driver: _second,
        ..
    } = second;
    drop(second.open(open(), None).await.unwrap());
    assert_eq!(agent.readiness.missing(), [], "there was always one");
    let left = async { while first.open(open(), None).await.is_ok() {} };
    timeout(OVERLAP * 4, left)
        .await
        .expect("the first is left then");
    let (client, mut far) = tokio::net::UnixStream::pair().unwrap();
    let relayed = async {
        let mut stream = stream;
        stream
            .relay(&client.into(), &culvert_tunnel::Transferred::default())
            .await
            .unwrap();
    };
    let said = async {
        backend.write_all(b"last words").await.unwrap();
        drop(backend);
        let mut read = [0; 10];
        far.read_exact(&mut read).await.unwrap();
        far.shutdown().await.unwrap();
        read
    };
    let ((), read) = tokio::join!(relayed, said);
    assert_eq!(&read, b"last words", "its streams were not cut");
    drop(first);
    first_driver.join_next().await.unwrap().unwrap().unwrap();
}

#[tokio::test]
async fn a_refused_certificate_is_told_with_the_fix() {
    let authority = Arc::new(Authority::new("culvert"));
    let proxy = TestProxy::with_agents_of(authority, Some(&Authority::new("other"))).await;
    let agent = Agent::start(&proxy, DialRules::default());
    agent
        .until_missing(|reason| {
            reason.contains("refuses this agent's certificate") && reason.contains("join again")
        })
        .await;
}

#[tokio::test]
async fn the_proxys_own_words_on_a_refusal_are_passed_on() {
    let mut proxy = TestProxy::start().await;
    let agent = Agent::start(&proxy, DialRules::default());
    let mut tunnel = proxy.tunnel_rx.recv().await.unwrap();
    tunnel
        .write_all(b"REFUSED node edge-1 was removed\n")
        .await
        .unwrap();
    agent
        .until_missing(|reason| {
            reason.ends_with("does not take this node: node edge-1 was removed")
        })
        .await;
}

#[tokio::test]
async fn a_proxy_that_hangs_up_is_tried_again() {
    let mut proxy = TestProxy::start().await;
    let agent = Agent::start(&proxy, DialRules::default());
    drop(proxy.tunnel_rx.recv().await.unwrap());
    agent
        .until_missing(|reason| reason.contains("closed the tunnel before using it"))
        .await;
    proxy.tunnel_rx.recv().await.unwrap();
}
