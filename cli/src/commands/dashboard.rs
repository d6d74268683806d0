//! `culvert dashboard`: pages for a browser on this host. Other users of this host cannot read
//! them, because the address has a secret in it.

use std::fs::{OpenOptions, Permissions};
use std::io::Write;
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::PathBuf;
use std::process::Stdio;
use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use culvert_daemon::{counted, serve_http};
use culvert_site::board::SharedBoard;
use culvert_site::web::Frame;
use maud::{DOCTYPE, html};
use serde::Serialize;
use tempfile::TempDir;
use tokio::net::TcpListener;
use tokio::process::Command;
use tokio::sync::Notify;

use crate::args::DashboardArgs;
use crate::board_server::router;
use crate::screen::Screen;
use crate::session::Session;
use crate::watch::watch;

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
    let url = format!("http://{}/{secret}/", listener.local_addr()?);
    let _way_in = if arguments.open {
        Some(open(&url)?)
    } else {
        None
    };
    session.print(&Address { url }, text)?;

    let session = Arc::new(session);
    let frame = Frame {
        seconds: arguments.interval.as_secs().max(1),
        asked: counted(session.hosts.cloud.len(), "host", "hosts"),
        left_out: None,
    };
    let board = SharedBoard::default();
    let pages = router(&secret, session.clone(), board.clone(), frame);
    let accept = async || listener.accept().await.map(|(connection, _)| connection);
    // Browsers ask by themselves.
    let news = Notify::new();
    tokio::select! {
        () = watch(session, arguments.interval, &board, &news) => {}
        () = serve_http(accept, pages) => {}
        interrupted = tokio::signal::ctrl_c() => interrupted.context("wait for ^C")?,
    }
    Ok(())
}

fn text(address: &Address, _screen: &Screen) -> String {
    format!("{}\nfor browsers of this host, until ^C\n", address.url)
}

/// Has the user's browser show a page, by a file that is to stay until it has.
fn open(url: &str) -> Result<WayIn> {
    let program = if cfg!(target_os = "macos") {
        "open"
    } else {
        "xdg-open"
    };
    let way_in = WayIn::to(url).context("write a file for the browser")?;
    let mut command = Command::new(program);
    command
        .arg(&way_in.file)
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    let child = command.spawn();
    drop(
        child.with_context(|| {
            format!("run {program}: without --open the address is printed alone")
        })?,
    );
    Ok(way_in)
}

/// A file of this user that leads a browser to a page. Others of this host see the words of commands:
/// the address is in none.
struct WayIn {
    file: PathBuf,
    _folder: TempDir,
}

impl WayIn {
    fn to(url: &str) -> Result<Self> {
        let mut folder = tempfile::Builder::new();
        folder.permissions(Permissions::from_mode(0o700));
        let folder = folder.prefix("culvert-").tempdir()?;
        let file = folder.path().join("dashboard.html");
        let page = html! {
            (DOCTYPE)
            meta charset="utf-8";
            meta http-equiv="refresh" content={ "0;url=" (url) };
            title { "culvert dashboard" }
            a href=(url) { "culvert dashboard" }
        };
        let mut options = OpenOptions::new();
        let mut opened = options
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(&file)?;
        opened.write_all(page.into_string().as_bytes())?;
        Ok(Self {
            file,
            _folder: folder,
        })
    }
}

#[cfg(test)]
mod tests {
    use std::fs::{metadata, read_to_string};

    use super::*;

    #[test]
    fn a_browser_finds_the_address_in_a_file_of_its_user_alone() -> Result<()> {
        let url = "http://127.0.0.1:7480/0123456789abcdef/";
        let way_in = WayIn::to(url)?;
        let folder = way_in.file.parent().context("no folder")?;
        assert_eq!(metadata(folder)?.permissions().mode() & 0o777, 0o700);
        assert_eq!(metadata(&way_in.file)?.permissions().mode() & 0o777, 0o600);
        let page = read_to_string(&way_in.file)?;
        assert!(page.contains(&format!("content=\"0;url={url}\"")), "{page}");
        let file = way_in.file.clone();
        drop(way_in);
        assert!(!file.exists(), "{}", file.display());
        Ok(())
    }
}
