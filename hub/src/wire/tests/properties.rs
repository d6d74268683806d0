//! Claims about any bytes.

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::{Index, select};

use super::bodies::{CRON_TAB_LIST, MANAGED_FIELDS, pod, pod_list, proto, row, table};
use crate::fuzzing::{
    Split, events_json, events_protobuf, list_json, list_protobuf, object_json, object_protobuf,
    row_json, table_events_json, table_json,
};

/// Splits a body that arrives in pieces of a length.
type Splitter = fn(&[u8], usize) -> Split;

/// Bodies with the function that splits them.
fn bodies() -> Vec<(Splitter, Vec<u8>)> {
    let managed = format!("{MANAGED_FIELDS},");
    let typed = pod("web", &managed).replacen('{', r#"{"kind":"Pod","apiVersion":"v1","#, 1);
    let event = format!("{{\"type\":\"ADDED\",\"object\":{typed}}}\n");
    let bookmark = r#"{"type":"BOOKMARK","object":{"kind":"Pod","apiVersion":"v1","metadata":{"resourceVersion":"12","annotations":{"k8s.io/initial-events-end":"true"}}}}"#;
    let envelope = proto::envelope("v1", "Pod", &proto::pod("web", true));
    let frame = proto::event("MODIFIED", &envelope);
    vec![
        (
            list_json,
            pod_list(&[pod("web", &managed), pod("db", "")]).into(),
        ),
        (list_json, CRON_TAB_LIST.into()),
        (table_json, table(&[row("web"), row("db")]).into()),
        (row_json, table(&[row("web")]).into()),
        (
            table_events_json,
            format!(
                "{{\"type\":\"ADDED\",\"object\":{}}}\n",
                table(&[row("web")])
            )
            .into(),
        ),
        (object_json, typed.into()),
        (events_json, format!("{event}{bookmark}{event}").into()),
        (
            list_protobuf,
            proto::pod_list(&[proto::pod("web", true), proto::pod("db", false)]),
        ),
        (object_protobuf, envelope),
        (events_protobuf, [&frame[..], &frame].concat()),
    ]
}

fn splitters() -> Vec<Splitter> {
    bodies().into_iter().map(|(split, _)| split).collect()
}

#[test]
fn the_bodies_are_good() {
    for (split, body) in bodies() {
        assert!(split(&body, usize::MAX).whole.is_ok());
    }
}

proptest! {
    #[test]
    fn any_chunking_equals_the_whole((split, body) in select(bodies()), piece in 1_usize..700) {
        prop_assert_eq!(split(&body, piece), split(&body, usize::MAX));
    }

    #[test]
    fn what_is_written_splits_into_the_same((split, body) in select(bodies())) {
        let first = split(&body, usize::MAX);
        let second = split(first.whole.as_ref().unwrap(), usize::MAX);
        prop_assert_eq!(first, second);
    }

    /// Damage to a good body gets further into the splitters than random bytes do.
    #[test]
    fn a_damaged_body_does_not_panic_however_it_arrives(
        (split, mut body) in select(bodies()),
        damage in vec((any::<Index>(), any::<u8>()), 1..4),
        piece in 1_usize..100,
    ) {
        for (index, byte) in damage {
            let index = index.index(body.len());
            body[index] = byte;
        }
        let whole = split(&body, usize::MAX);
        prop_assert_eq!(split(&body, piece), whole.clone());
        if let Ok(written) = &whole.whole {
            prop_assert_eq!(split(written, usize::MAX).parts, whole.parts);
        }
    }

    #[test]
    fn no_bytes_panic(split in select(splitters()), body in vec(any::<u8>(), 0..300), piece in 1_usize..20) {
        let _ = split(&body, piece);
    }

    #[test]
    fn no_words_of_json_panic(
        split in select(splitters()),
        body in r#"([{}\[\],: ]|"(items|metadata|kind|name|type|object|rows|cells)"|"\\u00"|-1|null|ADDED){0,20}"#,
        piece in 1_usize..20,
    ) {
        let _ = split(body.as_bytes(), piece);
    }
}
