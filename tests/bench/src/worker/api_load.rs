//! The clients of `cargo xtask bench hub`: they ask an API server, or a hub in front of it, as
//! kubelet and the other programs of a node do.

mod connection;
mod cut;
mod job;
mod objects;
mod requests;
mod updates;
mod watches;

use std::io::{BufRead, Write};
use std::time::Duration;

use anyhow::Result;
use serde_json::{Map, Value, json};

use job::Job;
use watches::OpenWatches;

/// Limit of every wait that is not measured.
const PATIENCE: Duration = Duration::from_secs(30);

/// The result of a job: names and numbers.
type Figures = Vec<(&'static str, f64)>;

/// Runs the jobs from standard input until its end.
pub(crate) fn run() -> Result<()> {
    let runtime = tokio::runtime::Runtime::new()?;
    let mut open_watches = OpenWatches::default();
    println!("ready");
    for line in std::io::stdin().lock().lines() {
        let line = line?;
        let found = runtime.block_on(async { Job::parse(&line)?.run(&mut open_watches).await });
        let answer = match found {
            Ok(figures) => Value::Object(
                figures
                    .into_iter()
                    .map(|(name, value)| (name.to_owned(), value.into()))
                    .collect::<Map<_, _>>(),
            ),
            Err(error) => json!({ "error": format!("{error:#}") }),
        };
        println!("{answer}");
        std::io::stdout().flush()?;
    }
    Ok(())
}
