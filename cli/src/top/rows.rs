//! The rows of a table: what is chosen, in its order. Pure.

use std::cmp::Reverse;

use bytesize::ByteSize;
use culvert_site::history::History;
use culvert_site::node::Node;
use culvert_site::node_choice::{Sort, State, choose};
use culvert_site::samples::Samples;
use culvert_site::site::Site;
use culvert_site::stream::Stream;
use culvert_site::summary::Proxy;
use culvert_site::units::{bytes_per_second, milliseconds, span};
use culvert_site::verdict::{self, Verdict};
use ratatui::layout::Constraint;

use super::choice::{Only, RowChoice, Tab};
use crate::screen::clean;

/// A connection without a byte for so long is idle.
const IDLE_SECONDS: u64 = 10;
/// Columns of a line of bars.
const BARS: usize = 16;
const BAR_SIGNS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];

/// A table.
pub(super) struct Rows {
    pub(super) header: Vec<&'static str>,
    pub(super) widths: Vec<Constraint>,
    pub(super) rows: Vec<Row>,
}

/// A row of it.
#[derive(Debug)]
pub(super) struct Row {
    pub(super) verdict: Verdict,
    pub(super) cells: Vec<String>,
    /// What `why` is asked about; empty: nothing.
    pub(super) destination: String,
}

/// The rows that are wanted, in the wanted order.
pub(super) fn rows(site: &Site, history: &History, choice: &RowChoice) -> Rows {
    let mut all = match choice.tab {
        Tab::Nodes => node_rows(site, history, choice),
        Tab::Streams => stream_rows(site, history, choice),
        Tab::Proxies => proxy_rows(site, history, choice),
    };
    if !choice.filter.is_empty() {
        all.rows
            .retain(|row| row.cells.iter().any(|cell| cell.contains(&choice.filter)));
    }
    all
}

fn node_rows(site: &Site, history: &History, choice: &RowChoice) -> Rows {
    let state = match choice.only {
        Only::All => State::All,
        Only::Idle => State::Wrong,
    };
    let mut rows = Vec::new();
    for node in choose(&site.nodes, "", state, choice.sort) {
        rows.push(node_row(node, history));
    }
    Rows {
        header: vec!["NODE", "RTT", "", "TUNNELS", "STREAMS", "PROXIES"],
        widths: vec![
            Constraint::Fill(2),
            Constraint::Length(8),
            Constraint::Length(16),
            Constraint::Length(7),
            Constraint::Length(7),
            Constraint::Fill(3),
        ],
        rows,
    }
}

fn node_row(node: &Node, history: &History) -> Row {
    let round_trip = match node.round_trip_ms {
        _ if !node.online => "offline".to_owned(),
        Some(ms) => milliseconds(ms),
        None => "-".to_owned(),
    };
    let trend = history.round_trips(&node.node).map(bars);
    Row {
        verdict: verdict::of_node(node),
        cells: cleaned([
            node.node.clone(),
            round_trip,
            trend.unwrap_or_default(),
            node.tunnels.to_string(),
            node.streams.to_string(),
            node.proxies.join(", "),
        ]),
        destination: node.node.clone(),
    }
}

fn stream_rows(site: &Site, history: &History, choice: &RowChoice) -> Rows {
    let mut streams: Vec<&Stream> = site.streams.iter().collect();
    if choice.only == Only::Idle {
        streams.retain(|stream| stream.idle_seconds >= IDLE_SECONDS);
    }
    match choice.sort {
        Sort::Worst => {}
        Sort::Name => streams.sort_by(|one, other| one.destination.cmp(&other.destination)),
        Sort::Far => streams.sort_by_key(|stream| Reverse(stream.age_seconds)),
        Sort::Busy => streams.sort_by(|one, other| {
            let [one, other] = [one, other].map(|stream| rate(stream, history));
            other.total_cmp(&one)
        }),
    }
    let rows = streams
        .into_iter()
        .map(|stream| stream_row(stream, history));
    Rows {
        header: vec!["CONNECTION", "NODE", "RATE", "GOT", "IDLE", "AGE"],
        widths: vec![
            Constraint::Fill(4),
            Constraint::Fill(2),
            Constraint::Length(11),
            Constraint::Length(9),
            Constraint::Length(7),
            Constraint::Length(7),
        ],
        rows: rows.collect(),
    }
}

fn rate(stream: &Stream, history: &History) -> f64 {
    history.stream_rate(&stream.proxy, stream.stream).bytes()
}

fn stream_row(stream: &Stream, history: &History) -> Row {
    let waits = stream.waits.then_some(stream.idle_seconds);
    let idle = if stream.waits { " !" } else { "" };
    Row {
        verdict: verdict::of_wait(waits),
        cells: cleaned([
            format!("{} > {}", stream.client, stream.destination),
            stream.node.clone(),
            per_second(rate(stream, history)),
            ByteSize(stream.bytes_to_client).to_string(),
            format!("{}{idle}", span(stream.idle_seconds)),
            span(stream.age_seconds),
        ]),
        destination: stream.destination.clone(),
    }
}

fn proxy_rows(site: &Site, history: &History, choice: &RowChoice) -> Rows {
    let mut rows = Vec::new();
    for proxy in &site.status.proxies {
        if choice.only == Only::All || proxy.verdict != Verdict::Ok {
            rows.push(proxy_row(proxy, history));
        }
    }
    Rows {
        header: vec![
            "PROXY", "STATE", "NODES", "TUNNELS", "STREAMS", "PAYLOAD", "", "ENDED",
        ],
        widths: vec![
            Constraint::Fill(2),
            Constraint::Fill(2),
            Constraint::Length(6),
            Constraint::Length(7),
            Constraint::Length(7),
            Constraint::Length(11),
            Constraint::Length(16),
            Constraint::Length(7),
        ],
        rows,
    }
}

fn proxy_row(proxy: &Proxy, history: &History) -> Row {
    let known = history.proxy(&proxy.host);
    let rate = known.map(|(rate, _)| rate).unwrap_or_default();
    let trend = known.map(|(_, samples)| bars(samples));
    let state = proxy
        .error
        .clone()
        .unwrap_or_else(|| proxy.state.to_owned());
    Row {
        verdict: proxy.verdict,
        cells: cleaned([
            proxy.host.clone(),
            state,
            proxy.nodes.to_string(),
            proxy.tunnels.to_string(),
            proxy.streams.to_string(),
            per_second(rate.bytes()),
            trend.unwrap_or_default(),
            format!("{:.1}/s", rate.ended),
        ]),
        destination: String::new(),
    }
}

fn cleaned<const N: usize>(cells: [String; N]) -> Vec<String> {
    let mut clean_cells = Vec::new();
    for cell in cells {
        clean_cells.push(clean(&cell));
    }
    clean_cells
}

/// `1.5 MiB/s`, or a dash.
pub(super) fn per_second(rate: f64) -> String {
    bytes_per_second(rate).unwrap_or_else(|| "-".to_owned())
}

/// The last values as a line of bars, from 0 to the largest of them.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a part of 1 times 7"
)]
fn bars(samples: &Samples) -> String {
    let most = samples.most();
    let skipped = samples.values().len().saturating_sub(BARS);
    let mut line = String::new();
    for value in samples.values().skip(skipped) {
        let sign = match value {
            Some(value) if most > 0.0 => BAR_SIGNS[(value / most * 7.0).round() as usize % 8],
            Some(_) => BAR_SIGNS[0],
            None => ' ',
        };
        line.push(sign);
    }
    line
}
