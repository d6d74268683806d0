//! Reads an `Accept` header as the API server does: which encoding and shape it will choose, and
//! which of several remembered documents a client gets.

use crate::wire::{Encoding, Shape};

/// Go's sort leaves equal clauses in their order only if there are no more than this.
const MAX_CLAUSES: usize = 10;

/// What an answer will look like.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Representation {
    pub(crate) encoding: Encoding,
    pub(crate) shape: Shape,
}

impl Representation {
    /// `None`: the API server will answer in a way that the hub does not read, such as YAML, or
    /// with 406. A request without the header is one with an empty header.
    ///
    /// CBOR does not count: the hub removes it from the header before it asks the API server.
    pub(crate) fn from_accept(header: &str) -> Option<Self> {
        if header.is_empty() {
            return Clause::parse("*/*").representation();
        }
        if !header.split(',').all(is_understood) || is_order_unclear(header) {
            return None;
        }
        preferred(header).first()?.representation()
    }
}

/// The index of the content type that a client with this `Accept` prefers. `None`: it accepts none
/// of them.
pub(crate) fn choose<'a>(
    header: &str,
    content_types: impl Iterator<Item = &'a str>,
) -> Option<usize> {
    let header = if header.trim().is_empty() {
        "*/*"
    } else {
        header
    };
    let content_types: Vec<_> = content_types.map(Clause::parse).collect();
    for clause in preferred(header) {
        if let Some(place) = content_types.iter().position(|it| clause.accepts(it)) {
            return Some(place);
        }
    }
    None
}

/// The clauses of a header, the best first, without CBOR.
fn preferred(header: &str) -> Vec<Clause<'_>> {
    let mut clauses: Vec<_> = header.split(',').map(Clause::parse).collect();
    clauses.retain(|clause| clause.quality > 0.0 && !clause.is_cbor());
    // The sort is stable: of equals the first counts.
    clauses.sort_by(|one, other| {
        let by_quality = other.quality.total_cmp(&one.quality);
        by_quality.then(one.is_wildcard().cmp(&other.is_wildcard()))
    });
    clauses
}

/// Whether it is not known which clause the API server prefers: its order mixes quality with two
/// kinds of wildcards, and is not stable with many clauses.
fn is_order_unclear(header: &str) -> bool {
    let clauses: Vec<_> = header.split(',').collect();
    let mut wildcards = clauses.clone();
    wildcards.retain(|clause| clause.contains('*'));
    let is_mixed = !wildcards.is_empty() && header.contains("q=");
    clauses.len() > MAX_CLAUSES || wildcards.len() > 1 || is_mixed
}

/// Whether the hub reads a clause as the API server does. The API server skips a clause with
/// another parameter, such as `sv`, so its answer would be another one than the clause says.
fn is_understood(clause: &str) -> bool {
    let mut parts = clause.trim_matches(' ').split(';');
    let mut seen = Vec::new();
    if !is_word(parts.next().unwrap_or_default()) {
        return false;
    }
    for part in parts {
        let Some((name, value)) = part.trim_start_matches(' ').split_once('=') else {
            return false;
        };
        let is_known = match name {
            "as" | "g" | "v" => true,
            "stream" => value == "watch",
            "q" => is_quality(value),
            _ => false,
        };
        if !is_known || !is_word(value) || seen.contains(&name) {
            return false;
        }
        seen.push(name);
    }
    // Without `as` these name no shape, and the API server skips the clause.
    seen.contains(&"as") || !seen.contains(&"g") && !seen.contains(&"v")
}

/// Not empty, and without spaces: the API server trims some of them.
fn is_word(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_graphic())
}

fn is_quality(value: &str) -> bool {
    let is_plain = value.bytes().all(|it| it.is_ascii_digit() || it == b'.');
    match value.parse::<f32>() {
        Ok(quality) => is_plain && (0.0..=1.0).contains(&quality),
        Err(_) => false,
    }
}

/// `type/subtype;parameter=value`
struct Clause<'a> {
    media_type: &'a str,
    quality: f32,
    parameters: Vec<(&'a str, &'a str)>,
}

impl<'a> Clause<'a> {
    fn parse(text: &'a str) -> Self {
        let mut parts = text.split(';').map(str::trim);
        let media_type = parts.next().unwrap_or_default();
        let parameters: Vec<_> = parts.flat_map(|part| part.split_once('=')).collect();
        let mut clause = Self {
            media_type,
            quality: 1.0,
            parameters,
        };
        if let Some(quality) = clause.parameter("q")
            && let Ok(quality) = quality.parse::<f32>()
            && quality.is_finite()
        {
            clause.quality = quality;
        }
        clause
    }

    /// Whether this clause accepts an answer of this type. A wildcard is JSON.
    fn accepts(&self, content_type: &Self) -> bool {
        let media_type = match self.media_type {
            "*/*" | "application/*" => "application/json",
            media_type => media_type,
        };
        for name in ["as", "g", "v"] {
            if self.parameter(name) != content_type.parameter(name) {
                return false;
            }
        }
        media_type.eq_ignore_ascii_case(content_type.media_type)
    }

