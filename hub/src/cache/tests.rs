//! Claims about the set machine, one each.

use super::fixtures::*;
use super::*;
use crate::wire::{EventKind, Object};

/// Lists a scope whole, as the node, with the grant for it.
fn fill(cache: &mut Cache, scope: &Scope, rv: u64, items: &[Object], now: Clock) -> Filled {
    let mut copy = cache.start_list(scope, None, &NODE, now).unwrap();
    items.iter().for_each(|object| copy.add(object.clone()));
    cache.record_verdict(&NODE, Verb::List, scope, Verdict::Allowed, now);
    cache.finish_list(copy, &head(rv, ""), &NODE, now)
}

/// What a list answers: resource version, and names with versions.
fn listed(cache: &mut Cache, scope: &Scope) -> Option<(u64, Vec<String>)> {
    match cache.list(&NODE, Verb::List, scope, at(0)) {
        ListAnswer::Found(snapshot) => Some((snapshot.head.resource_version, texts(&snapshot))),
        ListAnswer::Unknown | ListAnswer::Denied => None,
    }
}

fn texts(snapshot: &Snapshot) -> Vec<String> {
    snapshot
        .items()
        .map(|it| String::from_utf8(it.bytes().to_vec()).unwrap())
        .collect()
}

/// What a GET answers, in a word.
fn got(cache: &mut Cache, identity: &Identity, scope: &Scope) -> String {
    match cache.get(identity, scope, at(0)) {
        GetAnswer::Found { object, .. } => String::from_utf8(object.bytes.to_vec()).unwrap(),
        GetAnswer::Absent { .. } => "absent".to_owned(),
        GetAnswer::Unknown => "unknown".to_owned(),
        GetAnswer::Denied => "denied".to_owned(),
    }
}

fn whole(rv: u64, items: &[&str]) -> Option<(u64, Vec<String>)> {
    Some((rv, items.iter().map(|it| (*it).to_owned()).collect()))
}

#[test]
fn a_list_is_served_whole_after_its_last_page_and_not_before() {
    let mut cache = cache();
    cache.record_verdict(&NODE, Verb::List, &all(), Verdict::Allowed, at(0));
    let mut page = cache.start_list(&all(), None, &NODE, at(0)).unwrap();
    page.add(pod("a", 1));
    assert_eq!(
        cache.finish_list(page, &head(10, "next"), &NODE, at(0)),
        Filled::Partly
    );
    assert_eq!(listed(&mut cache, &all()), None);
    let mut page = cache
        .start_list(&all(), Some("next"), &NODE, at(1))
        .unwrap();
    page.add(pod("b", 2));
    assert_eq!(
        cache.finish_list(page, &head(10, ""), &NODE, at(1)),
        Filled::Whole
    );
    assert_eq!(listed(&mut cache, &all()), whole(10, &["a@1", "b@2"]));
}

#[test]
fn who_begins_many_lists_does_not_end_those_of_others() {
    let mut cache = cache();
    let quiet = Identity::User("quiet".to_owned());
    let greedy = Identity::User("greedy".to_owned());
    let mut begins = |reader: &Identity, number: usize, scope: &Scope| {
        let page = cache
            .start_list(scope, None, reader, at(number as u64))
            .unwrap();
        let head = head(10, &format!("{reader} {number}"));
        let filled = cache.finish_list(page, &head, reader, at(number as u64));
        assert_eq!(filled, Filled::Partly);
    };
    begins(&NODE, 0, &all());
    begins(&quiet, 0, &labelled("app=quiet"));
    for number in 1..100 {
        begins(&greedy, number, &labelled("app=greedy"));
    }
    for (reader, scope) in [(&NODE, all()), (&quiet, labelled("app=quiet"))] {
        let token = format!("{reader} 0");
        let resumed = cache.start_list(&scope, Some(&token), reader, at(100));
        assert!(resumed.is_some());
    }
}

