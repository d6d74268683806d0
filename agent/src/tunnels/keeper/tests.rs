use std::collections::{BTreeMap, BTreeSet};
use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicUsize, Ordering};

use culvert_daemon::Readiness;
use culvert_tunnel::proto::tunnel::{Open, Proxy, SetProxiesRequest};
use culvert_tunnel::{OpenError, Socket, Stream, Transferred, Tunnel};
use parking_lot::Mutex;
use tokio::io::{AsyncReadExt, AsyncWriteExt, copy_bidirectional};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::timeout;

use super::*;
use crate::backends::allow_list::DialRules;
use crate::test_pki::Authority;
use crate::test_proxy::{TestProxy, UsedTunnel};
use crate::tunnels::states::TunnelView;

/// Every wait of a test.
const DEADLINE: Duration = Duration::from_secs(30);

/// Waits until something is so, and says what is instead if it takes too long.
async fn until<T: std::fmt::Debug>(claim: &str, now: impl Fn() -> T, is_so: impl Fn(&T) -> bool) {
    let wait = async {
        while !is_so(&now()) {
            tokio::task::yield_now().await;
        }
    };
    timeout(DEADLINE, wait)
        .await
        .unwrap_or_else(|_| panic!("{claim}: {:?}", now()));
}

/// A proxy that uses the tunnels that its agents want. Dropping it is its sudden death.
struct RunningProxy {
    address: HostPort,
    instance: String,
    tunnels: Arc<Mutex<Vec<Tunnel>>>,
    /// Tunnels that were set up and not wanted.
    declined: Arc<AtomicUsize>,
    _task: JoinSet<()>,
}

impl RunningProxy {
    async fn start(authority: &Arc<Authority>) -> Self {
        Self::of(TestProxy::with_agents_of(authority.clone(), None).await)
    }

    /// A proxy from before proxies reported their instance.
    async fn start_older(authority: &Arc<Authority>) -> Self {
        let mut proxy = TestProxy::with_agents_of(authority.clone(), None).await;
        proxy.instance.clear();
        Self::of(proxy)
    }

    fn of(proxy: TestProxy) -> Self {
        let address = proxy.address.clone();
        let instance = proxy.instance.clone();
        let tunnels = Arc::<Mutex<Vec<Tunnel>>>::default();
        let declined = Arc::default();
        let mut task = JoinSet::new();
        let kept = tunnels.clone();
        let refused = Arc::clone(&declined);
        task.spawn(async move {
            // All of it: its listener ends with it.
            let mut proxy = proxy;
            let mut drivers = JoinSet::new();
            while let Some(tunnel) = proxy.tunnel_rx.recv().await {
                match UsedTunnel::of(tunnel, &proxy.instance).await {
                    Some(used) => {
                        kept.lock().push(used.tunnel);
                        let mut driver = used.driver;
                        drivers.spawn(async move { driver.join_next().await });
                    }
                    None => drop(AtomicUsize::fetch_add(&refused, 1, Ordering::Relaxed)),
                }
            }
        });
        Self {
            address,
            instance,
            tunnels,
            declined,
            _task: task,
        }
    }

    fn reported(&self, nodes: u32) -> Proxy {
        Proxy {
            instance: self.instance.clone(),
            addresses: vec![self.address.to_string()],
            nodes,
            draining: false,
        }
    }

    /// Tells the agents on all tunnels that still work.
    async fn report(&self, proxies: &[Proxy]) {
        let proxies = proxies.to_vec();
        let request = SetProxiesRequest { proxies };
        let tunnels = self.tunnels.lock().clone();
        for tunnel in tunnels {
            // One may be about to end.
            let _told = tunnel.set_proxies(&request).await;
        }
    }

    fn declined(&self) -> usize {
        self.declined.load(Ordering::Relaxed)
    }
}

/// A load balancer: leads each connection to the next proxy behind it.
struct Forwarder {
    address: HostPort,
    behind: Arc<Mutex<Vec<HostPort>>>,
    _task: JoinSet<()>,
}

