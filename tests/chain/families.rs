//! A node with addresses of both families, whose services listen in one: a client that dials its
//! name, a VIP or an address reaches the node, whichever family it chose.

use anyhow::{Context, Result, ensure};
use culvert_lab::culvert::{Culvert, Options};
use culvert_lab::host::Host;
use culvert_lab::process::Process;
use culvert_lab::wait::{self, PATIENCE};
use culvert_lab::workspace;

use crate::world::{self, World};

const V4: &str = "10.0.3.7";
const V6: &str = "fd10:3::7";

/// Where a service listens, and its port.
const SERVICES: [(&str, u16); 6] = [
    ("0.0.0.0", 9301),
    (V4, 9302),
    ("127.0.0.1", 9303),
    ("::", 9304),
    (V6, 9305),
    ("::1", 9306),
];

/// kubernetes#108248, node_exporter#1830, metrics-server#582.
#[test]
fn a_service_that_listens_in_one_family_is_reached_by_name_and_by_the_vips_of_both() {
    world::in_lab(|lab| {
        let edge = lab.site(Host::Edge1);
        edge.output(
            "ip",
            ["addr", "add", &format!("{V6}/128"), "dev", "lo", "nodad"],
        )?;
        let mut services = Vec::new();
        let mut options = world::with_defaults(Options::default());
        for (address, port) in SERVICES {
            services.push(serve(lab, address, port)?);
            options.ports.push(port);
        }
        let mut world = World::of(lab, Culvert::start(lab, &[], options)?, services);
        let join = world
            .culvert
            .create_token(Host::Edge1, &["--address", V6])?;
        world.culvert.join(Host::Edge1, &join)?;
        world.culvert.start_agent(Host::Edge1)?;
        world.culvert.wait_online(Host::Edge1)?;
        let vips = [
            world.vip(Host::Edge1, "vip4")?,
            world.vip(Host::Edge1, "vip6")?,
        ];
        let hosts = [
            "edge-1".to_owned(),
            vips[0].to_string(),
            format!("[{}]", vips[1]),
        ];
        for (address, port) in SERVICES {
            for host in &hosts {
                let url = format!("http://{host}:{port}/");
                let page = curl(&world, &url).with_context(|| format!("{address}: {url}"))?;
                ensure!(page == "edge-1\n", "{address}: {url}: {page}");
            }
            let target = format!("edge-1:{port}");
            let mut explain = world.culvert.control(&["why", &target]);
            let said = workspace::output(&mut explain)?;
            ensure!(said.contains("dial       ok"), "{address}: {said}");
        }
        Ok(())
    });
}

/// A web server that listens at one address, and not in both families.
fn serve(lab: &culvert_lab::Lab, address: &str, port: u16) -> Result<Process> {
    const SERVER: &str = r#"
import socket, sys
host, port = sys.argv[1], int(sys.argv[2])
family = socket.AF_INET6 if ":" in host else socket.AF_INET
listener = socket.socket(family, socket.SOCK_STREAM)
if family == socket.AF_INET6:
    listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
listener.bind((host, port))
listener.listen()
print("ready", flush=True)
while True:
    client, _ = listener.accept()
    client.recv(4096)
    client.sendall(b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 7\r\n\r\nedge-1\n")
    client.close()
"#;
    let site = lab.site(Host::Edge1);
    let mut command = site.command("python3");
    command.args(["-c", SERVER, address, &port.to_string()]);
    let serving = site.start_process(&format!("server-{port}"), &mut command)?;
    wait::until("the server listens", PATIENCE, || {
        let is_ready = serving.log().contains("ready");
        is_ready.then_some(()).with_context(|| serving.log())
    })?;
    Ok(serving)
}

fn curl(world: &World<'_>, url: &str) -> Result<String> {
    let cloud = world.lab.site(Host::Cloud);
    cloud.output(
        "curl",
        ["--silent", "--show-error", "--max-time", "20", url],
    )
}
