//! The query of a list or watch: `ListOptions` of the API.

use std::collections::BTreeSet;
use std::time::Duration;

use super::percent::{parameter as decoded_parameter, parameters};
use super::selector::{FieldSelector, InvalidSelector, LabelSelector};

/// Which state of a collection is asked for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum AskedVersion {
    /// No `resourceVersion`: the newest.
    #[default]
    Newest,
    /// `0`: any.
    Any,
    /// A number.
    At(u64),
}

/// `resourceVersionMatch`
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum VersionMatch {
    Exact,
    NotOlderThan,
}

/// `includeObject`: what each row of a table has besides its cells.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum IncludedObject {
    #[default]
    Metadata,
    Object,
    Nothing,
}

/// The query of a list or watch.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ListOptions {
    pub(crate) resource_version: AskedVersion,
    pub(crate) resource_version_match: Option<VersionMatch>,
    /// Zero: all at once.
    pub(crate) limit: u64,
    /// Empty: the first page.
    pub(crate) continue_token: String,
    pub(crate) allow_watch_bookmarks: bool,
    pub(crate) send_initial_events: bool,
    /// It is said, be it `false`.
    pub(crate) has_send_initial_events: bool,
    pub(crate) timeout_seconds: Option<u64>,
    /// `timeout`: for how long the client waits, such as `10s`.
    pub(crate) timeout: Option<Duration>,
    /// Only tables have it.
    pub(crate) included_object: IncludedObject,
    pub(crate) label_selector: LabelSelector,
    pub(crate) field_selector: FieldSelector,
}

/// A query that the API server answers with 400.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum InvalidOptions {
    #[error("{parameter} is not a natural number")]
    Number { parameter: &'static str },
    #[error("resourceVersionMatch is neither Exact nor NotOlderThan")]
    VersionMatch,
    #[error("includeObject is not None, Metadata or Object")]
    IncludedObject,
    #[error("the label selector cannot be parsed")]
    LabelSelector { source: InvalidSelector },
    #[error("the field selector cannot be parsed")]
    FieldSelector { source: InvalidSelector },
}

impl ListOptions {
    /// If a parameter is repeated, the first one counts, as in apimachinery.
    pub(super) fn from_query(query: &str) -> Result<Self, InvalidOptions> {
        let label_selector = value(query, "labelSelector").parse();
        let field_selector = value(query, "fieldSelector").parse();
        Ok(Self {
            resource_version: asked_version(&value(query, "resourceVersion"))?,
            resource_version_match: version_match(&value(query, "resourceVersionMatch"))?,
            limit: number(query, "limit")?.unwrap_or_default(),
            continue_token: value(query, "continue"),
            allow_watch_bookmarks: flag(query, "allowWatchBookmarks"),
            send_initial_events: flag(query, "sendInitialEvents"),
            has_send_initial_events: parameter(query, "sendInitialEvents").is_some(),
            timeout_seconds: number(query, "timeoutSeconds")?,
            timeout: duration(&value(query, "timeout")),
            included_object: included_object(&value(query, "includeObject"))?,
            label_selector: label_selector
                .map_err(|source| InvalidOptions::LabelSelector { source })?,
            field_selector: field_selector
                .map_err(|source| InvalidOptions::FieldSelector { source })?,
        })
    }
}

/// The parameters whose meaning for an answer is known. `pretty` changes only how it looks.
const KNOWN: [&str; 13] = [
    "allowWatchBookmarks",
    "continue",
    "fieldSelector",
    "includeObject",
    "labelSelector",
    "limit",
    "pretty",
    "resourceVersion",
    "resourceVersionMatch",
    "sendInitialEvents",
    "timeout",
    "timeoutSeconds",
    "watch",
];

/// The parameters of a write that do not change what it does.
const KNOWN_OF_WRITES: [&str; 4] = ["fieldManager", "fieldValidation", "pretty", "timeout"];

/// Whether the hub knows what the query of a read asks for. Of another query no answer may be
/// remembered: it could be a part of what its selectors name.
pub(crate) fn is_understood(query: &str) -> bool {
    has_only(&KNOWN, query)
}

/// Whether a write does what its method, path and body say: with `dryRun` it does nothing.
pub(crate) fn is_plain_write(query: &str) -> bool {
    has_only(&KNOWN_OF_WRITES, query)
}

/// Whether each parameter is known, is there once, and reads the same here and at the API server.
fn has_only(known: &[&str], query: &str) -> bool {
    let mut seen = BTreeSet::new();
    for pair in query.split('&') {
        if pair.is_empty() {
            continue;
        }
        let Some((name, _)) = decoded_parameter(pair) else {
            return false;
        };
        if !known.contains(&&*name) || !seen.insert(name) {
            return false;
        }
    }
    true
}

