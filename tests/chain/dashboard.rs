//! The pages for browsers on the proxy's admin address.

use anyhow::{Result, ensure};
use culvert_lab::browser::{Browser, View};
use culvert_lab::culvert::{Options, PROXY_ADMIN};
use culvert_lab::host::Host;
use culvert_lab::probe::Client;
use culvert_lab::wait::{self, PATIENCE};
use culvert_lab::{skip, workspace};

use crate::world::{self, ECHO, World};

const EDGE: &[Host] = &[Host::Edge1];
/// The agent may dial it, and nothing listens there.
const CLOSED: u16 = 9777;
/// On the port and on the socket.
const FOLDER: &str = "/dashboard/";

/// What curl prints about a page of the admin socket or, with its address, of the port.
fn curl(world: &World<'_>, args: &[&str], url: &str) -> Result<String> {
    let mut curl = world.lab.site(Host::Cloud).command("curl");
    workspace::output(curl.args(["-s", "--max-time", "30"]).args(args).arg(url))
}

#[test]
fn the_proxys_own_pages_have_failures_for_its_owner_alone() {
    let mut options = Options::default();
    options.ports.push(CLOSED);
    world::with(EDGE, options, |world| {
        let target = format!("10.0.3.7:{ECHO}");
        let _held = world.hold(&target, 1)?;
        world.failing_client(&Client::talk(format!("edge-1:{CLOSED}"), ""))?;
        let failed = format!(":{CLOSED}");
        let cloud = world.lab.site(Host::Cloud);
        let socket = cloud.file("admin.sock").display().to_string();
        let by_socket = ["--unix-socket", &socket];
        wait::until("both pages have the connection", PATIENCE, || {
            let page = cloud.http_get(PROXY_ADMIN, FOLDER)?;
            ensure!(page.contains("edge-1") && page.contains(&target), "{page}");
            ensure!(!page.contains(&failed), "{page}");
            let page = curl(world, &by_socket, "http://localhost/dashboard/")?;
            ensure!(page.contains(&target) && page.contains(&failed), "{page}");
            Ok(())
        })?;
        let path = format!("{FOLDER}node/edge-1");
        let node = cloud.http_get(PROXY_ADMIN, &path)?;
        ensure!(
            node.contains("203.0.113.1") || node.contains("198.51.100.1"),
            "{node}"
        );
        ensure!(!node.contains("class=\"hops\""), "{node}");
        let node = curl(world, &by_socket, &format!("http://localhost{path}"))?;
        ensure!(node.contains("class=\"hops\""), "{node}");
        Ok(())
    });
}

#[test]
fn the_proxys_own_pages_answer_no_foreign_name_and_take_nothing() {
    world::with(EDGE, Options::default(), |world| {
        let socket = world.lab.site(Host::Cloud).file("admin.sock");
        let socket = socket.display().to_string();
        let status = ["-o", "/dev/null", "-w", "%{http_code}"];
        for (args, wanted) in [
            (&[][..], "200"),
            (&["-H", "Host: rebound.example"], "403"),
            (&["-X", "POST"], "405"),
        ] {
            let port = format!("http://127.0.0.1:{PROXY_ADMIN}{FOLDER}");
            let said = curl(world, &[&status[..], args].concat(), &port)?;
            ensure!(said == wanted, "{args:?}: {said}");
            let by_socket = ["--unix-socket", &socket];
            let args = [&status[..], &by_socket, args].concat();
            let said = curl(world, &args, &format!("http://localhost{FOLDER}"))?;
            ensure!(said == wanted, "{args:?}: {said}");
        }
        Ok(())
    });
}

#[test]
fn a_browser_has_no_complaint_about_the_proxys_own_pages() {
    world::with(EDGE, Options::default(), |world| {
        let Some(program) = Browser::find() else {
            skip::skip("there is no chromium");
            return Ok(());
        };
        let folder = tempfile::tempdir()?;
        let shell = world.lab.site(Host::Cloud).command("sh");
        let mut browser = Browser::start_by(shell, &program, folder.path())?;
        for path in ["", "node/edge-1"] {
            for (width, scheme) in [(1440, "light"), (390, "dark")] {
                let view = View {
                    width,
                    height: 1000,
                    scheme,
                };
                let url = format!("http://127.0.0.1:{PROXY_ADMIN}{FOLDER}{path}");
                let shown = browser.show(&url, view)?;
                let at = format!("{path} {width} {scheme}");
                ensure!(shown.complaints.is_empty(), "{at}: {:?}", shown.complaints);
                ensure!(shown.overflow <= 0, "{at}: {} px too wide", shown.overflow);
                ensure!(shown.text.contains("edge-1"), "{at}: {}", shown.text);
            }
        }
        Ok(())
    });
}
