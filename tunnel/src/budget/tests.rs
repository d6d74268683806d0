use futures_util::FutureExt;

use super::*;

fn is_evicted(evicted: OwnedNotified) -> bool {
    evicted.now_or_never().is_some()
}

fn client(number: u8) -> SocketPeer {
    SocketPeer::client([10, 0, 0, number].into())
}

fn stall(share: &mut Share, bytes: usize) -> OwnedNotified {
    share.stalls(bytes, || SocketPeer::Unknown)
}

#[test]
fn the_longest_stalled_is_evicted_and_only_as_many_as_needed() {
    let budget = Budget::new(100);
    let mut shares: Vec<Share> = (0..3).map(|_| budget.share()).collect();
    let evicted: Vec<_> = shares.iter_mut().map(|share| stall(share, 40)).collect();
    assert_eq!(
        evicted.into_iter().map(is_evicted).collect::<Vec<_>>(),
        [true, false, false]
    );
    assert_eq!(budget.stalled_bytes(), 80);
}

#[test]
fn one_that_took_all_that_had_waited_has_not_stalled_for_long() {
    let budget = Budget::new(100);
    let mut slow = budget.share();
    let mut stuck = budget.share();
    let mut third = budget.share();
    drop(stall(&mut slow, 40));
    let stuck = stall(&mut stuck, 40);
    slow.consumed(40, 30);
    let evicted = [stall(&mut slow, 30), stuck, stall(&mut third, 40)];
    assert_eq!(evicted.map(is_evicted), [false, true, false]);
}

#[test]
fn one_that_takes_a_byte_now_and_then_has_stalled_all_along() {
    let budget = Budget::new(100);
    let mut dripping = budget.share();
    let mut stuck = budget.share();
    let mut third = budget.share();
    drop(stall(&mut dripping, 40));
    let stuck = stall(&mut stuck, 40);
    dripping.consumed(1, 39);
    let evicted = [stall(&mut dripping, 40), stuck, stall(&mut third, 40)];
    assert_eq!(evicted.map(is_evicted), [true, false, false]);
}

#[test]
fn what_has_been_held_is_given_back() {
    let budget = Budget::new(100);
    let mut share = budget.share();
    drop((stall(&mut share, 70), stall(&mut share, 90)));
    assert_eq!(budget.stalled_bytes(), 90);
    share.consumed(90, 0);
    assert_eq!(budget.stalled_bytes(), 0);
    assert!(
        is_evicted(stall(&mut share, 101)),
        "alone it may not be over it either"
    );
    drop(stall(&mut share, 50));
    drop(share);
    assert_eq!(budget.stalled_bytes(), 0);
}

/// `kubectl logs -f | less` beside a pod with connections to a hundred nodes.
#[test]
fn a_client_with_many_stalled_streams_pays_for_them_and_not_a_neighbour_that_stalled_before_it() {
    let budget = Budget::new(500);
    let mut honest = budget.of("edge-1").share();
    let kept = honest.stalls(50, || client(1));
    let mut streams = Vec::new();
    for node in 0..100 {
        let mut share = budget.of(&format!("edge-{node}")).share();
        let evicted = share.stalls(50, || client(2));
        streams.push((share, evicted));
    }
    assert!(!is_evicted(kept));
    let paid = streams
        .into_iter()
        .filter_map(|(share, evicted)| is_evicted(evicted).then_some(share))
        .count();
    assert_eq!(paid, 91, "9 of theirs are left, and the other's one");
}

/// All of a cluster's users come by kube-apiserver's one connection to the proxy's Unix socket.
#[test]
fn among_clients_that_cannot_be_told_apart_the_node_with_most_pays() {
    let budget = Budget::new(500);
    let mut honest = budget.of("edge-1").share();
    let kept = stall(&mut honest, 50);
    let hostile = budget.of("edge-2");
    let mut shares: Vec<Share> = (0..20).map(|_| hostile.share()).collect();
    let evicted: Vec<_> = shares.iter_mut().map(|share| stall(share, 50)).collect();
    assert!(!is_evicted(kept));
    assert_eq!(
        evicted
            .into_iter()
            .filter_map(|evicted| evicted.now_or_never())
            .count(),
        11
    );
}

#[test]
fn at_an_agent_the_proxy_with_most_pays_and_of_its_backends_the_one_with_most() {
    let budget = Budget::new(100);
    let backend = |port| SocketPeer::Backend(([127, 0, 0, 1], port).into());
    let honest = budget.of("proxy-1:7400");
    let hostile = budget.of("proxy-2:7400");
    let mut shares = [
        honest.share(),
        hostile.share(),
        hostile.share(),
        hostile.share(),
    ];
    let evicted = [
        (0, 20, 10250),
        (1, 20, 9100),
        (2, 40, 10250),
        (3, 40, 10250),
    ]
    .map(|(number, bytes, port)| shares[number].stalls(bytes, || backend(port)));
    assert_eq!(evicted.map(is_evicted), [false, false, true, false]);
}

#[test]
fn all_of_an_ipv6_host_s_addresses_are_one_client() {
    let near = |text: &str| SocketPeer::client(text.parse().unwrap());
    assert_eq!(near("2001:db8:0:1::1"), near("2001:db8:0:1:ffff::2"));
    assert_ne!(near("2001:db8:0:1::1"), near("2001:db8:0:2::1"));
    assert_eq!(near("::ffff:10.0.0.1"), client(1));
    assert_ne!(client(1), client(2));
}