#[test]
fn two_readers_with_one_token_have_each_their_next_page() {
    let pod_reader = Identity::User("pod".to_owned());
    let other = Identity::User("other".to_owned());
    let mut cache = cache();
    for reader in [&NODE, &pod_reader] {
        cache.record_verdict(reader, Verb::List, &all(), Verdict::Allowed, at(0));
        let mut page = cache.start_list(&all(), None, reader, at(0)).unwrap();
        page.add(pod("a", 1));
        cache.finish_list(page, &head(10, "next"), reader, at(0));
    }
    let next = |cache: &mut Cache, reader| cache.start_list(&all(), Some("next"), reader, at(1));
    assert!(next(&mut cache, &other).is_none(), "it has no first page");
    drop(next(&mut cache, &pod_reader).unwrap());
    assert!(next(&mut cache, &pod_reader).is_none());
    let mut page = next(&mut cache, &NODE).unwrap();
    page.add(pod("b", 2));
    cache.finish_list(page, &head(10, ""), &NODE, at(1));
    assert_eq!(listed(&mut cache, &all()), whole(10, &["a@1", "b@2"]));
    assert!(next(&mut cache, &NODE).is_none(), "nothing waits");
}

#[test]
fn pages_of_two_states_make_no_list() {
    let mut cache = cache();
    let page = cache.start_list(&all(), None, &NODE, at(0)).unwrap();
    cache.finish_list(page, &head(10, "next"), &NODE, at(0));
    let page = cache
        .start_list(&all(), Some("next"), &NODE, at(0))
        .unwrap();
    assert_eq!(
        cache.finish_list(page, &head(11, ""), &NODE, at(0)),
        Filled::Spoiled
    );
    assert!(
        cache
            .start_list(&all(), Some("next"), &NODE, at(0))
            .is_none()
    );
}

#[test]
fn an_empty_list_is_an_answer_and_an_unknown_one_is_not() {
    let mut cache = cache();
    fill(&mut cache, &all(), 10, &[], at(0));
    cache.record_verdict(&NODE, Verb::List, &namespace("a"), Verdict::Allowed, at(0));
    assert_eq!(listed(&mut cache, &all()), whole(10, &[]));
    assert_eq!(listed(&mut cache, &namespace("a")), None);
}

#[test]
fn an_abandoned_list_leaves_the_earlier_one() {
    let mut cache = cache();
    fill(&mut cache, &all(), 10, &[pod("a", 1)], at(0));
    drop(cache.start_list(&all(), None, &NODE, at(1)));
    assert_eq!(listed(&mut cache, &all()), whole(10, &["a@1"]));
}

#[test]
fn a_watch_that_joins_advances_its_set() {
    let mut cache = cache();
    fill(&mut cache, &all(), 10, &[pod("a", 1), pod("b", 2)], at(0));
    let mut watch = cache.start_watch(&all(), WatchStart::At(10));
    for (kind, object) in [
        (EventKind::Added, pod("c", 11)),
        (EventKind::Modified, pod("a", 12)),
        (EventKind::Deleted, pod("b", 13)),
    ] {
        let applied = cache.apply(&mut watch, &event(kind, object), &NODE, at(1));
        assert_eq!(applied, Applied::Advanced);
    }
    cache.apply(&mut watch, &bookmark(20, false), &NODE, at(2));
    assert_eq!(listed(&mut cache, &all()), whole(20, &["a@12", "c@11"]));
}

#[test]
fn a_watch_that_starts_after_its_set_puts_it_behind_and_changes_nothing() {
    let mut cache = cache();
    fill(&mut cache, &all(), 10, &[pod("a", 1)], at(0));
    let mut watch = cache.start_watch(&all(), WatchStart::At(15));
    let added = event(EventKind::Added, pod("b", 16));
    assert_eq!(
        cache.apply(&mut watch, &added, &NODE, at(0)),
        Applied::Behind
    );
    assert_eq!(listed(&mut cache, &all()), whole(10, &["a@1"]));
    assert!(status(&cache, &all()).unwrap().behind);
    // The next list closes the gap, and the watch joins.
    fill(&mut cache, &all(), 16, &[pod("a", 1), pod("b", 16)], at(1));
    let added = event(EventKind::Added, pod("c", 17));
    assert_eq!(
        cache.apply(&mut watch, &added, &NODE, at(0)),
        Applied::Advanced
    );
    assert!(!status(&cache, &all()).unwrap().behind);
}

#[test]
fn two_watches_of_a_scope_tell_each_event_once() {
    let mut cache = cache();
    fill(&mut cache, &all(), 10, &[], at(0));
    let mut first = cache.start_watch(&all(), WatchStart::At(10));
    let mut second = cache.start_watch(&all(), WatchStart::At(8));
    let added = event(EventKind::Added, pod("a", 11));
    let deleted = event(EventKind::Deleted, pod("a", 12));
    assert_eq!(
        cache.apply(&mut first, &added, &NODE, at(0)),
        Applied::Advanced
    );
    assert_eq!(
        cache.apply(&mut first, &deleted, &NODE, at(0)),
        Applied::Advanced
    );
    assert_eq!(
        cache.apply(&mut second, &added, &NODE, at(0)),
        Applied::AlreadyInSet
    );
    assert_eq!(listed(&mut cache, &all()), whole(12, &[]));
}

