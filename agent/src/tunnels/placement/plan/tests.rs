use std::time::Duration;

use super::*;

/// Two proxies, two tunnels to each.
const TWO: Spread = Spread {
    proxies: 2,
    tunnels: 2,
    extra: 2,
};

fn address(text: &str) -> HostPort {
    text.parse().unwrap()
}

fn id(text: &str) -> ProxyId {
    text.into()
}

/// Proxies as one of them tells; of `a`, `a:1` is the own address, if it is known.
fn reported(proxies: &[(&str, bool)]) -> Vec<Proxy> {
    let proxy = |(name, own): &(&str, bool)| Proxy {
        instance: (*name).to_owned(),
        addresses: own.then(|| format!("{name}:1")).into_iter().collect(),
        ..Proxy::default()
    };
    proxies.iter().map(proxy).collect()
}

fn plan(listed: &[&str]) -> Plan {
    let mut plan = Plan::new(TWO);
    plan.list(listed.iter().copied().map(address).collect());
    plan
}

/// A plan with tunnels of slots 0, 1, ..., each to a proxy by way of an address.
fn with_tunnels(listed: &[&str], tunnels: &[(&str, &str)]) -> Plan {
    let mut plan = plan(listed);
    for (number, (proxy, by)) in (0..).zip(tunnels) {
        claim(&mut plan, number, by, proxy).unwrap();
    }
    plan
}

fn claim(plan: &mut Plan, slot: u16, by: &str, proxy: &str) -> Result<(), Declined> {
    plan.claim(SlotNumber(slot), slot.into(), &address(by), &id(proxy))
}

/// What a slot does, each time that it is asked.
fn choices(plan: &Plan, slot: u16) -> BTreeSet<String> {
    let choice = || match plan.choose(SlotNumber(slot), Look::Now, Instant::now()) {
        Choice::Dial(address) => format!("dial {address}"),
        Choice::Look(address) => format!("look {address}"),
        Choice::Wait(until) => format!("wait {}", until.is_some()),
    };
    (0..50).map(|_| choice()).collect()
}

fn all<const N: usize>(expected: [&str; N]) -> BTreeSet<String> {
    expected.map(str::to_owned).into()
}

#[test]
fn two_tunnels_to_each_of_two_proxies_are_wanted_and_no_others() {
    let plan = Plan::new(TWO);
    let admits = |proxy: &str, others: &[&str]| {
        let others: Vec<_> = others.iter().copied().map(id).collect();
        plan.admits(&id(proxy), &others)
    };
    assert!(admits("a", &[]) && admits("a", &["a"]) && admits("b", &["a", "a"]));
    assert!(!admits("a", &["a", "a"]), "it has two");
    assert!(!admits("c", &["a", "b"]), "it would be the third proxy");
    assert!(admits("b", &["a", "a", "b"]));
    assert_eq!(TWO.slots(), 4);
}

#[test]
fn without_a_tunnel_all_addresses_are_tried_each_by_two_slots() {
    let mut plan = plan(&["a:1", "b:1"]);
    assert_eq!(choices(&plan, 0), all(["dial a:1", "dial b:1"]));
    plan.dials(SlotNumber(0), &address("a:1"));
    assert_eq!(choices(&plan, 1), all(["dial b:1"]), "side by side");
    for (slot, by) in [(1, "b:1"), (2, "a:1"), (3, "b:1")] {
        plan.dials(SlotNumber(slot), &address(by));
    }
    assert_eq!(choices(&plan, 4), all(["wait false"]));
    let now = Instant::now();
    plan.failed(
        SlotNumber(0),
        &address("a:1"),
        Failure::Unreachable,
        "no route",
        now,
    );
    plan.failed(
        SlotNumber(1),
        &address("b:1"),
        Failure::Unreachable,
        "no route",
        now,
    );
    let later = now + Duration::from_millis(1);
    plan.failed(
        SlotNumber(3),
        &address("b:1"),
        Failure::Unreachable,
        "no route",
        later,
    );
    assert_eq!(
        choices(&plan, 4),
        all(["dial a:1"]),
        "what failed longest ago comes first"
    );
}