/// What is asked for with some options.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Collection {
    List,
    Watch,
}

impl ListOptions {
    /// Whether the API server accepts these options together (apimachinery,
    /// `ValidateListOptions`).
    pub(crate) fn are_accepted(&self, of: Collection) -> bool {
        let matched = self.resource_version_match;
        match of {
            Collection::Watch if self.has_send_initial_events => {
                matched == Some(VersionMatch::NotOlderThan) && self.continue_token.is_empty()
            }
            // Without a version it begins with a list, which must not be a page.
            Collection::Watch => {
                let lists = !matches!(self.resource_version, AskedVersion::At(_));
                matched.is_none() && (!lists || self.continue_token.is_empty())
            }
            Collection::List if self.has_send_initial_events => false,
            Collection::List => match (matched, self.resource_version) {
                (None, _) => true,
                (Some(_), AskedVersion::Newest) => false,
                (Some(VersionMatch::Exact), AskedVersion::Any) => false,
                (Some(_), AskedVersion::Any | AskedVersion::At(_)) => {
                    self.continue_token.is_empty()
                }
            },
        }
    }

    /// Whether one state of the past is asked for. Without `resourceVersionMatch` a limit means so.
    pub(crate) fn is_exact(&self) -> bool {
        let at = matches!(self.resource_version, AskedVersion::At(_));
        match self.resource_version_match {
            Some(matched) => matched == VersionMatch::Exact,
            None => at && self.limit > 0,
        }
    }
}

/// Whether a query has the parameter with a value other than `false` and `0`.
pub(crate) fn flag(query: &str, name: &str) -> bool {
    match parameter(query, name) {
        Some(value) => !matches!(&*value.to_lowercase(), "false" | "0"),
        None => false,
    }
}

fn parameter(query: &str, name: &str) -> Option<String> {
    let found = parameters(query).into_iter().find(|(key, _)| key == name);
    found.map(|(_, value)| value)
}

/// Empty if the query has it not.
fn value(query: &str, name: &str) -> String {
    parameter(query, name).unwrap_or_default()
}

/// How long a client waits for its answer, whatever it asks for: `timeout`.
pub(crate) fn client_timeout(query: &str) -> Option<Duration> {
    duration(&value(query, "timeout"))
}

fn duration(text: &str) -> Option<Duration> {
    let duration = humantime::parse_duration(text).ok()?;
    if duration.is_zero() {
        return None;
    }
    Some(duration)
}

fn asked_version(value: &str) -> Result<AskedVersion, InvalidOptions> {
    let parameter = "resourceVersion";
    // Other numbers may be written with a sign or with zeros.
    let is_version = value == "0" || value.bytes().all(|byte| byte.is_ascii_digit());
    if !is_version || value.len() > 1 && value.starts_with('0') {
        return Err(InvalidOptions::Number { parameter });
    }
    match value {
        "" => Ok(AskedVersion::Newest),
        "0" => Ok(AskedVersion::Any),
        _ => match value.parse() {
            Ok(number) => Ok(AskedVersion::At(number)),
            Err(_) => Err(InvalidOptions::Number { parameter }),
        },
    }
}

fn version_match(value: &str) -> Result<Option<VersionMatch>, InvalidOptions> {
    match value {
        "" => Ok(None),
        "Exact" => Ok(Some(VersionMatch::Exact)),
        "NotOlderThan" => Ok(Some(VersionMatch::NotOlderThan)),
        _ => Err(InvalidOptions::VersionMatch),
    }
}

fn included_object(value: &str) -> Result<IncludedObject, InvalidOptions> {
    match value {
        "" | "Metadata" => Ok(IncludedObject::Metadata),
        "Object" => Ok(IncludedObject::Object),
        "None" => Ok(IncludedObject::Nothing),
        _ => Err(InvalidOptions::IncludedObject),
    }
}

