//! Claims about protobuf.

use super::bodies::proto::{bytes, envelope, event, number, pod, pod_list, varint};
use super::{split_events, split_list};
use crate::wire::limits::{HEAD_MAX, OBJECT_MAX};
use crate::wire::split::{ObjectSplitter, SplitError};
use crate::wire::status::Status;
use crate::wire::{
    Bookmark, Encoding::Protobuf, Event, EventKind, ListHead, Object, Shape, TypeMeta, write,
};

fn split(body: &[u8]) -> (Vec<Object>, ListHead) {
    split_list(Protobuf, body).unwrap()
}

fn refused(body: &[u8]) -> SplitError {
    split_list(Protobuf, body).unwrap_err()
}

fn alone(body: &[u8]) -> Result<(TypeMeta, Object), SplitError> {
    let mut splitter = ObjectSplitter::new(Protobuf, Shape::Object);
    splitter.push(body)?;
    splitter.finish()
}

fn pod_type() -> TypeMeta {
    TypeMeta::new("v1", "Pod")
}

#[test]
fn each_item_has_its_metadata_and_its_bytes() {
    let (items, head) = split(&pod_list(&[pod("web", false), pod("db", false)]));
    assert_eq!(head.type_meta.item(), Some(pod_type()));
    assert_eq!(head.resource_version, 9001);
    assert_eq!(items[0].bytes, pod("web", false));
    let metadata = &items[1].metadata;
    assert_eq!(metadata.namespace, "default");
    assert_eq!(metadata.name, "db");
    assert_eq!(metadata.uid, "8c2b0b3e-db");
    assert_eq!(metadata.resource_version, 4711);
}

#[test]
fn a_list_is_written_as_the_api_server_writes_it() {
    for items in [
        vec![],
        vec![pod("web", false)],
        vec![pod("web", false), pod("db", false)],
    ] {
        let body = pod_list(&items);
        let (items, head) = split(&body);
        let items: Vec<_> = items.into_iter().map(|item| item.bytes).collect();
        assert_eq!(write::list(Protobuf, &head, &items), body);
    }
}

#[test]
fn managed_fields_are_cut_and_the_length_of_the_metadata_is_right() {
    let (items, _) = split(&pod_list(&[pod("web", true)]));
    assert_eq!(items[0].bytes, pod("web", false));
    let (_, object) = alone(&envelope("v1", "Pod", &pod("web", true))).unwrap();
    assert_eq!(object.bytes, pod("web", false));
}

#[test]
fn the_head_may_come_after_the_items() {
    let metadata = [bytes(2, "77"), bytes(3, "next"), number(4, 12)].concat();
    let list = [bytes(2, pod("web", false)), bytes(1, metadata)].concat();
    let (items, head) = split(&envelope("v1", "PodList", &list));
    assert_eq!(items.len(), 1);
    assert_eq!(head.resource_version, 77);
    assert_eq!(head.continue_token, "next");
}

#[test]
fn fields_that_no_list_has_are_passed_over() {
    let unknown = [
        number(9, 300),
        [varint(10 * 8 + 1), vec![0; 8]].concat(),
        [varint(11 * 8 + 5), vec![0; 4]].concat(),
        bytes(12, "future"),
        bytes(13, ""),
    ];
    let list = [
        unknown.concat(),
        bytes(2, pod("web", false)),
        unknown.concat(),
    ]
    .concat();
    let body = [envelope("v1", "PodList", &list), unknown.concat()].concat();
    assert_eq!(split(&body).0.len(), 1);
}

#[test]
fn labels_are_read() {
    let (items, _) = split(&pod_list(&[pod("web", false)]));
    let labels = items[0].labels(Protobuf).unwrap();
    assert_eq!(labels["app"], "web");
    assert_eq!(labels["tier"], "back end");
    assert_eq!(labels.len(), 2);
}

#[test]
fn an_item_alone_is_in_its_envelope() {
    let (items, head) = split(&pod_list(&[pod("web", false)]));
    let served = items[0].alone(Protobuf, &head.type_meta.item().unwrap());
    let expected = envelope("v1", "Pod", &pod("web", false));
    assert_eq!(served, expected);
    assert_eq!(alone(&served).unwrap(), (pod_type(), items[0].clone()));
}

#[test]
fn a_list_that_is_cut_is_not_taken_for_a_shorter_one() {
    let body = pod_list(&[pod("web", false), pod("db", false)]);
    // The last four bytes are two empty fields of the envelope.
    for length in 0..body.len() - 4 {
        let error = refused(&body[..length]);
        assert_eq!(error, SplitError::EndsEarly, "{length}");
    }
}

#[test]
fn an_object_that_is_no_list_is_refused() {
    let body = envelope("v1", "Pod", &pod("web", false));
    assert_eq!(refused(&body), SplitError::NotAList);
    let status = envelope("v1", "Status", &bytes(2, "Failure"));
    assert_eq!(refused(&status), SplitError::NotAList);
}

