//! `culvert bundle`: one archive to find out later what was wrong.

use std::path::PathBuf;

use anyhow::Result;
use culvert_daemon::counted;
use culvert_site::units::now_seconds;

use crate::args::BundleArgs;
use crate::bundle::{Names, Written, collect, write};
use crate::screen::{Screen, clean};
use crate::session::Session;

/// Makes the archive.
///
/// # Errors
/// The file cannot be written, or names are to be replaced and no host says which there are. One that
/// does not answer is no error.
pub(super) async fn run(session: &Session, arguments: &BundleArgs) -> Result<()> {
    let now = now_seconds();
    let file = match &arguments.file {
        Some(file) => file.clone(),
        None => PathBuf::from(format!("culvert-bundle-{now}.tar.gz")),
    };
    let names = if arguments.anonymize {
        Names::Anonymous
    } else {
        Names::Real
    };
    let collection = collect(session, names).await?;
    let written = write(&file, collection, names, now)?;
    session.print(&written, text)
}

fn text(written: &Written, _screen: &Screen) -> String {
    let mut missing = String::new();
    let mut parts = 0;
    for item in &written.items {
        match &item.error {
            Some(error) => {
                missing += &format!("# not there: {}: {}\n", clean(&item.path), clean(error))
            }
            None => parts += 1,
        }
    }
    format!(
        "{missing}{}: {}, {} bytes; look through it before you give it away\n",
        written.file.display(),
        counted(parts, "part", "parts"),
        written.bytes
    )
}
