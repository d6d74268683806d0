//! The first page: what is wrong, all proxies, nodes and connections.

use culvert_daemon::counted;
use maud::{Markup, html};

use super::figure::figure;
use super::format::{class, round_trip};
use super::layout::{Frame, Page, page};
use super::node_table::node_table;
use super::query::PageQuery;
use super::sparkline::sparkline;
use super::tables::{failures, per_second, problems, streams};
use crate::event::Event;
use crate::history::History;
use crate::samples::Samples;
use crate::site::Site;
use crate::stream::Stream;
use crate::summary::Proxy;
use crate::units::span;
use crate::verdict::Verdict;

/// Connections that are shown, and failures.
const MAX_STREAMS: usize = 20;
const MAX_FAILURES: usize = 4;
/// Problems that are shown.
const MAX_PROBLEMS: usize = 12;

/// Makes the page.
pub(super) fn site_page(
    site: &Site,
    history: &History,
    query: &PageQuery,
    frame: &Frame,
) -> String {
    let about = Page {
        frame,
        root: "",
        title: "Culvert",
        verdict: site.status.verdict,
        state: &state(site),
        at: site.seconds,
    };
    let content = html! {
        (numbers(site, history))
        div .columns {
            section .card.picture { h2 { "Proxies and nodes" } (figure(site)) (legend()) }
            div .column {
                (wrong(site))
                (proxies(site, history))
                (failure_section(site, frame))
            }
        }
        (node_table(site, history, query))
        (stream_section(site, history))
    };
    page(&about, &content)
}

fn state(site: &Site) -> String {
    let problems = site.status.problems.len();
    match site.status.verdict {
        Verdict::Ok => "nothing is wrong".to_owned(),
        Verdict::Warning => counted(problems, "warning", "warnings"),
        Verdict::Failure => counted(problems, "problem", "problems"),
    }
}

/// What is counted, with the last values.
fn numbers(site: &Site, history: &History) -> Markup {
    let status = &site.status;
    let all = status.nodes.online + status.nodes.offline;
    let bytes = history.bytes.newest().map_or(0.0, f64::from);
    let ended = history.ended.newest().unwrap_or(0.0);
    let ready = status.proxies.iter().filter(|proxy| proxy.error.is_none());
    html! {
        section .numbers {
            (number("nodes online", &status.nodes.online.to_string(), &format!("of {all}"), &history.online))
            (number("streams", &status.streams.running.to_string(),
                &format!("{} for an answer", counted(status.streams.waiting, "waits", "wait")), &history.running))
            (number("payload", &per_second(bytes), "both directions", &history.bytes))
            (number("streams ended", &format!("{ended:.1}/s"), "with and without failure", &history.ended))
            (number("proxies", &ready.count().to_string(),
                &format!("of {}", status.proxies.len()), &Samples::default()))
        }
    }
}

fn number(name: &str, value: &str, about: &str, samples: &Samples) -> Markup {
    html! {
        div .card.tile {
            span .name { (name) }
            span .value { (value) }
            span .about { (about) }
            (sparkline(samples))
        }
    }
}

fn legend() -> Markup {
    html! {
        p .legend {
            span { span .state.ok {} "online" }
            span { span .state.warning {} "with a remark" }
            span { span .state.failure {} "offline" }
            span { "in a proxy: its nodes" }
        }
    }
}

fn wrong(site: &Site) -> Markup {
    let all = &site.status.problems;
    let shown = &all[..all.len().min(MAX_PROBLEMS)];
    html! {
        section .card {
            h2 { "What is wrong" }
            @if all.is_empty() { p .none { "Nothing. Every host answers, and every node has a tunnel." } }
            (problems(shown))
            @if shown.len() < all.len() {
                p .none { "and " (all.len() - shown.len()) " more: " code { "culvert status" } " lists all" }
            }
        }
    }
}

fn proxies(site: &Site, history: &History) -> Markup {
    html! {
        section .card.proxies {
            h2 { "Proxies" }
            table {
                thead { tr {
                    th { "proxy" } th .number { "nodes" } th .number.wide { "tunnels" }
                    th .number.wide { "streams" } th { "payload" } th .number { "round trip" }
                    th .wide { "steers" } th .wide { "certificate" }
                } }
                tbody { @for proxy in &site.status.proxies { (proxy_row(proxy, site, history)) } }
            }
        }
    }
}