impl Forwarder {
    async fn start(proxies: &[&RunningProxy]) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string().parse().unwrap();
        let behind: Vec<_> = proxies.iter().map(|proxy| proxy.address.clone()).collect();
        let behind = Arc::new(Mutex::new(behind));
        let targets = behind.clone();
        let mut task = JoinSet::new();
        task.spawn(async move {
            let mut connections = JoinSet::new();
            loop {
                let (mut near, _) = listener.accept().await.unwrap();
                let target = {
                    let mut targets = targets.lock();
                    targets.rotate_left(1);
                    targets[0].to_string()
                };
                connections.spawn(async move {
                    if let Ok(mut far) = TcpStream::connect(target).await {
                        let _ended = copy_bidirectional(&mut near, &mut far).await;
                    }
                });
            }
        });
        Self {
            address,
            behind,
            _task: task,
        }
    }

    fn remove(&self, proxy: &RunningProxy) {
        let mut behind = self.behind.lock();
        behind.retain(|address| *address != proxy.address);
    }
}

/// An agent that keeps two tunnels to each of two proxies.
struct Agent {
    all: Tunnels,
    shared: Arc<Shared>,
    proxies: watch::Sender<Vec<HostPort>>,
    drain: Drain,
    task: JoinSet<Result<()>>,
    _root: tempfile::TempDir,
}

impl Agent {
    fn start(authority: &Arc<Authority>, listed: &[&HostPort]) -> Self {
        Self::with_rules(authority, listed, DialRules::default())
    }

    fn with_rules(authority: &Authority, listed: &[&HostPort], allow: DialRules) -> Self {
        let root = tempfile::tempdir().unwrap();
        let spread = Spread {
            proxies: 2,
            tunnels: 2,
            extra: 1,
        };
        let shared = Arc::new(Shared {
            allow: allow.fixed(),
            ..Shared::for_tests(authority, root.path(), spread)
        });
        let all = Tunnels::new(Readiness::default().gate("tunnel"));
        let proxies = watch::Sender::new(listed.iter().copied().cloned().collect());
        let drain = Drain::default();
        let workers = Workers::start(NonZeroUsize::MIN).unwrap();
        let keeper = TunnelKeeper {
            shared: shared.clone(),
            all: all.clone(),
            spread,
            workers,
        };
        let mut task = JoinSet::new();
        task.spawn(keeper.run(proxies.subscribe(), drain.clone()));
        Self {
            all,
            shared,
            proxies,
            drain,
            task,
            _root: root,
        }
    }

    fn list(&self, proxies: &[&HostPort]) {
        self.proxies
            .send_replace(proxies.iter().copied().cloned().collect());
    }

    /// Waits until two tunnels are up to each of these instances, and none to others.
    async fn until_up(&self, instances: &[&str]) {
        let expected: BTreeMap<_, _> = instances.iter().map(|id| ((*id).to_owned(), 2)).collect();
        let claim = format!("tunnels are up to {instances:?}");
        until(&claim, || self.all.tunnels(), |views| up(views) == expected).await;
    }

    /// Waits until two tunnels are up to each of two proxies, which are returned.
    async fn until_two_of(&self, proxies: &[&RunningProxy]) -> BTreeSet<String> {
        let claim = "two proxies have two tunnels each";
        let both = |views: &Vec<_>| up(views).into_values().eq([2, 2]);
        until(claim, || self.all.tunnels(), both).await;
        let up: BTreeSet<_> = up(&self.all.tunnels()).into_keys().collect();
        let all: BTreeSet<_> = proxies.iter().map(|proxy| proxy.instance.clone()).collect();
        assert!(up.is_subset(&all), "{up:?}");
        up
    }

    async fn end(mut self) {
        self.drain.start();
        timeout(DEADLINE, self.task.join_next())
            .await
            .unwrap()
            .unwrap()
            .unwrap()
            .unwrap();
    }
}

/// How many tunnels are up to each instance.
fn up(views: &[TunnelView]) -> BTreeMap<String, usize> {
    let mut up = BTreeMap::new();
    for instance in views.iter().filter_map(|view| view.proxy_instance.clone()) {
        *up.entry(instance).or_default() += 1;
    }
    up
}

fn authority() -> Arc<Authority> {
    Arc::new(Authority::new("culvert"))
}

async fn three(authority: &Arc<Authority>) -> [RunningProxy; 3] {
    [
        RunningProxy::start(authority).await,
        RunningProxy::start(authority).await,
        RunningProxy::start(authority).await,
    ]
}

#[tokio::test]
async fn of_three_listed_proxies_two_get_two_tunnels_each() {
    let authority = authority();
    let proxies = three(&authority).await;
    let [a, b, c] = &proxies;
    let agent = Agent::start(&authority, &[&a.address, &b.address, &c.address]);
    agent.until_two_of(&[a, b, c]).await;
    let declined: usize = proxies.iter().map(RunningProxy::declined).sum();
    assert!(
        declined <= 4,
        "{declined}: each slot meets the third once at most"
    );
    agent.end().await;
}

