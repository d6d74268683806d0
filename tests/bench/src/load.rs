//! Controls the processes that generate the load, by lines of input.

use std::collections::BTreeMap;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use culvert_lab::LineProcess;
use serde_json::Value;

/// Figures of one job on one path, by the names that the load uses.
pub(super) type Figures = BTreeMap<String, f64>;

/// Longer than any job with all its waits.
const JOB_TIME: Duration = Duration::from_secs(180);

/// A process that contains clients and their backend. Dropping it ends it.
pub(super) struct Load(LineProcess);

impl Load {
    pub(super) fn start(command: &mut Command) -> Result<Self> {
        let load = Self(LineProcess::start(command)?);
        match load.line()?.as_str() {
            "ready" => Ok(load),
            other => bail!("the load said {other:?}"),
        }
    }

    /// Runs a job in it.
    pub(super) fn run(&mut self, job: &str) -> Result<Figures> {
        self.0.send(job)?;
        let line = self.line()?;
        let Value::Object(answer) = serde_json::from_str(&line)? else {
            bail!("the load said {line:?}")
        };
        if let Some(error) = answer.get("error") {
            bail!("{}", error.as_str().unwrap_or_default());
        }
        let mut figures = Figures::new();
        for (name, value) in answer {
            if let Some(value) = value.as_f64() {
                figures.insert(name, value);
            }
        }
        Ok(figures)
    }

    fn line(&self) -> Result<String> {
        self.0.line(JOB_TIME).context("the load did not answer")
    }
}
