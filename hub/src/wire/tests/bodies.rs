//! Bodies as the API server sends them.

/// `managedFields` of a pod as kubelet leaves them. Its keys and values contain what could be taken
/// for the end of something.
pub(super) const MANAGED_FIELDS: &str = r#""managedFields":[{"manager":"kubelet","operation":"Update","apiVersion":"v1","time":"2026-03-01T08:00:00Z","fieldsType":"FieldsV1","fieldsV1":{"f:status":{"f:conditions":{"k:{\"type\":\"Ready\"}":{".":{},"f:status":{}}}}},"subresource":"status"}]"#;

/// What of a pod follows its metadata: escapes, unicode, numbers of all forms, an unknown field.
pub(super) const POD_REST: &str = r#""spec":{"containers":[{"name":"app","image":"registry.example/app:1.2","args":["--json={\"a\":[1,2]}","\\","\u00e9\n","Grüße 🚀"],"resources":{"limits":{"cpu":"1"}}}],"nodeName":"edge-7","futureField":[1.0,1e400,-0,12345678901234567890123]},"status":{"phase":"Running"}}"#;

/// An item of a `PodList`; `managed` is what stands before the labels in its metadata.
pub(super) fn pod(name: &str, managed: &str) -> String {
    format!(
        r#"{{"metadata":{{"name":"{name}","namespace":"default","uid":"8c2b0b3e-5a0f-4a53-9e0b-{name}","resourceVersion":"4711",{managed}"labels":{{"app":"{name}","tier":"back\u0020end"}}}},{POD_REST}"#
    )
}

/// A list as the API server's JSON encoder writes a built-in one.
pub(super) fn pod_list(items: &[String]) -> String {
    format!(
        "{{\"kind\":\"PodList\",\"apiVersion\":\"v1\",\"metadata\":{{\"resourceVersion\":\"9001\"}},\"items\":[{}]}}\n",
        items.join(",")
    )
}

/// A row of a table, with the metadata of its object.
pub(super) fn row(name: &str) -> String {
    format!(
        r#"{{"cells":["{name}","1/1",0,"\u003cnone\u003e"],"object":{{"kind":"PartialObjectMetadata","apiVersion":"meta.k8s.io/v1","metadata":{{"name":"{name}","namespace":"default","uid":"u-{name}","resourceVersion":"4711",{MANAGED_FIELDS}}}}}}}"#
    )
}

/// A table as the API server writes it.
pub(super) fn table(rows: &[String]) -> String {
    format!(
        r#"{{"kind":"Table","apiVersion":"meta.k8s.io/v1","metadata":{{"resourceVersion":"9001"}},{COLUMNS},"rows":[{}]}}"#,
        rows.join(",")
    )
}

/// What the cells of a row are.
const COLUMNS: &str = r#""columnDefinitions":[{"name":"Name","type":"string","format":"name","description":"","priority":0}]"#;

/// A list of a custom resource: its keys are sorted, and its items have types.
pub(super) const CRON_TAB_LIST: &str = r#"{"apiVersion":"stable.example.com/v1","items":[{"apiVersion":"stable.example.com/v1","kind":"CronTab","metadata":{"generation":1,"managedFields":[{"manager":"kubectl"}],"name":"nightly","namespace":"batch","resourceVersion":"17","uid":"u-17"},"spec":{"cronSpec":"* * * * */5"}}],"kind":"CronTabList","metadata":{"continue":"","resourceVersion":"18"}}
"#;

/// Fields of protobuf. The encoder is one of the tests: it must not share mistakes with the writers.
pub(super) mod proto {
    pub(in super::super) fn varint(mut value: u64) -> Vec<u8> {
        let mut out = Vec::new();
        loop {
            let byte = (value % 128) as u8;
            value /= 128;
            if value == 0 {
                out.push(byte);
                return out;
            }
            out.push(byte + 128);
        }
    }

    pub(in super::super) fn number(field: u64, value: u64) -> Vec<u8> {
        [varint(field * 8), varint(value)].concat()
    }

    pub(in super::super) fn bytes(field: u64, value: impl AsRef<[u8]>) -> Vec<u8> {
        let value = value.as_ref();
        let length = varint(value.len() as u64);
        [&varint(field * 8 + 2), &length, value].concat()
    }

    /// `k8s\0` and a `runtime.Unknown`.
    pub(in super::super) fn envelope(api_version: &str, kind: &str, raw: &[u8]) -> Vec<u8> {
        let type_meta = [bytes(1, api_version), bytes(2, kind)].concat();
        let unknown = [
            bytes(1, type_meta),
            bytes(2, raw),
            bytes(3, ""),
            bytes(4, ""),
        ];
        [b"k8s\0".to_vec(), unknown.concat()].concat()
    }

    /// A `Pod`, with `managedFields` on request.
    pub(in super::super) fn pod(name: &str, managed: bool) -> Vec<u8> {
        let label = |key: &str, value: &str| bytes(11, [bytes(1, key), bytes(2, value)].concat());
        let mut metadata = vec![
            bytes(1, name),
            bytes(2, ""),
            bytes(3, "default"),
            bytes(4, ""),
            bytes(5, format!("8c2b0b3e-{name}")),
            bytes(6, "4711"),
            number(7, 0),
            // creationTimestamp
            bytes(8, number(1, 1_770_000_000)),
            label("app", name),
            label("tier", "back end"),
        ];
        if managed {
            // Longer than 127 bytes, so that the length of the metadata gets shorter without it.
            let fields = format!("{{\"f:status\":{}}}", "{}".repeat(200));
            let entry = [bytes(1, "kubelet"), bytes(2, "Update"), bytes(7, fields)].concat();
            metadata.extend([bytes(17, &entry), bytes(17, &entry)]);
        }
        let spec = [bytes(2, bytes(1, "app")), bytes(10, "edge-7")].concat();
        // A field of each wire type that no pod has.
        let unknown = [
            number(1000, u64::MAX),
            [varint(1001 * 8 + 1), vec![1; 8]].concat(),
            [varint(1002 * 8 + 5), vec![2; 4]].concat(),
        ];
        [
            bytes(1, metadata.concat()),
            bytes(2, spec),
            bytes(3, bytes(1, "Running")),
            unknown.concat(),
        ]
        .concat()
    }

    /// A `PodList`, in its envelope.
    pub(in super::super) fn pod_list(items: &[Vec<u8>]) -> Vec<u8> {
        let metadata = [bytes(1, ""), bytes(2, "9001"), bytes(3, "")].concat();
        let mut list = bytes(1, metadata);
        for item in items {
            list.extend(bytes(2, item));
        }
        envelope("v1", "PodList", &list)
    }

    /// A watch event, in its frame.
    pub(in super::super) fn event(word: &str, envelope: &[u8]) -> Vec<u8> {
        let event = [bytes(1, word), bytes(2, bytes(1, envelope))].concat();
        let length = u32::try_from(event.len()).unwrap();
        [length.to_be_bytes().to_vec(), event].concat()
    }
}
