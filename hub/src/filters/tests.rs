//! Claims about filters and what they pass on.

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::{Index, select};

use super::*;

const SERVICES: &[u8] = include_bytes!("../wire/tests/recorded/services.pb");
const SERVICE: &[u8] = include_bytes!("../wire/tests/recorded/service.pb");
const SERVICE_WATCH: &[u8] = include_bytes!("../wire/tests/recorded/service-watch.pb");

fn filter(change: Change, verb: Verb, encoding: Encoding) -> Filter {
    Filter {
        change,
        verb,
        encoding,
        pods: Arc::new(Pods {
            addresses: vec!["127.0.0.1:7440".parse().unwrap()],
            authority: "hub".to_owned(),
        }),
        metrics: Arc::default(),
    }
}

fn failures(filter: &Filter) -> u64 {
    filter.metrics.filter_failures(filter.change.kind())
}

fn answer(parts: Vec<Result<Frame<Bytes>, crate::upstream::BodyError>>) -> Response<Body> {
    let body = StreamBody::new(stream::iter(parts)).boxed_unsync();
    let protobuf = Encoding::Protobuf.content_type();
    let answer = Response::builder().header(header::CONTENT_TYPE, protobuf);
    answer.body(body).unwrap()
}

fn pieces(body: &'static [u8]) -> Vec<Result<Frame<Bytes>, crate::upstream::BodyError>> {
    let pieces = body.chunks(100);
    pieces
        .map(|it| Ok(Frame::data(Bytes::from_static(it))))
        .collect()
}

fn leads_to_pod_port(body: &[u8]) -> bool {
    body.windows(9).any(|window| window == b"127.0.0.1")
}

#[tokio::test]
async fn the_service_is_changed_in_a_get_a_list_and_a_watch() {
    let filter = |verb| filter(Change::MasterService, verb, Encoding::Protobuf);
    for (verb, body) in [(Verb::Get, SERVICE), (Verb::List, SERVICES)] {
        let answer = filter(verb).answer(answer(pieces(body))).await;
        let body = answer.into_body().collect().await.unwrap().to_bytes();
        assert!(leads_to_pod_port(&body), "{verb:?}");
    }
    let watch = filter(Verb::Watch);
    let changed = watch.event(Bytes::from_static(SERVICE_WATCH));
    let length = u32::from_be_bytes(changed[..4].try_into().unwrap());
    assert_eq!(usize::try_from(length).unwrap() + 4, changed.len());
    assert!(leads_to_pod_port(&changed));
    assert_eq!(failures(&watch), 0);
}

#[tokio::test]
async fn a_body_that_is_cut_or_too_long_passes_as_it_comes() {
    let filter = filter(Change::MasterService, Verb::List, Encoding::Protobuf);
    let mut parts = pieces(SERVICES);
    parts.truncate(3);
    parts.push(Err("cut".into()));
    let mut body = filter.answer(answer(parts)).await.into_body();
    for piece in SERVICES.chunks(100).take(3) {
        let frame = body.frame().await.unwrap().unwrap();
        assert_eq!(frame.into_data().unwrap(), piece);
    }
    assert!(body.frame().await.unwrap().is_err(), "the cut is passed on");

    let long = Bytes::from(vec![0; MAX_BODY / 2 + 1]);
    let parts = std::iter::repeat_n(long.clone(), 3).map(|it| Ok(Frame::data(it)));
    let body = filter.answer(answer(parts.collect())).await.into_body();
    let passed = body.collect().await.unwrap().to_bytes();
    assert_eq!(passed.len(), 3 * long.len());
    assert_eq!(failures(&filter), 2);
}

#[test]
fn an_object_that_is_not_understood_passes_and_leaves_its_neighbours_changed() {
    let filter = filter(Change::RootCaOfConfigMaps, Verb::List, Encoding::Json);
    let odd = r#"{"metadata":{"name":"kube-root-ca.crt","namespace":"odd"},"data":{"ca.crt":7}}"#;
    let good =
        r#"{"metadata":{"name":"kube-root-ca.crt","namespace":"good"},"data":{"ca.crt":""}}"#;
    let list = format!(r#"{{"items":[{odd},{good}]}}"#);
    let changed = filter.changed(list.clone().into(), replace::list);
    let expected = list.replace(r#""ca.crt":"""#, r#""ca.crt":"hub""#);
    assert_eq!(changed, expected);
    assert_eq!(failures(&filter), 1);
}

proptest! {
    /// Damage to a good body gets further than random bytes do.
    #[test]
    fn a_damaged_body_does_not_panic(
        (body, edit_body) in select(vec![
            (SERVICES, replace::list as EditBody),
            (SERVICE, replace::object),
            (SERVICE_WATCH, replace::event),
        ]),
        damage in vec((any::<Index>(), any::<u8>()), 1..4),
    ) {
        let mut body = body.to_vec();
        for (index, byte) in damage {
            let index = index.index(body.len());
            body[index] = byte;
        }
        let filter = filter(Change::MasterService, Verb::List, Encoding::Protobuf);
        filter.changed(body.into(), edit_body);
    }

    #[test]
    fn no_words_of_json_panic(
        body in r#"([{}\[\],: ]|"(items|metadata|spec|name|ports|clusterIP|kubernetes|default)"|"\\u00"|-1|null){0,30}"#,
    ) {
        let filter = filter(Change::MasterService, Verb::List, Encoding::Json);
        filter.changed(body.clone().into(), replace::list);
        filter.changed(body.into(), replace::event);
    }
}
