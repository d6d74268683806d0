//! Logs on standard error, and their filter, which can be changed while the process runs.

use anyhow::{Context, Result, anyhow};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{EnvFilter, Registry, fmt, reload};

/// How log lines look.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LogFormat {
    /// For people.
    #[default]
    Text,
    /// One JSON object a line.
    Json,
}

impl std::str::FromStr for LogFormat {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "text" => Ok(Self::Text),
            "json" => Ok(Self::Json),
            _ => Err(format!("{text:?} is neither `text` nor `json`")),
        }
    }
}

/// The process' log filter. Clones share it.
#[derive(Clone, Debug)]
pub struct Logs {
    filter: reload::Handle<EnvFilter, Registry>,
}

impl Logs {
    /// Starts logging for the whole process, panics of its tasks too. `filter` is in `tracing`'s syntax, such as `info` or
    /// `info,culvert_proxy=debug`.
    ///
    /// # Errors
    /// A filter that does not parse, or a process that logs already.
    pub fn init(filter: &str, format: LogFormat) -> Result<Self> {
        let (layer, handle) = reload::Layer::new(parse(filter)?);
        let lines = fmt::layer().with_writer(std::io::stderr).with_ansi(false);
        let registry = tracing_subscriber::registry().with(layer);
        match format {
            LogFormat::Text => registry.with(lines).try_init(),
            LogFormat::Json => registry.with(lines.json()).try_init(),
        }
        .context("start logging")?;
        std::panic::set_hook(Box::new(|panic| tracing::error!(%panic, "a task failed")));
        Ok(Self { filter: handle })
    }

    /// Changes the filter from here on.
    ///
    /// # Errors
    /// A filter that does not parse; the old one stays.
    pub fn set_filter(&self, filter: &str) -> Result<()> {
        self.filter.reload(parse(filter)?).context("change the log filter")
    }
}

fn parse(filter: &str) -> Result<EnvFilter> {
    // The crate's own cause is in its message already.
    EnvFilter::try_new(filter).map_err(|error| {
        anyhow!("log filter {filter:?}: {error}: write a level such as `info`, or `info,culvert_proxy=debug`")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wrong_filter_is_named_with_its_cause_once_and_with_the_fix() {
        let text = format!("{:#}", parse("info,culvert_proxy=loud").unwrap_err());
        assert_eq!(text.matches("level").count(), 2, "{text}");
        assert!(text.contains("\"info,culvert_proxy=loud\"") && text.contains("write a level such as"), "{text}");
    }
}
