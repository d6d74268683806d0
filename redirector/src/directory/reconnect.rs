//! Streams of the proxy's directory socket, each after the end of the last one.

use std::convert::Infallible;
use std::time::{Duration, Instant};

use anyhow::Result;
use culvert_daemon::Backoff;

/// Pauses between streams: a restarting proxy is back within a second or two.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(2);

/// Runs one stream after another, each from connect to its end. `report` gets the reason why it
/// failed; `None`: the proxy ended it.
pub(super) async fn reconnect<F: Future<Output = Result<()>>>(
    mut stream: impl FnMut() -> F,
    mut report: impl FnMut(Option<String>),
) -> Infallible {
    let mut backoff = Backoff::new(FIRST_PAUSE, LONGEST_PAUSE);
    loop {
        let started = Instant::now();
        let mut reason = None;
        if let Err(error) = stream().await {
            // tonic repeats each cause in the next one's text: the first and the last are enough.
            reason = Some(format!("{error}: {}", error.root_cause()));
        }
        report(reason);
        tokio::time::sleep(backoff.wait_after(started.elapsed())).await;
    }
}