#[test]
fn an_address_whose_proxy_is_not_wanted_is_not_dialled_while_another_listed_one_is_there() {
    let plan = with_tunnels(&["a:1", "b:1", "c:1"], &[("a", "a:1"), ("a", "a:1")]);
    assert_eq!(choices(&plan, 2), all(["dial b:1", "dial c:1"]));
    let plan = with_tunnels(
        &["a:1", "b:1", "c:1"],
        &[("a", "a:1"), ("a", "a:1"), ("b", "b:1")],
    );
    assert_eq!(
        choices(&plan, 3),
        all(["dial b:1"]),
        "a third proxy is not wanted"
    );
}

#[test]
fn what_other_slots_dial_counts_too() {
    let mut plan = with_tunnels(&["a:1", "b:1", "c:1"], &[("a", "a:1"), ("a", "a:1")]);
    plan.dials(SlotNumber(2), &address("b:1"));
    assert_eq!(choices(&plan, 3), all(["dial b:1"]));
}

#[test]
fn behind_one_address_a_slot_looks_for_another_proxy_if_there_may_be_one() {
    let mut plan = with_tunnels(&["all:1"], &[("a", "all:1"), ("a", "all:1")]);
    assert_eq!(choices(&plan, 2), all(["look all:1"]));
    assert_eq!(claim(&mut plan, 2, "all:1", "a"), Err(Declined));
    let never = plan.choose(SlotNumber(2), Look::Never, Instant::now());
    assert_eq!(never, Choice::Wait(None), "content after some tries");
    plan.record_report(&id("a"), reported(&[("a", false)]));
    assert_eq!(choices(&plan, 2), all(["wait false"]), "there is no other");
    plan.record_report(&id("a"), reported(&[("a", false), ("b", false)]));
    assert_eq!(choices(&plan, 2), all(["look all:1"]));
    assert_eq!(claim(&mut plan, 2, "all:1", "b"), Ok(()));
}

#[test]
fn reported_addresses_lead_to_a_wanted_proxy_without_a_look() {
    let mut plan = with_tunnels(&["all:1"], &[("a", "all:1"), ("a", "all:1")]);
    plan.record_report(&id("a"), reported(&[("a", true), ("b", true), ("c", true)]));
    assert_eq!(choices(&plan, 2), all(["dial b:1", "dial c:1"]));
    let now = Instant::now();
    for by in ["b:1", "c:1"] {
        plan.failed(
            SlotNumber(2),
            &address(by),
            Failure::Unreachable,
            "no route",
            now,
        );
    }
    assert_eq!(
        choices(&plan, 2),
        all(["look all:1"]),
        "the nodes may not reach the proxies' own addresses"
    );
    let plan_waits = plan.choose(SlotNumber(2), Look::Never, now);
    assert!(matches!(plan_waits, Choice::Wait(Some(until)) if until > now));
}

#[test]
fn a_listed_address_that_proxies_tell_as_their_own_hides_nobody() {
    let mut plan = with_tunnels(&["a:1"], &[("a", "a:1"), ("a", "a:1")]);
    plan.record_report(&id("a"), reported(&[("a", true), ("b", false)]));
    assert_eq!(choices(&plan, 2), all(["wait false"]));
}

#[test]
fn a_proxys_word_on_itself_is_no_address_to_dial() {
    let mut plan = with_tunnels(&["all:1"], &[("a", "all:1")]);
    plan.record_report(&id("a"), reported(&[("a", true)]));
    assert_eq!(choices(&plan, 1), all(["dial all:1"]));
}

