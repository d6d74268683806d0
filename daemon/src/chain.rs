//! An error with its causes, as one text.

use std::error::Error;

/// `error: its cause: the cause of that`, on one line.
#[must_use]
pub fn chain(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        let its_text = cause.to_string();
        // Errors of other crates often have the text of their cause already.
        if !text.ends_with(&its_text) {
            text += ": ";
            text += &its_text;
        }
        source = cause.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_is_told_with_all_its_causes() {
        let error = anyhow::anyhow!("connection refused")
            .context("dial 192.0.2.1:443")
            .context("enrol");
        assert_eq!(
            chain(error.as_ref()),
            "enrol: dial 192.0.2.1:443: connection refused"
        );
    }

    #[test]
    fn a_cause_that_an_error_has_in_its_own_text_is_not_repeated() {
        let error = anyhow::anyhow!("no such file")
            .context("read ca.crt: no such file")
            .context("use the file: read ca.crt: no such file");
        let text = "use the file: read ca.crt: no such file";
        assert_eq!(chain(error.as_ref()), text);
    }
}
