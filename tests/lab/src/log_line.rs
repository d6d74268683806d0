//! Lines of a program's log in JSON (`--log-format json`).

use serde::Deserialize;
use serde_json::{Map, Value};

/// One line of a log.
#[derive(Clone, Debug, Deserialize)]
pub struct LogLine {
    /// The time, as RFC 3339 has it.
    pub timestamp: String,
    fields: Map<String, Value>,
}

impl LogLine {
    /// The lines of a log. Lines that are not JSON, such as those of a panic, are left out.
    pub(crate) fn parse_all(log: &str) -> Vec<Self> {
        log.lines()
            .filter_map(|line| serde_json::from_str(line).ok())
            .collect()
    }

    /// A field as text; empty if the line does not have it.
    pub fn field(&self, name: &str) -> String {
        match self.fields.get(name) {
            None => String::new(),
            Some(Value::String(text)) => text.clone(),
            Some(other) => other.to_string(),
        }
    }

    /// Whether its fields contain these texts.
    pub fn has(&self, fields: &[(&str, &str)]) -> bool {
        fields
            .iter()
            .all(|(name, text)| self.field(name).contains(text))
    }

    /// Whether it is this message, with fields that contain these texts.
    pub fn is(&self, message: &str, fields: &[(&str, &str)]) -> bool {
        self.field("message") == message && self.has(fields)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_found_by_its_message_and_parts_of_its_fields() {
        let log = "thread 'main' panicked\n\
            {\"timestamp\":\"2026-01-01T00:00:00Z\",\"level\":\"WARN\",\
            \"fields\":{\"message\":\"accept\",\"refused\":true,\"error\":\"too many files\"}}\n";
        let lines = LogLine::parse_all(log);
        assert_eq!(lines.len(), 1);
        assert!(lines[0].is("accept", &[("refused", "true"), ("error", "many")]));
        assert!(!lines[0].is("accept", &[("reason", "many")]));
        assert!(!lines[0].is("acc", &[]));
    }
}
