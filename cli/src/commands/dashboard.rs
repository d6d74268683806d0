//! `culvert dashboard`: pages for a browser on this host. Whoever else is on this host cannot read
//! them, because the address has a secret in it.

use std::net::SocketAddr;
use std::process::Stdio;
use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use culvert_daemon::{counted, serve_http};
use serde::Serialize;
use tokio::net::TcpListener;
use tokio::process::Command;
use tokio::sync::Notify;

use crate::args::DashboardArgs;
use crate::board::SharedBoard;
use crate::board_server::router;
use crate::screen::Screen;
use crate::session::Session;
use crate::web::Frame;

/// What is printed.
#[derive(Debug, Serialize)]
struct Address {
    url: String,
}

/// Serves pages until it is interrupted.
///
/// # Errors
/// The address is not of this host alone, or taken.
pub(super) async fn run(session: Session, arguments: &DashboardArgs) -> Result<()> {
    let listen = arguments.listen;
    ensure!(
        listen.ip().is_loopback(),
        "--listen {listen}: only an address of loopback, such as 127.0.0.1:7480; from another host \
         forward a port to it (`ssh -L 7480:127.0.0.1:7480`)"
    );
    let listener = TcpListener::bind(listen).await;
    let listener = listener.with_context(|| format!("listen on {listen}"))?;
    // In the address rather than in a cookie: it needs no state, and no page leads elsewhere.
    let secret = format!("{:032x}", rand::random::<u128>());
    announce(&session, listener.local_addr()?, &secret, arguments)?;

    let session = Arc::new(session);
    let frame = Frame {
        seconds: arguments.interval.as_secs().max(1),
        asked: counted(session.places.cloud.len(), "host", "hosts"),
    };
    let board = SharedBoard::default();
    let pages = router(&secret, session.clone(), board.clone(), frame);
    let accept = async || listener.accept().await.map(|(connection, _)| connection);
    // Browsers ask by themselves.
    let news = Notify::new();
    tokio::select! {
        () = board.watch(session, arguments.interval, &news) => {}
        () = serve_http(accept, pages) => {}
        interrupted = tokio::signal::ctrl_c() => interrupted.context("wait for ^C")?,
    }
    Ok(())
}

/// Prints where the pages are, and shows them.
fn announce(
    session: &Session,
    address: SocketAddr,
    secret: &str,
    arguments: &DashboardArgs,
) -> Result<()> {
    let url = format!("http://{address}/{secret}/");
    if arguments.open {
        open(&url)?;
    }
    session.print(&Address { url }, text)
}

fn text(address: &Address, _screen: &Screen) -> String {
    format!("{}\nfor browsers of this host, until ^C\n", address.url)
}

/// Has the user's browser show a page.
fn open(url: &str) -> Result<()> {
    let program = if cfg!(target_os = "macos") {
        "open"
    } else {
        "xdg-open"
    };
    let mut command = Command::new(program);
    let silent = command.arg(url).stdout(Stdio::null()).stderr(Stdio::null());
    let child = silent.spawn();
    child
        .map(drop)
        .with_context(|| format!("run {program}: without --open the address is printed alone"))
}