fn proxy_row(proxy: &Proxy, site: &Site, history: &History) -> Markup {
    let ends = proxy
        .certificate_ends
        .map(|ends| ends.saturating_sub(site.seconds));
    html! {
        tr {
            td { (proxy_name(proxy)) }
            @if let Some(error) = &proxy.error {
                td .failure colspan="7" { (error) }
            } @else {
                td .number { (proxy.nodes) }
                td .number.wide { (proxy.tunnels) }
                td .number.wide { (proxy.streams) }
                td .trend {
                    @if let Some((rate, samples)) = history.proxy(&proxy.host) {
                        (sparkline(samples)) span { (per_second(rate.bytes())) }
                    }
                }
                td .number { (round_trip(proxy.round_trip_ms.map(|all| all.median))) }
                td .wide { (proxy.steers) }
                td .wide { @if let Some(seconds) = ends { (span(seconds)) " left" } }
            }
        }
    }
}

fn proxy_name(proxy: &Proxy) -> Markup {
    html! {
        span .state.(class(proxy.verdict)) {} (proxy.host)
        div .about { (proxy.version) @if proxy.state != "ready" { " " (proxy.state) } }
    }
}

fn stream_section(site: &Site, history: &History) -> Markup {
    let shown: Vec<&Stream> = site.streams.iter().take(MAX_STREAMS).collect();
    let more = (site.streams.len() - shown.len()) as u64 + site.streams_left_out;
    html! {
        section .card {
            h2 { "Connections under way" }
            @if shown.is_empty() { p .none { "none" } } @else { (streams(&shown, history, "")) }
            @if more > 0 {
                p .none { "and " (more) " more: " code { "culvert streams" } " lists them" }
            }
        }
    }
}

fn failure_section(site: &Site, frame: &Frame) -> Markup {
    let shown: Vec<&Event> = site.failures.iter().take(MAX_FAILURES).collect();
    html! {
        section .card {
            h2 { "Last failures" }
            (failures(&shown, frame, ""))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{site, site_with_a_dead_host, watched_site};

    /// What a page may take.
    const MAX_BYTES: usize = 2_000_000;

    fn rendered(site: &Site, history: &History) -> String {
        let frame = Frame {
            seconds: 5,
            asked: "3 hosts".to_owned(),
            left_out: None,
        };
        site_page(site, history, &PageQuery::default(), &frame)
    }

    #[test]
    fn what_looks_like_a_script_is_text() {
        let mut site = site(20);
        let script = "<script>alert(1)</script>\"'&";
        site.nodes[1].node = script.to_owned();
        site.nodes[2].misplaced = script.to_owned();
        site.nodes[3].addresses[0].problem = script.to_owned();
        site.status.problems[0].found = script.to_owned();
        site.status.proxies[0].host = script.to_owned();
        site.streams[0].destination = script.to_owned();
        site.failures[0].reason = script.to_owned();
        site.failures[0].node = script.to_owned();
        let page = rendered(&site, &History::default());
        assert!(page.contains("&lt;script&gt;alert(1)&lt;/script&gt;"));
        assert!(!page.contains("<script>alert"));
        assert!(!page.contains("\"'&"));
    }

    #[test]
    fn ten_thousand_nodes_are_less_than_two_megabytes() {
        let (site, history) = watched_site(10_000);
        let page = rendered(&site, &history);
        assert!(page.len() < MAX_BYTES, "{} bytes", page.len());
        assert!(page.contains("page 1 of 100"));
    }

    #[test]
    fn a_host_that_does_not_answer_is_a_row_and_a_problem() {
        let page = rendered(&site_with_a_dead_host(20), &History::default());
        assert!(page.matches("no answer within 10 s").count() >= 2, "{page}");
        assert!(page.contains("pill failure"));
    }

    #[test]
    fn in_place_of_what_is_left_out_the_page_says_who_has_it() {
        let mut site = site(20);
        site.failures.clear();
        let frame = Frame {
            seconds: 5,
            asked: "this proxy".to_owned(),
            left_out: Some("ask `culvert`"),
        };
        let page = site_page(&site, &History::default(), &PageQuery::default(), &frame);
        assert!(page.contains("ask <code>culvert</code>"), "{page}");
        assert!(!page.contains("none that a proxy remembers"), "{page}");
    }

    #[test]
    fn no_attribute_holds_style_or_script() {
        let (site, history) = watched_site(50);
        let page = rendered(&site, &history);
        for forbidden in [" style=", " onclick=", "javascript:", "http://", "https://"] {
            assert!(!page.contains(forbidden), "{forbidden}");
        }
    }
}
