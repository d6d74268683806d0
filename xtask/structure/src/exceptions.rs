//! The file of exceptions, `xtask/structure/exceptions.txt`: what was above a limit when the rule
//! began. An exception can get smaller and go, and no other is added.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};

use crate::rules::{Finding, Rule};

const HEADER: &str = "\
# What was above a limit of `cargo xtask structure` when the rule began: rule, subject, amount.
# It only gets shorter: `cargo xtask structure --record` writes the lower amounts.
";

/// How much each subject may have by each rule.
pub(crate) struct Exceptions {
    path: PathBuf,
    amounts: BTreeMap<(String, String), f64>,
}

impl Exceptions {
    /// Reads the file.
    ///
    /// # Errors
    /// It cannot be read, or a line has another form.
    pub(crate) fn read(top: &Path) -> Result<Self> {
        let path = top.join("xtask/structure/exceptions.txt");
        let text =
            std::fs::read_to_string(&path).with_context(|| format!("read {}", path.display()))?;
        let mut amounts = BTreeMap::new();
        for line in text.lines() {
            if line.starts_with('#') {
                continue;
            }
            let fields: Vec<&str> = line.split(' ').collect();
            ensure!(
                fields.len() == 3,
                "{}: not RULE SUBJECT AMOUNT: {line}",
                path.display()
            );
            let amount = fields[2]
                .parse()
                .with_context(|| format!("the amount of {line}"))?;
            amounts.insert((fields[0].to_owned(), fields[1].to_owned()), amount);
        }
        Ok(Self { path, amounts })
    }

    /// The most that this subject may have.
    pub(crate) fn limit(&self, rule: Rule, subject: &str) -> f64 {
        let key = (rule.to_string(), subject.to_owned());
        match self.amounts.get(&key) {
            Some(&amount) => amount.max(rule.limit()),
            None => rule.limit(),
        }
    }

    /// Exceptions that nothing needs any more, as `RULE SUBJECT`.
    pub(crate) fn unneeded(&self, findings: &[Finding]) -> Vec<String> {
        let mut unneeded = Vec::new();
        for (rule, subject) in self.amounts.keys() {
            let mut needed = false;
            for finding in findings {
                needed |= finding.rule.to_string() == *rule
                    && finding.subject == *subject
                    && finding.amount > finding.rule.limit();
            }
            if !needed {
                unneeded.push(format!("{rule} {subject}"));
            }
        }
        unneeded
    }

    /// Writes what is above a limit now, and prints which exceptions were not there before.
    ///
    /// # Errors
    /// The file cannot be written.
    pub(crate) fn write(&self, findings: &[Finding]) -> Result<()> {
        let mut lines = Vec::new();
        for finding in findings {
            if finding.amount > finding.rule.limit() {
                if finding.amount > self.limit(finding.rule, &finding.subject) {
                    println!("added: {} {}", finding.rule, finding.subject);
                }
                lines.push(format!(
                    "{} {} {}",
                    finding.rule, finding.subject, finding.amount
                ));
            }
        }
        lines.sort();
        let mut text = HEADER.to_owned();
        for line in lines {
            writeln!(text, "{line}")?;
        }
        std::fs::write(&self.path, text).with_context(|| format!("write {}", self.path.display()))
    }
}
