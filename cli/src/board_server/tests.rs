use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use culvert_daemon::serve_http;
use culvert_lab::browser::{Browser, View};
use culvert_lab::{skip, workspace};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Runtime;

use super::*;
use crate::args::Output;
use crate::board::Board;
use crate::hosts::Hosts;
use crate::screen::Screen;
use crate::testing::{node_name, site, watched_site};
use crate::web::Frame;

const SECRET: &str = "0123456789abcdef";
/// Wide enough for all columns, a tablet, a telephone.
const WIDTHS: [u32; 3] = [1440, 820, 390];

#[test]
fn a_name_that_leads_here_is_no_name_of_this_host() {
    for host in [
        "127.0.0.1",
        "127.0.0.1:7480",
        "127.3.2.1:80",
        "localhost:9",
        "[::1]:7480",
    ] {
        assert!(is_this_host(host.as_bytes()), "{host}");
    }
    for host in [
        "",
        "rebound.example:7480",
        "10.0.0.2:7480",
        "localhost.example",
        "127.0.0.1.example",
        "127.0.0.1@rebound.example",
        "[fd00::1]:7480",
    ] {
        assert!(!is_this_host(host.as_bytes()), "{host}");
    }
}

/// The pages of a site, and where they are served until the runtime ends.
fn serve(runtime: &Runtime, board: Board) -> Result<SocketAddr> {
    let shared = SharedBoard::default();
    *shared.lock() = board;
    serve_shared(runtime, shared, 5)
}

fn serve_shared(runtime: &Runtime, board: SharedBoard, seconds: u64) -> Result<SocketAddr> {
    let session = Session {
        hosts: Hosts {
            cloud: Vec::new(),
            edge: Vec::new(),
        },
        timeout: Duration::from_secs(1),
        output: Output::Text,
        screen: Screen::file(),
    };
    let frame = Frame {
        seconds,
        asked: "3 hosts".to_owned(),
    };
    let pages = router(SECRET, Arc::new(session), board, frame);
    let listener = runtime.block_on(TcpListener::bind("127.0.0.1:0"))?;
    let address = listener.local_addr()?;
    runtime.spawn(async move {
        let accept = async || listener.accept().await.map(|(stream, _)| stream);
        serve_http(accept, pages).await;
    });
    Ok(address)
}

/// The board of so many nodes, with what was seen before.
fn board(nodes: usize) -> Board {
    let (site, history) = watched_site(nodes);
    Board {
        site: Some(site),
        history,
    }
}

async fn ask(address: SocketAddr, path: &str, host: &str) -> Result<String> {
    let mut stream = TcpStream::connect(address).await?;
    let request = format!("GET {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await?;
    Ok(answer)
}

#[test]
fn a_foreign_name_is_refused_and_nothing_is_found_without_the_secret() -> Result<()> {
    let runtime = Runtime::new()?;
    let address = serve(&runtime, board(20))?;
    let node = node_name(0);
    for (path, host, status) in [
        (format!("/{SECRET}/"), "localhost:1", 200),
        (
            format!("/{SECRET}/?find=edge-1&sort=far&page=9"),
            "127.0.0.1",
            200,
        ),
        (format!("/{SECRET}/?page=none"), "127.0.0.1", 200),
        (format!("/{SECRET}/node/{node}"), "127.0.0.1", 200),
        (format!("/{SECRET}/node/none"), "127.0.0.1", 404),
        (format!("/{SECRET}/style.css"), "127.0.0.1", 200),
        (format!("/{SECRET}/"), "rebound.example", 403),
        (format!("/{SECRET}/style.css"), "rebound.example", 403),
        ("/".to_owned(), "127.0.0.1", 404),
        (format!("/node/{node}"), "127.0.0.1", 404),
    ] {
        let answer = runtime.block_on(ask(address, &path, host))?;
        ensure!(
            answer.starts_with(&format!("HTTP/1.1 {status} ")),
            "{path} of {host}: {answer:.400}"
        );
        ensure!(
            answer.contains("content-security-policy: default-src 'none'")
                && answer.contains("cache-control: no-store"),
            "{path}: {answer:.900}"
        );
    }
    Ok(())
}

#[test]
fn before_the_first_answer_the_page_says_what_it_waits_for() -> Result<()> {
    let runtime = Runtime::new()?;
    let address = serve(&runtime, Board::default())?;
    let answer = runtime.block_on(ask(address, &format!("/{SECRET}/"), "localhost"))?;
    ensure!(answer.contains(WAITS), "{answer}");
    Ok(())
}

/// A picture of every page in every width and colour is in `target/pictures`. Those that the documents
/// show are not compared: fonts differ.
#[test]
fn pages_fit_into_every_window_in_both_colours_and_the_browser_has_no_complaint() -> Result<()> {
    let Some(program) = Browser::find() else {
        skip::skip("there is no chromium");
        return Ok(());
    };
    let folder = tempfile::tempdir()?;
    let pictures = workspace::target_dir().join("pictures");
    std::fs::create_dir_all(&pictures)?;
    let runtime = Runtime::new()?;
    let mut browser = Browser::start(&program, folder.path())?;
    for (name, nodes, path) in [
        ("site", 26, String::new()),
        ("many", 10_000, String::new()),
        ("empty", 0, String::new()),
        ("node", 26, format!("node/{}", node_name(8))),
    ] {
        let address = serve(&runtime, board(nodes))?;
        let url = format!("http://{address}/{SECRET}/{path}");
        look_at(&mut browser, &url, name, &pictures)?;
    }
    Ok(())
}

fn look_at(browser: &mut Browser, url: &str, name: &str, pictures: &Path) -> Result<()> {
    for width in WIDTHS {
        for scheme in ["light", "dark"] {
            let view = View {
                width,
                height: if width == 1440 { 1120 } else { 1500 },
                scheme,
            };
            let shown = browser.show(url, view)?;
            let at = format!("{name}-{width}-{scheme}");
            std::fs::write(pictures.join(format!("{at}.png")), &shown.picture)?;
            ensure!(shown.complaints.is_empty(), "{at}: {:?}", shown.complaints);
            ensure!(shown.overflow <= 0, "{at}: {} px too wide", shown.overflow);
            ensure!(shown.text.contains("Culvert"), "{at}: {}", shown.text);
        }
    }
    Ok(())
}

#[test]
fn a_page_renews_itself_with_and_without_scripts() -> Result<()> {
    let Some(program) = Browser::find() else {
        skip::skip("there is no chromium");
        return Ok(());
    };
    let folder = tempfile::tempdir()?;
    let runtime = Runtime::new()?;
    let mut browser = Browser::start(&program, folder.path())?;
    let shared = SharedBoard::default();
    *shared.lock() = board(3);
    let address = serve_shared(&runtime, shared.clone(), 1)?;
    let url = format!("http://{address}/{SECRET}/");
    let view = View {
        width: 1000,
        height: 800,
        scheme: "light",
    };
    for nodes in [30, 31] {
        browser.show(&url, view)?;
        shared.lock().site = Some(site(nodes));
        let wanted = node_name(nodes - 1);
        culvert_lab::wait::until(
            "the page has the new node",
            culvert_lab::wait::PATIENCE,
            || {
                let text = browser.evaluate("document.body.innerText")?;
                let text = text.as_str().context("no text")?;
                ensure!(text.contains(&wanted), "{text}");
                Ok(())
            },
        )?;
        browser.disable_scripts()?;
    }
    Ok(())
}
