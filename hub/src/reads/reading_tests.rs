//! What the hub makes of generated requests, beside what the packages make of them that an API
//! server consists of (`xtask/go/reading`): what the hub remembers or answers from memory, both
//! read the same. What the hub passes on, it need not understand.

use std::io::Write;
use std::process::{Command, Stdio};

use culvert_lab::go_program::GoProgram;
use culvert_lab::skip;
use http::Request;
use proptest::prelude::Rng;
use proptest::test_runner::{RngAlgorithm, TestRng};
use serde::{Deserialize, Serialize};

use super::*;
use crate::request::options::{AskedVersion, VersionMatch};

const REQUESTS: usize = 60_000;
/// So many of the requests must be reads: those that are passed on are not compared.
const READS: usize = 3_000;

#[derive(Debug, Serialize)]
struct Question {
    method: &'static str,
    target: String,
    accept: String,
}

/// What the program prints; see there.
#[derive(Debug, Deserialize)]
struct Reading {
    error: String,
    is_resource: bool,
    path: String,
    verb: String,
    group: String,
    version: String,
    resource: String,
    subresource: String,
    namespace: String,
    name: String,
    label_selector: String,
    field_selector: String,
    limit: i64,
    #[serde(rename = "continue")]
    continue_token: String,
    resource_version: String,
    version_match: String,
    bookmarks: bool,
    initial_events: bool,
    timeout_seconds: Option<i64>,
    media_type: String,
    shape: String,
    rows: String,
}

/// Puts requests together of words that mean something, and of some that nearly do.
struct Generator(TestRng);

