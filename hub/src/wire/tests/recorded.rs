//! Claims about bodies that a kube-apiserver (1.20.2) sent: `recorded/` has them as they were. What
//! is expected of them is found by means of its own, not by the code under test.

use serde::de::IgnoredAny;

use super::bodies::proto;
use crate::fuzzing::{
    Split, events_json, events_protobuf, list_json, list_protobuf, object_json, object_protobuf,
    table_json,
};

/// The recorded body of this name and encoding.
macro_rules! recorded {
    ($name:literal) => {
        include_bytes!(concat!("recorded/", $name)).as_slice()
    };
}

/// Odd on purpose: no field of these bodies is aligned to it.
const PIECE: usize = 61;

fn written(split: fn(&[u8], usize) -> Split, body: &[u8]) -> Vec<u8> {
    split(body, PIECE).whole.unwrap().to_vec()
}

/// JSON without `managedFields` and without `remainingItemCount`, which stand last in their objects.
fn cut_json(body: &[u8]) -> String {
    const KEY: &str = ",\"managedFields\":";
    let mut rest = std::str::from_utf8(body).unwrap();
    let mut cut = String::new();
    while let Some(start) = rest.find(KEY) {
        cut.push_str(&rest[..start]);
        rest = &rest[start + KEY.len()..];
        let mut values = serde_json::Deserializer::from_str(rest).into_iter::<IgnoredAny>();
        values.next().unwrap().unwrap();
        rest = &rest[values.byte_offset()..];
    }
    cut.push_str(rest);
    cut.replace(",\"remainingItemCount\":1", "")
}

/// A message in which `edit` has made new values for the fields with this number; `None` drops one.
fn edited(message: &[u8], number: u64, edit: impl Fn(&[u8]) -> Option<Vec<u8>>) -> Vec<u8> {
    let mut out = Vec::new();
    let mut rest = message;
    while !rest.is_empty() {
        let field = rest;
        let tag = varint(&mut rest);
        let mut value = &[][..];
        match tag & 7 {
            0 => drop(varint(&mut rest)),
            2 => {
                let length = usize::try_from(varint(&mut rest)).unwrap();
                (value, rest) = rest.split_at(length);
            }
            other => panic!("no recorded body has wire type {other}"),
        }
        if tag >> 3 != number {
            out.extend_from_slice(&field[..field.len() - rest.len()]);
        } else if let Some(value) = edit(value) {
            out.extend(proto::bytes(number, value));
        }
    }
    out
}

fn varint(rest: &mut &[u8]) -> u64 {
    let length = rest.iter().position(|byte| *byte < 128).unwrap() + 1;
    let (bytes, after) = rest.split_at(length);
    *rest = after;
    let digits = bytes.iter().rev().map(|byte| u64::from(byte % 128));
    digits.fold(0, |value, digit| value * 128 + digit)
}

fn cut_object(object: &[u8]) -> Option<Vec<u8>> {
    let managed_fields = 17;
    Some(edited(object, 1, |metadata| {
        Some(edited(metadata, managed_fields, |_| None))
    }))
}

fn cut_list(list: &[u8]) -> Option<Vec<u8>> {
    let remaining_item_count = 4;
    let list = edited(list, 2, cut_object);
    Some(edited(&list, 1, |metadata| {
        Some(edited(metadata, remaining_item_count, |_| None))
    }))
}

fn cut_envelope(envelope: &[u8], cut: fn(&[u8]) -> Option<Vec<u8>>) -> Vec<u8> {
    [b"k8s\0", &edited(&envelope[4..], 2, cut)[..]].concat()
}

fn cut_events(mut frames: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    while let Some((prefix, rest)) = frames.split_first_chunk::<4>() {
        let length = usize::try_from(u32::from_be_bytes(*prefix)).unwrap();
        let (event, rest) = rest.split_at(length);
        let event = edited(event, 2, |extension| {
            Some(edited(extension, 1, |envelope| {
                Some(cut_envelope(envelope, cut_object))
            }))
        });
        out.extend(u32::try_from(event.len()).unwrap().to_be_bytes());
        out.extend(event);
        frames = rest;
    }
    out
}

