//! The figures of a job, which its caller gets as a line of JSON.

use std::io::Write;

use anyhow::Result;
use serde_json::{Map, Value, json};

/// Names and numbers.
pub(crate) type Figures = Vec<(&'static str, f64)>;

/// Prints the figures of a job, or why there are none.
pub(crate) fn print(result: Result<Figures>) -> Result<()> {
    let answer = match result {
        Ok(figures) => {
            let mut fields = Map::new();
            for (name, value) in figures {
                fields.insert(name.to_owned(), value.into());
            }
            Value::Object(fields)
        }
        Err(error) => json!({ "error": format!("{error:#}") }),
    };
    println!("{answer}");
    std::io::stdout().flush()?;
    Ok(())
}
