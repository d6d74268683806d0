use std::net::SocketAddr;
use std::path::Path as FilePath;

use anyhow::{Context, Result, ensure};
use culvert_lab::browser::{Browser, View};
use culvert_lab::{skip, wait, workspace};
use tokio::runtime::Runtime;

use super::*;
use crate::testing::{self, board, node_name, site};

/// Wide enough for all columns, a tablet, a telephone.
const WIDTHS: [u32; 3] = [1440, 820, 390];

/// Its board is there.
struct Still;

impl Source for Still {
    async fn refresh(&self) {}

    async fn ways(&self, _node: &str) -> Vec<HostPath> {
        Vec::new()
    }
}

/// Pages of a board, and where they are served until the runtime ends.
fn serve(runtime: &Runtime, board: SharedBoard, seconds: u64) -> Result<SocketAddr> {
    let frame = Frame {
        seconds,
        asked: "3 hosts".to_owned(),
        left_out: None,
    };
    Ok(testing::serve(runtime, pages(Still, board, frame))?)
}

#[test]
fn before_the_first_answer_the_page_says_what_it_waits_for() {
    let server = Server {
        source: Still,
        board: SharedBoard::default(),
        frame: Frame {
            seconds: 5,
            asked: "3 hosts".to_owned(),
            left_out: None,
        },
        maker: Arc::new(Semaphore::new(MADE_AT_ONCE)),
    };
    assert!(server.site_page(&PageQuery::default()).contains(WAITS));
}

/// A picture of every page in every width and colour is in `target/pictures`. Those that the documents
/// show are compared by nobody: fonts differ.
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
        let shared = SharedBoard::default();
        *shared.lock() = board(nodes);
        let address = serve(&runtime, shared, 5)?;
        let url = format!("http://{address}/{path}");
        look_at(&mut browser, &url, name, &pictures)?;
    }
    Ok(())
}

fn look_at(browser: &mut Browser, url: &str, name: &str, pictures: &FilePath) -> Result<()> {
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
    let address = serve(&runtime, shared.clone(), 1)?;
    let url = format!("http://{address}/");
    let view = View {
        width: 1000,
        height: 800,
        scheme: "light",
    };
    for nodes in [30, 31] {
        browser.show(&url, view)?;
        shared.lock().site = Some(site(nodes));
        let wanted = node_name(nodes - 1);
        wait::until("the page has the new node", wait::PATIENCE, || {
            let text = browser.evaluate("document.body.innerText")?;
            let text = text.as_str().context("no text")?;
            ensure!(text.contains(&wanted), "{text}");
            Ok(())
        })?;
        browser.disable_scripts()?;
    }
    Ok(())
}
