//! Claims about tables.

use super::bodies::{MANAGED_FIELDS, row, table};
use crate::wire::split::{EventSplitter, ListSplitter, ObjectSplitter, SplitError};
use crate::wire::{
    Bookmark, Encoding::Json, Event, EventKind, ListHead, Object, Shape, TypeMeta, write,
};

fn split(mut body: &[u8]) -> Result<(Vec<Object>, ListHead), SplitError> {
    let mut splitter = ListSplitter::new(Json, Shape::Table);
    let mut rows = Vec::new();
    while let Some(row) = splitter.next_item(&mut body)? {
        rows.push(row);
    }
    Ok((rows, splitter.finish()?))
}

fn one(body: &str) -> Result<(TypeMeta, Object), SplitError> {
    let mut splitter = ObjectSplitter::new(Json, Shape::Table);
    splitter.push(body.as_bytes())?;
    splitter.finish()
}

/// The events of a watch that arrive at once.
fn events(mut body: &[u8]) -> Result<Vec<Event>, SplitError> {
    let mut splitter = EventSplitter::new(Json, Shape::Table);
    let mut events = Vec::new();
    while let Some(event) = splitter.next_event(&mut body)? {
        events.push(event);
    }
    Ok(events)
}

fn without_managed_fields(body: &str) -> String {
    body.replace(&format!(",{MANAGED_FIELDS}"), "")
}

#[test]
fn a_row_has_the_name_and_version_of_its_object() {
    let body = table(&[row("web"), row("db")]);
    let (rows, head) = split(body.as_bytes()).unwrap();
    assert_eq!(rows.len(), 2);
    let metadata = &rows[1].metadata;
    assert_eq!((&*metadata.namespace, &*metadata.name), ("default", "db"));
    assert_eq!(
        (metadata.resource_version, head.resource_version),
        (4711, 9001)
    );
    assert!(head.type_meta.is_table());
    assert_eq!(head.type_meta.item().unwrap(), head.type_meta);
    let bytes: Vec<_> = rows.into_iter().map(|row| row.bytes).collect();
    let written = write::list(Json, &head, &bytes);
    let written = std::str::from_utf8(&written).unwrap();
    assert_eq!(written.trim_end(), without_managed_fields(&body));
}

#[test]
fn an_empty_table_is_whole() {
    for rows in ["[]", "null"] {
        let body = table(&[]).replace("\"rows\":[]", &format!("\"rows\":{rows}"));
        let (rows, head) = split(body.as_bytes()).unwrap();
        assert_eq!((rows.len(), head.resource_version), (0, 9001));
    }
}

#[test]
fn a_table_that_is_cut_anywhere_is_not_taken_for_a_shorter_one() {
    let body = table(&[row("web"), row("db")]);
    for length in 0..body.len() {
        let cut = split(&body.as_bytes()[..length]);
        assert_eq!(cut.unwrap_err(), SplitError::EndsEarly, "{length}");
    }
}

#[test]
fn rows_without_an_object_are_refused_and_so_is_a_list_where_a_table_was_expected() {
    let nameless = table(&[r#"{"cells":["web"]}"#.to_owned()]);
    assert_eq!(split(nameless.as_bytes()).unwrap_err(), SplitError::Unnamed);
    let list = r#"{"kind":"PodList","apiVersion":"v1","metadata":{},"items":[]}"#;
    assert_eq!(split(list.as_bytes()).unwrap_err(), SplitError::NotAList);
    let pod = r#"{"kind":"Pod","apiVersion":"v1","metadata":{"name":"web"}}"#;
    assert_eq!(one(pod).unwrap_err(), SplitError::NotAList);
}

#[test]
fn one_object_as_a_table_is_served_with_its_columns() {
    let body = table(&[row("web")]).replace("9001", "4711");
    let (type_meta, object) = one(&body).unwrap();
    assert_eq!(object.metadata.name, "web");
    let served = object.alone(Json, &type_meta);
    let served = std::str::from_utf8(&served).unwrap();
    assert_eq!(served.trim_end(), without_managed_fields(&body));
    assert!(one(&table(&[row("web"), row("db")])).is_err(), "not one");
}

#[test]
fn a_watch_of_tables_tells_of_one_object_in_each_event() {
    let web = table(&[row("web")]).replace("9001", "4711");
    let body = format!(
        "{{\"type\":\"ADDED\",\"object\":{web}}}\n{{\"type\":\"DELETED\",\"object\":{}}}\n",
        web.replace("web", "db")
    );
    let events = events(body.as_bytes()).unwrap();
    let told: Vec<_> = events
        .iter()
        .map(|event| (event.kind, &*event.object.metadata.name))
        .collect();
    assert_eq!(
        told,
        [(EventKind::Added, "web"), (EventKind::Deleted, "db")]
    );
    let written: Vec<_> = events.iter().map(|event| event.frame(Json)).collect();
    assert_eq!(
        std::str::from_utf8(&written.concat()).unwrap(),
        without_managed_fields(&body)
    );
}

#[test]
fn a_bookmark_of_a_table_is_read_whoever_wrote_it() {
    let columns = TypeMeta::new("meta.k8s.io/v1", "Table");
    let ours = Event::bookmark(Json, &columns, 12, Bookmark::InitialEventsEnd).frame(Json);
    let empty = r#"{"type":"BOOKMARK","object":{"kind":"Table","apiVersion":"meta.k8s.io/v1","metadata":{"resourceVersion":"12"},"columnDefinitions":null,"rows":[]}}"#;
    for (body, initial_events_end) in [(&ours[..], true), (empty.as_bytes(), false)] {
        let event = events(body).unwrap().remove(0);
        assert_eq!(event.kind, EventKind::Bookmark { initial_events_end });
        assert_eq!(event.object.metadata.resource_version, 12);
    }
}