#[test]
fn a_streaming_list_is_served_from_its_last_initial_event() {
    let mut cache = cache();
    cache.record_verdict(&NODE, Verb::List, &all(), Verdict::Allowed, at(0));
    let mut watch = cache.start_watch(&all(), WatchStart::Streaming);
    let added = event(EventKind::Added, pod("a", 1));
    assert_eq!(
        cache.apply(&mut watch, &added, &NODE, at(0)),
        Applied::Gathered
    );
    assert_eq!(listed(&mut cache, &all()), None);
    let end = cache.apply(&mut watch, &bookmark(10, true), &NODE, at(0));
    assert_eq!(end, Applied::Initial(Filled::Whole));
    assert_eq!(listed(&mut cache, &all()), whole(10, &["a@1"]));
    cache.apply(
        &mut watch,
        &event(EventKind::Added, pod("b", 11)),
        &NODE,
        at(0),
    );
    assert_eq!(listed(&mut cache, &all()), whole(11, &["a@1", "b@11"]));
}

#[test]
fn a_watch_from_anywhere_counts_from_its_first_bookmark() {
    let mut cache = cache();
    fill(&mut cache, &all(), 10, &[], at(0));
    let mut watch = cache.start_watch(&all(), WatchStart::Anywhere);
    let old = event(EventKind::Added, pod("a", 15));
    assert_eq!(
        cache.apply(&mut watch, &old, &NODE, at(0)),
        Applied::NotJoined
    );
    cache.apply(&mut watch, &bookmark(9, false), &NODE, at(0));
    let new = event(EventKind::Added, pod("b", 16));
    assert_eq!(
        cache.apply(&mut watch, &new, &NODE, at(0)),
        Applied::Advanced
    );
}

#[test]
fn an_error_event_puts_the_set_behind_and_it_is_still_served() {
    let mut cache = cache();
    fill(&mut cache, &all(), 10, &[pod("a", 1)], at(0));
    let mut watch = cache.start_watch(&all(), WatchStart::At(10));
    let gone = event(EventKind::Error { code: 410 }, pod("", 0));
    assert_eq!(
        cache.apply(&mut watch, &gone, &NODE, at(0)),
        Applied::Behind
    );
    assert_eq!(listed(&mut cache, &all()), whole(10, &["a@1"]));
    assert!(status(&cache, &all()).unwrap().behind);
}

#[test]
fn an_older_list_is_ignored_until_only_older_ones_come() {
    let mut cache = cache();
    fill(&mut cache, &all(), 100, &[pod("a", 90)], at(0));
    assert_eq!(got(&mut cache, &NODE, &one("a")), "a@90");
    assert_eq!(fill(&mut cache, &all(), 50, &[], at(10)), Filled::Older);
    assert!(status(&cache, &all()).unwrap().behind);
    assert_eq!(fill(&mut cache, &all(), 51, &[], at(69)), Filled::Older);
    assert_eq!(listed(&mut cache, &all()), whole(100, &["a@90"]));
    assert_eq!(fill(&mut cache, &all(), 52, &[], at(70)), Filled::Whole);
    assert_eq!(listed(&mut cache, &all()), whole(52, &[]));
    assert_eq!(got(&mut cache, &NODE, &one("a")), "absent");
    assert_eq!(cache.set_mut(&all()).unwrap().epoch, 1);
}

#[test]
fn a_watch_of_before_the_restore_does_not_advance_the_set_of_after() {
    let mut cache = cache();
    fill(&mut cache, &all(), 100, &[], at(0));
    let mut watch = cache.start_watch(&all(), WatchStart::At(40));
    fill(&mut cache, &all(), 50, &[], at(10));
    fill(&mut cache, &all(), 50, &[], at(80));
    let added = event(EventKind::Added, pod("a", 60));
    assert_eq!(
        cache.apply(&mut watch, &added, &NODE, at(80)),
        Applied::NotJoined
    );
}

