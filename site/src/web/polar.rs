//! Where proxies and nodes are in the figure: proxies in the middle, nodes in rings around them, each
//! near the proxy where it has a tunnel. Pure.

use std::f32::consts::{PI, TAU};

/// The middle of the figure, which is twice as wide and high.
pub(super) const MIDDLE: f32 = 220.0;
/// The radius at which proxies stand, if there are several.
const PROXY_RADIUS: f32 = 62.0;
/// The radius of the one ring of few nodes, which have their names outside.
const NAMED_RADIUS: f32 = 142.0;
/// The radii of the innermost and the outermost ring of many nodes.
const RINGS: [f32; 2] = [120.0, 208.0];
/// The most nodes whose names are written.
pub(super) const MAX_NAMES: usize = 40;
/// The least and the largest dot of a node.
const DOTS: [f32; 2] = [0.7, 6.0];

/// A place, in units of the picture.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Point {
    pub(super) x: f32,
    pub(super) y: f32,
    /// From the middle, in radians.
    pub(super) angle: f32,
}

/// Places of all.
#[derive(Debug)]
pub(super) struct Places {
    pub(super) proxies: Vec<Point>,
    /// In the order of the nodes.
    pub(super) nodes: Vec<Point>,
    /// The radius of a node's dot.
    pub(super) dot: f32,
}

impl Places {
    /// For proxies with so many nodes each, of which each node counts once. The nodes come in the
    /// order of their proxies, and those without one last.
    pub(super) fn of(counts: &[usize], nodes: usize) -> Self {
        let rings = Rings::of(nodes);
        Self {
            proxies: proxies(counts, nodes),
            nodes: (0..nodes).map(|index| rings.place(index)).collect(),
            dot: rings.dot,
        }
    }
}

/// How nodes are put into rings: column after column, from the inside out.
struct Rings {
    count: usize,
    columns: usize,
    radius: f32,
    step: f32,
    dot: f32,
}

impl Rings {
    #[expect(
        clippy::cast_precision_loss,
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "small numbers that are not negative"
    )]
    fn of(nodes: usize) -> Self {
        if nodes <= MAX_NAMES {
            return Self {
                count: 1,
                columns: nodes.max(1),
                radius: NAMED_RADIUS,
                step: 0.0,
                dot: DOTS[1],
            };
        }
        let [inner, outer] = RINGS;
        let area = PI * (outer * outer - inner * inner);
        let room = (area / nodes as f32).sqrt();
        let count = (((outer - inner) / room) as usize).max(1);
        let columns = nodes.div_ceil(count);
        let narrowest = TAU * inner / columns as f32;
        Self {
            count,
            columns,
            radius: inner,
            step: (outer - inner) / count as f32,
            dot: (narrowest.min(room) * 0.4).clamp(DOTS[0], DOTS[1]),
        }
    }

    #[expect(clippy::cast_precision_loss, reason = "small numbers")]
    fn place(&self, index: usize) -> Point {
        let column = index / self.count;
        let ring = index % self.count;
        let angle = angle(column as f32 + 0.5, self.columns);
        at(angle, self.radius + self.step * (ring as f32 + 0.5))
    }
}

/// Each in the middle of its nodes.
#[expect(clippy::cast_precision_loss, reason = "small numbers")]
fn proxies(counts: &[usize], nodes: usize) -> Vec<Point> {
    if counts.len() == 1 {
        return vec![at(0.0, 0.0)];
    }
    let total: usize = counts.iter().sum();
    let are_crowded = counts.iter().any(|&count| count * 8 < nodes);
    let mut before = 0;
    let mut places = Vec::new();
    for (index, &count) in counts.iter().enumerate() {
        // With next to no nodes for one of them they would be on top of each other.
        let angle = if are_crowded || total == 0 {
            angle(index as f32 + 0.5, counts.len())
        } else {
            angle(before as f32 + count as f32 / 2.0, nodes)
        };
        before += count;
        places.push(at(angle, PROXY_RADIUS));
    }
    places
}

/// A part of the whole turn, from the top on.
#[expect(clippy::cast_precision_loss, reason = "small numbers")]
fn angle(part: f32, of: usize) -> f32 {
    TAU * part / of.max(1) as f32 - PI / 2.0
}

fn at(angle: f32, radius: f32) -> Point {
    Point {
        x: MIDDLE + radius * angle.cos(),
        y: MIDDLE + radius * angle.sin(),
        angle,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn everything_is_inside_of_the_picture_and_nothing_on_top_of_another() {
        for nodes in [0, 1, 2, 40, 41, 300, 10_000] {
            let places = Places::of(&[nodes / 3, nodes / 3, nodes / 3], nodes);
            assert_eq!(places.nodes.len(), nodes);
            for point in places.nodes.iter().chain(&places.proxies) {
                let from_middle = (point.x - MIDDLE).hypot(point.y - MIDDLE);
                assert!(from_middle + places.dot <= MIDDLE, "{nodes}: {point:?}");
            }
            for pair in places.nodes.windows(2) {
                let apart = (pair[0].x - pair[1].x).hypot(pair[0].y - pair[1].y);
                assert!(apart > places.dot, "{nodes}: {pair:?} of {}", places.dot);
            }
        }
    }

    #[test]
    fn one_proxy_is_in_the_middle_and_several_are_apart() {
        assert_eq!(Places::of(&[5], 5).proxies[0].x, MIDDLE);
        for counts in [[0, 0, 0], [1, 0, 900], [30, 30, 30]] {
            let places = Places::of(&counts, counts.iter().sum());
            for (index, one) in places.proxies.iter().enumerate() {
                for other in &places.proxies[index + 1..] {
                    let apart = (one.x - other.x).hypot(one.y - other.y);
                    assert!(apart > 30.0, "{counts:?}: {:?}", places.proxies);
                }
            }
        }
    }
}
