//! The map: proxies in the middle, nodes around them, a line for each proxy at which a node has
//! tunnels. Of thousands of nodes each is a dot, and all dots of a state are one shape.

use std::collections::HashMap;
use std::f32::consts::PI;
use std::fmt::Write;

use maud::{Markup, html};

use super::format::{class, path_segment, round_trip};
use super::polar::{MAX_NAMES, MIDDLE, Places, Point};
use crate::node::Node;
use crate::site::Site;
use crate::summary::Proxy;
use crate::verdict::{self, Verdict};

/// The most nodes that are links and have lines.
const MAX_LINKS: usize = 400;
/// Characters of a name beside its dot.
const NAME_WIDTH: usize = 13;

/// A node in the order of the figure.
struct Placed<'a> {
    node: &'a Node,
    point: Point,
}

/// Draws it.
pub(super) fn figure(site: &Site) -> Markup {
    let mut hosts = HashMap::new();
    for (index, proxy) in site.status.proxies.iter().enumerate() {
        hosts.insert(proxy.host.as_str(), index);
    }
    let mut nodes: Vec<&Node> = site.nodes.iter().collect();
    nodes.sort_by_key(|node| home(node, &hosts));
    let counts = node_counts(&nodes, &hosts, site.status.proxies.len());
    let places = Places::of(&counts, nodes.len());
    let mut placed = Vec::new();
    for (node, point) in nodes.iter().zip(&places.nodes) {
        placed.push(Placed {
            node,
            point: *point,
        });
    }
    html! {
        svg .map viewBox="0 0 440 440" role="img" aria-label="proxies and their nodes" {
            @if placed.len() <= MAX_LINKS {
                (lines(&placed, &places, &hosts))
                @for node in &placed { (dot(node, places.dot, placed.len())) }
            } @else {
                (crowd(&placed, places.dot))
            }
            @for (proxy, point) in site.status.proxies.iter().zip(&places.proxies) {
                (proxy_mark(proxy, point))
            }
        }
    }
}

/// The number of nodes of each proxy.
fn node_counts(nodes: &[&Node], hosts: &HashMap<&str, usize>, proxies: usize) -> Vec<usize> {
    let mut counts = vec![0; proxies];
    for node in nodes {
        if let Some(count) = counts.get_mut(home(node, hosts)) {
            *count += 1;
        }
    }
    counts
}

/// The proxy at which a node is drawn: the first where it has tunnels.
fn home(node: &Node, hosts: &HashMap<&str, usize>) -> usize {
    let mut home = usize::MAX;
    for proxy in &node.proxies {
        if let Some(index) = hosts.get(proxy.as_str()) {
            home = home.min(*index);
        }
    }
    home
}

fn lines(placed: &[Placed<'_>], places: &Places, hosts: &HashMap<&str, usize>) -> Markup {
    let mut path = String::new();
    for Placed { node, point } in placed {
        for proxy in &node.proxies {
            let Some(index) = hosts.get(proxy.as_str()) else {
                continue;
            };
            let from = &places.proxies[*index];
            let bend = bend(point);
            // Writing to a string cannot fail.
            let _written = write!(
                path,
                "M{:.0} {:.0}Q{:.0} {:.0} {:.0} {:.0}",
                from.x, from.y, bend.0, bend.1, point.x, point.y
            );
        }
    }
    html! { path .ways d=(path) {} }
}

/// Half way out, so that lines of neighbours run side by side.
fn bend(point: &Point) -> (f32, f32) {
    (
        MIDDLE + (point.x - MIDDLE) * 0.62,
        MIDDLE + (point.y - MIDDLE) * 0.62,
    )
}

fn dot(placed: &Placed<'_>, radius: f32, count: usize) -> Markup {
    let Placed { node, point } = placed;
    html! {
        a href={ "node/" (path_segment(&node.node)) } {
            title { (about(node)) }
            circle .dot.(class(verdict::of_node(node)))
                cx=(format!("{:.1}", point.x)) cy=(format!("{:.1}", point.y)) r=(radius) {}
            @if count <= MAX_NAMES { (name(node, point)) }
        }
    }
}

fn about(node: &Node) -> String {
    if !node.online {
        return format!("{}: offline", node.node);
    }
    let round_trip = round_trip(node.round_trip_ms);
    format!(
        "{}: {round_trip}, at {}",
        node.node,
        node.proxies.join(", ")
    )
}

/// The node's name, away from the middle and never upside down.
fn name(node: &Node, point: &Point) -> Markup {
    let is_left = point.angle > PI / 2.0;
    let degrees = point.angle.to_degrees() + if is_left { 180.0 } else { 0.0 };
    let anchor = if is_left { "end" } else { "start" };
    let shift = if is_left { -11 } else { 11 };
    let turn = format!(
        "translate({:.1} {:.1}) rotate({degrees:.1})",
        point.x, point.y
    );
    html! {
        text transform=(turn) x=(shift) dy="0.35em" text-anchor=(anchor) {
            (shortened(&node.node))
        }
    }
}

fn shortened(name: &str) -> String {
    if name.chars().count() <= NAME_WIDTH {
        return name.to_owned();
    }
    let mut short: String = name.chars().take(NAME_WIDTH - 1).collect();
    short.push('…');
    short
}

/// All nodes of a state are one path of dots.
fn crowd(placed: &[Placed<'_>], radius: f32) -> Markup {
    let states = [Verdict::Ok, Verdict::Warning, Verdict::Failure];
    let mut shapes = Vec::new();
    for state in states {
        let mut path = String::new();
        for Placed { node, point } in placed {
            if verdict::of_node(node) == state {
                let _written = write!(path, "M{:.1} {:.1}h0", point.x, point.y);
            }
        }
        shapes.push((class(state), path));
    }
    html! {
        @for (state, path) in &shapes {
            path .crowd.(state) d=(path) stroke-width=(format!("{:.2}", radius * 2.0)) {}
        }
    }
}

fn proxy_mark(proxy: &Proxy, point: &Point) -> Markup {
    html! {
        g .proxy.(class(proxy.verdict)) transform=(format!("translate({:.1} {:.1})", point.x, point.y)) {
            title { (proxy.host) ": " (proxy.state) }
            circle r="17" {}
            text .number text-anchor="middle" dy="0.35em" { (rounded(proxy.nodes)) }
            text .host text-anchor="middle" y="30" { (shortened(&proxy.host)) }
        }
    }
}

/// `940` or `6.2k`, for a small circle.
fn rounded(count: u32) -> String {
    match count {
        0..1_000 => count.to_string(),
        1_000..10_000 => format!("{:.1}k", f64::from(count) / 1e3),
        _ => format!("{:.0}k", f64::from(count) / 1e3),
    }
}
