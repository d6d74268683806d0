//! The table of nodes: a page of it, with its filter.

use maud::{Markup, html};

use super::format::{class, path_segment, round_trip};
use super::query::{PageQuery, ROWS};
use super::sparkline::sparkline;
use crate::history::History;
use crate::node::Node;
use crate::node_choice::{Sort, State};
use crate::site::Site;
use crate::verdict;

/// The filter, the rows and the way to other pages.
pub(super) fn node_table(site: &Site, history: &History, query: &PageQuery) -> Markup {
    let chosen = query.choose(&site.nodes);
    let range = query.range(chosen.len());
    html! {
        section .card #nodes {
            div .head {
                h2 { "Nodes" }
                (filter(query))
            }
            @if chosen.is_empty() {
                p .none { "no node is like that" }
            } @else {
                table {
                    thead { tr {
                        th { "node" } th { "round trip" } th .wide { "tunnels" }
                        th .number { "streams" } th .wide { "proxies" } th .wide { "addresses" }
                        th .wide { "version" }
                    } }
                    tbody { @for node in &chosen[range.clone()] { (row(node, history)) } }
                }
            }
            @if chosen.len() > ROWS {
                (pages(query, chosen.len(), range.start / ROWS + 1))
            }
        }
    }
}

fn filter(query: &PageQuery) -> Markup {
    html! {
        form .filter method="get" action="#nodes" {
            input type="search" name="find" value=(query.find) placeholder="name, address, proxy"
                aria-label="find" size="16" maxlength="80";
            select name="state" aria-label="state" {
                @for (state, word, text) in State::ALL {
                    option value=(word) selected[state == query.state] { (text) }
                }
            }
            select name="sort" aria-label="order" {
                @for (sort, word, text) in Sort::ALL {
                    option value=(word) selected[sort == query.sort] { (text) }
                }
            }
            button { "Show" }
        }
    }
}

fn row(node: &Node, history: &History) -> Markup {
    html! {
        tr {
            td {
                span .state.(class(verdict::of_node(node))) {}
                a href={ "node/" (path_segment(&node.node)) } { (node.node) }
            }
            td .trend {
                @if node.online {
                    @if let Some(samples) = history.round_trips(&node.node) { (sparkline(samples)) }
                    span { (round_trip(node.round_trip_ms)) }
                } @else {
                    span .failure { "offline" }
                }
            }
            td .wide { (node.tunnels) }
            td .number { (node.streams) }
            td .wide { (node.proxies.join(", ")) }
            td .wide { (addresses(node)) }
            td .wide { (node.versions.join(", ")) }
        }
    }
}

fn addresses(node: &Node) -> Markup {
    html! {
        @for (index, own) in node.addresses.iter().enumerate() {
            @if index > 0 { ", " }
            @if own.problem.is_empty() { (own.address) } @else {
                span .warning title=(own.problem) { (own.address) " *" }
            }
        }
    }
}

fn pages(query: &PageQuery, rows: usize, page: usize) -> Markup {
    let last = rows.div_ceil(ROWS);
    html! {
        nav .pages {
            @if page > 1 { a href=(query.address(page - 1)) rel="prev" { "← before" } }
            span { "page " (page) " of " (last) ", " (rows) " nodes" }
            @if page < last { a href=(query.address(page + 1)) rel="next" { "after →" } }
        }
    }
}
