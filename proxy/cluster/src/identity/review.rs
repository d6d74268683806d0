//! Judges the API server's answer about a token. Pure.

use culvert_api::NodeName;
use culvert_proxy_core::directory::NodeUid;
use k8s_openapi::api::authentication::v1::{TokenReviewStatus, UserInfo};
use k8s_openapi::api::core::v1::Pod;

use super::{AUDIENCE, AccountError, SERVICE_ACCOUNT};

const POD_NAME: &str = "authentication.kubernetes.io/pod-name";
const POD_UID: &str = "authentication.kubernetes.io/pod-uid";
/// Exists since Kubernetes 1.30.
const NODE_NAME: &str = "authentication.kubernetes.io/node-name";
const NODE_UID: &str = "authentication.kubernetes.io/node-uid";

/// The content of a reviewed token.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Reviewed {
    /// The node of its pod, and the UID of that Node.
    Node(NodeName, Option<NodeUid>),
    /// The pod that it is bound to. The pod has the name of its node.
    Pod(BoundPod),
}

/// The pod that a token is bound to.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct BoundPod {
    pub(super) name: String,
    uid: String,
}

/// Judges the answer to a TokenReview for the user `account`.
pub(super) fn judge(status: TokenReviewStatus, account: &str) -> Result<Reviewed, AccountError> {
    if status.authenticated != Some(true) {
        let said = match &status.error {
            Some(error) if !error.is_empty() => error,
            _ => "no reason given",
        };
        return Err(AccountError::NotAuthenticated(
            said.chars().take(300).collect(),
        ));
    }
    // An API server that does not know audiences accepts any token, and answers without an
    // audience.
    let audiences = status.audiences.unwrap_or_default();
    if !audiences.iter().any(|audience| audience == AUDIENCE) {
        return Err(AccountError::Audience {
            found: audiences.join(", "),
        });
    }
    let user = status.user.unwrap_or_default();
    if user.username.as_deref() != Some(account) {
        let found = user.username.unwrap_or_default();
        return Err(AccountError::Account {
            found,
            wanted: account.to_owned(),
        });
    }
    let Some(name) = extra(&user, POD_NAME) else {
        return Err(AccountError::NotBound);
    };
    let Some(uid) = extra(&user, POD_UID) else {
        return Err(AccountError::NotBound);
    };
    let Some(node) = extra(&user, NODE_NAME) else {
        return Ok(Reviewed::Pod(BoundPod {
            name: name.to_owned(),
            uid: uid.to_owned(),
        }));
    };
    let uid = match extra(&user, NODE_UID) {
        Some(uid) => uid.parse().ok(),
        None => None,
    };
    Ok(Reviewed::Node(node.parse()?, uid))
}

/// The node of the pod that a token is bound to. `found` is the pod that has its name now.
pub(super) fn node_of_pod(bound: &BoundPod, found: Option<&Pod>) -> Result<NodeName, AccountError> {
    match checked_node(bound, found) {
        Ok(node) => Ok(node.parse()?),
        Err(problem) => Err(AccountError::Pod {
            pod: bound.name.clone(),
            problem,
        }),
    }
}

/// The node that a pod runs on, or what is wrong with the pod.
fn checked_node<'a>(bound: &BoundPod, found: Option<&'a Pod>) -> Result<&'a str, &'static str> {
    let pod = found.ok_or("is gone")?;
    if pod.metadata.uid.as_deref() != Some(&bound.uid) {
        return Err("was replaced by another of its name");
    }
    if pod.metadata.deletion_timestamp.is_some() {
        return Err("is being deleted");
    }
    let spec = pod.spec.as_ref().ok_or("has no specification")?;
    if spec.service_account_name.as_deref() != Some(SERVICE_ACCOUNT) {
        return Err("has another service account");
    }
    match spec.node_name.as_deref() {
        Some(node) if !node.is_empty() => Ok(node),
        _ => Err("is on no node yet"),
    }
}

