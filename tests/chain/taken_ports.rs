//! Ports of the proxy that only some clients use, and that another program has: all other clients
//! are served.

use std::cell::RefCell;
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};

use anyhow::{Result, ensure};
use culvert_lab::culvert::{Options, PROXY_ADMIN};
use culvert_lab::host::Host;
use culvert_lab::wait::{self, PATIENCE};
use culvert_lab::{Lab, inside};

use crate::connect::with_tls;
use crate::world::{self, ECHO, GREET};

const EDGE: &[Host] = &[Host::Edge1];
const NAMES: u16 = 7450;
const FORWARD: u16 = 2223;
const CONNECT: u16 = 7402;
const PEERS: u16 = 7401;
const TAKEN: [u16; 4] = [NAMES, FORWARD, CONNECT, PEERS];

/// MagnaCapax/PMSS#653, onedr0p/home-ops#11712: there a connection had the port by chance.
#[test]
fn a_port_for_some_clients_that_is_taken_keeps_no_other_client_out() {
    let others = RefCell::new(Vec::new());
    let prepare = |lab: &Lab| {
        for port in TAKEN {
            let netns = lab.site(Host::Cloud).netns();
            let address = SocketAddr::from((Ipv4Addr::UNSPECIFIED, port));
            let other = inside::run(netns, || Ok(TcpListener::bind(address)?))?;
            others.borrow_mut().push(other);
        }
        options(lab)
    };
    world::prepared(EDGE, prepare, |world| {
        world.check_greeting("10.0.3.7", "edge-1")?;
        let cloud = world.lab.site(Host::Cloud);
        let ready = cloud.http_get(PROXY_ADMIN, "/readyz")?;
        for port in TAKEN {
            ensure!(ready.contains(&format!(":{port} (")), "{port}: {ready}");
        }
        others.borrow_mut().clear();
        wait::until("the ports are bound", PATIENCE, || {
            let ready = cloud.http_get(PROXY_ADMIN, "/readyz")?;
            ensure!(!ready.contains("taken"), "{ready}");
            Ok(())
        })?;
        for port in TAKEN {
            let address = SocketAddr::from((Ipv4Addr::new(203, 0, 113, 1), port));
            inside::run(cloud.netns(), || Ok(TcpStream::connect(address).map(drop)?))?;
        }
        ensure!(world.talk(&format!("127.0.0.1:{FORWARD}"), "hello")? == "hello");
        Ok(())
    });
}

/// With all four ports. The peer does not exist.
fn options(lab: &Lab) -> Result<Options> {
    let mut options = with_tls(lab)?;
    for (flag, value) in [
        ("--name-listen", format!("[::]:{NAMES}={GREET}")),
        ("--name-client", "203.0.113.0/24".to_owned()),
        ("--forward", format!("{FORWARD}=edge-1:{ECHO}")),
        ("--forward-client", "127.0.0.0/8".to_owned()),
        ("--peer", "203.0.113.9:7401".to_owned()),
    ] {
        options.proxy.extend([flag.to_owned(), value]);
    }
    Ok(options)
}
