//! The objects of the bench: of the sizes that real ones have, and changes of them.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::SystemTime;

use anyhow::{Context, Result, bail};
use hyper::Method;
use serde_json::{Value, json};
use tokio::task::JoinSet;

use super::Figures;
use super::connection::{Connection, Target};

/// Connections that make objects at the same time.
const AT_ONCE: usize = 16;
/// The annotation that a change sets.
const CHANGE: &str = "bench/change";
/// Objects have about 2 kB with it.
const PADDING: usize = 1_200;
/// Digits of each number of a padding.
const NUMBER: usize = 16;

/// Makes `count` objects of the list at `path`.
pub(super) async fn create(target: &Target, path: &str, count: usize) -> Result<Figures> {
    let next = Arc::new(AtomicUsize::new(0));
    let mut tasks = JoinSet::new();
    for _ in 0..AT_ONCE {
        let mut connection = target.connect().await?;
        let next = next.clone();
        let path = path.to_owned();
        tasks.spawn(async move {
            loop {
                let number = next.fetch_add(1, Ordering::Relaxed);
                if number >= count {
                    return anyhow::Ok(());
                }
                let object = object(&path, number)?;
                connection
                    .write(Method::POST, &path, "application/json", &object)
                    .await?;
            }
        });
    }
    while let Some(done) = tasks.join_next().await {
        done??;
    }
    Ok(vec![("made", count as f64)])
}

/// The first of numbers that no earlier change had: an API server makes no event of a change to what
/// is there already.
pub(super) fn new_change() -> Result<u64> {
    Ok(u64::try_from(
        SystemTime::UNIX_EPOCH.elapsed()?.as_micros(),
    )?)
}

/// Changes object `number` of the list at `path`, so that [`change_of`] its event is `change`.
pub(super) async fn change(
    connection: &mut Connection,
    path: &str,
    number: usize,
    change: u64,
) -> Result<()> {
    let path = format!("{path}/{}", name(path, number)?);
    let patch = json!({ "metadata": { "annotations": { CHANGE: change.to_string() } } });
    connection
        .write(Method::PATCH, &path, "application/merge-patch+json", &patch)
        .await
}

/// What [`change`] has set; `None` for an event of something else.
pub(super) fn change_of(event: &Value) -> Option<u64> {
    let annotations = &event["object"]["metadata"]["annotations"];
    annotations[CHANGE].as_str()?.parse().ok()
}

/// The resource that a list has, such as `pods`.
fn resource(path: &str) -> Result<&str> {
    path.rsplit('/').next().context("an empty path")
}

fn name(path: &str, number: usize) -> Result<String> {
    Ok(format!("{}-{number}", resource(path)?))
}

/// Text that is in no other object and that compression makes hardly shorter: what a hub holds
/// of it counts in full.
fn padding(number: usize) -> String {
    let numbers = (0..PADDING / NUMBER).map(|part| {
        let mut hasher = DefaultHasher::new();
        (number, part).hash(&mut hasher);
        format!("{:016x}", hasher.finish())
    });
    numbers.collect()
}

/// The three endpoints of a slice.
fn endpoints(name: &str, number: usize) -> Vec<Value> {
    let mut endpoints = Vec::new();
    for end in 1..=3 {
        endpoints.push(json!({
            "addresses": [format!("10.{}.{}.{end}", number / 250, number % 250)],
            "conditions": { "ready": true },
            "targetRef": { "kind": "Pod", "namespace": "many", "name": format!("{name}-{end}") },
        }));
    }
    endpoints
}

fn object(path: &str, number: usize) -> Result<Value> {
    let name = name(path, number)?;
    let metadata = json!({
        "name": name,
        "labels": { "app": name, "kubernetes.io/service-name": name },
        "annotations": { "bench/padding": padding(number) },
    });
    Ok(match resource(path)? {
        "pods" => json!({ "metadata": metadata, "spec": {
            "nodeName": "edge-1",
            "containers": [{ "name": "app", "image": "registry.example/app:1" }],
        }}),
        "services" => json!({ "metadata": metadata, "spec": {
            "clusterIP": "None",
            "selector": { "app": name },
            "ports": [{ "name": "http", "port": 80 }, { "name": "metrics", "port": 9100 }],
        }}),
        "endpointslices" => json!({
            "metadata": metadata,
            "addressType": "IPv4",
            "ports": [{ "name": "http", "port": 8080 }],
            "endpoints": endpoints(&name, number),
        }),
        other => bail!("the bench makes no {other}"),
    })
}
