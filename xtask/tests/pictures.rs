//! Tests of the pictures in the documents: they are what `cargo xtask pictures` makes, and their
//! figures are those that the pages have.

use anyhow::{Context, Result, ensure};
use culvert_lab::{page, workspace};
use serde_json::Value;
use xtask::pictures;

#[test]
fn the_committed_pictures_are_those_of_the_figures_and_of_the_recording() -> Result<()> {
    for (name, made) in pictures::made()? {
        let committed = std::fs::read_to_string(pictures::folder().join(name))?;
        ensure!(committed == made, "{name}: run `cargo xtask pictures`");
    }
    Ok(())
}

#[test]
fn the_bench_has_the_same_figures_in_its_picture_and_on_the_page() -> Result<()> {
    let page = page::read("performance.md")?;
    let bench = pictures::results("bench.json")?;
    let rows = bench["rows"].as_array().context("rows")?;
    ensure!(rows.len() > 3, "{bench}");
    for row in rows {
        let mut line = format!("| {}", text(row, "what")?);
        // A rate that the name has already is not said again.
        let unit = text(row, "unit")?;
        if !line.ends_with(unit) {
            line.push_str(&format!(", {unit}"));
        }
        for figure in row["figures"].as_array().context("figures")? {
            let figure = figure.as_f64().context("a figure")?;
            line.push_str(&format!(" | {}", pictures::written(figure)));
        }
        ensure!(page.contains(&line), "docs/performance.md lacks {line}");
    }
    Ok(())
}

#[test]
fn scale_and_hub_have_the_same_figures_in_their_pictures_and_in_the_notes() -> Result<()> {
    let scale = pictures::results("scale.json")?;
    let run = notes("scale.md")?;
    let words = [
        "after a kill of all proxies: all are ready",
        "a tunnel is back after, half of them",
        "a tunnel is back after, 99 of 100",
    ];
    let back = scale["back"].as_array().context("back")?;
    ensure!(back.len() == words.len() + 1, "{scale}");
    for (words, point) in words.iter().zip(&back[1..]) {
        let line = format!("{words} {} s", point["seconds"]);
        ensure!(run.contains(&line), "notes/scale.md lacks {line}");
    }
    let hub = pictures::results("hub.json")?;
    let measured = notes("hub.md")?;
    for (row, field) in [
        ("a cut is noticed after | s | |", "noticed_seconds"),
        ("requests that the cut made fail | | |", "failed_requests"),
        (
            "a change after the return is seen after | s | |",
            "seen_seconds",
        ),
    ] {
        let line = format!("| {row} {} |", hub[field]);
        ensure!(measured.contains(&line), "notes/hub.md lacks {line}");
    }
    Ok(())
}

/// The words of a page for builders, one space between any two.
fn notes(name: &str) -> Result<String> {
    let text = std::fs::read_to_string(workspace::root().join("notes").join(name))?;
    let words: Vec<&str> = text.split_whitespace().collect();
    Ok(words.join(" "))
}

fn text<'a>(row: &'a Value, field: &str) -> Result<&'a str> {
    row[field].as_str().context(field.to_owned())
}
