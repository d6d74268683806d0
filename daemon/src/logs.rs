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

/// The process's log filter. Clones share it.
#[derive(Clone, Debug)]
pub struct Logs {
    filter: reload::Handle<EnvFilter, Registry>,
}

impl Logs {
    /// Starts logging for the whole process, including panics of its tasks. `filter` has
    /// `tracing`'s syntax, such as `info` or `info,culvert_proxy=debug`.
    ///
    /// # Errors
    /// The filter does not parse, or the process logs already.
    pub fn init(filter: &str, format: LogFormat) -> Result<Self> {
        let (layer, handle) = reload::Layer::new(parse(filter)?);
        let lines = fmt::layer().with_writer(std::io::stderr).with_ansi(false);
        let registry = tracing_subscriber::registry().with(layer);
        match format {
            LogFormat::Text => registry.with(lines).try_init(),
            LogFormat::Json => registry.with(lines.json()).try_init(),
        }
        .context("start logging")?;
        std::panic::set_hook(Box::new(|panic| {
            let location = panic.location().map(tracing::field::display);
            tracing::error!(location, panic = panic.payload_as_str(), "a task failed");
        }));
        Ok(Self { filter: handle })
    }

    /// A filter without logs.
    #[cfg(test)]
    pub(crate) fn for_tests() -> Self {
        let (layer, filter) = reload::Layer::new(EnvFilter::default());
        // The filter works only while its layer exists.
        std::mem::forget(layer);
        Self { filter }
    }

    /// Changes the filter.
    ///
    /// # Errors
    /// The filter does not parse; the old one stays.
    pub fn set_filter(&self, filter: &str) -> Result<()> {
        self.filter
            .reload(parse(filter)?)
            .context("change the log filter")
    }
}

/// Before the filter. A peer that answers pings that were not sent would write a line for each.
const QUIET: &str = "h2::proto::ping_pong=error";

/// Accepts levels and targets only. Filters on spans and fields may contain regular expressions,
/// whose compilation takes unlimited memory.
fn parse(filter: &str) -> Result<EnvFilter> {
    if filter.contains(['[', ']', '{', '}']) {
        return Err(invalid_filter(
            filter,
            &"filters by spans and fields are not taken",
        ));
    }
    // The message of this error contains its cause already.
    EnvFilter::builder()
        .with_regex(false)
        .parse(format!("{QUIET},{filter}"))
        .map_err(|error| invalid_filter(filter, &error))
}

fn invalid_filter(filter: &str, cause: &dyn std::fmt::Display) -> anyhow::Error {
    anyhow!(
        "log filter {filter:?}: {cause}: write a level such as `info`, or `info,culvert_proxy=debug`"
    )
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use serde_json::Value;

    use super::*;

    #[test]
    fn a_peer_cannot_fill_the_log_with_pings() {
        let registry = tracing_subscriber::registry().with(parse("info").unwrap());
        tracing::subscriber::with_default(registry, || {
            assert!(tracing::enabled!(target: "h2::proto", tracing::Level::WARN));
            assert!(!tracing::enabled!(target: "h2::proto::ping_pong", tracing::Level::WARN));
        });
    }

    #[test]
    fn a_panic_is_a_log_line() {
        const FAILS: &str = "A_PANIC_IS_A_LOG_LINE";
        if std::env::var_os(FAILS).is_some() {
            Logs::init("info", LogFormat::Json).unwrap();
            std::thread::spawn(|| panic!("first\nsecond"))
                .join()
                .unwrap_err();
            return;
        }
        // Runs this test again in another process: logging is set up once per process.
        let mut process = Command::new(std::env::current_exe().unwrap());
        process
            .args([
                "--exact",
                "logs::tests::a_panic_is_a_log_line",
                "--nocapture",
            ])
            .env(FAILS, "1");
        let output = process.output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{said}");
        let line: Value = said
            .lines()
            .find_map(|line| serde_json::from_str(line).ok())
            .expect(&said);
        assert_eq!(line["level"], "ERROR");
        assert_eq!(line["fields"]["message"], "a task failed");
        assert_eq!(line["fields"]["panic"], "first\nsecond");
        assert!(
            line["fields"]["location"]
                .as_str()
                .unwrap()
                .starts_with("daemon/src/logs.rs:"),
            "{line}"
        );
    }

    #[test]
    fn a_wrong_filter_is_named_with_its_cause_once_and_with_the_fix() {
        let text = format!("{:#}", parse("info,culvert_proxy=loud").unwrap_err());
        assert_eq!(text.matches("level").count(), 2, "{text}");
        assert!(
            text.contains("\"info,culvert_proxy=loud\"") && text.contains("write a level such as"),
            "{text}"
        );
    }

    #[test]
    fn a_filter_that_could_hold_a_regular_expression_is_refused_before_anything_is_compiled() {
        let bomb = format!("[{{a=(x|y)*x{}}}]=info", "(x|y)".repeat(24));
        for filter in [
            bomb.as_str(),
            "culvert_proxy[span]=debug",
            "[{field}]=debug",
        ] {
            let text = parse(filter).unwrap_err().to_string();
            assert!(
                text.contains("spans and fields") && text.contains("write a level such as"),
                "{text}"
            );
        }
        parse("info,culvert_proxy::agents=trace,hyper=off").unwrap();
    }
}