/// As `int64` of the API, but never below zero, which the API server does not mind.
fn number(query: &str, name: &'static str) -> Result<Option<u64>, InvalidOptions> {
    let Some(value) = parameter(query, name) else {
        return Ok(None);
    };
    let number = value.parse::<i64>().map(u64::try_from);
    match number {
        Ok(Ok(number)) => Ok(Some(number)),
        Ok(Err(_)) | Err(_) => Err(InvalidOptions::Number { parameter: name }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_query_that_may_ask_for_a_part_is_not_understood() {
        for query in [
            "",
            "watch=true&resourceVersion=5&timeoutSeconds=60&pretty=true",
            "labelSelector=a%3Db&&fieldSelector=spec.nodeName%3Dedge-1&limit=500",
        ] {
            assert!(is_understood(query), "{query}");
        }
        for query in [
            "shardSelector=0%2F2",
            "export=true",
            "fieldSelector=metadata.name%3D%FF&fieldSelector=spec.nodeName%3Dedge-1",
            "fieldSelector=a%3Db&fieldSelector=c%3Dd",
            "labelSelector=%zz",
            "limit=1;continue=x",
            "WATCH=true",
        ] {
            assert!(!is_understood(query), "{query}");
        }
    }

    #[test]
    fn a_write_that_may_do_nothing_is_not_plain() {
        for query in [
            "",
            "fieldManager=kubelet&timeout=10s",
            "fieldValidation=Ignore&pretty",
        ] {
            assert!(is_plain_write(query), "{query}");
        }
        for query in [
            "dryRun=All",
            "dryRun",
            "%64ryRun=All",
            "d%72yRun=%41ll&timeout=10s",
            "dryRun=%FF",
            "fieldManager=a&fieldManager=b",
            "force=true",
        ] {
            assert!(!is_plain_write(query), "{query}");
        }
    }

    #[test]
    fn the_query_of_a_streaming_list_is_read() {
        let query = "allowWatchBookmarks=true&fieldSelector=spec.nodeName%3Dedge-7\
            &labelSelector=app+in+%28a%2Cb%29&resourceVersion=4711&resourceVersionMatch=NotOlderThan\
            &sendInitialEvents=true&timeout=7m3s&timeoutSeconds=423&watch=true";
        let options = ListOptions::from_query(query).unwrap();
        assert_eq!(
            options,
            ListOptions {
                resource_version: AskedVersion::At(4711),
                resource_version_match: Some(VersionMatch::NotOlderThan),
                limit: 0,
                continue_token: String::new(),
                allow_watch_bookmarks: true,
                send_initial_events: true,
                has_send_initial_events: true,
                timeout_seconds: Some(423),
                timeout: Some(Duration::from_secs(423)),
                included_object: IncludedObject::Metadata,
                label_selector: "app in (b,a)".parse().unwrap(),
                field_selector: "spec.nodeName=edge-7".parse().unwrap(),
            }
        );
    }

    #[test]
    fn a_page_has_a_limit_and_a_token() {
        let options = ListOptions::from_query("limit=500&continue=eyJ2IjoibWV0YSJ9").unwrap();
        assert_eq!(options.limit, 500);
        assert_eq!(options.continue_token, "eyJ2IjoibWV0YSJ9");
        assert_eq!(options.resource_version, AskedVersion::Newest);
    }

    #[test]
    fn a_page_of_a_version_is_exact_unless_said_otherwise() {
        for (query, exact) in [
            ("resourceVersion=7&resourceVersionMatch=Exact", true),
            ("resourceVersion=7&limit=500", true),
            (
                "resourceVersion=7&limit=500&resourceVersionMatch=NotOlderThan",
                false,
            ),
            ("resourceVersion=7", false),
            ("resourceVersion=0&limit=500", false),
            ("limit=500", false),
        ] {
            let options = ListOptions::from_query(query).unwrap();
            assert_eq!(options.is_exact(), exact, "{query}");
        }
    }

    #[test]
    fn version_zero_is_any_version() {
        let options = ListOptions::from_query("resourceVersion=0").unwrap();
        assert_eq!(options.resource_version, AskedVersion::Any);
    }

    #[test]
    fn what_the_api_server_refuses_is_an_error() {
        for (query, expected) in [
            ("limit=many", InvalidOptions::Number { parameter: "limit" }),
            ("limit=", InvalidOptions::Number { parameter: "limit" }),
            (
                "limit=9223372036854775808",
                InvalidOptions::Number { parameter: "limit" },
            ),
            (
                "resourceVersion=%2B5",
                InvalidOptions::Number {
                    parameter: "resourceVersion",
                },
            ),
            (
                "resourceVersion=x",
                InvalidOptions::Number {
                    parameter: "resourceVersion",
                },
            ),
            ("resourceVersionMatch=Near", InvalidOptions::VersionMatch),
            ("includeObject=Some", InvalidOptions::IncludedObject),
        ] {
            assert_eq!(ListOptions::from_query(query), Err(expected), "{query}");
        }
    }

    #[test]
    fn a_flag_is_false_only_by_zero_and_false() {
        for (query, expected) in [
            ("", false),
            ("watch=0", false),
            ("watch=False", false),
            ("watch=1", true),
            ("watch=", true),
            ("watch", true),
            ("watch=%zz", false),
            ("watch=false&watch=true", false),
            ("w%61tch=true", true),
            ("%77atch=%66alse", false),
            ("watch=%FF", true),
            ("watch=true;x", false),
        ] {
            assert_eq!(flag(query, "watch"), expected, "{query}");
        }
    }
}