    fn is_cbor(&self) -> bool {
        ["application/cbor", "application/cbor-seq"]
            .iter()
            .any(|cbor| self.media_type.eq_ignore_ascii_case(cbor))
    }

    fn is_wildcard(&self) -> bool {
        self.media_type.ends_with('*')
    }

    fn representation(&self) -> Option<Representation> {
        let encoding = match self.media_type {
            // For a wildcard the API server chooses JSON.
            "application/json" | "application/*" | "*/*" => Encoding::Json,
            "application/vnd.kubernetes.protobuf" => Encoding::Protobuf,
            _ => return None,
        };
        let shape = self.shape()?;
        if (encoding, shape) == (Encoding::Protobuf, Shape::Table) {
            return None;
        }
        Some(Representation { encoding, shape })
    }

    /// `None`: a shape of another group or version, or an unknown one.
    fn shape(&self) -> Option<Shape> {
        let shape = match self.parameter("as") {
            None => return Some(Shape::Object),
            Some("Table") => Shape::Table,
            Some("PartialObjectMetadata" | "PartialObjectMetadataList") => Shape::Metadata,
            Some(_) => return None,
        };
        if self.parameter("g") != Some("meta.k8s.io") || self.parameter("v") != Some("v1") {
            return None;
        }
        Some(shape)
    }

    fn parameter(&self, name: &str) -> Option<&'a str> {
        let found = self.parameters.iter().find(|(key, _)| *key == name);
        found.map(|(_, value)| *value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chosen(header: &str) -> Option<(Encoding, Shape)> {
        Representation::from_accept(header).map(|chosen| (chosen.encoding, chosen.shape))
    }

    #[test]
    fn a_header_is_understood_as_the_api_server_does() {
        use Encoding::{Json, Protobuf};
        use Shape::{Metadata, Object, Table};
        let table = "application/json;as=Table;v=v1;g=meta.k8s.io";
        let metadata = "as=PartialObjectMetadataList;g=meta.k8s.io;v=v1";
        for (header, expected) in [
            ("", Some((Json, Object))),
            ("*/*", Some((Json, Object))),
            ("application/json, */*", Some((Json, Object))),
            (
                "*/*, application/vnd.kubernetes.protobuf",
                Some((Protobuf, Object)),
            ),
            (
                "application/vnd.kubernetes.protobuf,application/json",
                Some((Protobuf, Object)),
            ),
            (
                "application/vnd.kubernetes.protobuf;stream=watch",
                Some((Protobuf, Object)),
            ),
            (
                &format!("{table},{table}beta1,application/json"),
                Some((Json, Table)),
            ),
            (
                &format!(
                    "application/vnd.kubernetes.protobuf;{metadata},application/json;{metadata}"
                ),
                Some((Protobuf, Metadata)),
            ),
            (
                "application/json;q=0.5, application/vnd.kubernetes.protobuf;q=0.9",
                Some((Protobuf, Object)),
            ),
            (
                "application/vnd.kubernetes.protobuf;q=0, application/json;q=0.1",
                Some((Json, Object)),
            ),
            (
                "application/cbor;q=1.0, application/json",
                Some((Json, Object)),
            ),
        ] {
            assert_eq!(chosen(header), expected, "{header}");
        }
    }

    #[test]
    fn a_client_gets_the_document_that_it_wants_most() {
        const AGGREGATED: &str =
            "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";
        let kubectl = format!(
            "{AGGREGATED},application/json;as=APIGroupDiscoveryList;v=v2beta1;g=apidiscovery.k8s.io,application/json"
        );
        let choose = |header: &str, there: &[&str]| choose(header, there.iter().copied());
        assert_eq!(choose(&kubectl, &["application/json", AGGREGATED]), Some(1));
        assert_eq!(choose(&kubectl, &["application/json"]), Some(0));
        assert_eq!(choose("*/*", &[AGGREGATED, "application/json"]), Some(1));
        assert_eq!(choose("", &["application/json"]), Some(0));
        assert_eq!(choose("application/json", &[AGGREGATED]), None);
        assert_eq!(choose("text/plain", &["application/json"]), None);
    }

    #[test]
    fn what_the_hub_does_not_read_has_no_name() {
        for header in [
            "application/yaml, application/json",
            "text/html,application/xhtml+xml,*/*;q=0.8",
            "application/json;as=Table;v=v1beta1;g=meta.k8s.io",
            "application/json;as=Pod;v=v1;g=",
            "application/vnd.kubernetes.protobuf;as=Table;v=v1;g=meta.k8s.io",
            "application/json;q=0",
            "application/json;sv=x,application/json",
            "application/vnd.kubernetes.protobuf;sv=x,application/vnd.kubernetes.protobuf",
            "application/json;stream=other",
            "application/json;q=0.5;q=0.1,application/json",
            "application/json;q=inf",
            "application/json;as",
            "application/json;v=v1,application/json",
            "Application/JSON,application/json",
            "*/*,application/*;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1",
            "application/json;q=0.5 ;stream=watch,application/json",
            "*/*;q=0.9,application/json;as=Table;v=v1;g=meta.k8s.io;q=0.1",
            " ",
            "application/json,",
        ] {
            assert_eq!(chosen(header), None, "{header}");
        }
    }
}