impl Generator {
    fn choose(&mut self, words: &[&'static str]) -> &'static str {
        words[self.0.next_u64() as usize % words.len()]
    }

    fn happens_once_in(&mut self, number: u64) -> bool {
        self.0.next_u64().is_multiple_of(number)
    }

    fn question(&mut self) -> Question {
        let method = if self.happens_once_in(12) {
            self.choose(&["HEAD", "POST", "DELETE", "PUT", "get", "OPTIONS"])
        } else {
            "GET"
        };
        let mut target = self.path();
        for number in 0..self.0.next_u64() % 4 {
            target.push(if number == 0 { '?' } else { '&' });
            target += &self.parameter();
        }
        Question {
            method,
            target,
            accept: self.accept(),
        }
    }

    fn path(&mut self) -> String {
        if self.happens_once_in(20) {
            return self
                .choose(&[
                    "/version",
                    "/version/",
                    "/api",
                    "/apis/apps",
                    "/apis/apps/v1/",
                    "/openapi/v3",
                    "//api/v1/pods",
                    "/api//v1/pods",
                    "/livez",
                    "/API/v1/pods",
                    "/apis/v1/pods",
                ])
                .to_owned();
        }
        let mut path = self
            .choose(&["/api/v1", "/api/v1", "/apis/apps/v1", "/apis/a.b/v1beta1"])
            .to_owned();
        let words = [
            "pods",
            "pods",
            "secrets",
            "namespaces",
            "shop",
            "shop",
            "watch",
            "status",
            "finalize",
            "proxy",
            "a",
            "",
            "%2e%2e",
            "..",
            "a%2Fb",
            "caf%C3%A9",
            "%zz",
            "a+b",
            "a;b",
        ];
        if self.happens_once_in(3) {
            path += "/namespaces/shop";
        }
        for _ in 0..=self.0.next_u64() % 3 {
            path.push('/');
            path += if self.happens_once_in(4) {
                self.choose(&words)
            } else {
                self.choose(&words[..6])
            };
        }
        path
    }

    fn parameter(&mut self) -> String {
        let name = self.choose(&[
            "watch",
            "watch",
            "resourceVersion",
            "resourceVersionMatch",
            "limit",
            "continue",
            "timeoutSeconds",
            "timeout",
            "allowWatchBookmarks",
            "sendInitialEvents",
            "labelSelector",
            "labelSelector",
            "fieldSelector",
            "fieldSelector",
            "includeObject",
            "pretty",
            "shardSelector",
            "Watch",
            "w%61tch",
        ]);
        let value = match name {
            "watch" | "w%61tch" | "allowWatchBookmarks" | "sendInitialEvents" => {
                self.choose(&["true", "1", "0", "false", "FALSE", "", "no", "%46alse"])
            }
            "resourceVersionMatch" => self.choose(&["Exact", "NotOlderThan", "", "exact"]),
            "resourceVersion" | "limit" | "timeoutSeconds" => self.choose(&[
                "0",
                "5",
                "500",
                "",
                "-1",
                "%2B5",
                "+5",
                "007",
                "5.0",
                "0x5",
                "9223372036854775808",
                "18446744073709551616",
                "5%00",
            ]),
            "labelSelector" => return format!("{name}={}", self.selector(LABELS)),
            "fieldSelector" => return format!("{name}={}", self.selector(FIELDS)),
            "includeObject" => self.choose(&["Object", "None", "Metadata", "", "object"]),
            _ => self.choose(&["a", "10s", "1h", "", "%zz", "a;b", "%FF"]),
        };
        format!("{name}={value}")
    }

    fn selector(&mut self, words: &[&'static str]) -> String {
        let mut selector = String::new();
        for _ in 0..=self.0.next_u64() % 5 {
            selector += self.choose(words);
        }
        crate::request::percent::encode(&selector)
    }

    fn accept(&mut self) -> String {
        let mut accept = String::new();
        for number in 0..self.0.next_u64() % 4 {
            if number > 0 {
                accept += self.choose(&[",", ",", ", ", " ,", ",,", ";"]);
            }
            accept += self.choose(&[
                "application/json",
                "application/json",
                "application/vnd.kubernetes.protobuf",
                "application/vnd.kubernetes.protobuf",
                "*/*",
                "application/*",
                "*",
                "*/json",
                "application/yaml",
                "application/cbor",
                "Application/JSON",
                "text/html",
                "application/json/x",
                "application/json\t",
            ]);
            for _ in 0..self.0.next_u64() % 3 {
                accept += self.choose(&[
                    ";as=Table;v=v1;g=meta.k8s.io",
                    ";as=PartialObjectMetadata;v=v1;g=meta.k8s.io",
                    ";as=PartialObjectMetadataList;g=meta.k8s.io;v=v1",
                    ";as=Table;v=v1beta1;g=meta.k8s.io",
                    ";q=0.5",
                    "; q=0.9",
                    ";q=0",
                    ";q=0.1 ",
                    ";q=1.5",
                    ";q=.",
                    ";v=v1",
                    ";g=",
                    ";as=",
                    ";as=Table",
                    ";stream=watch",
                    ";sv=v1",
                    ";pretty=1",
                    ";charset=utf-8",
                    ";as=Table=x",
                    " ; as = Table ; v=v1;g=meta.k8s.io",
                ]);
            }
        }
        accept
    }
}

const LABELS: &[&str] = &[
    "a",
    "a=b",
    "a!=b",
    "!a",
    "a in (b,c)",
    "a in (c,b)",
    "a notin (b)",
    "x.io/a=1",
    "a>1",
    "a<01",
    "a>+5",
    ",",
    ",",
    ",",
    " ",
    "=",
    "==b",
    "()",
    "a==b",
    "A=B",
    "x/y/z",
    "é=1",
    "a=-b",
    "\t",
];

const FIELDS: &[&str] = &[
    "metadata.name=a",
    "metadata.name=b",
    "metadata.name==a",
    "metadata.name!=a",
    "metadata.name=",
    "metadata.name=..",
    "metadata.name=a/b",
    "metadata.namespace=shop",
    "spec.nodeName=edge-1",
    "spec.nodeName",
    ",",
    ",",
    ",",
    " ",
    "=",
    "\\,",
    "\\",
    "!=x",
    "x!=!y",
    "a=b=c",
];

/// The program's reading of all questions. `None`: it is not there, which is reported.
fn read_by_apiserver(questions: &[Question]) -> Option<Vec<Reading>> {
    let Some(program) = GoProgram::Reading.find() else {
        skip::skip("the reading of the API server is not compiled: run `cargo xtask setup`");
        return None;
    };
    let mut process = Command::new(program)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut input = Vec::new();
    for question in questions {
        serde_json::to_writer(&mut input, question).unwrap();
    }
    let mut stdin = process.stdin.take().unwrap();
    let writer = std::thread::spawn(move || stdin.write_all(&input));
    let output = process.wait_with_output().unwrap();
    writer.join().unwrap().unwrap();
    assert!(output.status.success(), "{output:?}");
    let lines = output.stdout.split(|byte| *byte == b'\n');
    let readings: Vec<Reading> = lines
        .filter(|line| !line.is_empty())
        .map(|line| serde_json::from_slice(line).unwrap())
        .collect();
    Some(readings)
}

/// The question as the hub sends it on, and its plan. `None`: no HTTP library lets it through.
fn read_by_hub(question: &Question) -> Option<(Plan, String)> {
    let request = Request::builder().method(question.method);
    let mut request = request.uri(&question.target);
    if !question.accept.is_empty() {
        request = request.header(header::ACCEPT, &question.accept);
    }
    let mut request = request.body(()).ok()?;
    let plan = Plan::new(request.method(), request.uri(), request.headers());
    if request.uri().path_and_query()?.as_str() != question.target {
        return None;
    }
    make_readable(request.headers_mut());
    Some((plan, accept_text(request.headers())))
}

/// What the hub reads otherwise than the API server.
fn difference(read: &Read, reading: &Reading) -> Option<String> {
    if !reading.error.is_empty() {
        return Some(format!("the API server refuses it: {}", reading.error));
    }
    let resource = &read.scope.representation.resource;
    let verb = format!("{:?}", read.verb).to_lowercase();
    let selection = &read.scope.selection;
    let is_namespace = resource.group.is_empty() && resource.resource == "namespaces";
    let namespace = if is_namespace { "" } else { &reading.namespace };
    let of_hub = [
        &*verb,
        &resource.group,
        &resource.version,
        &resource.resource,
        "",
        selection.namespace.as_deref().unwrap_or_default(),
        selection.name.as_deref().unwrap_or_default(),
        media_type(read.encoding()),
    ];
    let of_api_server = [
        &*reading.verb,
        &reading.group,
        &reading.version,
        &reading.resource,
        &reading.subresource,
        namespace,
        &reading.name,
        &reading.media_type,
    ];
    if of_hub != of_api_server || !reading.is_resource {
        return Some(format!("{of_hub:?} and {of_api_server:?}"));
    }
    let shape = match read.shape() {
        Shape::Object => "",
        Shape::Metadata => "PartialObjectMetadata",
        Shape::Table | Shape::TableOfObjects => "Table",
    };
    let kind = reading.shape.rsplit_once("Kind=");
    let kind = kind.map_or("", |(_, kind)| kind.trim_end_matches("List"));
    let has_objects = read.shape() == Shape::TableOfObjects;
    if shape != kind || has_objects != (reading.rows == "Object") || reading.rows == "None" {
        return Some(format!("shapes {shape} and {kind} {}", reading.rows));
    }
    match read.verb {
        Verb::Get => None,
        Verb::List | Verb::Watch => options_difference(&read.options, reading),
    }
}

fn options_difference(options: &ListOptions, reading: &Reading) -> Option<String> {
    let version = match options.resource_version {
        AskedVersion::Newest => String::new(),
        AskedVersion::Any => "0".to_owned(),
        AskedVersion::At(number) => number.to_string(),
    };
    let version_match = match options.resource_version_match {
        None => "",
        Some(VersionMatch::Exact) => "Exact",
        Some(VersionMatch::NotOlderThan) => "NotOlderThan",
    };
    let of_hub = (
        &version,
        version_match,
        i64::try_from(options.limit),
        &options.continue_token,
        options.allow_watch_bookmarks,
        options.send_initial_events,
        options.timeout_seconds.map(i64::try_from).transpose(),
    );
    let of_api_server = (
        &reading.resource_version,
        &*reading.version_match,
        Ok(reading.limit),
        &reading.continue_token,
        reading.bookmarks,
        reading.initial_events,
        Ok(reading.timeout_seconds),
    );
    if of_hub != of_api_server {
        return Some(format!("{of_hub:?} and {of_api_server:?}"));
    }
    let labels = reading.label_selector.parse();
    if labels != Ok(options.label_selector.clone()) {
        return Some(format!("labels {}", options.label_selector));
    }
    let fields = reading.field_selector.parse();
    if fields != Ok(options.field_selector.clone()) {
        return Some(format!("fields {}", options.field_selector));
    }
    None
}

fn media_type(encoding: Encoding) -> &'static str {
    match encoding {
        Encoding::Json => "application/json",
        Encoding::Protobuf => "application/vnd.kubernetes.protobuf",
    }
}

#[test]
fn what_is_remembered_reads_the_api_server_the_same() {
    let mut seed = [0; 32];
    TestRng::from_seed(RngAlgorithm::ChaCha, &time_seed()).fill_bytes(&mut seed);
    println!("seed {seed:?}");
    let mut generator = Generator(TestRng::from_seed(RngAlgorithm::ChaCha, &seed));
    let mut questions = Vec::new();
    let mut plans = Vec::new();
    for _ in 0..REQUESTS {
        let mut question = generator.question();
        if let Some((plan, accept)) = read_by_hub(&question) {
            question.accept = accept;
            questions.push(question);
            plans.push(plan);
        }
    }
    let Some(readings) = read_by_apiserver(&questions) else {
        return;
    };
    assert_eq!(readings.len(), questions.len());
    let mut reads = 0;
    let mut differences = Vec::new();
    for ((plan, question), reading) in plans.iter().zip(&questions).zip(&readings) {
        let found = match plan {
            Plan::Read(read) => {
                reads += 1;
                difference(read, reading)
            }
            Plan::Document(_) if reading.is_resource => Some("a resource".to_owned()),
            Plan::Document(read) if read.path != reading.path.trim_end_matches('/') => {
                Some(format!("{} and {}", read.path, reading.path))
            }
            Plan::Document(_) | Plan::Upgrade | Plan::Write(_) | Plan::Pass => None,
        };
        differences.extend(found.map(|found| format!("{question:?}: {found}")));
    }
    assert!(reads > READS, "{reads} reads of {REQUESTS} requests");
    let some = &differences[..differences.len().min(40)];
    assert!(differences.is_empty(), "{} as {some:#?}", differences.len());
}

/// Another one each time; the test prints what it makes of it.
fn time_seed() -> [u8; 32] {
    let since = std::time::SystemTime::UNIX_EPOCH.elapsed().unwrap();
    let mut seed = [0; 32];
    seed[..16].copy_from_slice(&since.as_nanos().to_le_bytes());
    seed
}
