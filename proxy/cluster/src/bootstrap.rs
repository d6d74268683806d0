//! ConfigMap `culvert-agent`: the proxies' addresses and authority for agents. Every proxy keeps it
//! up to date. After a conflict a proxy merges its part into the new version.

mod addresses;

use std::collections::BTreeMap;
use std::time::Duration;

use culvert_api::agent_config::{CA, MAX_PROXIES, NAME, PROXIES, SERVER_NAME};
use culvert_daemon::{Drain, Problem};
use culvert_proxy_core::advertise::Advertised;
use culvert_proxy_core::clock::UnixTime;
use culvert_proxy_core::metrics::{Metrics, ProxyCap};
use culvert_proxy_trust::Trust;
use k8s_openapi::api::core::v1::ConfigMap;
use tokio::time::sleep;

use super::Cluster;
use super::configmap::{empty, write};

use super::request::{RequestError, ask};
pub(super) use addresses::AddressesError;
use addresses::{NodeHosts, Proxies};

/// The time at which each proxy's address was last confirmed, as JSON. It shows which proxies are
/// gone.
const SEEN: &str = "culvert.dev/proxies-seen";
/// Each write reaches the kubelet of every edge node, so writes are rare.
const SAY_AGAIN: Duration = Duration::from_secs(2 * 3600);
const FORGET: Duration = Duration::from_secs(6 * 3600);
const CHECK_INTERVAL: Duration = Duration::from_secs(10);
/// The number of conflicts with other proxies before a write is given up.
const MAX_CONFLICTS: usize = 8;

/// The reason why the ConfigMap cannot be written.
#[derive(Debug, thiserror::Error)]
enum PublishError {
    #[error("ConfigMap {namespace}/{NAME}")]
    Request {
        namespace: String,
        source: RequestError,
    },
    #[error(transparent)]
    Addresses(#[from] AddressesError),
    #[error(
        "no address for agents to dial: start the proxy with --advertise HOST:PORT or \
         --agent-service NAME"
    )]
    NoProxy,
}

/// The content of the ConfigMap.
#[derive(Clone, Debug, PartialEq, Eq)]
struct AgentSettings {
    ca: String,
    server_name: String,
    proxies: Proxies,
}

impl Cluster {
    /// Keeps the ConfigMap up to date until the drain begins.
    pub(crate) async fn publish_for_agents(
        self,
        trust: Trust,
        advertised: Advertised,
        metrics: Metrics,
        drain: Drain,
    ) -> anyhow::Result<()> {
        let mut problem = Problem::default();
        let mut full = Problem::default();
        let mut hosts = NodeHosts::default();
        loop {
            let now_wrong = match self.publish_once(&trust, &advertised, &mut hosts).await {
                Ok(left_out) => {
                    metrics.capped_proxies(ProxyCap::AgentConfig, left_out);
                    report_full(&mut full, left_out);
                    None
                }
                Err(error) => Some(culvert_daemon::chain(&error)),
            };
            if let Some(reason) = problem.record(now_wrong) {
                tracing::error!(
                    reason,
                    "the proxies' addresses for agents are not published"
                );
            }
            tokio::select! {
                () = sleep(CHECK_INTERVAL) => {}
                () = drain.begun() => return Ok(()),
            }
        }
    }

    /// Returns how many addresses the list has no place for.
    async fn publish_once(
        &self,
        trust: &Trust,
        advertised: &Advertised,
        hosts: &mut NodeHosts,
    ) -> Result<usize, PublishError> {
        // With ready certificates, agents bring their own too.
        let Some(ca) = trust.authorities_pem() else {
            return Ok(0);
        };
        let proxies = self.agents_dial(advertised, hosts).await?;
        if proxies.addresses().is_empty() {
            return Err(PublishError::NoProxy);
        }
        self.publish(&AgentSettings {
            ca,
            server_name: trust.server_name().to_owned(),
            proxies,
        })
        .await
    }

