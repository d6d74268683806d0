//! The syntax of label selectors.

use std::collections::BTreeSet;

use super::InvalidSelector;
use super::labels::{Condition, Requirement};

/// The longest name of a label key, and the longest value.
const NAME_MAX: usize = 63;
/// The longest prefix of a label key, which is a DNS name.
const PREFIX_MAX: usize = 253;

/// The requirements of a selector, which are separated by commas.
pub(super) fn requirements(text: &str) -> Result<Vec<Requirement>, InvalidSelector> {
    let mut parser = Parser { rest: text };
    let mut requirements = Vec::new();
    if parser.peek() == Token::End {
        return Ok(requirements);
    }
    loop {
        requirements.push(parser.requirement()?);
        match parser.next() {
            Token::End => return Ok(requirements),
            Token::Symbol(",") => {}
            found => return Err(found.instead_of("a comma or the end")),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Token<'a> {
    /// `=`, `==`, `!=`, `!`, `<`, `>`, `(`, `)` or a comma.
    Symbol(&'a str),
    /// A key, a value, `in` or `notin`.
    Word(&'a str),
    End,
}

impl Token<'_> {
    fn instead_of(self, expected: &'static str) -> InvalidSelector {
        let found = match self {
            Self::Symbol(text) | Self::Word(text) => text.to_owned(),
            Self::End => String::new(),
        };
        InvalidSelector::Syntax { found, expected }
    }
}

struct Parser<'a> {
    rest: &'a str,
}

impl<'a> Parser<'a> {
    fn requirement(&mut self) -> Result<Requirement, InvalidSelector> {
        let (key, condition) = match self.next() {
            Token::Symbol("!") => match self.next() {
                Token::Word(key) => (key, Condition::DoesNotExist),
                found => return Err(found.instead_of("a label key")),
            },
            Token::Word(key) => (key, self.condition()?),
            found => return Err(found.instead_of("! or a label key")),
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
        if let Token::End | Token::Symbol(",") = self.peek() {
            return Ok(Condition::Exists);
        }
        match self.next() {
            Token::Symbol("=" | "==") => Ok(Condition::In(BTreeSet::from([self.value()?]))),
            Token::Symbol("!=") => Ok(Condition::NotIn(BTreeSet::from([self.value()?]))),
            Token::Symbol(">") => self.integer().map(Condition::Greater),
            Token::Symbol("<") => self.integer().map(Condition::Less),
            Token::Word("in") => self.values().map(Condition::In),
            Token::Word("notin") => self.values().map(Condition::NotIn),
            found => Err(found.instead_of("an operator")),
        }
    }

    /// The value after an operator, which may be empty.
    fn value(&mut self) -> Result<String, InvalidSelector> {
        if let Token::End | Token::Symbol(",") = self.peek() {
            return Ok(String::new());
        }
        match self.next() {
            Token::Word(value) => label_value(value),
            found => Err(found.instead_of("a label value")),
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
        match self.next() {
            Token::Symbol("(") => {}
            found => return Err(found.instead_of("(")),
        }
        let mut values = BTreeSet::new();
        loop {
            let mut token = self.next();
            let mut value = String::new();
            if let Token::Word(word) = token {
                value = label_value(word)?;
                token = self.next();
            }
            values.insert(value);
            match token {
                Token::Symbol(",") => {}
                Token::Symbol(")") => return Ok(values),
                found => return Err(found.instead_of("a comma or )")),
            }
        }
    }

    fn peek(&self) -> Token<'a> {
        Parser { rest: self.rest }.next()
    }

    fn next(&mut self) -> Token<'a> {
        self.rest = self.rest.trim_start_matches([' ', '\t', '\r', '\n']);
        let Some(first) = self.rest.chars().next() else {
            return Token::End;
        };
        if !is_symbol(first) {
            let end = |c| is_symbol(c) || matches!(c, ' ' | '\t' | '\r' | '\n');
            let length = self.rest.find(end).unwrap_or(self.rest.len());
            return Token::Word(self.take(length));
        }
        let is_double = self.rest.starts_with("==") || self.rest.starts_with("!=");
        Token::Symbol(self.take(if is_double { 2 } else { 1 }))
    }

    fn take(&mut self, length: usize) -> &'a str {
        let (taken, rest) = self.rest.split_at(length);
        self.rest = rest;
        taken
    }
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
    let is_alphanumeric = |byte: &u8| byte.is_ascii_alphanumeric();
    text.as_bytes().first().is_some_and(is_alphanumeric)
        && text.as_bytes().last().is_some_and(is_alphanumeric)
}
