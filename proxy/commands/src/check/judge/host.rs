//! What a cloud node must offer, and what its redirector does.

use std::collections::BTreeSet;

use culvert_api::installed::{HookScope, Installed, Mechanism, RECENT, Refusal};

use culvert_daemon::counted;

use super::{daemon, named};
use crate::check::facts::Facts;
use crate::check::finding::{Judged, failure, ok, warning};

/// Columns of proc_pid_mounts(5): device, mount point, type.
fn mount_point<'a>(facts: &'a Facts, kind: &str) -> Option<&'a str> {
    for line in facts.mounts.lines() {
        let columns: Vec<_> = line.split(' ').collect();
        if columns.get(2) == Some(&kind) {
            return columns.get(1).copied();
        }
    }
    None
}

pub(super) fn cgroup2(facts: &Facts) -> Option<Judged> {
    facts.redirector.as_ref()?;
    Some(match mount_point(facts, "cgroup2") {
        Some(mounted) => ok(format!("mounted on {mounted}")),
        None if facts
            .installed
            .as_ref()
            .is_ok_and(|installed| !installed.has_hooks()) =>
        {
            return None;
        }
        // The proxy's pod sees none, and needs none.
        None if facts.installed.as_ref().is_ok_and(Installed::is_attached) => {
            ok("the hooks are attached to one")
        }
        None => failure(
            "no cgroup2 file system is mounted",
            "mount -t cgroup2 cgroup2 /sys/fs/cgroup, or boot with \
             systemd.unified_cgroup_hierarchy=1",
        ),
    })
}

pub(super) fn bpffs(facts: &Facts) -> Option<Judged> {
    facts.redirector.as_ref()?;
    Some(match mount_point(facts, "bpf") {
        Some(mounted) => ok(format!("mounted on {mounted}")),
        None if facts
            .installed
            .as_ref()
            .is_ok_and(|installed| !installed.has_hooks()) =>
        {
            return None;
        }
        None => failure(
            "no BPF file system is mounted: the proxy cannot read what the hooks noted",
            "mount -t bpf bpf /sys/fs/bpf; a pod needs it as a hostPath",
        ),
    })
}

pub(super) fn redirector(facts: &Facts) -> Option<Judged> {
    Some(daemon(
        facts.redirector.as_ref()?,
        "culvert-redirector",
        "check --redirector-admin IP:PORT; if this host is to have none: check --without-redirector",
    ))
}

/// What steers now, which is not always what was asked for.
pub(super) fn mechanism(facts: &Facts) -> Option<Judged> {
    let installed = facts.installed.as_ref().ok()?;
    if !installed.other_versions.is_empty() {
        return Some(failure(
            format!(
                "hooks of another version steer too: {}",
                installed.other_versions.join(", ")
            ),
            "restart the redirector, or run `culvert-redirector uninstall` of either version, \
             then start it",
        ));
    }
    if let Some(unseen) = &installed.unseen_pods {
        return Some(failure(
            format!("pods are not steered: {unseen}"),
            "docs/cni.md says what this network plug-in needs",
        ));
    }
    let in_force = installed.in_force.unwrap_or(installed.mechanism);
    let is_host_only = installed.hooks_see == Some(HookScope::Host);
    let hooked = if is_host_only {
        "the host's connections"
    } else {
        "host and pods"
    };
    Some(match (installed.mechanism, in_force) {
        (Mechanism::None, _) => {
            ok("nothing is steered, as --mechanism none wants it; names are answered")
        }
        (_, Mechanism::None) => failure(
            "nothing steers connections",
            "the redirector's log and /readyz say why",
        ),
        (_, Mechanism::Both) if is_host_only => ok(format!(
            "connect hooks carry {hooked}, nftables those of pods"
        )),
        (_, Mechanism::Both) => ok(format!(
            "connect hooks carry {hooked}, nftables what hooks do not see"
        )),
        (Mechanism::Both, Mechanism::Ebpf) => warning(
            format!("connect hooks alone carry {hooked}"),
            "install the package nftables on this host",
        ),
        (_, Mechanism::Ebpf) => ok(format!("connect hooks carry {hooked}")),
        (Mechanism::Nftables, Mechanism::Nftables) => ok("nftables carries host and pods"),
        (Mechanism::Both | Mechanism::Ebpf, Mechanism::Nftables) => {
            let reason = installed
                .fallback
                .as_deref()
                .unwrap_or("the log of the redirector says why");
            warning(
                format!("nftables alone carries host and pods, without connect hooks: {reason}"),
                "nothing, if that is enough: with --mechanism nftables this is what is asked for; \
                 else see docs/cni.md",
            )
        }
    })
}

