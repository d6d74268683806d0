//! `cargo xtask e2e`: prepares what [`culvert_e2e`] needs, and runs it.

use anyhow::Result;

use crate::{image, kube, setup};

/// What of it is run, on which images.
#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    suite: culvert_e2e::Args,
    /// Profile to compile the images with, as of `cargo xtask image`
    #[arg(long, default_value = "dev")]
    profile: String,
    /// Take the images that are there, rather than make new ones
    #[arg(long)]
    built: bool,
}

/// Prepares the images and runs the steps.
///
/// # Errors
/// The first claim that does not hold.
pub fn run(args: &Args) -> Result<()> {
    culvert_e2e::run(&args.suite, || {
        if let Some(programs) = args.suite.programs()? {
            kube::ensure_there(&programs)?;
            setup::ensure_for_cluster()?;
        }
        setup::ensure_for_tests()?;
        setup::ensure_for_e2e()?;
        if args.built {
            return Ok(());
        }
        image::run(&image::Args {
            processor: Vec::new(),
            profile: args.profile.clone(),
        })
    })
}
