//! `culvert top`: nodes, connections and proxies on a terminal, as they change.

use std::io::{IsTerminal, stdin, stdout};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use culvert_api::proto::control as proto;
use culvert_site::board::SharedBoard;
use culvert_site::host_path::HostPath;
use ratatui::DefaultTerminal;
use ratatui::crossterm::event::{self, Event, KeyEventKind};
use tokio::sync::{Notify, mpsc};
use tokio::task::JoinSet;

use crate::args::TopArgs;
use crate::hops;
use crate::session::Session;
use crate::top::{Action, Overlay, TopView, draw};
use crate::watch::watch;

/// How soon the thread that reads keys sees that it is to end.
const KEY_PAUSE: Duration = Duration::from_millis(200);
/// Keys that wait.
const MAX_KEYS: usize = 64;

/// The terminal, which is as it was when this is dropped.
struct Shown {
    terminal: DefaultTerminal,
    view: TopView,
}

/// A destination, and what all hosts say of it.
type Explained = (String, Vec<HostPath>);

/// Shows everything until the reader leaves.
///
/// # Errors
/// There is no terminal.
pub(super) async fn run(session: Session, arguments: &TopArgs) -> Result<()> {
    ensure!(
        stdout().is_terminal() && stdin().is_terminal(),
        "top is for a terminal: `culvert nodes` and `culvert streams` print the same, and take \
         -o json"
    );
    let session = Arc::new(session);
    let board = SharedBoard::default();
    let news = Notify::new();
    let mut keys_rx = keys();
    let mut asked = JoinSet::new();
    let mut shown = Shown {
        terminal: ratatui::try_init().context("use this terminal")?,
        view: TopView::default(),
    };
    let watching = watch(session.clone(), arguments.interval, &board, &news);
    tokio::pin!(watching);
    loop {
        shown.draw(&board)?;
        tokio::select! {
            () = &mut watching => {}
            () = news.notified() => {}
            event = keys_rx.recv() => {
                let Some(event) = event else { break };
                match shown.handle(&event, &board) {
                    Action::Nothing => {}
                    Action::Quit => break,
                    Action::Explain(request) => {
                        asked.spawn(explain(session.clone(), request));
                    }
                }
            }
            Some(Ok((destination, ways))) = asked.join_next() => {
                shown.answer(destination, ways);
            }
        }
    }
    Ok(())
}

impl Shown {
    fn draw(&mut self, board: &SharedBoard) -> Result<()> {
        let Self { terminal, view } = self;
        let board = board.lock();
        terminal
            .draw(|frame| draw(frame, &board, view))
            .context("draw on this terminal")?;
        Ok(())
    }

    fn handle(&mut self, event: &Event, board: &SharedBoard) -> Action {
        // A new size is drawn with everything else.
        let Event::Key(key) = event else {
            return Action::Nothing;
        };
        if key.kind == KeyEventKind::Release {
            return Action::Nothing;
        }
        self.view.press(*key, &board.lock())
    }

    /// Shows the answer, if it is still waited for.
    fn answer(&mut self, destination: String, ways: Vec<HostPath>) {
        if let Overlay::Asking(waited) = &self.view.overlay
            && *waited == destination
        {
            self.view.overlay = Overlay::Ways(destination, ways);
        }
    }
}

impl Drop for Shown {
    fn drop(&mut self) {
        ratatui::restore();
    }
}

async fn explain(session: Arc<Session>, request: proto::ExplainRequest) -> Explained {
    let ways = hops::ask_all(&session, &request).await;
    (request.destination, ways)
}

/// What the terminal sends. Reading blocks, so a thread does it, until its receiver is dropped.
fn keys() -> mpsc::Receiver<Event> {
    let (key_tx, key_rx) = mpsc::channel(MAX_KEYS);
    thread::spawn(move || {
        while !key_tx.is_closed() {
            match event::poll(KEY_PAUSE) {
                Ok(true) => {}
                Ok(false) => continue,
                Err(_) => break,
            }
            let Ok(event) = event::read() else { break };
            if key_tx.blocking_send(event).is_err() {
                break;
            }
        }
    });
    key_rx
}
