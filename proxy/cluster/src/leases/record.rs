//! The content of a proxy's Lease: how it is written, and how that of another proxy is read. Others
//! may write anything into a Lease. Pure.

use std::collections::BTreeMap;
use std::time::Duration;

use culvert_api::HostPort;
use culvert_proxy_core::instance::Instance;
use culvert_proxy_core::listed_peer::ListedPeer;
use data_encoding::HEXLOWER;
use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use k8s_openapi::jiff::Timestamp;
use kube::api::ObjectMeta;
use sha2::{Digest, Sha256};

use super::{LASTS, OwnLease};

/// The label by which proxies' Leases are found among others in the namespace.
pub(super) const LABEL: (&str, &str) = ("app.kubernetes.io/name", "culvert-proxy");
const PART_OF: (&str, &str) = ("app.kubernetes.io/part-of", "culvert");
/// How the names of Leases begin.
pub(super) const PREFIX: &str = "culvert-proxy-";
/// `host:port` of the proxy's peer port.
const ADDRESS: &str = "culvert.dev/peer-address";
/// The number of tunnels that the proxy holds.
const TUNNELS: &str = "culvert.dev/tunnels";
/// A proxy's instance is shorter.
const MAX_INSTANCE: usize = 64;
/// A Lease is not believed to last longer than this.
const MAX_LASTS: Duration = Duration::from_secs(300);
/// The part of an object's name that is taken from an address. Longer ones are cut.
const MAX_SLUG: usize = 200;

/// The reason why a Lease describes no proxy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum BadLease {
    #[error("holderIdentity is not the instance of a proxy")]
    Holder,
    #[error("leaseDurationSeconds is not a positive number")]
    Duration,
    #[error("annotation {ADDRESS} is not HOST:PORT")]
    Address,
}

/// The name of the Lease of the proxy at this peer address. No two proxies of a cluster share one,
/// and a proxy that is started again has the same one.
pub(super) fn name(address: &HostPort) -> String {
    let text = address.to_string();
    let slug: String = text.chars().map(letter_of_name).collect();
    let slug = slug.trim_matches('-');
    if slug.len() <= MAX_SLUG {
        return format!("{PREFIX}{slug}");
    }
    let digest = HEXLOWER.encode(&Sha256::digest(&text)[..8]);
    format!("{PREFIX}{}-{digest}", &slug[..MAX_SLUG])
}

fn letter_of_name(letter: char) -> char {
    match letter {
        'a'..='z' | '0'..='9' => letter,
        _ => '-',
    }
}

/// Who holds the Lease.
pub(super) fn holder(lease: &Lease) -> Option<&str> {
    lease.spec.as_ref()?.holder_identity.as_deref()
}

/// The Lease that was found, or a new one, as this proxy renews it. The values of others stay.
pub(super) fn renewed(found: Option<Lease>, own: &OwnLease, tunnels: u32) -> Lease {
    let mut lease = match found {
        Some(found) => found,
        None => Lease {
            metadata: ObjectMeta {
                name: Some(name(&own.address)),
                ..ObjectMeta::default()
            },
            ..Lease::default()
        },
    };
    let labels = lease.metadata.labels.get_or_insert_default();
    for (key, value) in [LABEL, PART_OF] {
        labels.insert(key.to_owned(), value.to_owned());
    }
    let annotations = lease.metadata.annotations.get_or_insert_default();
    annotations.insert(ADDRESS.to_owned(), own.address.to_string());
    annotations.insert(TUNNELS.to_owned(), tunnels.to_string());
    let holder = own.instance.to_string();
    let now = MicroTime(Timestamp::now());
    let mut spec = lease.spec.take().unwrap_or_default();
    if spec.holder_identity.as_ref() != Some(&holder) {
        let before = spec.holder_identity.replace(holder);
        spec.lease_transitions =
            before.map(|_| spec.lease_transitions.unwrap_or(0).saturating_add(1));
        spec.acquire_time = Some(now.clone());
    }
    spec.renew_time = Some(now);
    spec.lease_duration_seconds = i32::try_from(LASTS.as_secs()).ok();
    lease.spec = Some(spec);
    lease
}

/// What changes when a Lease is renewed. It is compared, never read: the clocks of other hosts do
/// not matter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Renewal {
    holder: Option<String>,
    renewed: Option<MicroTime>,
}

impl From<&Lease> for Renewal {
    fn from(lease: &Lease) -> Self {
        let Some(spec) = &lease.spec else {
            return Self {
                holder: None,
                renewed: None,
            };
        };
        // A longer one describes no proxy, and need not be kept.
        let holder = match &spec.holder_identity {
            Some(holder) if holder.len() <= MAX_INSTANCE => Some(holder.clone()),
            _ => None,
        };
        Self {
            holder,
            renewed: spec.renew_time.clone(),
        }
    }
}

