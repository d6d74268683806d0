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
/// TCP to a host that can be dialled, which a node behind NAT cannot.
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
    let run = text(bench, "run")?;
    let title = format!("Culvert beside others: {run}");
    let mut picture = Picture::new(WIDTH, height as u32, &title);
    picture.text("small", Anchor::Start, 20.0, height - 18.0, run);
    for (number, row) in rows.iter().enumerate() {
        let (x, y) = corner(number, high)?;
        panel(&mut picture, systems, row, x, y)?;
    }
    Ok(picture.finish())
}

/// Where a panel begins.
fn corner(number: usize, high: f64) -> Result<(f64, f64)> {
    let column = u32::try_from(number % COLUMNS)?;
    let line = u32::try_from(number / COLUMNS)?;
    let x = 20.0 + f64::from(column) * PANEL;
    Ok((x, 16.0 + f64::from(line) * high))
}

/// One row, with a scale of its own.
fn panel(picture: &mut Picture, systems: &[Value], row: &Value, x: f64, y: f64) -> Result<()> {
    picture.text("title", Anchor::Start, x, y + 16.0, text(row, "short")?);
    let unit = format!("{}; {} is better", text(row, "unit")?, text(row, "better")?);
    picture.text("small", Anchor::Start, x, y + 36.0, unit);
    let bars = bars(systems, list(row, "figures")?)?;
    let mut most = 0.0;
    for (_, figure) in &bars {
        most = f64::max(most, *figure);
    }
    let mut y = y + HEAD;
    for (name, figure) in bars {
        bar(picture, (x, y), name, figure, figure / most * LONGEST);
        y += BAR;
    }
    Ok(())
}

/// The figures of a row that have bars, each with its system.
fn bars<'a>(systems: &'a [Value], figures: &[Value]) -> Result<Vec<(&'a str, f64)>> {
    let mut bars = Vec::new();
    for (system, figure) in systems.iter().zip(figures) {
        let name = system.as_str().context("a system without a name")?;
        let figure = figure.as_f64().context("a figure that is no number")?;
        if name != NOT_SHOWN {
            bars.push((name, figure));
        }
    }
    Ok(bars)
}

fn bar(picture: &mut Picture, (x, y): (f64, f64), name: &str, figure: f64, long: f64) {
    let is_ours = name.starts_with("Culvert");
    let class = if is_ours { "ours" } else { "other" };
    picture.text("small", Anchor::End, x + BAR_AT - 8.0, y + 13.0, name);
    picture.rect(class, x + BAR_AT, y, long, BAR - 5.0);
    let after = x + BAR_AT + long + 6.0;
    picture.text("small", Anchor::Start, after, y + 13.0, written(figure));
}
