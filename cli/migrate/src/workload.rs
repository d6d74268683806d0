//! The workloads of another tunnel: what the flags of their containers mean, and how the workloads
//! are removed.

use super::kubernetes::{Container, Object, text};
use super::meaning::{Meaning, Problem};
use super::plan::{Part, Plan};
use super::rules::{Report, Table};
use super::source::PlacedPiece;

/// The workloads of one tunnel.
pub(super) struct Workloads {
    pub(super) programs: &'static [TunnelProgram],
    /// The workload of its DNS server.
    pub(super) dns: Option<&'static str>,
    /// The namespace of objects that name none.
    pub(super) namespace: &'static str,
    /// The command that labels its edge nodes for Culvert.
    pub(super) label_nodes: &'static str,
    /// Whether its pods are static: files on control planes.
    pub(super) static_pods: bool,
    /// What an operator must know once it is gone.
    pub(super) after: Option<&'static str>,
}

/// A program of another tunnel.
pub(super) struct TunnelProgram {
    /// One of these is in the name, image or command of its containers.
    pub(super) words: &'static [&'static str],
    /// The only workload that it is in.
    pub(super) workload: Option<&'static str>,
    pub(super) part: Part,
    pub(super) flags: Table,
    /// Its environment variables, each as `env NAME`.
    pub(super) variables: Option<Table>,
    /// A step of its removal besides that of its workload.
    pub(super) remove: Option<&'static str>,
}

impl Workloads {
    /// Looks up the settings of a Deployment, DaemonSet or Pod, and plans its removal.
    pub(super) fn translate(
        &self,
        found: &PlacedPiece,
        object: &Object,
        plan: &mut Plan,
        report: &mut Report,
    ) -> Result<(), Problem> {
        for container in object.containers() {
            if self.dns == Some(object.bare_name()) {
                report.add(&found.place, "coredns", Meaning::equal("the redirector answers names: point kube-apiserver's dnsConfig at its node (docs/dns.md)"));
                self.remove(Part::Names, object, plan);
                continue;
            }
            let Some(program) = self.program(object, &container) else {
                report.add(&found.place, "container", Meaning::Unknown);
                continue;
            };
            program.look_up(&found.place, &container, plan, report)?;
            plan.before(self.label_nodes);
            if let Some(text) = self.after {
                plan.after(text);
            }
            self.remove(program.part, object, plan);
            if let Some(step) = program.remove {
                plan.remove_by_hand(program.part, step);
            }
        }
        Ok(())
    }

    fn program(&self, object: &Object, container: &Container) -> Option<&TunnelProgram> {
        self.programs.iter().find(|program| {
            let is_in_workload = match program.workload {
                Some(workload) => workload == object.bare_name(),
                None => true,
            };
            is_in_workload && program.words.iter().any(|it| container.words.contains(it))
        })
    }

    fn remove(&self, part: Part, object: &Object, plan: &mut Plan) {
        let namespace = match text(object.0.pointer("/metadata/namespace")) {
            "" => self.namespace,
            namespace => namespace,
        };
        match object.kind() {
            "Pod" if self.static_pods => plan.remove_by_hand(
                part,
                "remove the static pod's file from /etc/kubernetes/manifests of each control plane",
            ),
            kind => plan.delete(part, namespace, kind, object.bare_name()),
        }
    }
}

impl TunnelProgram {
    fn look_up(
        &self,
        place: &str,
        container: &Container,
        plan: &mut Plan,
        report: &mut Report,
    ) -> Result<(), Problem> {
        report.look_up_flags(place, self.flags, &container.flags, plan)?;
        if let Some(table) = self.variables {
            for variable in &container.variables {
                let shown = format!("env {variable}");
                report.look_up((place, &shown), table, (&shown, None), plan)?;
            }
        }
        Ok(())
    }
}