#[test]
fn what_a_proxy_tells_counts_while_it_has_a_tunnel_or_is_the_last_to_tell() {
    let mut plan = with_tunnels(&["all:1"], &[("a", "all:1"), ("b", "all:1")]);
    plan.record_report(&id("c"), reported(&[("d", true)]));
    assert_eq!(choices(&plan, 2), all(["dial all:1"]), "c has no tunnel");
    plan.record_report(&id("a"), reported(&[("a", true), ("b", true), ("c", true)]));
    plan.record_report(&id("b"), reported(&[("b", true)]));
    plan.release(SlotNumber(0), 0);
    assert!(!plan.addresses.is_reported(&address("c:1")));
    plan.record_report(&id("b"), reported(&[("b", true), ("c", true)]));
    plan.release(SlotNumber(1), 1);
    assert_eq!(choices(&plan, 0), all(["dial all:1", "dial c:1"]));
}

#[test]
fn a_draining_proxy_is_left_for_another_and_kept_without_one() {
    let mut plan = with_tunnels(&["all:1"], &[("a", "all:1"), ("a", "all:1")]);
    assert!(plan.should_leave(SlotNumber(0)).is_none());
    let drains = |others: &[(&str, bool)]| {
        let mut proxies = reported(&[("a", true)]);
        proxies[0].draining = true;
        proxies.extend(reported(others));
        proxies
    };
    plan.record_report(&id("a"), drains(&[]));
    assert!(plan.should_leave(SlotNumber(0)).is_some());
    assert_eq!(
        choices(&plan, 0),
        all(["look all:1"]),
        "there is no other, unless its successor is there already"
    );
    plan.record_report(&id("a"), drains(&[("b", true)]));
    assert_eq!(choices(&plan, 0), all(["dial b:1"]));
    assert_eq!(
        claim(&mut plan, 0, "all:1", "a"),
        Err(Declined),
        "no new tunnel to it"
    );
    assert_eq!(claim(&mut plan, 0, "b:1", "b"), Ok(()));
    assert!(
        plan.should_leave(SlotNumber(0)).is_none() && plan.should_leave(SlotNumber(1)).is_some()
    );
}

#[test]
fn a_draining_proxy_may_end_when_others_have_tunnels_enough() {
    let tunnels = [("a", "all:1"), ("a", "all:1"), ("b", "all:1")];
    let mut plan = with_tunnels(&["all:1"], &tunnels);
    assert!(!plan.may_end(SlotNumber(0)));
    let mut proxies = reported(&[("a", false), ("b", false)]);
    proxies[0].draining = true;
    plan.record_report(&id("b"), proxies);
    assert!(!plan.may_end(SlotNumber(0)), "one tunnel is few");
    claim(&mut plan, 3, "all:1", "b").unwrap();
    assert!(plan.may_end(SlotNumber(0)) && !plan.may_end(SlotNumber(2)));
}

#[test]
fn any_proxy_is_better_than_none() {
    let mut plan = with_tunnels(&["all:1"], &[("a", "all:1")]);
    let mut proxies = reported(&[("a", false)]);
    proxies[0].draining = true;
    plan.record_report(&id("a"), proxies.clone());
    plan.release(SlotNumber(0), 0);
    assert_eq!(claim(&mut plan, 0, "all:1", "a"), Ok(()));
}

#[test]
fn a_removed_proxy_is_kept_until_another_one_answers() {
    let mut plan = with_tunnels(&["a:1"], &[("a", "a:1"), ("a", "a:1")]);
    let removed = plan.list([address("b:1")].into());
    assert_eq!(removed, [address("a:1")].into());
    assert!(plan.should_leave(SlotNumber(0)).is_some());
    assert_eq!(choices(&plan, 0), all(["dial b:1"]));
    for slot in [0, 1] {
        plan.release(SlotNumber(slot), slot.into());
    }
    assert_eq!(
        choices(&plan, 0),
        all(["dial a:1", "dial b:1"]),
        "it may come back"
    );
    claim(&mut plan, 0, "b:1", "b").unwrap();
    assert_eq!(choices(&plan, 1), all(["dial b:1"]));
    plan.release(SlotNumber(0), 0);
    assert_eq!(choices(&plan, 0), all(["dial b:1"]), "the list was right");
}