#[test]
fn lists_in_json_are_written_as_they_were_sent() {
    for body in [
        recorded!("pods.json"),
        recorded!("page.json"),
        recorded!("empty.json"),
        recorded!("metadata.json"),
    ] {
        let written = String::from_utf8(written(list_json, body)).unwrap();
        assert_eq!(written, cut_json(body));
    }
}

#[test]
fn lists_in_protobuf_are_written_as_they_were_sent() {
    for body in [
        recorded!("pods.pb"),
        recorded!("page.pb"),
        recorded!("empty.pb"),
        recorded!("metadata.pb"),
    ] {
        assert_eq!(written(list_protobuf, body), cut_envelope(body, cut_list));
    }
}

#[test]
fn objects_are_written_as_they_were_sent() {
    for body in [recorded!("pod.json"), recorded!("status.json")] {
        let written = String::from_utf8(written(object_json, body)).unwrap();
        assert_eq!(written, cut_json(body));
    }
    for body in [recorded!("pod.pb"), recorded!("status.pb")] {
        assert_eq!(
            written(object_protobuf, body),
            cut_envelope(body, cut_object)
        );
    }
}

#[test]
fn a_list_of_rows_is_written_as_it_was_sent_without_managed_fields() {
    let written = String::from_utf8(written(table_json, recorded!("table.json"))).unwrap();
    let sent = cut_json(recorded!("table.json"));
    assert_eq!(written.trim_end(), sent.trim_end());
}

#[test]
fn watches_are_written_as_they_were_sent() {
    for body in [recorded!("watch.json"), recorded!("expired.json")] {
        let written = String::from_utf8(written(events_json, body)).unwrap();
        assert_eq!(written, cut_json(body));
    }
    for body in [recorded!("watch.pb"), recorded!("expired.pb")] {
        assert_eq!(written(events_protobuf, body), cut_events(body));
    }
}

#[test]
fn both_encodings_name_the_same_objects_versions_and_labels() {
    use super::split_list;
    use crate::wire::Encoding::{Json, Protobuf};

    let (json, json_head) = split_list(Json, recorded!("pods.json")).unwrap();
    let (protobuf, protobuf_head) = split_list(Protobuf, recorded!("pods.pb")).unwrap();
    assert_eq!(json_head, protobuf_head);
    assert_eq!(json.len(), 2);
    for (one, other) in json.iter().zip(&protobuf) {
        assert_eq!(one.metadata, other.metadata);
        assert!(one.metadata.uid.len() == 36 && one.metadata.resource_version > 0);
        assert_eq!(one.labels(Json), other.labels(Protobuf));
        assert_eq!(one.labels(Json).unwrap()["app"], one.metadata.name);
    }
}

#[test]
fn both_encodings_have_the_same_events() {
    use super::split_events;
    use crate::wire::Encoding::{Json, Protobuf};
    use crate::wire::EventKind;

    for (json, protobuf, expected) in [
        (recorded!("watch.json"), recorded!("watch.pb"), None),
        (
            recorded!("expired.json"),
            recorded!("expired.pb"),
            Some(EventKind::Error { code: 410 }),
        ),
    ] {
        let json = split_events(Json, json).unwrap();
        let protobuf = split_events(Protobuf, protobuf).unwrap();
        assert_eq!(json.len(), protobuf.len());
        for (one, other) in json.iter().zip(&protobuf) {
            assert_eq!(one.kind, other.kind);
            assert_eq!(one.type_meta, other.type_meta);
            assert_eq!(one.object.metadata, other.object.metadata);
        }
        assert!(expected.is_none_or(|expected| json[0].kind == expected));
    }
}