#[test]
fn a_list_proves_presence_and_only_one_without_selectors_proves_absence() {
    let mut cache = cache();
    for scope in [one("a"), one("b")] {
        cache.record_verdict(&NODE, Verb::Get, &scope, Verdict::Allowed, at(0));
    }
    fill(&mut cache, &labelled("app=x"), 10, &[pod("a", 1)], at(0));
    assert_eq!(got(&mut cache, &NODE, &one("a")), "a@1");
    assert_eq!(got(&mut cache, &NODE, &one("b")), "unknown");
    fill(&mut cache, &namespace("default"), 11, &[pod("a", 1)], at(0));
    assert_eq!(got(&mut cache, &NODE, &one("b")), "absent");
}

#[test]
fn a_404_is_newer_than_all_that_was_known() {
    let mut cache = cache();
    fill(&mut cache, &all(), 10, &[pod("a", 1)], at(0));
    cache.record_verdict(&NODE, Verb::Get, &one("a"), Verdict::Allowed, at(1));
    cache.record_absence(&one("a"), &NODE, at(1));
    assert_eq!(got(&mut cache, &NODE, &one("a")), "absent");
    let mut watch = cache.start_watch(&all(), WatchStart::At(10));
    cache.apply(
        &mut watch,
        &event(EventKind::Modified, pod("a", 12)),
        &NODE,
        at(2),
    );
    assert_eq!(got(&mut cache, &NODE, &one("a")), "a@12");
}

#[test]
fn a_404_to_a_get_makes_the_list_of_that_name_unknown_not_shorter() {
    let mut cache = cache();
    fill(&mut cache, &one("a"), 10, &[pod("a", 1)], at(0));
    cache.record_absence(&one("a"), &NODE, at(1));
    assert_eq!(listed(&mut cache, &one("a")), None);
    fill(&mut cache, &one("a"), 12, &[], at(2));
    assert_eq!(listed(&mut cache, &one("a")), whole(12, &[]));
}

#[test]
fn a_get_is_not_answered_from_an_older_set_once_a_newer_one_answered() {
    let mut cache = cache();
    cache.record_verdict(&NODE, Verb::Get, &one("a"), Verdict::Allowed, at(0));
    fill(&mut cache, &all(), 80, &[pod("a", 70)], at(0));
    fill(&mut cache, &labelled("app=x"), 100, &[pod("a", 90)], at(0));
    assert_eq!(got(&mut cache, &NODE, &one("a")), "a@90");
    fill(&mut cache, &labelled("app=x"), 110, &[], at(0));
    assert_eq!(got(&mut cache, &NODE, &one("a")), "unknown");
    // Nor from the answer of a lagging API server.
    cache.record_object(&one("a"), &pod_type(), pod("a", 70), &NODE, at(0));
    assert_eq!(got(&mut cache, &NODE, &one("a")), "unknown");
    cache.record_object(&one("a"), &pod_type(), pod("a", 105), &NODE, at(0));
    assert_eq!(got(&mut cache, &NODE, &one("a")), "a@105");
}

#[test]
fn a_get_cannot_answer_a_list() {
    let mut cache = cache();
    cache.record_verdict(&NODE, Verb::List, &one("a"), Verdict::Allowed, at(0));
    cache.record_object(&one("a"), &pod_type(), pod("a", 5), &NODE, at(0));
    assert!(matches!(
        cache.list(&NODE, Verb::List, &one("a"), at(0)),
        ListAnswer::Unknown
    ));
}

#[test]
fn nobody_reads_what_the_api_server_did_not_show_them() {
    let mut cache = cache();
    let pod_identity = Identity::ServiceAccount {
        namespace: "default".to_owned(),
        name: "p".to_owned(),
    };
    fill(&mut cache, &all(), 10, &[pod("a", 1)], at(0));
    assert_eq!(got(&mut cache, &pod_identity, &one("a")), "denied");
    let list = cache.list(&pod_identity, Verb::List, &all(), at(0));
    assert!(matches!(list, ListAnswer::Denied));
    // Who may list it was shown it.
    assert_eq!(got(&mut cache, &NODE, &one("a")), "a@1");
    // But the word about the object itself counts more.
    cache.record_verdict(&NODE, Verb::Get, &one("a"), Verdict::Refused, at(1));
    assert_eq!(got(&mut cache, &NODE, &one("a")), "denied");
}

