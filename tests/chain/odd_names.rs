//! Names on name-routed ports as clients write them, and what comes in the place of a name.

use std::io::{BufReader, Read, Write};
use std::net::TcpStream;

use anyhow::{Context, Result, ensure};
use culvert_lab::wait::PATIENCE;

use crate::name_requests::{Message, with_servers};
use crate::names::dial;
use crate::world::World;

/// Heads of requests, and the node that they name.
const NAMING: [(&str, &str); 5] = [
    ("GET /name HTTP/1.1\r\nHost: EDGE-2.:10255", "edge-2"),
    (
        "GET http://user:S3cret@edge-3:10255/name HTTP/1.1\r\nHost: edge-2",
        "edge-3",
    ),
    (
        "GET /name HTTP/1.0\r\nHost: edge-3.Edge.Internal.",
        "edge-3",
    ),
    ("OPTIONS * HTTP/1.1\r\nHost: edge-2", "edge-2"),
    (
        "GET /name HTTP/1.1\r\nHost: edge-2\r\nX-Forwarded-Host: edge-3",
        "edge-2",
    ),
];
/// Heads that name no node.
const NAMELESS: [&str; 10] = [
    "GET /name HTTP/1.0",
    "GET /name HTTP/1.1\r\nHost: user:S3cret@edge-2",
    "GET /name HTTP/1.1\r\nHost: edge-2\r\nHost: edge-3",
    "GET /name HTTP/1.1\r\nHost: edge-2, edge-3",
    "GET /name HTTP/1.1\r\nHost: 192.168.1.10:10255",
    "GET /name HTTP/1.1\r\nHost: 198.18.0.1",
    "GET /name HTTP/1.1\r\nHost: [::1]:10255",
    "GET https://user:S3cret@edge-2/name HTTP/1.1\r\nHost: edge-2",
    "GET http://edge-2/name HTTP/1.1\r\nHost: edge-2",
    "GET http://edge-2:99999/name HTTP/1.1\r\nHost: edge-2",
];
/// From 192.0.2.9, as balancers begin a connection, in versions 1 and 2.
const PROXY_HEADERS: [&[u8]; 2] = [
    b"PROXY TCP4 192.0.2.9 203.0.113.1 4711 7451\r\n",
    b"\r\n\r\n\0\r\nQUIT\n\x21\x11\0\x0c\xc0\0\x02\x09\xcb\0\x71\x01\x12\x67\x1d\x1b",
];
const REFUSED: &str = "connection to a name-routed port refused";

#[test]
fn a_request_reaches_the_node_that_it_names_in_any_form_or_none() {
    with_servers(|world| {
        for (head, node) in NAMING {
            let said = said(world, head)?;
            ensure!(said == node, "{head:?}: {said:?}");
        }
        for head in NAMELESS {
            let said = said(world, head)?;
            ensure!(!said.starts_with("edge-"), "{head:?}: {said:?}");
        }
        let log = world.culvert.proxy.log();
        ensure!(!log.contains("S3cret"), "the log has a password: {log}");
        Ok(())
    });
}

/// What is answered to a request on a connection of its own.
fn said(world: &World<'_>, head: &str) -> Result<String> {
    let mut client = BufReader::new(dial(world)?);
    write!(client.get_mut(), "{head}\r\n\r\n")?;
    body(&mut client)
}

fn body(client: &mut BufReader<TcpStream>) -> Result<String> {
    let answer = Message::read(client)?.context("no answer")?;
    Ok(String::from_utf8(answer.body)?)
}

/// kubernetes/kubeadm#144: a host that was registered by its short name, and then by its whole one.
#[test]
fn requests_on_a_kept_connection_follow_a_name_that_becomes_another_nodes() {
    const NAME: &str = "edge-2.edge.internal";
    with_servers(|world| {
        let mut client = BufReader::new(dial(world)?);
        let request = format!("GET /name HTTP/1.1\r\nHost: {NAME}\r\n\r\n");
        for _ in 0..2 {
            client.get_mut().write_all(request.as_bytes())?;
            let said = body(&mut client)?;
            ensure!(said == "edge-2", "{said}");
        }
        world.culvert.create_node_token(NAME, &[])?;
        world.wait_proxy_log(
            "stream ended",
            &[("node", "edge-2"), ("outcome", "address_moved")],
        )?;
        client.get_mut().write_all(request.as_bytes())?;
        let said = body(&mut client)?;
        ensure!(
            said.starts_with("culvert: "),
            "the new node is offline: {said}"
        );
        Ok(())
    });
}

/// Who believed the header would admit any client that writes one.
#[test]
fn a_balancer_that_sends_proxy_headers_is_refused_and_the_log_says_what_came() {
    with_servers(|world| {
        for header in PROXY_HEADERS {
            let mut balancer = dial(world)?;
            balancer.set_read_timeout(Some(PATIENCE))?;
            balancer.write_all(header)?;
            balancer.write_all(b"GET /name HTTP/1.1\r\nHost: edge-2\r\n\r\n")?;
            let mut answer = String::new();
            balancer.read_to_string(&mut answer)?;
            ensure!(answer.starts_with("HTTP/1.1 400 "), "{answer}");
        }
        world.wait_proxy_log(REFUSED, &[("reason", "PROXY protocol")])
    });
}
