//! The exempt mark beside the marks of others. Where both use a bit, connections that should be
//! steered are not, or exempt ones are masqueraded or routed as another program's.

use culvert_api::installed::{Installed, MarkUser, Marks};

use super::named;
use crate::check::facts::Facts;
use crate::check::finding::{Judged, ok, warning};

/// Words in the names of chains, and whose they are.
const CHAINS: [(&str, &str); 11] = [
    ("KUBE-", "kube-proxy"),
    ("kube-proxy", "kube-proxy"),
    ("cali", "Calico"),
    ("CILIUM", "Cilium"),
    ("CNI-", "CNI portmap"),
    ("NETAVARK", "Podman"),
    ("netavark", "Podman"),
    ("AWS-", "the CNI plug-in of AWS"),
    ("ts-", "Tailscale"),
    ("DOCKER", "Docker"),
    ("FLANNEL", "flannel"),
];

/// Bits that programs are known for, where no name says whose a rule is. The first that has all
/// bits of a rule counts.
const BITS: [(u32, &str); 6] = [
    (0x80, "the CNI plug-in of AWS"),
    (0xf00, "Cilium"),
    (0x2000, "CNI portmap or Podman"),
    (0xc000, "kube-proxy"),
    (0xff_0000, "Tailscale"),
    (0xffff_0000, "Calico"),
];

/// Bits that none of them has, the default first.
const FREE: [u32; 8] = [0x1000, 0x40, 0x20, 0x10, 0x8, 0x4, 0x2, 0x1];

pub(super) fn marks(facts: &Facts) -> Option<Judged> {
    let installed = facts.installed_if(Installed::steers)?;
    let marks = installed.marks.as_ref()?;
    let exempt = marks.exempt;
    if exempt == 0 {
        return Some(ok("no mark exempts connections: --mark is 0"));
    }
    let mut clashes = Vec::new();
    for user in &marks.users {
        if user.bits & exempt != 0 {
            clashes.push(in_words(user));
        }
    }
    let clashes: Vec<&str> = clashes.iter().map(String::as_str).collect();
    Some(if clashes.is_empty() {
        let unknown = match marks.problems.as_slice() {
            [] => String::new(),
            problems => format!("; not known: {}", problems.join("; ")),
        };
        ok(format!(
            "no rule of others names a bit of the exempt mark {exempt:#x}, as far as nft and ip \
             rule show{unknown}"
        ))
    } else {
        warning(
            format!(
                "rules of others name bits of the exempt mark {exempt:#x}: {}",
                named(&clashes)
            ),
            format!(
                "{}; what they mark is not steered, and what is exempt from steering is treated \
                 as theirs",
                fix(marks)
            ),
        )
    })
}

/// Where the rule is, and whose it is, if that is known.
fn in_words(user: &MarkUser) -> String {
    let MarkUser { place, bits } = user;
    match owner(user) {
        Some(owner) => format!("{place} ({owner}, {bits:#x})"),
        None => format!("{place} ({bits:#x})"),
    }
}

fn owner(user: &MarkUser) -> Option<&'static str> {
    let by_chain = CHAINS.iter().find(|(word, _)| user.place.contains(word));
    if let Some((_, owner)) = by_chain {
        return Some(owner);
    }
    let by_bits = BITS.iter().find(|(bits, _)| user.bits & !bits == 0);
    by_bits.map(|(_, owner)| *owner)
}

fn fix(marks: &Marks) -> String {
    let free = FREE
        .iter()
        .find(|bit| *bit & (marks.used | marks.exempt) == 0);
    match free {
        Some(free) => {
            format!("--mark {free:#x} on the redirector, and in programs that set the mark")
        }
        None => "--mark 0 on the redirector: every bit is taken, and no program can be exempt"
            .to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rule_is_whose_chain_it_is_in_or_else_whose_bits_it_names() {
        for (place, bits, wanted) in [
            ("ip nat KUBE-POSTROUTING", 0x4000, Some("kube-proxy")),
            ("ip kube-proxy masquerading", 0x4000, Some("kube-proxy")),
            ("ip mangle cali-PREROUTING", 0x1_0000, Some("Calico")),
            ("inet netavark POSTROUTING", 0x2000, Some("Podman")),
            ("ip nat CNI-HOSTPORT-MASQ", 0x2000, Some("CNI portmap")),
            ("ip mangle CILIUM_PRE_mangle", 0xf00, Some("Cilium")),
            ("ip rule 5210", 0xff_0000, Some("Tailscale")),
            ("ip rule 9", 0x200, Some("Cilium")),
            ("ip rule 110", 0x80, Some("the CNI plug-in of AWS")),
            ("ip rule 100", 0x1000, None),
            ("inet filter input", 0x1001, None),
        ] {
            let user = MarkUser {
                place: place.to_owned(),
                bits,
            };
            assert_eq!(owner(&user), wanted, "{place}");
        }
    }

    #[test]
    fn the_fix_names_a_bit_that_is_nobodys() {
        let fix = |exempt, used| {
            fix(&Marks {
                exempt,
                used,
                ..Marks::default()
            })
        };
        assert!(fix(0x2000, 0x2000).contains("--mark 0x1000 "));
        assert!(fix(0x1000, 0x1000).contains("--mark 0x40 "));
        assert!(fix(0x1000, 0x1071).contains("--mark 0x8 "));
        assert!(fix(0x1000, u32::MAX).contains("--mark 0 "));
    }

    #[test]
    fn no_free_bit_is_one_that_a_program_is_known_for() {
        let known = BITS.iter().fold(0, |known, (bits, _)| known | bits);
        assert!(FREE.iter().all(|bit| bit & known == 0));
    }
}