#[test]
fn a_snapshot_does_not_change_while_it_is_read() {
    let mut cache = cache();
    fill(&mut cache, &all(), 10, &[pod("a", 1)], at(0));
    let ListAnswer::Found(snapshot) = cache.list(&NODE, Verb::List, &all(), at(0)) else {
        panic!("the set is whole");
    };
    let mut watch = cache.start_watch(&all(), WatchStart::At(10));
    cache.apply(
        &mut watch,
        &event(EventKind::Deleted, pod("a", 11)),
        &NODE,
        at(0),
    );
    assert_eq!(texts(&snapshot), ["a@1"]);
    assert_eq!(listed(&mut cache, &all()), whole(11, &[]));
}

#[test]
fn an_overlay_is_seen_by_all_until_the_api_server_speaks_of_the_object() {
    let mut cache = cache();
    fill(&mut cache, &all(), 10, &[pod("a", 1), pod("b", 2)], at(0));
    overlay(&mut cache, "a", Some("a, patched"));
    overlay(&mut cache, "b", None);
    assert_eq!(listed(&mut cache, &all()), whole(10, &["a, patched"]));
    assert_eq!(got(&mut cache, &NODE, &one("a")), "a, patched");
    assert_eq!(got(&mut cache, &NODE, &one("b")), "absent");
    let mut watch = cache.start_watch(&all(), WatchStart::At(10));
    cache.apply(
        &mut watch,
        &event(EventKind::Modified, pod("a", 11)),
        &NODE,
        at(1),
    );
    assert_eq!(listed(&mut cache, &all()), whole(11, &["a@11"]));
    fill(&mut cache, &all(), 12, &[pod("a", 11), pod("b", 2)], at(1));
    assert_eq!(listed(&mut cache, &all()), whole(12, &["a@11", "b@2"]));
}

#[test]
fn an_object_that_is_too_large_costs_only_itself() {
    let mut cache = Cache::new(Bounds {
        object: 8,
        ..Bounds::default()
    });
    let large = pod("large", 1_000_000);
    let items = [pod("a", 1), pod("b", 2), large.clone()];
    fill(&mut cache, &all(), 2_000_000, &items, at(0));
    assert_eq!(listed(&mut cache, &all()), None, "never a shorter list");
    let mut rows = crate::store::Rows::default();
    rows.apply(&cache.take_everything());
    let mut restored = Cache::new(Bounds::default());
    restored.restore(&rows);
    for cache in [&mut cache, &mut restored] {
        assert_eq!(got(cache, &NODE, &one("a")), "a@1");
        assert_eq!(got(cache, &NODE, &one("none")), "absent");
        assert_eq!(got(cache, &NODE, &one("large")), "unknown");
    }
    let mut watch = cache.start_watch(&all(), WatchStart::At(2_000_000));
    let mut happens = |kind, object| cache.apply(&mut watch, &event(kind, object), &NODE, at(0));
    let modified = Object {
        bytes: "b@3".into(),
        ..pod("b", 2_000_001)
    };
    assert_eq!(happens(EventKind::Modified, modified), Applied::Advanced);
    let later = pod("large", 2_000_002);
    assert_eq!(happens(EventKind::Modified, later), Applied::Advanced);
    let deleted = pod("large", 2_000_003);
    assert_eq!(happens(EventKind::Deleted, deleted), Applied::Advanced);
    assert_eq!(
        listed(&mut cache, &all()),
        whole(2_000_003, &["a@1", "b@3"])
    );
}

#[test]
fn objects_without_a_version_are_not_remembered() {
    let mut cache = cache();
    assert_eq!(fill(&mut cache, &all(), 0, &[], at(0)), Filled::Spoiled);
    let usage = [pod("a", 0)];
    assert_eq!(fill(&mut cache, &all(), 10, &usage, at(0)), Filled::Spoiled);
    let recorded = cache.record_object(&one("a"), &pod_type(), pod("a", 0), &NODE, at(0));
    assert_eq!(recorded, Filled::Spoiled);
    assert_eq!(listed(&mut cache, &all()), None);
}

#[test]
fn a_version_that_is_given_a_second_time_has_the_later_bytes() {
    let mut cache = cache();
    fill(&mut cache, &all(), 10, &[pod("a", 1)], at(0));
    let again = Object {
        bytes: "other".into(),
        ..pod("a", 1)
    };
    fill(&mut cache, &all(), 10, &[again], at(1));
    assert_eq!(listed(&mut cache, &all()), whole(10, &["other"]));
}