pub(super) fn hooks(facts: &Facts) -> Option<Judged> {
    let installed = facts.installed_if(Installed::has_hooks)?;
    let lost = installed
        .hooks
        .iter()
        .filter(|hook| hook.link.is_none() || hook.cgroup_id == Some(0));
    let lost: Vec<&str> = lost.map(|hook| hook.program.as_str()).collect();
    let attached = installed.hooks.len();
    Some(if !lost.is_empty() || attached == 0 {
        failure(
            format!(
                "not attached: {}",
                if lost.is_empty() {
                    "any program".to_owned()
                } else {
                    lost.join(", ")
                }
            ),
            "the redirector attaches them again within 5 s; if not, its log says why, or another \
             program removes them: \
             culvert-redirector status",
        )
    } else if installed.refusal == Some(Refusal::NotPermitted) {
        ok(format!(
            "{attached} kernel programs are attached; on this kernel a refused connect fails with \
             EPERM, not EHOSTUNREACH"
        ))
    } else {
        ok(format!("{attached} kernel programs are attached"))
    })
}

/// Who may listen where connections are steered to, while the proxy is away.
pub(super) fn reserved_ports(facts: &Facts) -> Option<Judged> {
    let installed = facts.installed_if(Installed::has_hooks)?;
    if let Some(problem) = &installed.unreserved {
        return Some(warning(
            format!(
                "while the proxy is away, every user of this host may listen on the intercept ports \
                 and answer for edge nodes: {problem}"
            ),
            "nothing, if all users of this host are trusted; the redirector's log says more",
        ));
    }
    let users = match installed.reserved_for? {
        0 => "root".to_owned(),
        owner => format!("root and user {owner}"),
    };
    Some(match installed.refused_binds {
        0 => ok(format!("only {users} may listen on the intercept ports")),
        refused => warning(
            format!(
                "{} of others than {users} to listen on an intercept port refused",
                counted(refused, "attempt", "attempts")
            ),
            "a proxy has to run as root or as the owner of the folder of --directory-socket; if it \
             was none, look for the program that got EPERM from bind()",
        ),
    })
}

/// Programs of others where ours are attached: each may refuse or change what ours did.
pub(super) fn neighbours(facts: &Facts) -> Option<Judged> {
    let installed = facts.installed_if(Installed::has_hooks)?;
    let mut others = BTreeSet::new();
    let mut after = BTreeSet::new();
    let mut overtaken = Vec::new();
    for neighbours in &installed.neighbours {
        others.extend(&neighbours.before);
        others.extend(&neighbours.after);
        // Behind `getpeername` hooks a load balancer's are in their right place.
        if neighbours.program.starts_with("cv_connect") {
            after.extend(&neighbours.after);
            overtaken.push(neighbours.program.as_str());
        }
    }
    Some(match (others.is_empty(), after.is_empty()) {
        (true, _) => ok("no other program is attached where ours are"),
        (false, true) => ok(format!(
            "programs of others do their work beside ours: {}",
            listed(&others)
        )),
        (false, false) => warning(
            format!(
                "programs of others run after ours ({}): {}",
                overtaken.join(", "),
                listed(&after)
            ),
            "bpftool prog show id N says whose each is; what it makes an edge address of \
                 another one, only nftables sees",
        ),
    })
}

fn listed(ids: &BTreeSet<u32>) -> String {
    let ids: Vec<String> = ids.iter().map(u32::to_string).collect();
    ids.join(", ")
}

pub(super) fn nftables(facts: &Facts) -> Option<Judged> {
    let installed = facts.installed_if(Installed::has_nftables)?;
    Some(match (&installed.table_problem, installed.table) {
        (Some(problem), _) => failure(
            problem,
            "install the package nftables, or --mechanism ebpf on the redirector",
        ),
        (None, true) if !installed.zoning_chains.is_empty() => warning(
            format!(
                "{} puts connections into zones of connection tracking: the proxy resets those \
                 that nftables steers, since it finds no destination",
                installed.zoning_chains.join(", ")
            ),
            "take connections of pods and of this host out of these `ct zone` rules; nothing if \
             they are out of them already",
        ),
        (None, true) => table_is_there(installed),
        (None, false) => failure(
            "there is no table culvert",
            "the redirector makes it again within 5 s; if not, another program flushes the rule \
             set, as `nft flush ruleset` of a firewall",
        ),
    })
}

fn table_is_there(installed: &Installed) -> Judged {
    match &installed.keeper_problem {
        None => ok("the table culvert is there"),
        Some(problem) => ok(format!(
            "the table culvert is there; `nft flush ruleset` may end connections of pods, since \
             there is no table inet culvert-keeper: {problem}"
        )),
    }
}