#[test]
fn what_is_no_protobuf_is_refused() {
    let list = |raw: &[u8]| envelope("v1", "PodList", raw);
    let unknown_kind = [
        bytes(1, bytes(2, "PodList")),
        bytes(2, ""),
        bytes(4, "application/json"),
    ];
    for body in [
        b"{\"kind\":\"PodList\"}".to_vec(),
        // The list says that it is shorter than its item.
        list(&[varint(2 * 8 + 2), varint(500), vec![0; 10]].concat()),
        // Groups, field number zero, a varint of eleven bytes.
        list(&[2 * 8 + 3]),
        list(&[2]),
        list(&[0x80; 11]),
        [b"k8s\0".to_vec(), unknown_kind.concat()].concat(),
        [list(&[]), bytes(2, "")].concat(),
    ] {
        let error = refused(&body);
        assert!(
            matches!(error, SplitError::Protobuf { .. }),
            "{body:?}: {error}"
        );
    }
}

#[test]
fn an_item_longer_than_the_limit_is_refused_by_its_prefix() {
    let raw = [varint(2 * 8 + 2), varint(OBJECT_MAX as u64 + 1)].concat();
    let mut body = [b"k8s\0".to_vec(), bytes(1, bytes(2, "PodList"))].concat();
    body.extend([varint(2 * 8 + 2), varint(1 << 30), raw].concat());
    assert_eq!(
        refused(&body),
        SplitError::ObjectTooLong { limit: OBJECT_MAX }
    );
}

#[test]
fn a_head_longer_than_the_limit_is_refused() {
    let token = bytes(3, "x".repeat(HEAD_MAX));
    let body = envelope("v1", "PodList", &bytes(1, token));
    assert_eq!(refused(&body), SplitError::HeadTooLong { limit: HEAD_MAX });
}

#[test]
fn an_item_without_a_name_is_refused() {
    assert_eq!(refused(&pod_list(&[vec![]])), SplitError::Unnamed);
}

#[test]
fn events_are_split_and_written_as_the_api_server_writes_them() {
    let web = envelope("v1", "Pod", &pod("web", false));
    let annotation = [bytes(1, "k8s.io/initial-events-end"), bytes(2, "true")].concat();
    let version = bytes(6, "12");
    let bookmark = envelope("v1", "Pod", &bytes(1, &version));
    let metadata = [version, bytes(12, annotation)].concat();
    let initial = envelope("v1", "Pod", &bytes(1, metadata));
    let status = [
        bytes(1, [bytes(2, ""), bytes(3, "")].concat()),
        number(6, 410),
    ]
    .concat();
    let status = envelope("v1", "Status", &status);
    let rows = [
        ("ADDED", &web, EventKind::Added),
        ("MODIFIED", &web, EventKind::Modified),
        ("DELETED", &web, EventKind::Deleted),
        (
            "BOOKMARK",
            &bookmark,
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
        ("ERROR", &status, EventKind::Error { code: 410 }),
    ];
    let frames = rows.map(|(word, envelope, _)| event(word, envelope));
    let events = split_events(Protobuf, &frames.concat()).unwrap();
    assert_eq!(events.len(), rows.len());
    for (event, ((_, _, kind), frame)) in events.iter().zip(rows.iter().zip(&frames)) {
        assert_eq!(event.kind, *kind);
        assert_eq!(event.frame(Protobuf), frame);
    }
    assert_eq!(events[0].type_meta, pod_type());
    assert_eq!(events[0].object.bytes, pod("web", false));
    assert_eq!(events[3].object.metadata.resource_version, 12);
}

#[test]
fn an_event_longer_than_the_limit_is_refused_by_its_prefix() {
    let error = split_events(Protobuf, &[0xff; 4]);
    assert_eq!(error, Err(SplitError::ObjectTooLong { limit: OBJECT_MAX }));
}

#[test]
fn a_bookmark_that_is_written_here_is_read_as_one() {
    for kind in [Bookmark::Progress, Bookmark::InitialEventsEnd] {
        let bookmark = Event::bookmark(Protobuf, &pod_type(), 9001, kind);
        let read = split_events(Protobuf, &bookmark.frame(Protobuf)).unwrap();
        assert_eq!(read, [bookmark]);
    }
}

#[test]
fn a_status_is_written_as_the_api_server_writes_it() {
    let status = Status {
        code: 503,
        reason: "ServiceUnavailable",
        message: "the link is cut".to_owned(),
        retry_after_seconds: Some(5),
        cause: Some("ResourceVersionTooLarge"),
    };
    let details = [
        bytes(1, ""),
        bytes(2, ""),
        bytes(3, ""),
        bytes(
            4,
            [
                bytes(1, "ResourceVersionTooLarge"),
                bytes(2, "the link is cut"),
                bytes(3, ""),
            ]
            .concat(),
        ),
        number(5, 5),
        bytes(6, ""),
    ]
    .concat();
    let raw = [
        bytes(1, [bytes(1, ""), bytes(2, ""), bytes(3, "")].concat()),
        bytes(2, "Failure"),
        bytes(3, "the link is cut"),
        bytes(4, "ServiceUnavailable"),
        bytes(5, details),
        number(6, 503),
    ];
    let expected = envelope("v1", "Status", &raw.concat());
    assert_eq!(status.body(Protobuf), expected);
    let read = split_events(Protobuf, &status.event(Protobuf).frame(Protobuf)).unwrap();
    assert_eq!(read, [status.event(Protobuf)]);
}
