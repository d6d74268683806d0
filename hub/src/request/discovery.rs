//! Requests for documents about the API server itself: its version, its groups and resources
//! (discovery), its schema. Clients ask for these before anything else.

use super::percent::parameters;

/// Answers to longer addresses and longer `Accept` headers are not remembered. Those of kubectl
/// have 230 bytes.
const MAX_LENGTH: usize = 1024;

/// A GET of a document. A slash at the end of a path makes it another one: for `/openapi/v2/` the API
/// server has 404.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct DocumentRead {
    pub(crate) path: String,
    /// The part of the query that the answer depends on: `hash=...` of a part of the schema, or
    /// nothing.
    pub(crate) query: String,
    /// All `Accept` headers as one.
    pub(crate) accepted: String,
}

impl DocumentRead {
    /// `None`: this path has no document that is remembered. Logs, metrics and health are no
    /// documents: they differ each time.
    pub(crate) fn new(path: &str, query: &str, accepted: String) -> Option<Self> {
        let segments: Vec<_> = path.strip_prefix('/')?.split('/').collect();
        let is_schema = matches!(&*segments, ["openapi", "v3", ..]);
        let hash = parameters(query)
            .into_iter()
            .find(|(name, _)| is_schema && name == "hash");
        let query = match hash {
            Some((_, value)) => format!("hash={value}"),
            None => String::new(),
        };
        let longest = accepted.len().max(path.len() + query.len());
        if !is_document(&segments) || longest > MAX_LENGTH {
            return None;
        }
        Some(Self {
            path: path.to_owned(),
            query,
            accepted,
        })
    }
}

fn is_document(segments: &[&str]) -> bool {
    matches!(
        segments,
        ["version" | "api" | "apis"]
            | ["api" | "apis", _]
            | ["apis", _, _]
            | ["openapi", "v2"]
            | ["openapi", "v3", ..]
    ) && segments.last() != Some(&"")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(path: &str, query: &str) -> Option<(String, String)> {
        let read = DocumentRead::new(path, query, String::new())?;
        Some((read.path, read.query))
    }

    #[test]
    fn discovery_version_and_schema_are_documents() {
        for path in [
            "/version",
            "/api",
            "/apis",
            "/api/v1",
            "/apis/apps",
            "/apis/apps/v1",
            "/openapi/v2",
            "/openapi/v3",
            "/openapi/v3/apis/apps/v1",
        ] {
            assert_eq!(address(path, ""), Some((path.to_owned(), String::new())));
        }
    }

    #[test]
    fn health_metrics_and_all_else_are_none() {
        for path in [
            "",
            "/",
            "/readyz",
            "/metrics",
            "/logs/x",
            "/openapi",
            "/apis/a/b/c",
            "/version/",
            "/apis/",
            "/openapi/v2/",
        ] {
            assert_eq!(address(path, ""), None, "{path}");
        }
    }

    #[test]
    fn of_the_query_only_the_hash_of_a_schema_counts() {
        let path = |text: &str| Some((text.to_owned(), String::new()));
        assert_eq!(address("/api", "timeout=32s"), path("/api"));
        assert_eq!(address("/api", "hash=1"), path("/api"));
        assert_eq!(
            address("/openapi/v3/api/v1", "timeout=32s&hash=AB"),
            Some(("/openapi/v3/api/v1".to_owned(), "hash=AB".to_owned()))
        );
    }

    #[test]
    fn a_long_address_is_not_remembered() {
        assert_eq!(
            address(&format!("/apis/{}", "x".repeat(MAX_LENGTH)), ""),
            None
        );
    }
}
