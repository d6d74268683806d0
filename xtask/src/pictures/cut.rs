//! The time line of a cut at the hub: who answers kubelet when.

use anyhow::Result;
use serde_json::Value;

use super::svg::{Anchor, Picture};
use super::{number, text, written};

const LEFT: f64 = 170.0;
const RIGHT: f64 = 930.0;
/// Where the link is cut, and where it is back. The cut may be of any length: it is drawn short.
const CUT: f64 = 330.0;
const BACK: f64 = 690.0;
/// How wide a second is beside a cut.
const SECOND: f64 = 9.0;

/// A part of the time: until where, of which class, and what happens in it.
type Span = (f64, &'static str, &'static str);

/// The picture.
///
/// # Errors
/// The figures are not as they should be.
pub(super) fn picture(hub: &Value) -> Result<String> {
    let noticed = number(hub, "noticed_seconds")?;
    let seen = number(hub, "seen_seconds")?;
    let failed = number(hub, "failed_requests")?;
    let title = text(hub, "title")?;
    let mut picture = Picture::new(960, 330, title);
    picture.text("title", Anchor::Start, 20.0, 30.0, title);
    let local = CUT + noticed * SECOND;
    let again = BACK + seen * SECOND;
    ends(&mut picture);
    let mut y = 80.0;
    for (name, spans) in rows(local, again) {
        row(&mut picture, y, name, &spans);
        y += 62.0;
    }
    under(
        &mut picture,
        (CUT, local),
        &format!("at most {} s", written(noticed)),
    );
    under(&mut picture, (BACK, again), &format!("{} s", written(seen)));
    let failed = written(failed);
    let run = format!("{}; requests that failed: {failed}", text(hub, "run")?);
    picture.text("small", Anchor::Start, 20.0, 320.0, run);
    Ok(picture.finish())
}

/// The two moments that divide the time.
fn ends(picture: &mut Picture) {
    for (x, what) in [(CUT, "the link is cut"), (BACK, "the link is back")] {
        picture.line("axis", &[(x, 62.0), (x, 280.0)]);
        picture.text("small", Anchor::Middle, x, 56.0, what);
    }
}

/// How long a part of the time is, below all rows.
fn under(picture: &mut Picture, (from, to): (f64, f64), long: &str) {
    let middle = f64::midpoint(from, to);
    picture.text("small", Anchor::Middle, middle, 296.0, long);
}

fn rows(local: f64, again: f64) -> [(&'static str, Vec<Span>); 3] {
    let before = (CUT, "ours", "API server");
    let link = vec![
        (CUT, "ours", "up"),
        (BACK, "other", "down, for as long as it takes"),
        (RIGHT, "ours", "up"),
    ];
    let requests = vec![
        before,
        (local, "other", "wait"),
        (again, "warm", "the hub's memory"),
        (RIGHT, "ours", "API server"),
    ];
    let watches = vec![
        before,
        (
            again,
            "other",
            "open, and silent but for what the node writes",
        ),
        (RIGHT, "ours", "go on"),
    ];
    [
        ("link", link),
        ("kubelet's requests", requests),
        ("its watches", watches),
    ]
}

fn row(picture: &mut Picture, y: f64, name: &str, spans: &[Span]) {
    picture.text("", Anchor::End, LEFT - 12.0, y + 26.0, name);
    let mut from = LEFT;
    for (to, class, what) in spans {
        picture.rect(class, from + 1.0, y, to - from - 2.0, 40.0);
        let class = if *class == "other" { "small" } else { "on" };
        let middle = f64::midpoint(from, *to);
        picture.text(class, Anchor::Middle, middle, y + 26.0, what);
        from = *to;
    }
}
