//! The syntax of label selectors.

use std::collections::BTreeSet;
use std::str::FromStr;

use super::InvalidSelector;
use super::labels::{Condition, LabelSelector, Requirement};

/// The longest name of a label key, and the longest value.
const NAME_MAX: usize = 63;
/// The longest prefix of a label key, which is a DNS name.
const PREFIX_MAX: usize = 253;
const WHITESPACE: [char; 4] = [' ', '\t', '\r', '\n'];

impl FromStr for LabelSelector {
    type Err = InvalidSelector;

    fn from_str(text: &str) -> Result<Self, InvalidSelector> {
        Ok(Self::of(requirements(text)?))
    }
}

/// The requirements of a selector, which are separated by commas.
fn requirements(text: &str) -> Result<Vec<Requirement>, InvalidSelector> {
    let mut parser = Parser { rest: text };
    let mut requirements = Vec::new();
    if parser.peek() == END {
        return Ok(requirements);
    }
    loop {
        requirements.push(parser.requirement()?);
        match parser.token() {
            END => return Ok(requirements),
            "," => {}
            found => return Err(unexpected(found, "a comma or the end")),
        }
    }
}

/// The token after the last one.
const END: &str = "";

/// Gives out tokens: `=`, `==`, `!=`, `!`, `<`, `>`, `(`, `)`, a comma, or a word, which is all
/// between these and whitespace.
struct Parser<'a> {
    rest: &'a str,
}

impl<'a> Parser<'a> {
    fn requirement(&mut self) -> Result<Requirement, InvalidSelector> {
        let (key, condition) = match self.token() {
            "!" => (self.token(), Condition::DoesNotExist),
            key if is_word(key) => (key, self.condition()?),
            found => return Err(unexpected(found, "! or a label key")),
        };
        if !is_label_key(key) {
            let key = key.to_owned();
            return Err(InvalidSelector::Key { key });
        }
        Ok(Requirement {
            key: key.to_owned(),
            condition,
        })
    }

    fn condition(&mut self) -> Result<Condition, InvalidSelector> {
        if let END | "," = self.peek() {
            return Ok(Condition::Exists);
        }
        match self.token() {
            "=" | "==" => Ok(Condition::In(BTreeSet::from([self.value()?]))),
            "!=" => Ok(Condition::NotIn(BTreeSet::from([self.value()?]))),
            ">" => self.integer().map(Condition::Greater),
            "<" => self.integer().map(Condition::Less),
            "in" => self.values().map(Condition::In),
            "notin" => self.values().map(Condition::NotIn),
            found => Err(unexpected(found, "an operator")),
        }
    }

    /// The value after an operator, which may be empty.
    fn value(&mut self) -> Result<String, InvalidSelector> {
        match self.peek() {
            END | "," => Ok(String::new()),
            _ => label_value(self.token()),
        }
    }

    fn integer(&mut self) -> Result<i64, InvalidSelector> {
        let value = self.value()?;
        value
            .parse()
            .map_err(|_| InvalidSelector::Integer { value })
    }

    /// Values in parentheses. What is missing before, between or after commas is the empty value.
    fn values(&mut self) -> Result<BTreeSet<String>, InvalidSelector> {
        match self.token() {
            "(" => {}
            found => return Err(unexpected(found, "(")),
        }
        let mut values = BTreeSet::new();
        loop {
            let mut token = self.token();
            let mut value = String::new();
            if is_word(token) {
                value = label_value(token)?;
                token = self.token();
            }
            values.insert(value);
            match token {
                "," => {}
                ")" => return Ok(values),
                found => return Err(unexpected(found, "a comma or )")),
            }
        }
    }

    fn peek(&self) -> &'a str {
        Parser { rest: self.rest }.token()
    }

    fn token(&mut self) -> &'a str {
        self.rest = self.rest.trim_start_matches(WHITESPACE);
        let is_double = self.rest.starts_with("==") || self.rest.starts_with("!=");
        let length = if is_double {
            2
        } else if self.rest.starts_with(is_symbol) {
            1
        } else {
            let end = self.rest.find(|c| is_symbol(c) || WHITESPACE.contains(&c));
            end.unwrap_or(self.rest.len())
        };
        let (token, rest) = self.rest.split_at(length);
        self.rest = rest;
        token
    }
}

fn unexpected(found: &str, expected: &'static str) -> InvalidSelector {
    InvalidSelector::Syntax {
        found: found.to_owned(),
        expected,
    }
}

fn is_word(token: &str) -> bool {
    token != END && !token.starts_with(is_symbol)
}

fn is_symbol(c: char) -> bool {
    matches!(c, '=' | '!' | '(' | ')' | ',' | '<' | '>')
}

fn label_value(value: &str) -> Result<String, InvalidSelector> {
    let value = value.to_owned();
    if value.is_empty() || is_name(&value) {
        Ok(value)
    } else {
        Err(InvalidSelector::Value { value })
    }
}

/// `name`, or `prefix/name` with a DNS name.
fn is_label_key(key: &str) -> bool {
    match key.split_once('/') {
        Some((prefix, name)) => is_dns_name(prefix) && is_name(name),
        None => is_name(key),
    }
}

/// Letters, digits, `-`, `_` and `.`, with a letter or digit at both ends.
fn is_name(name: &str) -> bool {
    name.len() <= NAME_MAX
        && is_between_alphanumeric(name)
        && name
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.'))
}

fn is_dns_name(name: &str) -> bool {
    name.len() <= PREFIX_MAX
        && name.split('.').all(|label| {
            is_between_alphanumeric(label)
                && label
                    .bytes()
                    .all(|byte| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'-'))
        })
}

fn is_between_alphanumeric(text: &str) -> bool {
    match text.as_bytes() {
        [first, .., last] => first.is_ascii_alphanumeric() && last.is_ascii_alphanumeric(),
        [only] => only.is_ascii_alphanumeric(),
        [] => false,
    }
}