pub(super) fn route(facts: &Facts) -> Option<Judged> {
    let installed = facts.installed_if(Installed::steers)?;
    let mut lost = Vec::new();
    for range in &installed.ranges {
        if !installed.routes.contains(range) {
            lost.push(range.to_string());
        }
    }
    Some(if !lost.is_empty() {
        failure(
            format!("no route to {}", lost.join(", ")),
            "the redirector's log says why: this host may use the range itself (--vip4-range and \
             --vip6-range of the proxy), \
             or have no IPv6",
        )
    } else if installed.ranges.is_empty() {
        warning(
            "no VIP range is known yet",
            "the redirector learns them of the proxy: is culvert-proxy ready?",
        )
    } else if installed.routes_to_host {
        warning(
            "the routes of VIPs lead to this host itself: while nothing steers, its own services \
             answer on every VIP",
            "modprobe bridge, then restart the redirector",
        )
    } else {
        ok("every VIP range has its route")
    })
}

/// What another program removes or changes again and again is missing for a moment each time.
pub(super) fn drift(facts: &Facts) -> Option<Judged> {
    let installed = facts.installed_if(Installed::steers)?;
    let mut repairs = Vec::new();
    for (what, count) in &installed.repairs {
        repairs.push(format!("{what} {count}"));
    }
    let repairs = repairs.join(", ");
    let seconds = RECENT.as_secs();
    let most = installed.repairs.values().max().copied().unwrap_or(0);
    Some(match most {
        0 => ok("no program has removed what the redirector installed"),
        1 => ok(format!(
            "another program removed what the redirector installed, which put it right: {repairs}"
        )),
        _ => warning(
            format!(
                "other programs keep removing what the redirector installs, which puts it right: \
                 in the last {seconds} s {repairs} times"
            ),
            "find out which: routes: networkd or NetworkManager, which the files of deploy/network \
             keep away (docs/cni.md); nftables: a firewall that flushes all rules; hooks: bpftool \
             prog show. While they are away, connections are refused or leave for real",
        ),
    })
}

/// Edge addresses that this host has neighbours at.
pub(super) fn own_networks(facts: &Facts) -> Option<Judged> {
    let installed = facts.installed_if(Installed::steers)?;
    let withheld: Vec<&str> = installed.withheld.iter().map(String::as_str).collect();
    Some(if withheld.is_empty() {
        ok("no edge address is in a network of this host")
    } else {
        warning(
            format!("not steered: {}", named(&withheld)),
            "dial the node by its name; or, if nothing here needs its neighbours at these addresses, \
             --steer-own-network on the redirector",
        )
    })
}

pub(super) fn dns(facts: &Facts) -> Option<Judged> {
    let installed = facts.installed.as_ref().ok()?;
    let problem = facts
        .dns
        .iter()
        .find_map(|(server, asked)| Some((server, asked.as_ref().err()?)));
    Some(match problem {
        None if facts.dns.is_empty() => warning(
            "the redirector answers no DNS",
            "leave out --dns-listen none, if names are wanted",
        ),
        None => ok(format!("{} is answered", installed.zone)),
        Some((server, problem)) => failure(
            format!("{server}: {problem}"),
            "see --dns-listen of the redirector, and what else has port 53: ss -lup",
        ),
    })
}

/// Who hands on what the redirector refuses.
pub(super) fn resolver(facts: &Facts) -> Option<Judged> {
    let installed = facts.installed.as_ref().ok()?;
    let redirector = facts
        .resolvers
        .iter()
        .find(|server| installed.dns.iter().any(|dns| dns.ip() == **server));
    Some(match redirector {
        None => ok("no program of this host asks the redirector for names outside of its zone"),
        Some(server) if installed.forwards() => ok(format!(
            "this host asks the redirector, {server}, which forwards"
        )),
        Some(server) => warning(
            format!(
                "/etc/resolv.conf names the redirector, {server}: CoreDNS pods inherit it and \
                 hand on what it refuses"
            ),
            "take it out; give kube-apiserver alone the resolver, and CoreDNS the zone: \
             docs/dns.md",
        ),
    })
}

/// Names for a kube-apiserver that comes by the CONNECT socket.
pub(super) fn names(facts: &Facts) -> Option<Judged> {
    let installed = facts.installed.as_ref().ok()?;
    if !facts.has_connects {
        return None;
    }
    Some(if installed.dns.is_empty() {
        warning(
            "clients use the CONNECT socket, and no redirector here answers names",
            "kube-apiserver resolves a node's name itself before requests to nodes/NODE/proxy \
             (1.22.16 and later): leave out \
             --dns-listen none, or give it --kubelet-preferred-address-types=InternalIP,Hostname",
        )
    } else {
        ok("clients of the CONNECT socket can resolve names by the redirector")
    })
}
