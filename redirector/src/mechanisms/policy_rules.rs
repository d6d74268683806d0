//! The rules by which the kernel chooses a routing table (`ip rule`).

use std::collections::BTreeMap;

use futures_util::TryStreamExt;
use rtnetlink::packet_route::rule::{RuleAttribute, RuleMessage};
use rtnetlink::{IpVersion, new_connection};
use tokio::task::JoinSet;

/// The rules cannot be read.
#[derive(Debug, thiserror::Error)]
pub(crate) enum RulesError {
    #[error("open a netlink socket")]
    Open(#[source] std::io::Error),
    #[error("read the rules of routing")]
    Read(#[source] rtnetlink::Error),
}

/// Each rule that matches packets by their mark, such as `ip rule 32765`, with the bits that it
/// names: those of its mask, or of its value if it compares the whole mark.
pub(crate) async fn marking_rules() -> Result<BTreeMap<String, u32>, RulesError> {
    let (connection, handle, _messages) = new_connection().map_err(RulesError::Open)?;
    // Moves the messages until all is read.
    let mut tasks = JoinSet::new();
    tasks.spawn(connection);
    let mut marking: BTreeMap<String, u32> = BTreeMap::new();
    for (version, command) in [(IpVersion::V4, "ip rule"), (IpVersion::V6, "ip -6 rule")] {
        let mut rules = Box::pin(handle.rule().get(version).execute());
        while let Some(rule) = rules.try_next().await.map_err(RulesError::Read)? {
            let (priority, bits) = named(&rule);
            if bits != 0 {
                *marking.entry(format!("{command} {priority}")).or_default() |= bits;
            }
        }
    }
    Ok(marking)
}

/// The rule's priority, and the bits that it names.
fn named(rule: &RuleMessage) -> (u32, u32) {
    let mut priority = 0;
    let mut mark = 0;
    let mut mask = u32::MAX;
    for attribute in &rule.attributes {
        #[expect(
            clippy::wildcard_enum_match_arm,
            reason = "the kernel has two dozen attributes"
        )]
        match attribute {
            RuleAttribute::Priority(value) => priority = *value,
            RuleAttribute::FwMark(value) => mark = *value,
            RuleAttribute::FwMask(value) => mask = *value,
            _ => {}
        }
    }
    (priority, if mask == u32::MAX { mark } else { mask })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rule_names_the_bits_of_its_mask_or_of_a_whole_mark() {
        for (attributes, bits) in [
            (vec![RuleAttribute::FwMark(0xca6c)], 0xca6c),
            (
                vec![
                    RuleAttribute::FwMark(0x8_0000),
                    RuleAttribute::FwMask(0xff_0000),
                ],
                0xff_0000,
            ),
            (
                vec![
                    RuleAttribute::FwMark(0x1001),
                    RuleAttribute::FwMask(u32::MAX),
                ],
                0x1001,
            ),
            (Vec::new(), 0),
        ] {
            let mut rule = RuleMessage::default();
            rule.attributes = attributes;
            rule.attributes.push(RuleAttribute::Priority(7));
            assert_eq!(named(&rule), (7, bits), "{rule:?}");
        }
    }
}
