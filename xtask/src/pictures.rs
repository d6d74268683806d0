//! `cargo xtask pictures`: pictures of the documents that are made of figures in `notes/results`, and
//! of a recording of the demo. They are committed, and a test makes them again.

mod bars;
mod curve;
mod cut;
mod recording;
mod svg;

use std::path::PathBuf;

use anyhow::{Context, Result};
use culvert_lab::workspace;
use serde_json::Value;

/// What is made anew beside the pictures.
#[derive(clap::Args)]
pub struct Args {
    /// Run the demo, and record it for its picture (root)
    #[arg(long)]
    record: bool,
}

/// Writes all pictures.
///
/// # Errors
/// The demo fails, a file with figures is missing or wrong, or a picture cannot be written.
pub fn run(args: &Args) -> Result<()> {
    if args.record {
        recording::record(&folder().join(recording::FILE))?;
    }
    for (name, text) in made()? {
        let path = folder().join(name);
        std::fs::write(&path, text).with_context(|| format!("write {}", path.display()))?;
    }
    Ok(())
}

/// The folder of the pictures.
pub fn folder() -> PathBuf {
    workspace::root().join("docs/pictures")
}

/// All pictures that are made here, by their names in [`folder`].
///
/// # Errors
/// A file with figures is missing or wrong.
pub fn made() -> Result<Vec<(&'static str, String)>> {
    Ok(vec![
        ("bench.svg", bars::picture(&results("bench.json")?)?),
        ("scale.svg", curve::picture(&results("scale.json")?)?),
        ("hub-cut.svg", cut::picture(&results("hub.json")?)?),
        (
            "demo.svg",
            recording::picture(&folder().join(recording::FILE))?,
        ),
    ])
}

/// Figures of a run.
///
/// # Errors
/// The file cannot be read.
pub fn results(name: &str) -> Result<Value> {
    let path = workspace::root().join("notes/results").join(name);
    let text = std::fs::read_to_string(&path).with_context(|| path.display().to_string())?;
    serde_json::from_str(&text).with_context(|| path.display().to_string())
}

/// A number of a file with figures.
fn number(of: &Value, field: &str) -> Result<f64> {
    let number = of[field].as_f64();
    number.with_context(|| format!("{field} is no number in {of}"))
}

/// A text of a file with figures.
fn text<'a>(of: &'a Value, field: &str) -> Result<&'a str> {
    let text = of[field].as_str();
    text.with_context(|| format!("{field} is no text in {of}"))
}

/// The members of a list in a file with figures.
fn list<'a>(of: &'a Value, field: &str) -> Result<&'a [Value]> {
    let list = of[field].as_array().map(Vec::as_slice);
    list.with_context(|| format!("{field} is no list in {of}"))
}

/// A figure as the documents write it: `10,499`, `0.174`.
#[must_use]
pub fn written(figure: f64) -> String {
    let plain = figure.to_string();
    match plain.len().checked_sub(3) {
        Some(at) if figure >= 1000.0 && !plain.contains('.') => {
            format!("{},{}", &plain[..at], &plain[at..])
        }
        _ => plain,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_written_as_in_the_documents() {
        let all = [10_499.0, 942.0, 0.174, 2.8, 1178.0].map(written);
        assert_eq!(all, ["10,499", "942", "0.174", "2.8", "1,178"]);
    }
}
