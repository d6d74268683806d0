//! Watches that stay open from job to job.

use std::time::Duration;

use anyhow::{Context, Result};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout_at};

use super::connection::{Target, Watch};
use super::{Figures, objects};

/// Longer than a hub needs to notice that the link is back.
const RETURN: Duration = Duration::from_secs(60);

/// What a watch has shown so far.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum WatchState {
    Nothing,
    Change(u64),
    End,
}

/// The open watches.
#[derive(Default)]
pub(super) struct OpenWatches {
    tasks: JoinSet<()>,
    watches: Vec<(String, watch::Receiver<WatchState>)>,
}

impl OpenWatches {
    /// Lists, and opens that many watches from there.
    pub(super) async fn open(
        &mut self,
        target: &Target,
        path: &str,
        watches: usize,
    ) -> Result<Figures> {
        for _ in 0..watches {
            let watch = target.connect().await?.watch(path).await?;
            let (state_tx, state) = watch::channel(WatchState::Nothing);
            self.tasks.spawn(follow(watch, state_tx));
            self.watches.push((path.to_owned(), state));
        }
        Ok(Vec::new())
    }

    /// Ends all watches.
    pub(super) fn release(&mut self) -> Figures {
        *self = Self::default();
        Vec::new()
    }

    /// Changes an object of each list, and waits until each watch has shown it or has ended.
    pub(super) async fn await_change(&mut self, writer: &Target) -> Result<Figures> {
        let started = Instant::now();
        let mut connection = writer.connect().await?;
        let change = objects::new_change()?;
        let mut paths: Vec<&String> = self.watches.iter().map(|(path, _)| path).collect();
        paths.dedup();
        for path in paths {
            objects::change(&mut connection, path, 0, change).await?;
        }
        let deadline = started + RETURN;
        let mut ended = 0;
        for (path, state) in &mut self.watches {
            let done = state.wait_for(|state| {
                matches!(state, WatchState::End) || *state == WatchState::Change(change)
            });
            let state = *timeout_at(deadline, done)
                .await
                .with_context(|| format!("a watch of {path} shows no change after {RETURN:?}"))??;
            ended += usize::from(state == WatchState::End);
        }
        Ok(vec![
            ("watches_ended", ended as f64),
            ("return_seen_s", started.elapsed().as_secs_f64()),
        ])
    }
}

async fn follow(mut watch: Watch, state: watch::Sender<WatchState>) {
    while let Ok(event) = watch.next().await {
        if let Some(change) = objects::change_of(&event) {
            state.send_replace(WatchState::Change(change));
        }
    }
    state.send_replace(WatchState::End);
}
