//! The results: a table for people, JSON for programs.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use anyhow::Result;
use serde_json::{Map, Value, json};

use crate::load::Figures;
use crate::plan::{Job, Path, Row};

/// All results so far.
pub(super) struct Report {
    rows: Vec<(Row, BTreeMap<Path, Vec<f64>>)>,
    failures: Vec<String>,
}

/// A line of the table.
fn line(row: &Row, paths: &BTreeMap<Path, Vec<f64>>, shown: &BTreeSet<Path>) -> String {
    let mut text = format!("{:<32} {:<9}", row.name, row.unit);
    let beside = paths.get(&row.beside).map(|values| median(values));
    for path in shown {
        let value = paths.get(path).map(|values| median(values));
        text += &format!(" {:>16}", cell(*path, value, row, beside));
    }
    let is_compared = paths
        .keys()
        .any(|path| path.is_compared() && *path != row.beside);
    if is_compared && beside.is_some() {
        text += "  ";
        text += row.beside.name();
    }
    if let Some(paired) = Paired::of(paths) {
        text += &format!("  {paired}");
    }
    text.push('\n');
    text
}

impl Report {
    pub(super) fn new(jobs: &[Job]) -> Self {
        let rows = jobs
            .iter()
            .flat_map(Job::rows)
            .map(|row| (row, BTreeMap::new()))
            .collect();
        Self {
            rows,
            failures: Vec::new(),
        }
    }

    /// Adds the result of one run of a job.
    pub(super) fn add(&mut self, job: &Job, path: Path, found: Result<Figures>) {
        let figures = match found {
            Ok(figures) => figures,
            Err(error) => {
                return self.failures.push(format!(
                    "  {} on {}: {error:#}",
                    job.name(),
                    path.name()
                ));
            }
        };
        for wanted in job.rows() {
            let row = self.rows.iter_mut().find(|(row, _)| *row == wanted);
            if let (Some((_, paths)), Some(value)) = (row, figures.get(wanted.figure)) {
                paths.entry(path).or_default().push(*value);
            }
        }
    }

    /// What could not be measured, with the reason.
    pub(super) fn failures(&self) -> &[String] {
        &self.failures
    }

    /// `{"rows": [{"name", "unit", "paths": {path: median}}]}`, and `"against": {"ratio", "interval":
    /// [low, high] or null}` in rows that were measured with other programs too.
    pub(super) fn json(&self) -> Value {
        let rows = self.rows.iter().map(|(row, paths)| {
            let medians: Map<String, Value> = paths
                .iter()
                .map(|(path, values)| (path.name().to_owned(), median(values).into()))
                .collect();
            let mut line = json!({ "name": row.name, "unit": row.unit, "paths": medians });
            if let Some(paired) = Paired::of(paths) {
                let interval = paired.interval.map(|(low, high)| [low, high]);
                line["against"] = json!({ "ratio": paired.ratio, "interval": interval });
            }
            line
        });
        json!({ "rows": rows.collect::<Vec<_>>() })
    }

    /// One line per row. Culvert's values are followed by their ratio to the path in the last
    /// column, in brackets.
    pub(super) fn table(&self) -> String {
        let shown: BTreeSet<Path> = self
            .rows
            .iter()
            .flat_map(|(_, paths)| paths.keys().copied())
            .collect();
        let mut text = format!("{:<32} {:<9}", "row", "unit");
        for path in &shown {
            text += &format!(" {:>16}", path.name());
        }
        text += "  (ratio to)\n";
        for (row, paths) in &self.rows {
            text += &line(row, paths, &shown);
        }
        text
    }
}

/// The measured programs beside other ones, round by round.
struct Paired {
    /// The median of the rounds' ratios.
    ratio: f64,
    /// The true median is in it in 95 of 100 cases, whatever the distribution. It takes six rounds.
    interval: Option<(f64, f64)>,
}

impl Paired {
    /// Nothing unless both were measured in all rounds.
    fn of(paths: &BTreeMap<Path, Vec<f64>>) -> Option<Self> {
        let these = paths.get(&Path::Connect)?;
        let others = paths.get(&Path::ConnectAgainst)?;
        if these.len() != others.len() {
            return None;
        }
        let pairs = these.iter().zip(others);
        let mut ratios: Vec<f64> = pairs.map(|(this, other)| this / other).collect();
        ratios.sort_by(f64::total_cmp);
        Some(Self {
            ratio: median(&ratios),
            interval: interval(&ratios),
        })
    }
}

impl fmt::Display for Paired {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{:.3} of the others", self.ratio)?;
        match self.interval {
            Some((low, high)) => write!(formatter, " ({low:.3} to {high:.3})"),
            None => Ok(()),
        }
    }
}