#[tokio::test]
async fn behind_one_address_that_hides_three_it_finds_two_different_ones() {
    let authority = authority();
    let [a, b, c] = three(&authority).await;
    let forwarder = Forwarder::start(&[&a, &b, &c]).await;
    let agent = Agent::start(&authority, &[&forwarder.address]);
    agent.until_two_of(&[&a, &b, &c]).await;
    agent.end().await;
}

#[tokio::test]
async fn one_proxy_is_enough_if_it_says_that_there_is_no_other() {
    let authority = authority();
    let only = RunningProxy::start(&authority).await;
    let agent = Agent::start(&authority, &[&only.address]);
    agent.until_up(&[&only.instance]).await;
    only.report(&[only.reported(2)]).await;
    until(
        "two slots are spare",
        || agent.all.tunnels(),
        |views| views.iter().filter(|view| view.state == "spare").count() == 2,
    )
    .await;
    let before = only.declined();
    let second = RunningProxy::start(&authority).await;
    only.report(&[only.reported(2), second.reported(0)]).await;
    agent.until_up(&[&only.instance, &second.instance]).await;
    assert_eq!(
        only.declined(),
        before,
        "its own address was not dialled for another one"
    );
    agent.end().await;
}

#[tokio::test]
async fn older_proxies_are_told_apart_by_their_addresses() {
    let authority = authority();
    let a = RunningProxy::start_older(&authority).await;
    let b = RunningProxy::start_older(&authority).await;
    let agent = Agent::start(&authority, &[&a.address, &b.address]);
    agent
        .until_up(&[&a.address.to_string(), &b.address.to_string()])
        .await;
    agent.end().await;
}

#[tokio::test]
async fn when_a_proxy_dies_its_tunnels_go_to_another_one() {
    let authority = authority();
    let [a, b, c] = three(&authority).await;
    let forwarder = Forwarder::start(&[&a, &b]).await;
    let agent = Agent::start(&authority, &[&forwarder.address]);
    agent.until_up(&[&a.instance, &b.instance]).await;
    b.report(&[a.reported(2), b.reported(2), c.reported(0)])
        .await;
    forwarder.remove(&a);
    drop(a);
    agent.until_up(&[&b.instance, &c.instance]).await;
    agent.end().await;
}

/// A backend on this host, and a stream to it through a tunnel of a proxy.
async fn stream(
    listener: &TcpListener,
    proxy: &RunningProxy,
    tunnel: usize,
) -> (Stream, TcpStream) {
    let open = Open {
        port: listener.local_addr().unwrap().port().into(),
        ..Open::default()
    };
    let tunnel = proxy.tunnels.lock()[tunnel].clone();
    let opened: Result<_, OpenError> = tunnel.open(open, None).await;
    (opened.unwrap(), listener.accept().await.unwrap().0)
}

