//! What a check finds, and how it is shown.

use std::fmt::Write;

use serde::Serialize;

/// How bad it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Verdict {
    Ok,
    /// Worth a look; what can be reached is reached.
    Warning,
    /// Something that should work does not.
    Failure,
}

/// What one check says; the names are interface.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct Finding {
    pub(super) check: &'static str,
    pub(super) verdict: Verdict,
    pub(super) found: String,
    /// What to do; empty if nothing.
    pub(super) fix: String,
}

/// What a judgement says, still without its check's name.
pub(super) type Judged = (Verdict, String, String);

pub(super) fn ok(found: impl Into<String>) -> Judged {
    (Verdict::Ok, found.into(), String::new())
}

pub(super) fn warning(found: impl Into<String>, fix: impl Into<String>) -> Judged {
    (Verdict::Warning, found.into(), fix.into())
}

pub(super) fn failure(found: impl Into<String>, fix: impl Into<String>) -> Judged {
    (Verdict::Failure, found.into(), fix.into())
}

/// For people: a line for each check, and one for each fix.
pub(super) fn page(findings: &[Finding]) -> String {
    let mut page = String::new();
    for Finding {
        check,
        verdict,
        found,
        fix,
    } in findings
    {
        let verdict = match verdict {
            Verdict::Ok => "ok",
            Verdict::Warning => "warning",
            Verdict::Failure => "FAILURE",
        };
        // A String takes everything.
        let _written = writeln!(page, "{verdict:<7}  {check:<12}  {found}");
        if !fix.is_empty() {
            let _written = writeln!(page, "{:<7}  {:<12}  fix: {fix}", "", "");
        }
    }
    page
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_has_what_was_found_and_below_it_the_fix() {
        let finding = |check, (verdict, found, fix): Judged| Finding {
            check,
            verdict,
            found,
            fix,
        };
        let page = page(&[
            finding("mechanism", ok("both")),
            finding("hooks", failure("none", "start it")),
        ]);
        assert_eq!(
            page,
            "ok       mechanism     both\nFAILURE  hooks         none\n                       \
             fix: start it\n"
        );
    }
}
