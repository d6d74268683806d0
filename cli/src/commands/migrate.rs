//! `culvert migrate`: the settings of another tunnel, of files or of the kubeconfig's cluster.

use anyhow::Result;
use culvert_migrate::{ApiServer, MigrateCommand};

use crate::args::Whom;
use crate::hosts::api_client;

/// Prints the manifests that are equal.
///
/// # Errors
/// Something cannot be read, or has no meaning; or the API server refuses it.
pub(super) async fn run(whom: &Whom, command: &MigrateCommand) -> Result<()> {
    if !command.asks_cluster() {
        return command.run(None).await;
    }
    let api_server = ApiServer::new(api_client(whom).await?);
    command.run(Some(&api_server)).await
}