#[test]
fn a_removed_proxy_that_another_one_tells_is_not_left() {
    let tunnels = [("a", "a:1"), ("b", "b:1")];
    let mut plan = with_tunnels(&["a:1", "b:1"], &tunnels);
    plan.record_report(&id("b"), reported(&[("a", true), ("b", true)]));
    assert_eq!(plan.list([address("b:1")].into()), [].into());
    let mut plan = with_tunnels(&["a:1", "b:1"], &tunnels);
    plan.record_report(&id("a"), reported(&[("a", true)]));
    assert_eq!(plan.list([address("b:1")].into()), [address("a:1")].into());
}

#[test]
fn an_older_proxy_is_known_by_its_address_and_hides_nobody() {
    let by = ProxyId::met("", &address("a:1"));
    let mut plan = plan(&["a:1"]);
    for slot in [0, 1] {
        let claimed = plan.claim(SlotNumber(slot), slot.into(), &address("a:1"), &by);
        assert_eq!(claimed, Ok(()));
    }
    assert_eq!(choices(&plan, 2), all(["wait false"]));
}

#[test]
fn a_refused_certificate_is_shown_again_late_or_when_it_is_another_one() {
    let mut plan = plan(&["a:1"]);
    let now = Instant::now();
    let refused = Failure::Refused;
    let retry = plan.failed(SlotNumber(0), &address("a:1"), refused, "revoked", now);
    assert!(retry.is_news && retry.at >= now + Duration::from_secs(10));
    assert_eq!(choices(&plan, 0), all(["wait true"]));
    let retry = plan.failed(SlotNumber(1), &address("a:1"), refused, "revoked", now);
    assert!(!retry.is_news, "one slot has told it");
    plan.forgive();
    assert_eq!(choices(&plan, 0), all(["dial a:1"]));
}

/// A plan with two tunnels to each of `a` and `b`, when `c` has come back without nodes.
fn beside_an_empty_proxy() -> Plan {
    let tunnels = [("a", "a:1"), ("a", "a:1"), ("b", "b:1"), ("b", "b:1")];
    let mut plan = with_tunnels(&["a:1", "b:1", "c:1"], &tunnels);
    let mut proxies = reported(&[("a", true), ("b", true), ("c", true)]);
    (proxies[0].nodes, proxies[1].nodes) = (300, 200);
    plan.record_report(&id("a"), proxies);
    plan
}

#[test]
fn tunnels_move_to_a_proxy_that_came_back_empty() {
    let mut plan = beside_an_empty_proxy();
    assert_eq!(plan.even_out(0.9), None);
    assert_eq!(plan.even_out(0.0), Some(&id("a")));
    for slot in [0, 1] {
        assert!(plan.should_leave(SlotNumber(slot)).is_some());
        assert_eq!(choices(&plan, slot), all(["dial c:1"]));
        claim(&mut plan, slot, "c:1", "c").unwrap();
    }
    assert!((0..4).all(|slot| plan.should_leave(SlotNumber(slot)).is_none()));
    assert_eq!(plan.moving, None, "the move is over");
}

#[test]
fn a_tunnel_ends_whose_place_after_a_move_a_spare_slot_took() {
    let mut plan = beside_an_empty_proxy();
    assert_eq!(plan.even_out(0.0), Some(&id("a")));
    assert!(!plan.may_end(SlotNumber(0)), "nothing took its place");
    claim(&mut plan, 4, "c:1", "c").unwrap();
    assert!(plan.may_end(SlotNumber(0)) && plan.may_end(SlotNumber(1)));
    assert!(!plan.may_end(SlotNumber(2)) && !plan.may_end(SlotNumber(4)));
}

