//! What the reader has chosen. Pure.

use culvert_api::proto::control as proto;
use culvert_site::board::Board;
use culvert_site::host_path::HostPath;
use culvert_site::node_choice::Sort;
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use ratatui::widgets::TableState;

use super::choice::{Only, RowChoice, Tab};
use super::rows::{Row, rows};

/// Rows that a page key moves by.
const PAGE: u16 = 20;
/// Characters of a filter.
const MAX_FILTER: usize = 60;

/// What is laid over the table.
#[derive(Debug, Default)]
pub(crate) enum Overlay {
    #[default]
    Nothing,
    /// All hosts are asked about this destination.
    Asking(String),
    /// What they say.
    Ways(String, Vec<HostPath>),
}

/// What a key asks for.
#[derive(Debug, PartialEq)]
pub(crate) enum Action {
    Nothing,
    Quit,
    /// Why a connection comes through, or not.
    Explain(proto::ExplainRequest),
}

/// What the reader has chosen.
#[derive(Debug, Default)]
pub(crate) struct TopView {
    pub(crate) choice: RowChoice,
    /// Whether keys go to the filter.
    pub(crate) is_filtering: bool,
    pub(crate) overlay: Overlay,
    pub(crate) table: TableState,
}

impl TopView {
    /// Answers to a key.
    #[expect(
        clippy::wildcard_enum_match_arm,
        reason = "a terminal has many keys, and most mean nothing here"
    )]
    pub(crate) fn press(&mut self, key: KeyEvent, board: &Board) -> Action {
        if key.modifiers.contains(KeyModifiers::CONTROL) && key.code == KeyCode::Char('c') {
            return Action::Quit;
        }
        if self.is_filtering {
            self.edit_filter(key.code);
            return Action::Nothing;
        }
        if !matches!(self.overlay, Overlay::Nothing) {
            // Any key takes it away.
            self.overlay = Overlay::Nothing;
            return Action::Nothing;
        }
        match key.code {
            KeyCode::Char('q') | KeyCode::Esc => return Action::Quit,
            KeyCode::Enter => return self.explain(board),
            KeyCode::Char('/') => self.is_filtering = true,
            KeyCode::Char('s') => self.choice.sort = next_sort(self.choice.sort),
            KeyCode::Char('i') => {
                self.choice.only = match self.choice.only {
                    Only::All => Only::Idle,
                    Only::Idle => Only::All,
                };
            }
            KeyCode::Tab => self.choice.tab = next_tab(self.choice.tab),
            KeyCode::Char(key @ '1'..='3') => self.choose_tab(key),
            code => self.move_to(code),
        }
        Action::Nothing
    }

    fn choose_tab(&mut self, wanted: char) {
        for (tab, key, _) in Tab::ALL {
            if key == wanted && tab != self.choice.tab {
                self.choice.tab = tab;
                self.table = TableState::default();
            }
        }
    }

    #[expect(
        clippy::wildcard_enum_match_arm,
        reason = "a terminal has many keys, and most mean nothing here"
    )]
    fn move_to(&mut self, code: KeyCode) {
        match code {
            KeyCode::Down | KeyCode::Char('j') => self.table.select_next(),
            KeyCode::Up | KeyCode::Char('k') => self.table.select_previous(),
            KeyCode::PageDown => self.table.scroll_down_by(PAGE),
            KeyCode::PageUp => self.table.scroll_up_by(PAGE),
            KeyCode::Home => self.table.select_first(),
            KeyCode::End => self.table.select_last(),
            _ => {}
        }
    }

    #[expect(
        clippy::wildcard_enum_match_arm,
        reason = "a terminal has many keys, and most mean nothing here"
    )]
    fn edit_filter(&mut self, code: KeyCode) {
        match code {
            KeyCode::Esc => {
                self.choice.filter.clear();
                self.is_filtering = false;
            }
            KeyCode::Enter => self.is_filtering = false,
            KeyCode::Backspace => drop(self.choice.filter.pop()),
            KeyCode::Char(letter) if self.choice.filter.len() < MAX_FILTER => {
                self.choice.filter.push(letter)
            }
            _ => {}
        }
        self.table = TableState::default();
    }

    /// Asks about the chosen row; the first one if none is chosen.
    fn explain(&mut self, board: &Board) -> Action {
        let Some(site) = &board.site else {
            return Action::Nothing;
        };
        let all = rows(site, &board.history, &self.choice);
        let chosen = self.table.selected().unwrap_or(0);
        let Some(Row { destination, .. }) = all.rows.into_iter().nth(chosen) else {
            return Action::Nothing;
        };
        if destination.is_empty() {
            return Action::Nothing;
        }
        self.overlay = Overlay::Asking(destination.clone());
        Action::Explain(proto::ExplainRequest {
            // A connection that runs is not dialled once more.
            dial: false,
            destination,
        })
    }
}

fn next_sort(sort: Sort) -> Sort {
    match sort {
        Sort::Worst => Sort::Name,
        Sort::Name => Sort::Far,
        Sort::Far => Sort::Busy,
        Sort::Busy => Sort::Worst,
    }
}

fn next_tab(tab: Tab) -> Tab {
    match tab {
        Tab::Nodes => Tab::Streams,
        Tab::Streams => Tab::Proxies,
        Tab::Proxies => Tab::Nodes,
    }
}