/// The proxy that a Lease describes, and how long the Lease lasts after each renewal.
pub(super) fn read(lease: &Lease) -> Result<(ListedPeer, Duration), BadLease> {
    let LeaseSpec {
        holder_identity,
        lease_duration_seconds,
        ..
    } = lease.spec.as_ref().ok_or(BadLease::Holder)?;
    let instance = match holder_identity {
        Some(holder) if is_instance(holder) => Instance::from(holder.as_str()),
        _ => return Err(BadLease::Holder),
    };
    let seconds = match lease_duration_seconds.map(u64::try_from) {
        Some(Ok(seconds)) if seconds > 0 => seconds,
        _ => return Err(BadLease::Duration),
    };
    let none = BTreeMap::new();
    let annotations = lease.metadata.annotations.as_ref().unwrap_or(&none);
    let Some(Ok(address)) = annotations.get(ADDRESS).map(|text| text.parse()) else {
        return Err(BadLease::Address);
    };
    let peer = ListedPeer {
        instance,
        address,
        tunnels: tunnels(annotations),
    };
    Ok((peer, Duration::from_secs(seconds).min(MAX_LASTS)))
}

/// How many tunnels it says that it has.
fn tunnels(annotations: &BTreeMap<String, String>) -> u32 {
    match annotations.get(TUNNELS) {
        Some(text) => text.parse().unwrap_or(0),
        None => 0,
    }
}

fn is_instance(text: &str) -> bool {
    (1..=MAX_INSTANCE).contains(&text.len())
        && text.bytes().all(|byte| byte.is_ascii_alphanumeric())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn own() -> OwnLease {
        OwnLease {
            instance: "00ff".into(),
            address: "10.0.0.1:7401".parse().unwrap(),
        }
    }

    #[test]
    fn a_lease_is_named_after_the_address_whatever_its_form() {
        let named = |address: &str| name(&address.parse().unwrap());
        assert_eq!(named("10.0.0.1:7401"), "culvert-proxy-10-0-0-1-7401");
        assert_eq!(named("[fd00::1]:7401"), "culvert-proxy-fd00--1--7401");
        assert_eq!(
            named("Cloud_1.example:443"),
            "culvert-proxy-cloud-1-example-443"
        );
        let label = "a".repeat(63);
        let long = format!("{label}.{label}.{label}.{}:1", "a".repeat(61));
        let other = format!("{label}.{label}.{label}.{}:2", "a".repeat(61));
        assert!(
            named(&long).len() <= 253 && named(&long) != named(&other),
            "what is cut is told apart"
        );
    }

    #[test]
    fn what_is_written_is_read_and_what_others_wrote_stays() {
        let mut lease = renewed(None, &own(), 7);
        let peer = ListedPeer {
            instance: own().instance,
            address: own().address,
            tunnels: 7,
        };
        assert_eq!(read(&lease), Ok((peer, LASTS)));
        lease
            .metadata
            .labels
            .as_mut()
            .unwrap()
            .insert("note".to_owned(), "mine".to_owned());
        let later = renewed(Some(lease.clone()), &own(), 8);
        let before = lease.spec.unwrap();
        let after = later.spec.unwrap();
        assert_eq!(later.metadata.labels.unwrap()["note"], "mine");
        assert_eq!(before.acquire_time, after.acquire_time, "it had it before");
        assert_eq!(after.lease_transitions, None);
    }

    #[test]
    fn a_new_run_of_a_proxy_takes_its_lease_over() {
        let next = OwnLease {
            instance: "ff00".into(),
            ..own()
        };
        let taken = renewed(Some(renewed(None, &own(), 7)), &next, 0);
        assert_eq!(holder(&taken), Some("ff00"));
        assert_eq!(taken.spec.unwrap().lease_transitions, Some(1));
    }

    #[test]
    fn garbage_describes_no_proxy() {
        let broken = |edit: &dyn Fn(&mut Lease)| {
            let mut lease = renewed(None, &own(), 7);
            edit(&mut lease);
            read(&lease).map(|(peer, lasts)| (peer.tunnels, lasts.as_secs()))
        };
        let spec = |edit: fn(&mut LeaseSpec)| broken(&|lease| edit(lease.spec.as_mut().unwrap()));
        let annotation = |key: &str, value: &str| {
            broken(&|lease| {
                let annotations = lease.metadata.annotations.as_mut().unwrap();
                annotations.insert(key.to_owned(), value.to_owned());
            })
        };
        assert_eq!(broken(&|lease| lease.spec = None), Err(BadLease::Holder));
        for holder in ["", "a b", "a\n", &"a".repeat(65)] {
            let result = broken(&|lease| {
                lease.spec.as_mut().unwrap().holder_identity = Some(holder.to_owned());
            });
            assert_eq!(result, Err(BadLease::Holder), "{holder:?}");
        }
        assert_eq!(
            spec(|spec| spec.lease_duration_seconds = Some(-1)),
            Err(BadLease::Duration)
        );
        assert_eq!(
            spec(|spec| spec.lease_duration_seconds = Some(i32::MAX)),
            Ok((7, 300)),
            "nobody stays for years"
        );
        assert_eq!(annotation(ADDRESS, "10.0.0.1"), Err(BadLease::Address));
        assert_eq!(annotation(ADDRESS, "a b:7401"), Err(BadLease::Address));
        assert_eq!(annotation(TUNNELS, "-1"), Ok((0, 40)));
    }
}
