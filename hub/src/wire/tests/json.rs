//! Claims about JSON.

use serde_json::Value;

use super::bodies::{CRON_TAB_LIST, MANAGED_FIELDS, POD_REST, pod, pod_list};
use super::{split_events, split_list};
use crate::wire::limits::{DEPTH_MAX, HEAD_MAX, OBJECT_MAX};
use crate::wire::split::{ObjectSplitter, SplitError};
use crate::wire::status::Status;
use crate::wire::{
    Bookmark, Encoding::Json, Event, EventKind, ListHead, Object, Shape, TypeMeta, write,
};

fn type_meta(api_version: &str, kind: &str) -> TypeMeta {
    TypeMeta::new(api_version, kind)
}

fn split(body: &str) -> (Vec<Object>, ListHead) {
    split_list(Json, body.as_bytes()).unwrap()
}

fn refused(body: &str) -> SplitError {
    split_list(Json, body.as_bytes()).unwrap_err()
}

fn alone(body: &str) -> Result<(TypeMeta, Object), SplitError> {
    let mut splitter = ObjectSplitter::new(Json, Shape::Object);
    splitter.push(body.as_bytes())?;
    splitter.finish()
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap()
}

fn written(body: &str) -> String {
    let (items, head) = split(body);
    let items: Vec<_> = items.into_iter().map(|item| item.bytes).collect();
    text(&write::list(Json, &head, &items)).to_owned()
}

#[test]
fn each_item_has_its_metadata_and_its_bytes() {
    let (items, head) = split(&pod_list(&[pod("web", ""), pod("db", "")]));
    assert_eq!(head.type_meta, type_meta("v1", "PodList"));
    assert_eq!(head.type_meta.item(), Some(type_meta("v1", "Pod")));
    assert_eq!(head.resource_version, 9001);
    assert_eq!(head.continue_token, "");
    assert_eq!(text(&items[0].bytes), pod("web", ""));
    let metadata = &items[1].metadata;
    assert_eq!(metadata.namespace, "default");
    assert_eq!(metadata.name, "db");
    assert_eq!(metadata.uid, "8c2b0b3e-5a0f-4a53-9e0b-db");
    assert_eq!(metadata.resource_version, 4711);
}

#[test]
fn the_head_may_come_after_the_items() {
    let (items, head) = split(CRON_TAB_LIST);
    assert_eq!(items[0].metadata.name, "nightly");
    assert_eq!(
        head.type_meta,
        type_meta("stable.example.com/v1", "CronTabList")
    );
    assert_eq!(head.resource_version, 18);
}

#[test]
fn a_page_has_its_token() {
    let body = r#"{"kind":"PodList","apiVersion":"v1","metadata":{"resourceVersion":"5","continue":"eyJ2IjoibWV0YS5rOHMuaW8vdjEifQ","remainingItemCount":12},"items":[]}"#;
    assert_eq!(
        split(body).1.continue_token,
        "eyJ2IjoibWV0YS5rOHMuaW8vdjEifQ"
    );
}

#[test]
fn a_list_is_written_as_the_api_server_writes_it() {
    for body in [
        pod_list(&[]),
        pod_list(&[pod("web", "")]),
        pod_list(&[pod("web", ""), pod("db", "")]),
    ] {
        assert_eq!(written(&body), body);
    }
}

#[test]
fn a_list_of_a_custom_resource_is_written_with_the_same_content() {
    let mut expected: Value = serde_json::from_str(CRON_TAB_LIST).unwrap();
    let metadata = expected["items"][0]["metadata"].as_object_mut().unwrap();
    metadata.remove("managedFields");
    // Empty on the last page, and then the same as missing.
    expected["metadata"]
        .as_object_mut()
        .unwrap()
        .remove("continue");
    let found: Value = serde_json::from_str(&written(CRON_TAB_LIST)).unwrap();
    assert_eq!(found, expected);
}

#[test]
fn a_list_without_a_version_is_written_without_one() {
    let body = r#"{"kind":"PodMetricsList","apiVersion":"metrics.k8s.io/v1beta1","metadata":{},"items":[]}
"#;
    assert_eq!(written(body), body);
}

#[test]
fn a_list_with_indentation_has_the_same_content() {
    let content: Value = serde_json::from_str(CRON_TAB_LIST).unwrap();
    let indented = serde_json::to_string_pretty(&content).unwrap();
    let found: Value = serde_json::from_str(&written(&indented)).unwrap();
    let expected: Value = serde_json::from_str(&written(CRON_TAB_LIST)).unwrap();
    assert_eq!(found, expected);
}

