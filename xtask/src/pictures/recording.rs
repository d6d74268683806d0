//! The demo as it ran: recorded as an asciicast (version 2, of asciinema), and drawn as a terminal
//! whose lines come when they came.

use std::io::{BufRead, BufReader, PipeReader};
use std::path::Path;
use std::process::Command;
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use super::svg::{Anchor, Picture};

pub(super) const FILE: &str = "demo.cast";

const COLUMNS: usize = 118;
/// The first line that the picture leaves out: from no to yes is what comes before.
const END: &str = "$ ";
/// How long the last line stays before all begins again.
const PAUSE: f64 = 9.0;
const LINE: f64 = 18.0;
const LETTER: f64 = 7.83;

/// Runs the demo and writes its lines, each with its time.
///
/// # Errors
/// The demo fails.
pub(super) fn record(path: &Path) -> Result<()> {
    let (reader, writer) = std::io::pipe()?;
    let mut command = Command::new(std::env::current_exe()?);
    command
        .args(["demo", "--built"])
        .stdout(writer.try_clone()?)
        .stderr(writer);
    let started = Instant::now();
    let mut demo = command.spawn().context("start the demo")?;
    // It has the ends that write. With ours, the pipe would not end.
    drop(command);
    let cast = cast(reader, started)?;
    let status = demo.wait()?;
    ensure!(status.success(), "the demo ended with {status}\n{cast}");
    std::fs::write(path, cast).with_context(|| format!("write {}", path.display()))
}

/// What comes out of a pipe, until it ends.
fn cast(reader: PipeReader, started: Instant) -> Result<String> {
    let head = json!({"version": 2, "width": COLUMNS, "height": 50, "command": "cargo xtask demo"});
    let mut cast = format!("{head}\n");
    for line in BufReader::new(reader).lines() {
        let event = json!([
            started.elapsed().as_secs_f64(),
            "o",
            format!("{}\r\n", line?)
        ]);
        cast.push_str(&format!("{event}\n"));
    }
    Ok(cast)
}

/// The picture of a recording.
///
/// # Errors
/// It cannot be read.
pub(super) fn picture(path: &Path) -> Result<String> {
    let cast = std::fs::read_to_string(path).with_context(|| path.display().to_string())?;
    let mut lines = vec![(0.0, "# cargo xtask demo".to_owned())];
    for event in cast.lines().skip(1) {
        let event: Value = serde_json::from_str(event).context("an event of the recording")?;
        let seconds = event[0].as_f64().context("its time")?;
        let line = event[2].as_str().context("its text")?.trim_end();
        if line.starts_with(END) {
            break;
        }
        lines.push((seconds, shortened(line)));
    }
    while lines.last().is_some_and(|(_, line)| line.is_empty()) {
        lines.pop();
    }
    Ok(drawn(&lines))
}

/// A line as far as the terminal is wide.
fn shortened(line: &str) -> String {
    if line.chars().count() <= COLUMNS {
        return line.to_owned();
    }
    let mut short: String = line.chars().take(COLUMNS - 1).collect();
    short.push('…');
    short
}

fn drawn(lines: &[(f64, String)]) -> String {
    let rows = u32::try_from(lines.len()).unwrap_or(u32::MAX);
    let height = 46.0 + f64::from(rows) * LINE;
    let title =
        "The demo, as it ran: without Culvert no target of Prometheus is up, with it all are";
    let mut picture = Picture::new(960, height as u32, title);
    let end = lines.last().map_or(0.0, |(seconds, _)| *seconds) + PAUSE;
    picture.add_style(&style(lines, end));
    picture.rect("panel", 6.0, 6.0, 948.0, height - 12.0);
    let mut y = 34.0;
    for (number, (_, line)) in lines.iter().enumerate() {
        // Spaces keep their width only so.
        let line = line.replace(' ', "\u{a0}");
        picture.text(&format!("t t{number}"), Anchor::Start, 20.0, y, line);
        y += LINE;
    }
    picture.finish()
}

/// Each line comes at its time, again and again. Who wants no motion sees the end.
fn style(lines: &[(f64, String)], end: f64) -> String {
    let mut style = format!(
        ".t{{font-family:'DejaVu Sans Mono',Menlo,Consolas,monospace;font-size:{:.1}px}}\n\
         @media (prefers-reduced-motion:no-preference){{\n",
        LETTER / 0.602
    );
    for (number, (seconds, _)) in lines.iter().enumerate() {
        let share = seconds / end * 100.0;
        style.push_str(&format!(
            ".t{number}{{animation:k{number} {end:.1}s infinite}}@keyframes \
             k{number}{{0%,{share:.2}%{{opacity:0}}{:.2}%,100%{{opacity:1}}}}\n",
            share + 0.01
        ));
    }
    style.push('}');
    style
}