/// The only value with this name.
fn extra<'a>(user: &'a UserInfo, name: &str) -> Option<&'a str> {
    match user.extra.as_ref()?.get(name)?.as_slice() {
        [value] if !value.is_empty() => Some(value),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::PodSpec;
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};

    use super::*;

    const ACCOUNT: &str = "system:serviceaccount:culvert-system:culvert-agent";

    fn status(extra: &[(&str, &str)]) -> TokenReviewStatus {
        let extra = extra
            .iter()
            .map(|(name, value)| ((*name).to_owned(), vec![(*value).to_owned()]))
            .collect();
        TokenReviewStatus {
            authenticated: Some(true),
            audiences: Some(vec![AUDIENCE.to_owned()]),
            user: Some(UserInfo {
                username: Some(ACCOUNT.to_owned()),
                extra: Some(extra),
                ..UserInfo::default()
            }),
            error: None,
        }
    }

    fn reason<T: std::fmt::Debug>(judged: Result<T, AccountError>) -> &'static str {
        judged.unwrap_err().reason()
    }

    fn bound() -> BoundPod {
        BoundPod {
            name: "agent-x".to_owned(),
            uid: "1".to_owned(),
        }
    }

    fn pod() -> Pod {
        Pod {
            metadata: ObjectMeta {
                uid: Some("1".to_owned()),
                ..ObjectMeta::default()
            },
            spec: Some(PodSpec {
                node_name: Some("edge-1".to_owned()),
                service_account_name: Some(SERVICE_ACCOUNT.to_owned()),
                ..PodSpec::default()
            }),
            status: None,
        }
    }

    #[test]
    fn the_node_comes_from_the_token_or_else_from_its_pod() {
        let pod = [(POD_NAME, "agent-x"), (POD_UID, "1")];
        assert_eq!(
            judge(status(&pod), ACCOUNT).unwrap(),
            Reviewed::Pod(bound())
        );
        let with_node = [pod[0], pod[1], (NODE_NAME, "edge-1")];
        let node = || "edge-1".parse().unwrap();
        assert_eq!(
            judge(status(&with_node), ACCOUNT).unwrap(),
            Reviewed::Node(node(), None)
        );
        let with_uid = [pod[0], pod[1], (NODE_NAME, "edge-1"), (NODE_UID, "a-1")];
        let uid = Some("a-1".parse().unwrap());
        assert_eq!(
            judge(status(&with_uid), ACCOUNT).unwrap(),
            Reviewed::Node(node(), uid)
        );
    }

    #[test]
    fn a_token_of_no_pod_makes_nobody_a_node() {
        assert_eq!(reason(judge(status(&[]), ACCOUNT)), "not_bound");
        assert_eq!(
            reason(judge(status(&[(NODE_NAME, "edge-1")]), ACCOUNT)),
            "not_bound"
        );
    }

    #[test]
    fn an_answer_for_another_audience_or_user_counts_for_nothing() {
        let pod = [(POD_NAME, "agent-x"), (POD_UID, "1"), (NODE_NAME, "edge-1")];
        for audiences in [None, Some(vec![]), Some(vec!["other".to_owned()])] {
            assert_eq!(
                reason(judge(
                    TokenReviewStatus {
                        audiences,
                        ..status(&pod)
                    },
                    ACCOUNT
                )),
                "wrong_audience"
            );
        }
        assert_eq!(
            reason(judge(
                status(&pod),
                "system:serviceaccount:other:culvert-agent"
            )),
            "wrong_account"
        );
        for authenticated in [None, Some(false)] {
            let denied = TokenReviewStatus {
                authenticated,
                ..status(&pod)
            };
            assert_eq!(reason(judge(denied, ACCOUNT)), "not_authenticated");
        }
    }

    #[test]
    fn only_the_very_pod_alive_and_of_the_agents_account_tells_the_node() {
        assert_eq!(
            node_of_pod(&bound(), Some(&pod())).unwrap().as_str(),
            "edge-1"
        );
        let refused = |change: fn(&mut Pod), expected: &str| {
            let mut pod = pod();
            change(&mut pod);
            let error = node_of_pod(&bound(), Some(&pod)).unwrap_err();
            assert!(
                error.reason() == "wrong_pod" && error.to_string().contains(expected),
                "{error}"
            );
        };
        refused(|pod| pod.metadata.uid = Some("2".to_owned()), "replaced");
        refused(
            |pod| {
                pod.metadata.deletion_timestamp =
                    Some(Time::from(k8s_openapi::jiff::Timestamp::UNIX_EPOCH))
            },
            "being deleted",
        );
        refused(
            |pod| pod.spec.as_mut().unwrap().service_account_name = Some("default".to_owned()),
            "service account",
        );
        refused(
            |pod| pod.spec.as_mut().unwrap().node_name = None,
            "on no node",
        );
        assert!(
            node_of_pod(&bound(), None)
                .unwrap_err()
                .to_string()
                .contains("is gone")
        );
    }
}