#[test]
fn items_that_are_null_are_no_items() {
    let (items, head) = split(r#"{"kind":"PodList","apiVersion":"v1","metadata":{},"items":null}"#);
    assert_eq!((items.len(), head.resource_version), (0, 0));
}

#[test]
fn managed_fields_are_cut_wherever_they_stand() {
    let managed = format!("{MANAGED_FIELDS},");
    let (items, _) = split(&pod_list(&[pod("web", &managed)]));
    assert_eq!(text(&items[0].bytes), pod("web", ""));
    for (metadata, expected) in [
        (format!(r#"{{{MANAGED_FIELDS}}}"#), "{}"),
        (
            format!(r#"{{{MANAGED_FIELDS},"name":"a"}}"#),
            r#"{"name":"a"}"#,
        ),
        (
            format!(r#"{{"name":"a",{MANAGED_FIELDS}}}"#),
            r#"{"name":"a"}"#,
        ),
        (
            format!(r#"{{ "name" : "a" , {MANAGED_FIELDS} , "uid" : "u" }}"#),
            r#"{"name" : "a","uid" : "u"}"#,
        ),
        (
            r#"{"name":"a","managedFields":null,"managedFields":[]}"#.to_owned(),
            r#"{"name":"a"}"#,
        ),
        (
            r#"{"name":"a","managed\u0046ields":[]}"#.to_owned(),
            r#"{"name":"a"}"#,
        ),
    ] {
        let (_, object) = alone(&format!(r#"{{"metadata":{metadata},{POD_REST}"#)).unwrap();
        let expected = format!(r#"{{"metadata":{expected},{POD_REST}"#);
        assert_eq!(text(&object.bytes), expected);
    }
}

#[test]
fn managed_fields_outside_of_the_metadata_stay() {
    let body =
        r#"{"metadata":{"name":"a","annotations":{"managedFields":"x"}},"managedFields":[1]}"#;
    assert_eq!(text(&alone(body).unwrap().1.bytes), body);
}

#[test]
fn null_in_the_metadata_is_as_if_it_was_missing() {
    let body = r#"{"metadata":{"resourceVersion":null,"continue":null},"items":[{"metadata":{"name":"a","namespace":null,"labels":null}}]}"#;
    let (items, head) = split(body);
    assert_eq!((head.resource_version, &*head.continue_token), (0, ""));
    assert_eq!(items[0].metadata.namespace, "");
}

#[test]
fn an_escaped_key_is_the_key_it_means() {
    let (_, object) = alone(r#"{"met\u0061data":{"n\u0061me":"a\u002db"}}"#).unwrap();
    assert_eq!(object.metadata.name, "a-b");
}

#[test]
fn labels_are_decoded() {
    let (items, _) = split(&pod_list(&[pod("web", "")]));
    let labels = items[0].labels(Json).unwrap();
    assert_eq!(labels["app"], "web");
    assert_eq!(labels["tier"], "back end");
    assert_eq!(labels.len(), 2);
    let (_, without) = alone(r#"{"metadata":{"labels":null}}"#).unwrap();
    assert!(without.labels(Json).unwrap().is_empty());
}

#[test]
fn an_item_alone_has_its_type() {
    let (items, head) = split(&pod_list(&[pod("web", "")]));
    let served = items[0].alone(Json, &head.type_meta.item().unwrap());
    let expected = pod("web", "").replacen('{', r#"{"kind":"Pod","apiVersion":"v1","#, 1);
    assert_eq!(text(&served), format!("{expected}\n"));
}

#[test]
fn a_type_that_is_there_is_not_written_twice() {
    let (items, head) = split(CRON_TAB_LIST);
    let served = items[0].alone(Json, &head.type_meta.item().unwrap());
    assert_eq!(text(&served).trim_end(), text(&items[0].bytes));
}

#[test]
fn a_list_of_metadata_is_a_list() {
    let body = r#"{"kind":"PartialObjectMetadataList","apiVersion":"meta.k8s.io/v1","metadata":{"resourceVersion":"7"},"items":[{"kind":"PartialObjectMetadata","apiVersion":"meta.k8s.io/v1","metadata":{"name":"web","namespace":"default","resourceVersion":"6"}}]}
"#;
    assert_eq!(written(body), body);
}

#[test]
fn a_table_is_no_list_of_objects() {
    let body = r#"{"kind":"Table","apiVersion":"meta.k8s.io/v1","metadata":{"resourceVersion":"7"},"columnDefinitions":[],"rows":[{"cells":["web"],"object":{"metadata":{"name":"web"}}}]}"#;
    assert_eq!(refused(body), SplitError::NotAList);
}

#[test]
fn a_status_is_no_list() {
    let body = r#"{"kind":"Status","apiVersion":"v1","metadata":{},"status":"Failure","code":403}"#;
    assert_eq!(refused(body), SplitError::NotAList);
}

#[test]
fn a_list_that_is_cut_anywhere_is_not_taken_for_a_shorter_one() {
    let body = pod_list(&[pod("web", ""), pod("db", "")]);
    let whole = body.trim_end();
    for length in 0..whole.len() {
        let cut = split_list(Json, &whole.as_bytes()[..length]);
        assert_eq!(cut.unwrap_err(), SplitError::EndsEarly, "{length}");
    }
}

#[test]
fn what_is_no_list_in_json_is_refused() {
    let list = SplitError::Json { expected: "a list" };
    for body in [
        "[]",
        "{,",
        "{}}",
        r#"{"items":[{},]}"#,
        r#"{"a":1 "b":2}"#,
        "k8s\0",
    ] {
        let error = refused(body);
        assert!(
            error == list || error == SplitError::Unnamed,
            "{body}: {error}"
        );
    }
    let wrong_brackets = r#"{"items":[{"metadata":{"name":"a"],"x":[}}]}"#;
    assert_eq!(
        refused(wrong_brackets),
        SplitError::Json { expected: "JSON" }
    );
    let items_twice = r#"{"items":[],"items":[]}"#;
    let once = SplitError::Json {
        expected: "the items once",
    };
    assert_eq!(refused(items_twice), once);
    assert_eq!(refused(r#"{"items":"x"}"#), SplitError::NotAList);
    let version = r#"{"metadata":{"resourceVersion":"x"},"items":[]}"#;
    assert_eq!(refused(version), SplitError::ResourceVersion);
}

#[test]
fn an_item_without_a_name_is_refused() {
    let body = pod_list(&[r#"{"metadata":{"namespace":"default"}}"#.to_owned()]);
    assert_eq!(refused(&body), SplitError::Unnamed);
}

#[test]
fn an_item_may_be_long_but_not_longer_than_the_limit() {
    let item = |padding: usize| {
        let data = "x".repeat(padding);
        format!(r#"{{"metadata":{{"name":"a"}},"data":"{data}"}}"#)
    };
    let frame = item(0).len();
    let longest = pod_list(&[item(OBJECT_MAX - frame)]);
    assert_eq!(split(&longest).0.len(), 1);
    let too_long = pod_list(&[item(OBJECT_MAX - frame + 1)]);
    let limit = SplitError::ObjectTooLong { limit: OBJECT_MAX };
    assert_eq!(refused(&too_long), limit);
}

#[test]
fn a_head_longer_than_the_limit_is_refused() {
    let token = "x".repeat(HEAD_MAX);
    let body = format!(r#"{{"metadata":{{"continue":"{token}"}},"items":[]}}"#);
    assert_eq!(refused(&body), SplitError::HeadTooLong { limit: HEAD_MAX });
}

#[test]
fn json_may_nest_deep_but_not_deeper_than_the_limit() {
    // The object itself is one level.
    let nested = |levels: usize| {
        let open = "[".repeat(levels);
        let close = "]".repeat(levels);
        format!(r#"{{"x":{open}{close},"metadata":{{"name":"a"}}}}"#)
    };
    let deepest = nested(DEPTH_MAX - 1);
    assert_eq!(split(&pod_list(std::slice::from_ref(&deepest))).0.len(), 1);
    assert_eq!(alone(&deepest).unwrap().1.metadata.name, "a");
    let too_deep = SplitError::TooDeep { limit: DEPTH_MAX };
    assert_eq!(refused(&pod_list(&[nested(DEPTH_MAX)])), too_deep);
    assert_eq!(alone(&nested(DEPTH_MAX)), Err(too_deep));
}

#[test]
fn events_are_split_and_written_as_the_api_server_writes_them() {
    let pod = pod("web", "").replacen('{', r#"{"kind":"Pod","apiVersion":"v1","#, 1);
    let bookmark = r#"{"kind":"Pod","apiVersion":"v1","metadata":{"resourceVersion":"12","creationTimestamp":null},"spec":{"containers":null},"status":{}}"#;
    let initial = bookmark.replacen(
        "null}",
        r#"null,"annotations":{"k8s.io/initial-events-end":"true"}}"#,
        1,
    );
    let status = r#"{"kind":"Status","apiVersion":"v1","metadata":{},"status":"Failure","message":"too old resource version: 1 (2)","reason":"Expired","code":410}"#;
    let rows = [
        ("ADDED", &*pod, EventKind::Added),
        ("MODIFIED", &pod, EventKind::Modified),
        ("DELETED", &pod, EventKind::Deleted),
        (
            "BOOKMARK",
            bookmark,
            EventKind::Bookmark {
                initial_events_end: false,
            },
        ),
        (
            "BOOKMARK",
            &initial,
            EventKind::Bookmark {
                initial_events_end: true,
            },
        ),
        ("ERROR", status, EventKind::Error { code: 410 }),
    ];
    let lines =
        rows.map(|(word, object, _)| format!("{{\"type\":\"{word}\",\"object\":{object}}}\n"));
    let events = split_events(Json, lines.concat().as_bytes()).unwrap();
    assert_eq!(events.len(), rows.len());
    for (event, ((_, _, kind), line)) in events.iter().zip(rows.iter().zip(&lines)) {
        assert_eq!(event.kind, *kind);
        assert_eq!(text(&event.frame(Json)), line);
    }
    assert_eq!(events[0].type_meta, type_meta("v1", "Pod"));
    assert_eq!(events[0].object.metadata.name, "web");
    assert_eq!(events[3].object.metadata.resource_version, 12);
}

#[test]
fn events_may_follow_each_other_without_newline_and_in_any_order_of_keys() {
    let body = r#" {"object":{"metadata":{"name":"a"}},"type":"ADDED"}{"type":"DELETED","object":{"metadata":{"name":"a"}}}"#;
    let kinds: Vec<_> = split_events(Json, body.as_bytes())
        .unwrap()
        .into_iter()
        .map(|event| event.kind)
        .collect();
    assert_eq!(kinds, [EventKind::Added, EventKind::Deleted]);
}

#[test]
fn an_event_without_type_or_name_is_refused() {
    for (body, error) in [
        (r#"{"object":{}}"#, SplitError::EventType),
        (r#"{"type":"RENAMED","object":{}}"#, SplitError::EventType),
        (
            r#"{"type":"ADDED","object":{"metadata":{}}}"#,
            SplitError::Unnamed,
        ),
    ] {
        assert_eq!(split_events(Json, body.as_bytes()), Err(error), "{body}");
    }
}

#[test]
fn a_bookmark_that_is_written_here_is_read_as_one() {
    for kind in [Bookmark::Progress, Bookmark::InitialEventsEnd] {
        let bookmark = Event::bookmark(Json, &type_meta("v1", "Pod"), 9001, kind);
        let read = split_events(Json, &bookmark.frame(Json)).unwrap();
        assert_eq!(read[0].kind, bookmark.kind);
        assert_eq!(read[0].object.metadata, bookmark.object.metadata);
        assert_eq!(read[0].type_meta, bookmark.type_meta);
    }
}

#[test]
fn a_status_is_written_as_the_api_server_writes_it() {
    let mut status = Status {
        code: 503,
        reason: "ServiceUnavailable",
        message: "the link to the \"API server\" is cut".to_owned(),
        retry_after_seconds: Some(5),
        cause: None,
    };
    assert_eq!(
        text(&status.body(Json)),
        r#"{"kind":"Status","apiVersion":"v1","metadata":{},"status":"Failure","message":"the link to the \"API server\" is cut","reason":"ServiceUnavailable","details":{"retryAfterSeconds":5},"code":503}
"#
    );
    status.cause = Some("ResourceVersionTooLarge");
    status.message = "too large".to_owned();
    let body = status.body(Json);
    let details = r#""details":{"causes":[{"reason":"ResourceVersionTooLarge","message":"too large"}],"retryAfterSeconds":5}"#;
    assert!(text(&body).contains(details), "{}", text(&body));
    status.cause = None;
    status.retry_after_seconds = None;
    let read = split_events(Json, &status.event(Json).frame(Json)).unwrap();
    assert_eq!(read[0].kind, EventKind::Error { code: 503 });
}