    async fn publish(&self, settings: &AgentSettings) -> Result<usize, PublishError> {
        let maps = self.config_maps(&self.namespace);
        let mut conflicts = 0;
        loop {
            let present = ask(maps.get_opt(NAME)).await;
            let present = present.map_err(|source| self.not_published(source))?;
            let Merged { next, left_out } = merge(present, settings, UnixTime::now());
            let Some(next) = next else {
                return Ok(left_out);
            };
            let proxies = proxies_of(&next).replace('\n', ", ");
            match write(&maps, &next).await {
                Ok(_) => {
                    tracing::info!(
                        configmap = NAME,
                        proxies,
                        "the proxies' addresses for agents are published"
                    );
                    return Ok(left_out);
                }
                Err(error) if error.is_conflict() && conflicts < MAX_CONFLICTS => conflicts += 1,
                Err(error) => return Err(self.not_published(error)),
            }
        }
    }

    fn not_published(&self, source: RequestError) -> PublishError {
        PublishError::Request {
            namespace: self.namespace.clone(),
            source,
        }
    }
}

/// Logs that the list has no place for further proxies, once.
fn report_full(full: &mut Problem, left_out: usize) {
    let reason = if left_out > 0 {
        Some(format!("it takes {MAX_PROXIES} addresses"))
    } else {
        None
    };
    if let Some(reason) = full.record(reason) {
        tracing::warn!(
            configmap = NAME,
            reason,
            left_out,
            "proxies left out of the list for agents: they learn of these from other proxies"
        );
    }
}

/// The ConfigMap with this proxy's part.
struct Merged {
    /// `None` if it is up to date.
    next: Option<ConfigMap>,
    /// Addresses that the list has no place for.
    left_out: usize,
}

/// Merges this proxy's part into the ConfigMap. The content of others is kept.
fn merge(present: Option<ConfigMap>, settings: &AgentSettings, now: UnixTime) -> Merged {
    let before = match present {
        Some(present) => present,
        None => empty(NAME),
    };
    let mut next = before.clone();
    let annotations = next.metadata.annotations.get_or_insert_default();
    let mut seen = seen_now(seen_before(annotations), &settings.proxies, now);
    let left_out = seen.len().saturating_sub(MAX_PROXIES);
    for _ in 0..left_out {
        seen.pop_last();
    }
    let text = serde_json::to_string(&seen).expect("texts and numbers have a JSON form");
    annotations.insert(SEEN.to_owned(), text);
    let data = next.data.get_or_insert_default();
    data.insert(CA.to_owned(), settings.ca.clone());
    data.insert(SERVER_NAME.to_owned(), settings.server_name.clone());
    data.insert(PROXIES.to_owned(), lines(&seen));
    let next = if next == before { None } else { Some(next) };
    Merged { next, left_out }
}

/// The addresses, one a line.
fn lines(seen: &BTreeMap<String, UnixTime>) -> String {
    seen.keys().map(|proxy| format!("{proxy}\n")).collect()
}

/// The addresses in a ConfigMap, one a line.
fn proxies_of(map: &ConfigMap) -> &str {
    match &map.data {
        Some(data) => data.get(PROXIES).map_or("", |text| text.trim()),
        None => "",
    }
}

/// What a ConfigMap says of proxies. What is not readable counts as nothing.
fn seen_before(annotations: &BTreeMap<String, String>) -> BTreeMap<String, UnixTime> {
    match annotations.get(SEEN) {
        Some(text) => serde_json::from_str(text).unwrap_or_default(),
        None => BTreeMap::new(),
    }
}

/// The addresses of proxies, with the time of their last confirmation.
fn seen_now(
    mut seen: BTreeMap<String, UnixTime>,
    proxies: &Proxies,
    now: UnixTime,
) -> BTreeMap<String, UnixTime> {
    match proxies {
        Proxies::All(all) => seen.retain(|address, _| all.contains(address)),
        Proxies::Own(own) => {
            // A date in the future comes from a clock that was wrong.
            seen.retain(|address, last| {
                own.contains(address) || (now.since(*last) < FORGET && last.since(now) < FORGET)
            });
        }
    }
    for address in proxies.addresses() {
        let last = seen.entry(address.clone()).or_insert(now);
        if now.since(*last) >= SAY_AGAIN || *last > now + SAY_AGAIN {
            *last = now;
        }
    }
    seen
}

#[cfg(test)]
mod tests {
    use super::*;

    fn merge(
        present: Option<ConfigMap>,
        settings: &AgentSettings,
        now: UnixTime,
    ) -> Option<ConfigMap> {
        let Merged { next, left_out } = super::merge(present, settings, now);
        assert_eq!(left_out, 0);
        next
    }

