use serde_json::json;

use super::*;
use crate::wire::edit::{self, Path, Value};

const PATH: &str = "/api/v1/namespaces/default/events";

/// An event of a pod.
fn event(name: &str, pod: &str, reason: &str, first: &str) -> Object {
    let event = json!({
        "metadata": {"name": name, "namespace": "default"},
        "involvedObject": {"kind": "Pod", "name": pod},
        "reason": reason, "count": 1, "firstTimestamp": first, "lastTimestamp": first,
    });
    fields::open(Encoding::Json, event.to_string().as_bytes()).unwrap()
}

fn create(queue: &mut EventQueue, object: Object) -> usize {
    let new = NewEvent {
        path: PATH,
        group: "",
        encoding: Encoding::Json,
        type_meta: TypeMeta::default(),
        object,
    };
    queue.create(new).unwrap()
}

fn bodies(queue: &EventQueue) -> Vec<Json> {
    let bodies = queue.queued.values();
    bodies
        .map(|event| serde_json::from_slice(&event.body).unwrap())
        .collect()
}

#[test]
fn events_of_one_object_and_reason_become_one_with_the_first_time_and_the_count() {
    let mut queue = EventQueue::default();
    create(&mut queue, event("e1", "a", "BackOff", "t1"));
    create(&mut queue, event("other", "b", "BackOff", "t2"));
    create(&mut queue, event("e2", "a", "BackOff", "t3"));
    let [merged, other] = &bodies(&queue)[..] else {
        panic!("{queue:?}");
    };
    assert_eq!(merged["metadata"]["name"], "e2");
    assert_eq!(merged["count"], 2);
    assert_eq!(merged["firstTimestamp"], "t1");
    assert_eq!(merged["lastTimestamp"], "t3");
    assert_eq!(other["count"], 1);
}

#[test]
fn a_count_in_a_patch_is_that_of_its_own_event() {
    let mut queue = EventQueue::default();
    let strategic = "application/strategic-merge-patch+json";
    create(&mut queue, event("e1", "a", "BackOff", "t1"));
    queue.patch(&format!("{PATH}/e1"), strategic, &json!({"count": 5}));
    // Five times e1, and once e2, whose next patch says that it happened twice.
    create(&mut queue, event("e2", "a", "BackOff", "t3"));
    assert_eq!(bodies(&queue)[0]["count"], 6);
    let e2 = format!("{PATH}/e2");
    queue.patch(&e2, strategic, &json!({"count": 2, "lastTimestamp": "t4"}));
    queue.patch(&e2, strategic, &json!({"count": 3}));
    assert_eq!(queue.queued.len(), 2);
    assert_eq!(
        bodies(&queue)[1],
        json!({"count": 8, "lastTimestamp": "t4"})
    );
}

#[test]
fn an_event_in_protobuf_is_merged_as_one_in_json() {
    let encoding = Encoding::Protobuf;
    let kind = Path {
        json: &[],
        protobuf: &[8, 1],
    };
    let reason = Path {
        json: &[],
        protobuf: &[7],
    };
    let new = |name: &str, time: &[u8]| {
        let mut bytes = Vec::new();
        for (path, value) in [
            (kind, Value::Text("Pod".to_owned())),
            (reason, Value::Text("BackOff".to_owned())),
            (EVENT_TIME, Value::Raw(time.to_vec())),
        ] {
            bytes = edit::set(encoding, &bytes, path, &value).unwrap();
        }
        let mut object = event(name, "a", "", "");
        object.bytes = bytes.into();
        NewEvent {
            path: "/apis/events.k8s.io/v1/namespaces/default/events",
            group: "events.k8s.io",
            encoding,
            type_meta: TypeMeta::default(),
            object,
        }
    };
    const EVENT_TIME: Path = Path {
        json: &[],
        protobuf: &[2],
    };
    const SERIES: Path = Path {
        json: &[],
        protobuf: &[3],
    };
    let mut queue = EventQueue::default();
    queue.create(new("e1", &[8, 1])).unwrap();
    queue.create(new("e2", &[8, 2])).unwrap();
    assert_eq!(queue.queued.len(), 1);
    let merged = fields::open(encoding, &queue.take_first().unwrap().1.body).unwrap();
    let get = |path| edit::get(encoding, &merged.bytes, path).unwrap().unwrap();
    assert_eq!(get(EVENT_TIME), Value::Raw(vec![8, 1]));
    // Count 2, and the time of the second.
    assert_eq!(get(SERIES), Value::Raw(vec![8, 2, 0x12, 2, 8, 2]));
}

#[test]
fn the_oldest_events_go_beyond_a_thousand_and_beyond_a_mebibyte() {
    let mut queue = EventQueue::default();
    let gone: usize = (0..MAX_EVENTS + 3)
        .map(|number| {
            let name = number.to_string();
            create(&mut queue, event(&name, &name, "Pulled", "t"))
        })
        .sum();
    assert_eq!((gone, queue.queued.len()), (3, MAX_EVENTS));
    assert_eq!(bodies(&queue)[0]["metadata"]["name"], "3");
    let large = "x".repeat(MAX_BYTES / 2);
    create(&mut queue, event("x", "x", &large, "t"));
    create(&mut queue, event("y", "y", &large, "t"));
    assert!(queue.bytes <= MAX_BYTES);
    assert_eq!(bodies(&queue)[0]["metadata"]["name"], "y");
}

#[test]
fn the_queue_survives_its_way_over_the_disk_in_its_order() {
    let mut queue = EventQueue::default();
    let mut rows = Rows::default();
    create(&mut queue, event("e1", "a", "Pulled", "t1"));
    create(&mut queue, event("e2", "b", "Pulled", "t2"));
    rows.apply(&queue.take_unsaved());
    queue.take_first().unwrap();
    create(&mut queue, event("e3", "c", "Pulled", "t3"));
    rows.apply(&queue.take_unsaved());
    let restored = EventQueue::restore(&rows);
    assert_eq!(restored.queued, queue.queued);
    assert_eq!(restored.bytes, queue.bytes);
    let mut everything = Batch::default();
    queue.put_all(&mut everything);
    let mut anew = rows.clone();
    anew.apply(&everything);
    assert_eq!(anew, rows);
}
