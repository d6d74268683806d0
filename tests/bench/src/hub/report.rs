//! The results: a table for people, JSON for programs.

use std::collections::BTreeMap;

use anyhow::{Context, Error, Result};
use serde_json::{Map, Value, json};

use super::rows::{self, Aim, Row};
use super::subject::Subject;
use crate::report::{median, short};

/// All results so far.
#[derive(Default)]
pub(super) struct Report {
    values: BTreeMap<(&'static str, Subject), Vec<f64>>,
    failures: Vec<String>,
}

impl Report {
    /// Adds one value of a row.
    pub(super) fn add(&mut self, row: &str, subject: Subject, value: f64) -> Result<()> {
        let row = rows::find(row).with_context(|| format!("no row is called {row}"))?;
        self.values
            .entry((row.name, subject))
            .or_default()
            .push(value);
        Ok(())
    }

    /// What could not be measured.
    pub(super) fn fail(&mut self, subject: Subject, error: &Error) {
        self.failures
            .push(format!("  {}: {error:#}", subject.name()));
    }

    /// What could not be measured, with the reason.
    pub(super) fn failures(&self) -> &[String] {
        &self.failures
    }

    /// `{"rows": [{"name", "unit", "better", "medians": {way: median}}]}`.
    pub(super) fn json(&self) -> Value {
        let rows = rows::ALL.iter().map(|row| {
            let medians: Map<String, Value> = Subject::ALL
                .iter()
                .filter_map(|subject| {
                    Some((
                        subject.name().to_owned(),
                        self.median(row, *subject)?.into(),
                    ))
                })
                .collect();
            json!({
                "name": row.name,
                "unit": row.unit,
                "better": row.better.label(),
                "medians": medians,
            })
        });
        json!({ "rows": rows.collect::<Vec<_>>() })
    }

    /// One line per row. What is not direct is followed by its ratio to it, in brackets.
    pub(super) fn table(&self) -> String {
        let mut subjects = Subject::ALL.to_vec();
        subjects.retain(|subject| self.values.keys().any(|(_, of)| of == subject));
        let mut text = format!("{:<24} {:<11} {:<17}", "row", "unit", "");
        for subject in subjects.iter().copied() {
            text += &format!(" {:>16}", subject.name());
        }
        text += "  aim of the hub\n";
        for row in rows::ALL {
            text += &format!(
                "{:<24} {:<11} {:<17}",
                row.name,
                row.unit,
                row.better.label()
            );
            for subject in subjects.iter().copied() {
                text += &format!(" {:>16}", self.cell(row, subject));
            }
            let aim = self.aim(row);
            text = format!("{text}  {aim}").trim_end().to_owned() + "\n";
        }
        text
    }

    fn median(&self, row: &Row, subject: Subject) -> Option<f64> {
        self.values
            .get(&(row.name, subject))
            .map(|values| median(values))
    }

    fn cell(&self, row: &Row, subject: Subject) -> String {
        let Some(value) = self.median(row, subject) else {
            return "-".to_owned();
        };
        let direct = self
            .median(row, Subject::Direct)
            .filter(|direct| *direct > 0.0);
        match direct {
            Some(direct) if subject != Subject::Direct => {
                format!("{} ({:.2})", short(value), value / direct)
            }
            _ => short(value),
        }
    }

    fn aim(&self, row: &Row) -> String {
        let (words, limit) = match row.aim {
            Aim::None => return String::new(),
            Aim::AtMost(limit) => (format!("<= {limit}"), Some(limit)),
            Aim::OfDirect(part) => (
                format!(">= {part} of direct"),
                self.median(row, Subject::Direct)
                    .map(|direct| direct * part),
            ),
        };
        let hub = self.median(row, Subject::Hub);
        let missed = hub.zip(limit).is_some_and(|(hub, limit)| match row.aim {
            Aim::OfDirect(_) => hub < limit,
            Aim::AtMost(_) | Aim::None => hub > limit,
        });
        words + if missed { ", missed" } else { "" }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missed_aim_is_said_and_what_was_not_measured_is_a_gap() {
        let mut report = Report::default();
        for value in [9.0, 20.0, 21.0] {
            report.add("memory_idle", Subject::Hub, value).unwrap();
        }
        report.add("get_1", Subject::Direct, 1_000.0).unwrap();
        report.add("get_1", Subject::Hub, 950.0).unwrap();
        let table = report.table();
        let line = |row: &str| {
            let line = table.lines().find(|line| line.starts_with(row));
            line.unwrap_or_default().to_owned()
        };
        assert!(
            line("memory_idle ").ends_with("20.0  <= 15, missed"),
            "{table}"
        );
        assert!(
            line("get_1 ").ends_with("950 (0.95)  >= 0.9 of direct"),
            "{table}"
        );
        assert!(line("get_32 ").ends_with('-'), "{table}");
        assert_eq!(
            report.json()["rows"][0]["medians"],
            json!({ "hub": 20.0 }),
            "the median of the rounds counts"
        );
    }
}