#[tokio::test]
async fn a_draining_proxy_is_left_for_another_and_its_streams_end_by_themselves() {
    let authority = authority();
    let [a, b, c] = three(&authority).await;
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let rules = DialRules::for_port(listener.local_addr().unwrap().port());
    let agent = Agent::with_rules(&authority, &[&a.address, &b.address], rules);
    agent.until_up(&[&a.instance, &b.instance]).await;
    let (stream, mut backend) = stream(&listener, &a, 0).await;
    let draining = Proxy {
        draining: true,
        ..a.reported(2)
    };
    a.report(&[draining, b.reported(2), c.reported(0)]).await;
    agent.until_up(&[&b.instance, &c.instance]).await;
    let (client, mut far) = tokio::net::UnixStream::pair().unwrap();
    let relayed = async {
        let mut stream = stream;
        let relayed = culvert_tunnel::Transferred::default();
        stream.relay(&client.into(), &relayed).await.unwrap();
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
    assert_eq!(&read, b"last words");
    agent.end().await;
}

#[tokio::test]
async fn a_draining_proxy_without_another_one_is_kept() {
    let authority = authority();
    let only = RunningProxy::start(&authority).await;
    let agent = Agent::start(&authority, &[&only.address]);
    agent.until_up(&[&only.instance]).await;
    let draining = Proxy {
        draining: true,
        ..only.reported(2)
    };
    only.report(std::slice::from_ref(&draining)).await;
    agent.until_up(&[&only.instance]).await;
    let other = RunningProxy::start(&authority).await;
    only.report(&[draining, other.reported(0)]).await;
    // This draining proxy, unlike a real one, goes on taking tunnels.
    let has_two = |views: &Vec<_>| up(views).get(&other.instance) == Some(&2);
    until(
        "two tunnels are up to the other",
        || agent.all.tunnels(),
        has_two,
    )
    .await;
    agent.end().await;
}

#[tokio::test]
async fn tunnels_move_to_a_proxy_that_came_back() {
    let authority = authority();
    let [a, b, c] = three(&authority).await;
    let agent = Agent::start(&authority, &[&a.address, &b.address]);
    agent.until_up(&[&a.instance, &b.instance]).await;
    a.report(&[a.reported(300), b.reported(200), c.reported(0)])
        .await;
    agent.shared.placement.even_out(0.0);
    agent.until_up(&[&b.instance, &c.instance]).await;
    agent.end().await;
}

#[tokio::test]
async fn a_proxy_that_comes_gets_tunnels_and_one_that_goes_is_left() {
    let authority = authority();
    let [a, b, c] = three(&authority).await;
    let agent = Agent::start(&authority, &[&a.address, &b.address]);
    agent.until_up(&[&a.instance, &b.instance]).await;
    agent.list(&[&b.address, &c.address]);
    agent.until_up(&[&b.instance, &c.instance]).await;
    agent.end().await;
}

#[tokio::test]
async fn a_list_of_proxies_that_do_not_answer_leaves_the_one_that_does() {
    let authority = authority();
    let [good, other, _] = three(&authority).await;
    let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let wrong: HostPort = silent.local_addr().unwrap().to_string().parse().unwrap();
    let agent = Agent::start(&authority, &[&good.address]);
    agent.until_up(&[&good.instance]).await;
    agent.list(&[&wrong]);
    for _attempt in 0..4 {
        drop(timeout(DEADLINE, silent.accept()).await.unwrap().unwrap());
    }
    agent.until_up(&[&good.instance]).await;
    drop(silent);
    agent.list(&[&wrong, &other.address]);
    agent.until_up(&[&other.instance]).await;
    agent.end().await;
}

/// Some hundred kB a second flow through a tunnel of the proxy. It ends only if they stop.
async fn bulk(listener: &TcpListener, proxy: &RunningProxy, tunnel: usize) {
    let (mut stream, mut backend) = stream(listener, proxy, tunnel).await;
    let (client, mut far) = tokio::net::UnixStream::pair().unwrap();
    let client = Socket::from(client);
    let transferred = Transferred::default();
    let mut sink = vec![0; 64 << 10];
    let send = async {
        while backend.write_all(&[7; 16 << 10]).await.is_ok() {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    let receive = async { while far.read(&mut sink).await.is_ok_and(|read| read > 0) {} };
    tokio::select! {
        () = send => {}
        () = receive => {}
        _ = stream.relay(&client, &transferred) => {}
    }
}

#[tokio::test]
async fn while_bulk_keeps_both_tunnels_busy_there_is_one_more() {
    let authority = authority();
    let proxy = RunningProxy::start(&authority).await;
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let rules = DialRules::for_port(listener.local_addr().unwrap().port());
    let agent = Agent::with_rules(&authority, &[&proxy.address], rules);
    let busy = || {
        let tunnels = proxy.tunnels.lock();
        tunnels.iter().map(Tunnel::is_busy).collect::<Vec<_>>()
    };
    until("two tunnels are up", busy, |busy| busy.len() == 2).await;
    let third = until("a third one is free", busy, |busy| {
        *busy == [true, true, false]
    });
    let both = async { tokio::join!(bulk(&listener, &proxy, 0), bulk(&listener, &proxy, 1)) };
    tokio::select! {
        () = third => {}
        _ = both => panic!("bulk data stopped"),
    }
    agent.end().await;
}

#[tokio::test]
async fn a_proxy_that_asks_for_further_tunnels_gets_them_before_any_is_busy() {
    let authority = authority();
    let proxy = RunningProxy::start(&authority).await;
    let agent = Agent::with_rules(&authority, &[&proxy.address], DialRules::default());
    let count = || proxy.tunnels.lock().len();
    until("two tunnels are up", count, |count| *count == 2).await;
    let first = proxy.tunnels.lock()[0].clone();
    first.dial(u32::MAX).await.unwrap();
    until("the one that it may have is up", count, |count| *count == 3).await;
    agent.end().await;
}
