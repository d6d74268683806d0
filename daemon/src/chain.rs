//! An error with its causes, as one text.

use std::error::Error;

/// `error: its cause: the cause of that`, on one line.
#[must_use]
pub fn chain(error: &dyn Error) -> String {
    let causes = std::iter::successors(error.source(), |cause| (*cause).source());
    causes.fold(error.to_string(), |text, cause| format!("{text}: {cause}"))
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
}
