//! The limit of open files. Each relayed connection needs two.

use nix::sys::resource::{Resource, getrlimit, setrlimit};

/// Raises the process's limit of open files to its hard limit. The usual limit of 1,024 exists for
/// `select()`, which Culvert does not use.
pub fn raise_open_file_limit() {
    match raise() {
        Ok((from, to)) => tracing::debug!(from, to, "limit of open files raised"),
        Err(error) => tracing::warn!(%error, "the limit of open files stays as it is"),
    }
}

/// Returns the limits before and after.
fn raise() -> nix::Result<(u64, u64)> {
    let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE)?;
    setrlimit(Resource::RLIMIT_NOFILE, hard, hard)?;
    Ok((soft, hard))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_limit_is_as_high_as_it_may_be() {
        raise_open_file_limit();
        let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
        assert_eq!(soft, hard);
    }
}
