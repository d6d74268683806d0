//! What a check finds.

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
