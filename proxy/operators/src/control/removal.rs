//! Removes a node, and shuts it out even if the removal cannot be written.

use culvert_api::{NodeName, UnknownNode};
use culvert_proxy_core::directory::Removal;
use culvert_proxy_peers::PrimaryClient;
use tonic::{Code, Status};

use super::Control;
use super::error::{ControlError, to_status};

impl Control {
    /// Removes the node at the primary. If it does not answer, the node is shut out all the same:
    /// all proxies hear of a revocation by this one.
    pub(super) async fn remove_at(
        &self,
        primary: &PrimaryClient,
        node: NodeName,
    ) -> Result<(), Status> {
        let removed = primary.remove_node(&node).await;
        let Err(status) = &removed else {
            return Ok(());
        };
        if status.code() != Code::Unavailable {
            return removed;
        }
        let reason = status.message().to_owned();
        self.blocking(move |control| {
            let _admission = control.trust.admission();
            let revoked = control.trust.revoke(&node);
            control.registry.close(&node);
            revoked.map_err(|error| half_removed(&node, error))?;
            Err(Status::unavailable(format!(
                "the certificates of {node} are revoked and its tunnels closed, here and at all \
                 proxies that this one reaches; but the node and its tokens are still there: \
                 remove it again later: {reason}"
            )))
        })
        .await
    }

    /// Shuts the node out first, whether or not that can be written to disk.
    pub(super) fn remove(&self, node: &NodeName) -> Result<(), Status> {
        let _admission = self.trust.admission();
        let is_present = self.directory.contains(node);
        let revoked = self.trust.revoke(node);
        self.registry.close(node);
        let tokens_revoked = self.tokens.revoke_of(node);
        let mut removed = Ok(Removal::Gone);
        if is_present {
            removed = self.editor.remove(node);
        }
        revoked.map_err(|error| half_removed(node, error))?;
        tokens_revoked.map_err(|error| half_removed(node, error))?;
        let removal = removed.map_err(|error| half_removed(node, error))?;
        if !is_present {
            let unknown = UnknownNode::new(node.as_str());
            let mut text =
                format!("{unknown}; the certificates and tokens that it may have had are revoked");
            // Not removed by this name: a second `node remove` would remove another node.
            if let Some(other) = self.directory.named(node.as_str()) {
                text += &format!("; clients reach {other} by this name, and it stays");
            }
            return Err(Status::not_found(text));
        }
        match removal {
            Removal::Gone => {
                tracing::info!(%node, "node removed");
                Ok(())
            }
            Removal::StillInCluster if self.trust.revokes_everywhere() => {
                Err(Status::failed_precondition(format!(
                    "the certificates of {node} are revoked on all proxies and its tunnels \
                     closed, but the cluster still has it: its agent enrols again with the token \
                     of its pod; delete its Node to keep it out"
                )))
            }
            Removal::StillInCluster => Err(Status::failed_precondition(format!(
                "the certificates of {node} that this proxy has seen are revoked here and its \
                 tunnels closed; with --agent-ca no other proxy hears of it: say the same at each \
                 of them, or delete the Node of {node}"
            ))),
            Removal::StillInFile(file) => Err(Status::failed_precondition(format!(
                "the certificates and tokens of {node} are revoked and its tunnels closed, but {} \
                 still describes it: remove it there too",
                file.display()
            ))),
        }
    }
}

fn half_removed(node: &NodeName, error: impl Into<ControlError>) -> Status {
    let status = to_status(error);
    let text = format!(
        "{node} is shut out and its tunnels are closed, but only until this proxy restarts: fix \
         this and remove the node again: {}",
        status.message()
    );
    tracing::error!(%node, reason = text, "node not wholly removed");
    Status::new(status.code(), text)
}
