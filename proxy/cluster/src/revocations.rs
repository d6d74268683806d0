//! ConfigMap `culvert-revocations`: the Nodes whose certificates `node remove` has revoked at any
//! proxy. All proxies follow it. Each one merges its content with its own knowledge, so that a
//! deleted ConfigMap or an unreachable API server loses nothing.

use std::pin::pin;
use std::time::Duration;

use culvert_daemon::{Drain, Gate, Problem};
use culvert_proxy_trust::{Revocations, Trust};
use futures_util::StreamExt;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::Api;
use tokio::time::sleep;

use super::Cluster;
use super::configmap::{ConfigMapName, MAX_BYTES, empty, write};
use super::request::RequestError;

/// The ConfigMap's name.
const NAME: &str = "culvert-revocations";
/// Its key. The value is JSON.
const REVOCATIONS: &str = "revocations";
/// The pause after a failed attempt.
const RETRY: Duration = Duration::from_secs(2);

/// The reason why the proxies do not agree on revocations.
#[derive(Debug, thiserror::Error)]
enum ShareError {
    #[error("write the ConfigMap {NAME}")]
    Write(#[source] RequestError),
    #[error(
        "the ConfigMap {NAME} makes no sense: restore it, or delete it to have it made from what \
         the proxies remember"
    )]
    Broken(#[source] serde_json::Error),
    #[error(
        "the ConfigMap {NAME} would have {bytes} bytes, the API server takes {MAX_BYTES}: delete \
         Nodes that are revoked"
    )]
    TooLong { bytes: usize },
    #[error("merge the revocations")]
    GivenUp,
}

impl Cluster {
    /// Keeps the ConfigMap and this proxy's revocations equal until the drain begins. Nodes that
    /// were admitted earlier are served without it, so it does not delay readiness.
    pub(crate) async fn share_revocations(
        self,
        trust: Trust,
        gate: Gate,
        drain: Drain,
    ) -> anyhow::Result<()> {
        gate.open();
        let Some(mut known) = trust.revocations() else {
            return Ok(());
        };
        let maps = self.config_maps(&self.namespace);
        let which = ConfigMapName {
            namespace: self.namespace.clone(),
            name: NAME.to_owned(),
        };
        let mut found = pin!(self.follow(which));
        let mut last: Option<Option<ConfigMap>> = None;
        let mut problem = Problem::default();
        let mut again = false;
        loop {
            tokio::select! {
                Some(map) = found.next() => last = Some(map),
                Ok(()) = known.changed() => {}
                () = sleep(RETRY), if again => {}
                () = drain.begun() => return Ok(()),
            }
            known.mark_unchanged();
            let Some(present) = &last else { continue };
            let mut now_wrong = None;
            match share(&maps, present.as_ref(), &trust).await {
                Ok(Some(written)) => last = Some(Some(written)),
                Ok(None) => {}
                Err(error) => {
                    let reason = culvert_daemon::chain(&error);
                    now_wrong = Some(format!("not shared with the other proxies: {reason}"));
                }
            }
            if let Err(reason) = save(&trust).await {
                now_wrong.get_or_insert(format!("not on disk: {reason}"));
            }
            again = now_wrong.is_some();
            gate.remark(now_wrong.clone());
            if let Some(reason) = problem.record(now_wrong) {
                tracing::error!(reason, "revocations are not everywhere yet; trying again");
            }
        }
    }
}

/// Writes the revocations that this proxy knows to its disk. They hold, and the others have them,
/// also if that fails.
async fn save(trust: &Trust) -> Result<(), String> {
    let trust = trust.clone();
    let saved = tokio::task::spawn_blocking(move || trust.write_revocations()).await;
    match saved {
        Ok(Ok(())) => Ok(()),
        Ok(Err(error)) => Err(culvert_daemon::chain(&error)),
        Err(error) => Err(error.to_string()),
    }
}

/// Takes the content of the ConfigMap, and writes what it lacks. Returns what was written.
async fn share(
    maps: &Api<ConfigMap>,
    present: Option<&ConfigMap>,
    trust: &Trust,
) -> Result<Option<ConfigMap>, ShareError> {
    let found = present.map(read).transpose()?.flatten();
    let merging = trust.clone();
    let shown = found.clone().unwrap_or_default();
    let all = tokio::task::spawn_blocking(move || merging.merge_revocations(&shown));
    let all = all.await.map_err(|_| ShareError::GivenUp)?;
    let written = if found.as_ref() == Some(&all) {
        None
    } else {
        match write(maps, &with(present.cloned(), &all)?).await {
            Ok(written) => Some(written),
            // Another proxy was faster. The watch will deliver its version.
            Err(error) if error.is_conflict() => return Ok(None),
            Err(error) => return Err(ShareError::Write(error)),
        }
    };
    trust.revocations_agreed(all);
    Ok(written)
}

/// The content of the ConfigMap; `None` if it has none yet.
fn read(map: &ConfigMap) -> Result<Option<Revocations>, ShareError> {
    let Some(text) = map.data.as_ref().and_then(|data| data.get(REVOCATIONS)) else {
        return Ok(None);
    };
    match serde_json::from_str(text) {
        Ok(revocations) => Ok(Some(revocations)),
        Err(source) => Err(ShareError::Broken(source)),
    }
}

/// The ConfigMap that was found, or a new one, with all revocations.
fn with(found: Option<ConfigMap>, all: &Revocations) -> Result<ConfigMap, ShareError> {
    let text = serde_json::to_string(all).map_err(ShareError::Broken)?;
    let mut map = match found {
        Some(found) => found,
        None => empty(NAME),
    };
    let data = map.data.get_or_insert_default();
    data.insert(REVOCATIONS.to_owned(), text);
    let bytes = data
        .iter()
        .map(|(key, value)| key.len() + value.len())
        .sum();
    if bytes > MAX_BYTES {
        Err(ShareError::TooLong { bytes })
    } else {
        Ok(map)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_and_what_others_wrote_stays() {
        let mut revocations = Revocations::default();
        let node = "edge-1".parse().unwrap();
        let uid = "a-1".parse().unwrap();
        revocations.add(
            &node,
            &uid,
            culvert_proxy_core::clock::UnixTime::from_seconds(1_700_000_000),
        );
        let mut foreign = empty(NAME);
        foreign
            .data
            .get_or_insert_default()
            .insert("note".to_owned(), "mine".to_owned());
        assert_eq!(
            read(&foreign).unwrap(),
            None,
            "nothing of ours is one to be filled"
        );
        let map = with(Some(foreign), &revocations).unwrap();
        assert_eq!(
            (
                read(&map).unwrap(),
                map.data.as_ref().unwrap()["note"].as_str()
            ),
            (Some(revocations), "mine")
        );
    }

    #[test]
    fn what_somebody_broke_is_named() {
        let mut map = empty(NAME);
        map.data
            .get_or_insert_default()
            .insert(REVOCATIONS.to_owned(), "{".to_owned());
        assert!(
            read(&map)
                .unwrap_err()
                .to_string()
                .contains("culvert-revocations makes no sense")
        );
    }
}