#[test]
fn bulk_gets_a_proxy_further_tunnels_and_the_last_ones_end_after_it() {
    let mut plan = with_tunnels(&["a:1"], &[("a", "a:1"), ("a", "a:1")]);
    assert!(claim(&mut plan, 2, "a:1", "a").is_err());
    let one = || BTreeMap::from([(id("a"), 1)]);
    assert!(plan.set_extra(one()) && !plan.set_extra(one()));
    assert_eq!(choices(&plan, 2), all(["dial a:1"]));
    claim(&mut plan, 2, "a:1", "a").unwrap();
    assert!(
        claim(&mut plan, 3, "a:1", "a").is_err(),
        "it has its extra one"
    );
    let leave = |plan: &Plan| [0, 1, 2].map(|slot| plan.should_leave(SlotNumber(slot)));
    assert_eq!(leave(&plan), [None; 3]);
    plan.set_extra(BTreeMap::new());
    assert_eq!(leave(&plan), [None, None, Some(Leave::Surplus)]);
    assert!(plan.may_end(SlotNumber(2)) && !plan.may_end(SlotNumber(1)));
    plan.release(SlotNumber(0), 0);
    assert_eq!(
        leave(&plan),
        [None; 3],
        "it takes the place of one that ended"
    );
}

/// A plan with two tunnels to each of two proxies, where a third one can be dialled.
fn with_third() -> Plan {
    let tunnels = [("a", "a:1"), ("a", "a:1"), ("b", "b:1"), ("b", "b:1")];
    let mut plan = with_tunnels(&["a:1", "b:1"], &tunnels);
    plan.record_report(&id("a"), reported(&[("a", true), ("b", true), ("c", true)]));
    plan
}

fn set_extra(plan: &mut Plan, extra: &[(&str, u8)]) {
    let mut wanted = BTreeMap::new();
    for (proxy, count) in extra {
        wanted.insert(id(proxy), *count);
    }
    plan.set_extra(wanted);
}

#[test]
fn an_invited_proxy_gets_extra_tunnels_and_no_others() {
    let mut plan = with_third();
    assert!(!plan.invite(&id("unknown")), "nobody reports it");
    assert!(plan.invite(&id("a")) && plan.invited().is_empty());
    assert_eq!(choices(&plan, 4), all(["wait false"]));
    assert!(plan.invite(&id("c")));
    set_extra(&mut plan, &[("c", 2)]);
    assert_eq!(choices(&plan, 4), all(["dial c:1"]));
    claim(&mut plan, 4, "c:1", "c").unwrap();
    claim(&mut plan, 5, "c:1", "c").unwrap();
    assert_eq!(claim(&mut plan, 6, "c:1", "c"), Err(Declined));
    assert_eq!(plan.should_leave(SlotNumber(5)), None);
    set_extra(&mut plan, &[]);
    for slot in [4, 5] {
        let slot = SlotNumber(slot);
        assert_eq!(plan.should_leave(slot), Some(Leave::Surplus));
        assert!(plan.may_end(slot));
    }
    plan.release(SlotNumber(4), 4);
    assert_eq!(choices(&plan, 4), all(["wait false"]));
    plan.release(SlotNumber(5), 5);
    assert!(plan.invited().is_empty());
    assert_eq!(claim(&mut plan, 4, "c:1", "c"), Err(Declined));
}

#[test]
fn an_invited_proxy_takes_the_place_of_one_that_is_gone() {
    let mut plan = with_third();
    plan.invite(&id("c"));
    set_extra(&mut plan, &[("c", 1)]);
    claim(&mut plan, 4, "c:1", "c").unwrap();
    for slot in [2, 3] {
        plan.release(SlotNumber(slot), slot.into());
    }
    claim(&mut plan, 2, "c:1", "c").unwrap();
    assert!(plan.invited().is_empty(), "it is one of two now");
    set_extra(&mut plan, &[]);
    assert_eq!(plan.should_leave(SlotNumber(2)), None);
    assert_eq!(claim(&mut plan, 3, "b:1", "b"), Err(Declined));
}

#[test]
fn an_invitation_that_leads_to_no_tunnel_is_forgotten() {
    let mut plan = with_third();
    plan.invite(&id("c"));
    set_extra(&mut plan, &[("c", 1)]);
    set_extra(&mut plan, &[]);
    assert!(plan.invited().is_empty());
}