#[test]
fn after_a_restore_of_the_cluster_smaller_versions_are_believed_at_once() {
    let mut cache = cache();
    fill(&mut cache, &all(), 100, &[pod("a", 90)], at(0));
    cache.record_verdict(&NODE, Verb::Get, &one("b"), Verdict::Allowed, at(0));
    cache.record_object(&one("b"), &pod_type(), pod("b", 95), &NODE, at(0));
    let known = cache.newest_core_version();
    assert_eq!(known, 100);
    assert!(
        !cache.observe_newest_version(100, known),
        "nothing has happened"
    );
    assert!(!cache.observe_newest_version(0, known), "nobody knows");
    assert!(
        !cache.observe_newest_version(99, 99),
        "a watch was faster than the answer"
    );
    assert!(cache.observe_newest_version(50, known));
    assert!(!cache.observe_newest_version(50, known), "that is known");
    assert!(status(&cache, &all()).unwrap().behind);
    assert_eq!(
        listed(&mut cache, &all()),
        whole(100, &["a@90"]),
        "it is all there is"
    );
    let items = [pod("a", 40), pod("b", 45)];
    assert_eq!(fill(&mut cache, &all(), 51, &items, at(1)), Filled::Whole);
    cache.record_object(&one("b"), &pod_type(), pod("b", 45), &NODE, at(1));
    assert_eq!(listed(&mut cache, &all()), whole(51, &["a@40", "b@45"]));
    assert_eq!(got(&mut cache, &NODE, &one("b")), "b@45");
    assert!(!status(&cache, &all()).unwrap().behind);
    assert!(!status(&cache, &one("b")).unwrap().behind);
}

#[test]
fn who_began_with_a_watch_may_list_and_a_refusal_of_that_is_obeyed() {
    let mut cache = cache();
    cache.record_verdict(&NODE, Verb::Watch, &all(), Verdict::Allowed, at(0));
    let mut watch = cache.start_watch(&all(), WatchStart::Streaming);
    cache.apply(&mut watch, &bookmark(10, true), &NODE, at(0));
    assert_eq!(listed(&mut cache, &all()), whole(10, &[]));
    cache.record_verdict(&NODE, Verb::List, &all(), Verdict::Refused, at(0));
    assert_eq!(listed(&mut cache, &all()), None);
}

#[test]
fn the_least_recently_used_set_goes_first_and_the_nodes_never() {
    let mut cache = Cache::new(Bounds {
        total: 700,
        ..Bounds::default()
    });
    let user = Identity::User("u".to_owned());
    cache.record_object(&one("n"), &pod_type(), pod("n", 1), &NODE, at(0));
    for name in ["a", "b", "c"] {
        cache.record_object(&one(name), &pod_type(), pod(name, 1), &user, at(0));
    }
    assert!(status(&cache, &one("n")).is_some());
    assert!(status(&cache, &one("a")).is_none());
    assert!(status(&cache, &one("c")).is_some());
}

#[test]
fn an_object_is_held_once_and_dropped_with_its_last_set() {
    let mut cache = cache();
    fill(&mut cache, &all(), 10, &[pod("a", 1)], at(0));
    let bytes = cache.objects.bytes();
    fill(&mut cache, &namespace("default"), 11, &[pod("a", 1)], at(0));
    assert_eq!(cache.objects.bytes(), bytes);
    fill(&mut cache, &all(), 12, &[], at(0));
    assert_eq!(cache.objects.bytes(), bytes);
    fill(&mut cache, &namespace("default"), 12, &[], at(0));
    assert_eq!(cache.objects.bytes(), 0);
}

#[test]
fn objects_that_are_alike_take_little_memory_and_come_back_as_they_were() {
    let common = "what all pods have in common ".repeat(50);
    let pods: Vec<Object> = (100..200)
        .map(|number| Object {
            bytes: format!("{number}: {common}").into(),
            ..pod(&number.to_string(), number)
        })
        .collect();
    let plain: usize = pods.iter().map(|pod| pod.bytes.len()).sum();
    let claim = |cache: &mut Cache| {
        assert!(cache.objects.bytes() < plain / 3);
        let ListAnswer::Found(snapshot) = cache.list(&NODE, Verb::List, &all(), at(0)) else {
            panic!("the list is whole");
        };
        assert_eq!(snapshot.items().map(Item::object).collect::<Vec<_>>(), pods);
    };
    let mut from_list = cache();
    list(&mut from_list, &all(), &pods);
    claim(&mut from_list);
    let mut rows = crate::store::Rows::default();
    rows.apply(&from_list.take_everything());
    let mut from_disk = cache();
    from_disk.restore(&rows);
    claim(&mut from_disk);
}
