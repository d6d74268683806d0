//! Bars of the bench: each row on Culvert and on what it is compared with.

use anyhow::{Context, Result};
use serde_json::Value;

use super::svg::{Anchor, Picture};
use super::{list, text, written};

const COLUMNS: usize = 2;
const WIDTH: u32 = 960;
const PANEL: f64 = 470.0;
/// Where bars begin in a panel, and how long the longest is.
const BAR_AT: f64 = 140.0;
const LONGEST: f64 = 250.0;
const BAR: f64 = 20.0;
const HEAD: f64 = 52.0;
/// TCP to a host that can be dialled: there is none behind NAT.
const NOT_SHOWN: &str = "direct";

/// The picture of all rows.
///
/// # Errors
/// The figures are not as they should be.
pub(super) fn picture(bench: &Value) -> Result<String> {
    let systems = list(bench, "systems")?;
    let rows = list(bench, "rows")?;
    let bars = u32::try_from(systems.len())? - 1;
    let high = HEAD + f64::from(bars) * BAR + 24.0;
    let lines = u32::try_from(rows.len().div_ceil(COLUMNS))?;
    let height = 64.0 + f64::from(lines) * high;
    let title = format!("Culvert beside others: {}", text(bench, "run")?);
    let mut picture = Picture::new(WIDTH, height as u32, &title);
    picture.text(
        "small",
        Anchor::Start,
        20.0,
        height - 18.0,
        text(bench, "run")?,
    );
    for (number, row) in rows.iter().enumerate() {
        let column = u32::try_from(number % COLUMNS)?;
        let line = u32::try_from(number / COLUMNS)?;
        let x = 20.0 + f64::from(column) * PANEL;
        let y = 16.0 + f64::from(line) * high;
        panel(&mut picture, systems, row, x, y)?;
    }
    Ok(picture.finish())
}

/// One row, with a scale of its own.
fn panel(picture: &mut Picture, systems: &[Value], row: &Value, x: f64, y: f64) -> Result<()> {
    picture.text("title", Anchor::Start, x, y + 16.0, text(row, "short")?);
    let unit = format!("{}; {} is better", text(row, "unit")?, text(row, "better")?);
    picture.text("small", Anchor::Start, x, y + 36.0, unit);
    let mut shown = Vec::new();
    for (system, figure) in systems.iter().zip(list(row, "figures")?) {
        let name = system.as_str().context("a system without a name")?;
        let figure = figure.as_f64().context("a figure that is no number")?;
        if name != NOT_SHOWN {
            shown.push((name, figure));
        }
    }
    let most = shown
        .iter()
        .fold(0.0, |most, (_, figure)| f64::max(most, *figure));
    let mut y = y + HEAD;
    for (name, figure) in shown {
        let class = if name.starts_with("Culvert") {
            "ours"
        } else {
            "other"
        };
        let long = figure / most * LONGEST;
        picture.text("small", Anchor::End, x + BAR_AT - 8.0, y + 13.0, name);
        picture.rect(class, x + BAR_AT, y, long, BAR - 5.0);
        let after = x + BAR_AT + long + 6.0;
        picture.text("small", Anchor::Start, after, y + 13.0, written(figure));
        y += BAR;
    }
    Ok(())
}
