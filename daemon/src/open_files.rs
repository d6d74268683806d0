//! The limit of open files: two for each relayed connection.

use nix::sys::resource::{Resource, getrlimit, setrlimit};

/// Raises the process' limit of open files as far as it may: the usual 1,024 is there for
/// `select()`, which is not used here.
pub fn raise_open_file_limit() {
    let raised = getrlimit(Resource::RLIMIT_NOFILE).and_then(|(soft, hard)| {
        setrlimit(Resource::RLIMIT_NOFILE, hard, hard).map(|()| (soft, hard))
    });
    match raised {
        Ok((from, to)) => tracing::debug!(from, to, "limit of open files raised"),
        Err(error) => tracing::warn!(%error, "the limit of open files stays as it is"),
    }
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
