//! Tables that several pages have: problems, connections, failures.

use bytesize::ByteSize;
use maud::{Markup, html};

use super::format::{class, path_segment};
use super::layout::Frame;
use crate::event::Event;
use crate::history::History;
use crate::stream::Stream;
use crate::units::{bytes_per_second, span, time_of_day};
use crate::verdict::{self, Problem};

/// Each with its fix.
pub(super) fn problems(problems: &[Problem]) -> Markup {
    html! {
        ul .problems {
            @for problem in problems {
                li .(class(problem.verdict)) {
                    strong { (problem.subject) } " " (problem.found)
                    p .fix { (commands(&problem.fix)) }
                }
            }
        }
    }
}

/// A text with commands in backquotes.
pub(super) fn commands(text: &str) -> Markup {
    html! {
        @for (index, part) in text.split('`').enumerate() {
            @if index % 2 == 1 { code { (part) } } @else { (part) }
        }
    }
}

/// Connections under way. `root` leads to the folder of the first page.
pub(super) fn streams(streams: &[&Stream], history: &History, root: &str) -> Markup {
    html! {
        table {
            thead { tr {
                th { "connection" } th { "node" } th .wide { "by" } th .number { "age" }
                th .number { "idle" } th .number.wide { "sent" } th .number.wide { "got" }
                th .number { "rate" }
            } }
            tbody { @for stream in streams { (stream_row(stream, history, root)) } }
        }
    }
}

fn stream_row(stream: &Stream, history: &History, root: &str) -> Markup {
    let waits = stream.waits.then_some(stream.idle_seconds);
    let rate = history.stream_rate(&stream.proxy, stream.stream);
    html! {
        tr {
            td {
                span .state.(class(verdict::of_wait(waits))) {}
                (stream.client) " → " (stream.destination)
                @if stream.waits { span .waits { " waits for its backend" } }
            }
            td { (node_link(&stream.node, root)) }
            td .wide { (stream.proxy) }
            td .number { (span(stream.age_seconds)) }
            td .number { (span(stream.idle_seconds)) }
            td .number.wide { (bytes(stream.bytes_to_backend)) }
            td .number.wide { (bytes(stream.bytes_to_client)) }
            td .number { (per_second(rate.bytes())) }
        }
    }
}

/// Connections that failed, with what to do.
pub(super) fn failures(failures: &[&Event], frame: &Frame, root: &str) -> Markup {
    html! {
        @if let Some(text) = frame.left_out {
            p .none { (commands(text)) }
        } @else if failures.is_empty() {
            p .none { "none that a proxy remembers" }
        }
        ul .failures {
            @for event in failures {
                li {
                    div .about {
                        time { (time_of_day(event.unix_millis / 1_000)) }
                        strong { (event.outcome) }
                        span { (event.client) " → " (event.destination) }
                        span { (node_link(&event.node, root)) }
                        span { "by " (event.proxy) }
                    }
                    p { (event.reason) }
                    p .fix { (commands(&event.fix())) }
                }
            }
        }
    }
}

fn node_link(node: &str, root: &str) -> Markup {
    html! {
        @if !node.is_empty() { a href={ (root) "node/" (path_segment(node)) } { (node) } }
    }
}

/// `1.5 MiB`.
pub(super) fn bytes(count: u64) -> String {
    ByteSize(count).to_string()
}

/// `1.5 MiB/s`, or a dash.
pub(super) fn per_second(rate: f64) -> String {
    bytes_per_second(rate).unwrap_or_else(|| "–".to_owned())
}
