use k8s_openapi::api::coordination::v1::LeaseSpec;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use k8s_openapi::jiff::Timestamp;

use super::*;
use crate::leases::record::renewed;
use crate::leases::{LASTS, RENEW_EVERY};

fn own(number: usize) -> OwnLease {
    OwnLease {
        instance: Instance::from(format!("{number:016x}").as_str()),
        address: format!("10.0.{}.{}:7401", number / 250, number % 250)
            .parse()
            .unwrap(),
    }
}

/// A Lease that was renewed at this time of its host's clock.
fn lease(number: usize, renewed_at: i64) -> Lease {
    let mut lease = renewed(None, &own(number), 1);
    spec(&mut lease).renew_time = Some(MicroTime(Timestamp::from_second(renewed_at).unwrap()));
    lease
}

fn spec(lease: &mut Lease) -> &mut LeaseSpec {
    lease.spec.as_mut().unwrap()
}

/// Proxy 0, which renews its Lease, and time.
struct World {
    seen: SeenLeases,
    now: Instant,
    renewals: i64,
}

impl World {
    fn new() -> Self {
        Self {
            seen: SeenLeases::new(Some(&own(0))),
            now: Instant::now(),
            renewals: 0,
        }
    }

    fn shows(&mut self, lease: Lease) {
        self.seen.apply(Event::Apply(lease), self.now);
    }

    /// Passes time in which this proxy renews its Lease, and the watch shows it.
    fn passes(&mut self, time: Duration) {
        let end = self.now + time;
        while self.now < end {
            self.now = end.min(self.now + RENEW_EVERY);
            self.renewals += 1;
            self.shows(lease(0, self.renewals));
        }
    }

    fn peers(&self) -> Vec<String> {
        let listed = self.seen.listed().unwrap().peers;
        listed
            .into_iter()
            .map(|peer| peer.address.to_string())
            .collect()
    }
}

#[test]
fn a_lease_is_alive_for_its_duration_whatever_the_clock_of_its_host_says() {
    let mut world = World::new();
    world.shows(lease(0, 0));
    world.shows(lease(1, 9_999_999_999));
    world.shows(lease(2, 1));
    assert_eq!(world.peers(), ["10.0.0.1:7401", "10.0.0.2:7401"]);
    world.passes(LASTS - Duration::from_secs(1));
    world.shows(lease(2, 2));
    world.passes(Duration::from_secs(2));
    assert_eq!(
        world.peers(),
        ["10.0.0.2:7401"],
        "one lies in the future and is not renewed, one in the past and is"
    );
    world.shows(lease(1, 0));
    assert_eq!(
        world.peers().len(),
        2,
        "a clock that was set back is a renewal too"
    );
}

#[test]
fn a_lease_that_others_write_to_is_not_renewed_by_that() {
    let mut world = World::new();
    let mut annotated = lease(1, 1);
    world.shows(annotated.clone());
    world.passes(LASTS);
    annotated
        .metadata
        .annotations
        .get_or_insert_default()
        .insert("note".to_owned(), "mine".to_owned());
    annotated.metadata.resource_version = Some("2".to_owned());
    world.shows(annotated);
    assert_eq!(world.peers(), Vec::<String>::new());
}

#[test]
fn without_the_api_server_everything_stays() {
    let mut world = World::new();
    world.shows(lease(1, 1));
    world.seen.lost();
    world.now += LASTS * 100;
    assert_eq!(world.peers(), ["10.0.0.1:7401"]);
    world.seen.apply(Event::Init, world.now);
    assert_eq!(world.seen.listed(), None, "a list is under way");
    world.seen.apply(Event::InitApply(lease(1, 1)), world.now);
    world.seen.apply(Event::InitDone, world.now);
    assert_eq!(
        world.peers(),
        ["10.0.0.1:7401"],
        "it has as long for its renewal as ever"
    );
    world.passes(LASTS);
    assert_eq!(world.peers(), Vec::<String>::new());
}

#[test]
fn what_a_list_lacks_and_what_is_deleted_is_gone_at_once() {
    let mut world = World::new();
    world.shows(lease(1, 1));
    world.shows(lease(2, 1));
    world.seen.apply(Event::Delete(lease(2, 1)), world.now);
    assert_eq!(world.peers(), ["10.0.0.1:7401"]);
    world.seen.apply(Event::Init, world.now);
    world.seen.apply(Event::InitApply(lease(3, 1)), world.now);
    world.seen.apply(Event::InitDone, world.now);
    assert_eq!(world.peers(), ["10.0.0.3:7401"]);
}

#[test]
fn a_proxy_is_no_peer_of_its_own() {
    let mut world = World::new();
    world.shows(lease(0, 1));
    let mut copy = lease(1, 1);
    spec(&mut copy).holder_identity = Some(own(0).instance.to_string());
    world.shows(copy);
    assert_eq!(world.peers(), Vec::<String>::new());
}

#[test]
fn garbage_is_reported_once_and_takes_no_place() {
    let mut world = World::new();
    let mut garbage = lease(1, 1);
    spec(&mut garbage).lease_duration_seconds = None;
    let reported = |world: &mut World, lease: &Lease| {
        let news = world.seen.apply(Event::Apply(lease.clone()), world.now);
        news.map(|(_, bad)| bad)
    };
    assert_eq!(reported(&mut world, &garbage), Some(BadLease::Duration));
    assert_eq!(reported(&mut world, &garbage), None);
    assert_eq!(world.peers(), Vec::<String>::new());
    assert_eq!(reported(&mut world, &lease(1, 1)), None);
    assert_eq!(world.peers(), ["10.0.0.1:7401"]);
}

#[test]
fn what_others_write_takes_bounded_memory() {
    let mut world = World::new();
    for number in 1..=2 * MAX_KEPT {
        world.shows(lease(number, 1));
    }
    assert_eq!(world.seen.leases.len(), MAX_KEPT);
    let listed = world.seen.listed().unwrap();
    assert_eq!(
        (listed.peers.len(), listed.left_out),
        (MAX_LISTED, MAX_KEPT - MAX_LISTED)
    );
}

#[test]
fn the_lease_of_a_host_that_is_gone_for_a_day_is_deleted_and_foreign_ones_are_not() {
    let mut world = World::new();
    let mut foreign = lease(2, 1);
    foreign.metadata.name = Some("leader".to_owned());
    let mut gone = lease(1, 1);
    gone.metadata.resource_version = Some("7".to_owned());
    world.shows(gone);
    world.shows(foreign);
    world.passes(ABANDONED_AFTER - RENEW_EVERY);
    assert_eq!(world.seen.abandoned(), None);
    world.passes(RENEW_EVERY);
    let (name, version) = world.seen.abandoned().unwrap();
    assert_eq!(name, "culvert-proxy-10-0-0-1-7401");
    assert_eq!(version.resource_version.as_deref(), Some("7"));
    assert_eq!(world.seen.abandoned(), None, "it is not tried without end");
}