    const NOW: UnixTime = UnixTime::from_seconds(1_700_000_000);

    fn own(addresses: &[&str]) -> AgentSettings {
        let addresses = addresses
            .iter()
            .map(|address| (*address).to_owned())
            .collect();
        AgentSettings {
            ca: "CA".to_owned(),
            server_name: "culvert-proxy".to_owned(),
            proxies: Proxies::Own(addresses),
        }
    }

    fn data<'a>(map: &'a ConfigMap, key: &str) -> &'a str {
        &map.data.as_ref().unwrap()[key]
    }

    #[test]
    fn proxies_add_theirs_and_leave_the_others_and_foreign_keys() {
        let first = merge(None, &own(&["a:1"]), NOW).unwrap();
        assert_eq!(
            (
                data(&first, CA),
                data(&first, SERVER_NAME),
                data(&first, PROXIES)
            ),
            ("CA", "culvert-proxy", "a:1\n")
        );
        let mut foreign = first.clone();
        foreign
            .data
            .as_mut()
            .unwrap()
            .insert("note".to_owned(), "mine".to_owned());
        let both = merge(Some(foreign), &own(&["b:1"]), NOW).unwrap();
        assert_eq!(
            (data(&both, PROXIES), data(&both, "note")),
            ("a:1\nb:1\n", "mine")
        );
        assert_eq!(
            merge(Some(both.clone()), &own(&["a:1"]), NOW),
            None,
            "all is as it should be"
        );
        assert_eq!(
            merge(Some(both), &own(&["b:1"]), NOW + SAY_AGAIN / 2),
            None,
            "nobody is woken for nothing"
        );
    }

    #[test]
    fn a_proxy_that_says_nothing_for_hours_is_forgotten() {
        let mut map = merge(None, &own(&["gone:1"]), NOW).unwrap();
        for hours in 1..=6 {
            let now = NOW + Duration::from_secs(hours * 3600);
            map = merge(Some(map.clone()), &own(&["here:1"]), now).unwrap_or(map);
            assert_eq!(
                data(&map, PROXIES),
                if hours < 6 {
                    "gone:1\nhere:1\n"
                } else {
                    "here:1\n"
                },
                "{hours}"
            );
        }
    }

    #[test]
    fn a_service_is_the_whole_truth() {
        let map = merge(None, &own(&["old:1"]), NOW).unwrap();
        let service = AgentSettings {
            proxies: Proxies::All(["lb:1".to_owned()].into()),
            ..own(&[])
        };
        assert_eq!(
            data(&merge(Some(map), &service, NOW).unwrap(), PROXIES),
            "lb:1\n"
        );
    }

    #[test]
    fn what_somebody_broke_is_mended() {
        let mut map = merge(None, &own(&["a:1"]), NOW).unwrap();
        map.metadata
            .annotations
            .as_mut()
            .unwrap()
            .insert(SEEN.to_owned(), "{".to_owned());
        map.data.as_mut().unwrap().remove(CA);
        let mended = merge(Some(map), &own(&["a:1"]), NOW).unwrap();
        assert_eq!((data(&mended, CA), data(&mended, PROXIES)), ("CA", "a:1\n"));
        let future = seen_now(
            [("x:1".to_owned(), NOW + FORGET * 2)].into(),
            &own(&["a:1"]).proxies,
            NOW,
        );
        assert_eq!(future.keys().collect::<Vec<_>>(), ["a:1"]);
    }

    #[test]
    fn the_sixty_fifth_proxy_is_listed_too_and_one_beyond_the_cap_is_counted() {
        let address = |number: usize| format!("10.0.{}.{}:7400", number / 100, number % 100);
        let mut map = None;
        for number in 0..MAX_PROXIES {
            map = merge(map, &own(&[&address(number)]), NOW);
        }
        let listed = |map: &ConfigMap| data(map, PROXIES).lines().count();
        let full = map.unwrap();
        assert!(listed(&full) > 65, "{}", listed(&full));
        assert_eq!(listed(&full), MAX_PROXIES);
        let Merged { next, left_out } = super::merge(Some(full), &own(&["z:1"]), NOW);
        assert_eq!(left_out, 1);
        assert!(next.is_none(), "its rest is not written again and again");
    }
}
