//! Who else uses bits of the exempt mark on this host.

use std::collections::BTreeMap;

use culvert_api::installed::{MarkUser, Marks};
use culvert_daemon::chain;

use crate::mechanisms::nft::marking_chains;
use crate::mechanisms::policy_rules::marking_rules;

/// Rules in one answer.
const MAX_USERS: usize = 20;

/// Reads the rules of others now. What cannot be read is said in the answer.
pub(super) async fn marks(exempt: u32) -> Marks {
    let mut found = BTreeMap::new();
    let mut problems = Vec::new();
    match marking_rules().await {
        Ok(rules) => found.extend(rules),
        Err(error) => problems.push(chain(&error)),
    }
    match marking_chains().await {
        Ok(chains) => found.extend(chains),
        Err(error) => problems.push(chain(&error)),
    }
    answer(exempt, found, problems)
}

fn answer(exempt: u32, found: BTreeMap<String, u32>, problems: Vec<String>) -> Marks {
    let mut used = 0;
    let mut users = Vec::new();
    for (place, bits) in found {
        used |= bits;
        if bits & exempt != 0 && users.len() < MAX_USERS {
            users.push(MarkUser { place, bits });
        }
    }
    Marks {
        exempt,
        used,
        users,
        problems,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn users_of_the_exempt_bits_are_named_and_the_bits_of_all_others_counted() {
        let mut found = BTreeMap::from([
            ("ip nat KUBE-POSTROUTING".to_owned(), 0x4000),
            ("ip rule 100".to_owned(), 0x1000),
        ]);
        let marks = answer(0x1000, found.clone(), Vec::new());
        assert_eq!(marks.used, 0x5000);
        let places: Vec<&str> = marks.users.iter().map(|user| user.place.as_str()).collect();
        assert_eq!(places, ["ip rule 100"]);
        for number in 0..100 {
            found.insert(format!("ip mangle chain-{number}"), 0x1000);
        }
        assert_eq!(answer(0x1000, found, Vec::new()).users.len(), MAX_USERS);
    }
}