/// The interval of the median of sorted values, by the sign test: as many are above the median as
/// below, like throws of a coin.
fn interval(sorted: &[f64]) -> Option<(f64, f64)> {
    let count = sorted.len();
    let mut chance = 0.5_f64.powi(i32::try_from(count).ok()?);
    let mut below = 0;
    let mut outside = 0.0;
    while outside + 2.0 * chance <= 0.05 {
        outside += 2.0 * chance;
        below += 1;
        chance *= (count + 1 - below) as f64 / below as f64;
    }
    (below > 0).then(|| (sorted[below - 1], sorted[count - below]))
}

fn cell(path: Path, value: Option<f64>, row: &Row, beside: Option<f64>) -> String {
    let Some(value) = value else {
        return "-".to_owned();
    };
    match beside {
        Some(beside) if path.is_compared() && path != row.beside && beside > 0.0 => {
            format!("{} ({:.2})", short(value), value / beside)
        }
        _ => short(value),
    }
}

/// One run's figures as a text for the person who watches.
pub(super) fn found(found: &Result<Figures>) -> String {
    match found {
        Ok(figures) => figures
            .iter()
            .map(|(name, value)| format!("{name} {}", short(*value)))
            .collect::<Vec<_>>()
            .join(", "),
        Err(error) => format!("failed: {error:#}"),
    }
}

/// Formats three significant digits.
pub(super) fn short(value: f64) -> String {
    match value.abs() {
        size if size >= 100.0 => format!("{value:.0}"),
        size if size >= 10.0 => format!("{value:.1}"),
        size if size >= 1.0 => format!("{value:.2}"),
        _ => format!("{value:.3}"),
    }
}

pub(super) fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let low = sorted[(sorted.len() - 1) / 2];
    let high = sorted[sorted.len() / 2];
    (low + high) / 2.0
}

#[cfg(test)]
mod tests {
    use anyhow::anyhow;

    use super::*;
    use crate::plan::{Direction, Distance, Work};

    const JOB: Job = Job {
        work: Work::Bulk {
            direction: Direction::Up,
            streams: 8,
        },
        distance: Distance::Near,
    };

    fn figures(value: f64) -> Result<Figures> {
        Ok([("gib_per_second".to_owned(), value)].into())
    }

    #[test]
    fn the_median_of_the_rounds_counts() {
        let mut report = Report::new(&[JOB]);
        [3.0, 1.0, 2.0]
            .into_iter()
            .for_each(|value| report.add(&JOB, Path::Direct, figures(value)));
        let json = report.json();
        assert_eq!(
            json["rows"][0],
            json!({ "name": "bulk_up_8", "unit": "GiB/s", "paths": { "direct": 2.0 } })
        );
        assert_eq!(median(&[1.0, 4.0]), 2.5);
    }

    #[test]
    fn the_interval_of_a_median_needs_six_rounds_and_leaves_out_the_outermost_of_many() {
        let values = |count: u32| (1..=count).map(f64::from).collect::<Vec<_>>();
        assert_eq!(interval(&values(5)), None);
        assert_eq!(interval(&values(6)), Some((1.0, 6.0)));
        assert_eq!(interval(&values(9)), Some((2.0, 8.0)));
        assert_eq!(interval(&values(15)), Some((4.0, 12.0)));
    }

    #[test]
    fn other_programs_are_compared_round_by_round() {
        let mut report = Report::new(&[JOB]);
        for round in 1..=6 {
            let other = f64::from(round);
            report.add(&JOB, Path::ConnectAgainst, figures(other));
            report.add(&JOB, Path::Connect, figures(other * 1.1));
        }
        let against = &report.json()["rows"][0]["against"];
        assert!(
            (against["ratio"].as_f64().unwrap() - 1.1).abs() < 1e-9,
            "{against}"
        );
        let table = report.table();
        assert!(
            table.contains("1.100 of the others (1.100 to 1.100)"),
            "{table}"
        );
    }

    #[test]
    fn the_table_compares_culvert_with_the_relay_and_leaves_gaps_where_nothing_was_measured() {
        let mut report = Report::new(&[JOB]);
        report.add(&JOB, Path::TlsRelay, figures(2.0));
        report.add(&JOB, Path::Connect, figures(1.9));
        report.add(&JOB, Path::Direct, Err(anyhow!("broke")));
        let table = report.table();
        assert!(table.contains("1.90 (0.95)  tls_relay"), "{table}");
        assert!(
            table
                .lines()
                .last()
                .is_some_and(|line| line.starts_with("cpu_up_8") && line.contains(" -")),
            "{table}"
        );
        assert_eq!(report.failures(), ["  bulk_up_8 on direct: broke"]);
    }
}
