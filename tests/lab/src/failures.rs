//! The tests and claims that failed, in files: several commands test, and the last one reports what
//! all of them found.

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};

/// A test that failed when it ran for the first time.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failure {
    /// The version of Linux, if it ran on another kernel than this machine's.
    pub kernel: Option<String>,
    /// The suite, such as `tests/chain`.
    pub suite: String,
    /// Its full name in the suite; `None` if the suite ended without naming one.
    pub test: Option<String>,
    /// What it printed.
    pub output: String,
    /// How it ended when it ran again.
    pub second: SecondLook,
    /// The command that runs it again.
    pub repeat: String,
}

/// How a test that failed ended when it ran again.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum SecondLook {
    /// It has not run again yet.
    Pending,
    /// It does not run again, for this reason.
    Never(String),
    /// It passed, and printed this.
    Passed(String),
    /// It failed again, and printed this.
    Failed(String),
}

impl Failure {
    /// The kernel, the suite and the test.
    pub fn title(&self) -> String {
        let suite = suite_title(self.kernel.as_deref(), &self.suite);
        match &self.test {
            Some(test) => format!("{suite}, {test}"),
            None => suite,
        }
    }

    /// Whether it passed when it ran again.
    pub fn is_flaky(&self) -> bool {
        matches!(self.second, SecondLook::Passed(_))
    }
}

/// The kernel, if it is another one than this machine's, and the suite.
pub fn suite_title(kernel: Option<&str>, suite: &str) -> String {
    match kernel {
        Some(kernel) => format!("Linux {kernel}, {suite}"),
        None => suite.to_owned(),
    }
}

/// A file of failures, one line of JSON each.
pub struct Record(PathBuf);

impl Record {
    /// An empty file.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn create(path: &Path) -> Result<Self> {
        let record = Self(path.to_owned());
        record.write(&[])?;
        Ok(record)
    }

    /// The file that another command wrote.
    pub fn at(path: &Path) -> Self {
        Self(path.to_owned())
    }

    /// Adds a failure.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn add(&self, failure: &Failure) -> Result<()> {
        let mut file = File::options()
            .append(true)
            .open(&self.0)
            .with_context(|| format!("open {}", self.0.display()))?;
        file.write_all(line(failure)?.as_bytes())
            .with_context(|| format!("write {}", self.0.display()))
    }

    /// Has these failures instead of those that it had.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn write(&self, failures: &[Failure]) -> Result<()> {
        let lines = failures.iter().map(line).collect::<Result<String>>()?;
        std::fs::write(&self.0, lines).with_context(|| format!("write {}", self.0.display()))
    }

    /// Its failures.
    ///
    /// # Errors
    /// The file is missing, or is not one of failures.
    pub fn read(&self) -> Result<Vec<Failure>> {
        let text = std::fs::read_to_string(&self.0)
            .with_context(|| format!("read {}", self.0.display()))?;
        let mut failures = Vec::new();
        for line in text.lines() {
            let failure =
                serde_json::from_str(line).with_context(|| format!("read {}", self.0.display()))?;
            failures.push(failure);
        }
        Ok(failures)
    }
}

fn line(failure: &Failure) -> Result<String> {
    Ok(serde_json::to_string(failure).context("write a failure as JSON")? + "\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failures_are_read_as_they_were_written() {
        let failure = Failure {
            kernel: Some("5.10".to_owned()),
            suite: "redirector: kernel".to_owned(),
            test: Some("a::test".to_owned()),
            output: "two\nlines".to_owned(),
            second: SecondLook::Pending,
            repeat: String::new(),
        };
        assert_eq!(failure.title(), "Linux 5.10, redirector: kernel, a::test");
        let name = format!("culvert-failures-{}", std::process::id());
        let path = std::env::temp_dir().join(name);
        let record = Record::create(&path).unwrap();
        record.add(&failure).unwrap();
        record.add(&failure).unwrap();
        let read = record.read().unwrap();
        std::fs::remove_file(&path).unwrap();
        assert_eq!(read, vec![failure; 2]);
        assert!(record.read().is_err(), "a missing file is no empty one");
    }
}
