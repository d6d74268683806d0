//! Ownership of the files that a join writes. Root joins, but another user runs the agent and has
//! to read them.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use nix::unistd::{User, geteuid};

/// The user that the unit in `deploy/systemd` runs the agent as.
const DEFAULT_USER: &str = "culvert";

/// A user, by number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Owner {
    uid: u32,
    gid: u32,
}

/// Why the files cannot be given to their owner.
#[derive(Debug, thiserror::Error)]
pub(crate) enum OwnerError {
    #[error(
        "--user {0}: there is no such user on this host: make it, or give the one that the agent \
         runs as"
    )]
    Unknown(String),
    #[error(
        "--user {0}: only root can give files to another user: run the command as root, or as \
         {0} without --user"
    )]
    NotRoot(String),
    #[error("look up user {user}")]
    Lookup { user: String, source: nix::Error },
    #[error("change the owner of {} to the agent's user", .path.display())]
    ChangeOwner { path: PathBuf, source: io::Error },
}

impl Owner {
    /// The owner of the files in the state directory; `None`: the user who runs this.
    ///
    /// # Errors
    /// The user does not exist, or this is not root.
    pub(crate) fn of(state: &Path, requested: Option<&str>) -> Result<Option<Self>, OwnerError> {
        let found = fs::metadata(state).ok().map(|found| Self {
            uid: found.uid(),
            gid: found.gid(),
        });
        match (geteuid().is_root(), requested) {
            (true, Some(user)) => match lookup(user)? {
                Some(owner) => Ok(Some(owner)),
                None => Err(OwnerError::Unknown(user.to_owned())),
            },
            (true, None) => Ok(by_default(found, lookup(DEFAULT_USER)?)),
            (false, Some(user)) => match lookup(user)? {
                Some(owner) if owner.uid == geteuid().as_raw() => Ok(None),
                Some(_) | None => Err(OwnerError::NotRoot(user.to_owned())),
            },
            (false, None) => Ok(None),
        }
    }

    /// Makes the user the owner of the state directory and the files in it.
    ///
    /// # Errors
    /// The owner of one of them cannot be changed.
    pub(crate) fn apply(self, state: &Path) -> Result<(), OwnerError> {
        for entry in fs::read_dir(state).map_err(|source| chown_error(state, source))? {
            let entry = entry.map_err(|source| chown_error(state, source))?;
            self.apply_to(&entry.path())?;
        }
        self.apply_to(state)
    }

    fn apply_to(self, path: &Path) -> Result<(), OwnerError> {
        // Not to what a link leads to: the directory may be another user's already.
        std::os::unix::fs::lchown(path, Some(self.uid), Some(self.gid))
            .map_err(|source| chown_error(path, source))
    }
}

fn chown_error(path: &Path, source: io::Error) -> OwnerError {
    OwnerError::ChangeOwner {
        path: path.to_owned(),
        source,
    }
}

/// The owner of the directory, unless that is root; or else the usual user, if there is one.
fn by_default(directory: Option<Owner>, usual: Option<Owner>) -> Option<Owner> {
    match directory {
        Some(owner) if owner.uid != 0 => Some(owner),
        _ => usual,
    }
}

fn lookup(user: &str) -> Result<Option<Owner>, OwnerError> {
    let found = User::from_name(user).map_err(|source| OwnerError::Lookup {
        user: user.to_owned(),
        source,
    })?;
    Ok(found.map(|found| Owner {
        uid: found.uid.as_raw(),
        gid: found.gid.as_raw(),
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn root_gives_the_files_to_the_directorys_owner_or_else_to_the_usual_user() {
        let owner = |uid| Some(Owner { uid, gid: uid });
        assert_eq!(by_default(owner(7), owner(9)), owner(7));
        assert_eq!(by_default(owner(0), owner(9)), owner(9));
        assert_eq!(by_default(None, owner(9)), owner(9));
        assert_eq!(by_default(owner(0), None), None, "root runs the agent");
    }

    #[test]
    fn a_user_that_does_not_exist_is_named() {
        let error = Owner::of(Path::new("/"), Some("nobody-of-that-name"))
            .unwrap_err()
            .to_string();
        assert!(error.contains("--user nobody-of-that-name"), "{error}");
    }
}
