//! The curve of agents that come back when all proxies were killed and started again.

use anyhow::Result;
use serde_json::Value;

use super::svg::{Anchor, Picture};
use super::{list, number, text, written};

const LEFT: f64 = 90.0;
const RIGHT: f64 = 920.0;
const TOP: f64 = 60.0;
const BOTTOM: f64 = 340.0;
/// Seconds at the end of the axis, and between its marks.
const LAST: f64 = 30.0;
const STEP: usize = 5;

/// The picture.
///
/// # Errors
/// The figures are not as they should be.
pub(super) fn picture(scale: &Value) -> Result<String> {
    let all = number(scale, "tunnels")?;
    let title = text(scale, "title")?;
    let mut picture = Picture::new(960, 420, title);
    picture.text("title", Anchor::Start, 20.0, 30.0, title);
    axes(&mut picture, all);
    let mut points = Vec::new();
    let mut labels = Vec::new();
    for measured in list(scale, "back")? {
        let seconds = number(measured, "seconds")?;
        points.push((across(seconds), up(number(measured, "share")?)));
        labels.push(format!(
            "{} s: {}",
            written(seconds),
            text(measured, "what")?
        ));
    }
    picture.line("curve", &points);
    for ((x, y), label) in points.into_iter().zip(labels) {
        picture.dot("hot", x, y);
        let (right, down) = beside(x, y);
        picture.text("small", Anchor::Start, x + right, y + down, label);
    }
    picture.text("small", Anchor::Start, 20.0, 402.0, text(scale, "run")?);
    Ok(picture.finish())
}

/// Seconds to the right, tunnels up.
fn axes(picture: &mut Picture, all: f64) {
    picture.line("axis", &[(LEFT, TOP), (LEFT, BOTTOM), (RIGHT, BOTTOM)]);
    for mark in (0_u8..=LAST as u8).step_by(STEP) {
        let x = across(f64::from(mark));
        picture.text(
            "small",
            Anchor::Middle,
            x,
            BOTTOM + 20.0,
            format!("{mark} s"),
        );
    }
    for share in [0.0, 0.5, 1.0] {
        let y = up(share);
        let tunnels = written(all * share);
        picture.text("small", Anchor::End, LEFT - 10.0, y + 5.0, tunnels);
    }
}

/// Where the label of a point is, away from the curve, which rises.
fn beside(x: f64, y: f64) -> (f64, f64) {
    if y < BOTTOM {
        (12.0, 22.0)
    } else if x > LEFT {
        (64.0, -7.0)
    } else {
        (8.0, -18.0)
    }
}

fn across(seconds: f64) -> f64 {
    LEFT + seconds / LAST * (RIGHT - LEFT)
}

fn up(share: f64) -> f64 {
    BOTTOM - share * (BOTTOM - TOP)
}
