//! Bugs of other tunnel projects, reproduced between two ends in one process.

use std::io;

use futures_util::poll;
use tokio::sync::mpsc;

use super::*;

/// The opposite direction of a stall that stopped every neighbour in other projects: uploads whose
/// backends do not read.
#[tokio::test]
async fn stalled_backends_leave_another_upload_moving() {
    let pair = pair(256 << 10, 64).await;
    let mut relays = JoinSet::new();
    let mut stalled = Vec::new();
    for _ in 0..20 {
        let (client, backend) = relayed(&pair, &mut relays).await;
        fill(&client).await;
        stalled.push((client, backend));
    }
    let (mut client, mut backend) = relayed(&pair, &mut relays).await;
    bytes_arrive(&mut client, &mut backend).await;
}

/// frp #2987 and others: a small fixed window limits the throughput of a long link.
#[tokio::test]
async fn a_wider_window_lets_as_much_more_be_under_way() {
    let narrow = under_way(256 << 10).await;
    let wide = under_way(16 << 20).await;
    assert!(
        wide >= narrow + (8 << 20),
        "{wide} bytes with 16 MiB, {narrow} with 256 KiB"
    );
}

/// Bytes that a backend can send while its client reads nothing: the window, and what sockets hold
/// in either case.
async fn under_way(stream_window: u32) -> usize {
    let pair = pair(stream_window, 8).await;
    let mut relays = JoinSet::new();
    let (_client, backend) = relayed(&pair, &mut relays).await;
    fill(&backend).await
}

/// apiserver-network-proxy #404 and #460: the client's cancellation crossed the agent's success,
/// and the connection stayed open.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn dials_given_up_just_as_they_are_answered_leave_nothing_open() {
    let pair = pair(1 << 20, 64).await;
    let (listener, port) = backend().await;
    let address = listener.local_addr().unwrap();
    let (accepted_tx, mut accepted_rx) = mpsc::unbounded_channel();
    let mut acceptor = JoinSet::new();
    acceptor
        .spawn(async move { while accepted_tx.send(listener.accept().await.unwrap()).is_ok() {} });
    let mut patience = 1;
    for _ in 0..20 {
        patience = patience.max(cancel_after(&pair, port, usize::MAX).await.unwrap());
    }
    let mut answered = 0;
    for round in 0..300 {
        answered += usize::from(
            cancel_after(&pair, port, round * patience / 200)
                .await
                .is_some(),
        );
    }
    assert!(
        (1..300).contains(&answered),
        "{answered} of 300 were answered: none was close"
    );
    let left = async {
        while pair.tunnel.streams() > 0 || !pair.agent_state.streams().is_empty() {
            yield_now().await;
        }
    };
    timeout(DEADLINE, left).await.expect("no stream is left");
    // It is accepted after all others.
    let last = TcpStream::connect(address)
        .await
        .unwrap()
        .local_addr()
        .unwrap();
    loop {
        let (mut socket, from) = timeout(DEADLINE, accepted_rx.recv())
            .await
            .unwrap()
            .unwrap();
        let read = timeout(DEADLINE, socket.read(&mut [0; 1]))
            .await
            .expect("a connection stayed open");
        assert!(
            matches!(read, Ok(0))
                || read.is_err_and(|error| error.kind() == io::ErrorKind::ConnectionReset)
        );
        if from == last {
            return;
        }
    }
}

/// Dials, and cancels after `looks` polls. If the answer came first, returns after how many polls.
async fn cancel_after(pair: &Pair, port: u32, looks: usize) -> Option<usize> {
    let mut dial = Box::pin(pair.tunnel.open(to_port(port), None));
    for look in 0..looks {
        if poll!(&mut dial).is_ready() {
            return Some(look);
        }
        yield_now().await;
    }
    None
}

/// In other projects, data sent before a close was dropped with the connection.
#[tokio::test]
async fn an_upload_whose_client_closes_at_once_arrives_whole() {
    let pair = pair(256 << 10, 8).await;
    let upload: Vec<u8> = (0..3_000_000_u32)
        .map(|index| (index / 5).to_le_bytes()[0])
        .collect();
    for round in 0..10 {
        let mut relays = JoinSet::new();
        let (mut client, mut backend) = relayed(&pair, &mut relays).await;
        let send = async {
            client.write_all(&upload).await.unwrap();
            drop(client);
        };
        let receive = async {
            let mut received = Vec::new();
            backend.read_to_end(&mut received).await.unwrap();
            received
        };
        let ((), received) = timeout(DEADLINE, async { tokio::join!(send, receive) })
            .await
            .unwrap();
        assert!(
            received == upload,
            "round {round}: {} of {} bytes",
            received.len(),
            upload.len()
        );
    }
}
