//! Who the API server says that the user of the kubeconfig is. By exec a proxy learns it from here
//! only, and cannot verify it.

use std::sync::Arc;
use std::time::Duration;

use culvert_api::ClaimedUser;
use k8s_openapi::api::authentication::v1::{SelfSubjectReview, SelfSubjectReviewStatus};
use kube::Client;
use kube::api::{Api, PostParams};
use tokio::sync::OnceCell;
use tokio::time::timeout;

/// API servers before 1.28 do not know the question. A connection does not wait for longer.
const DEADLINE: Duration = Duration::from_secs(5);

/// The user of a kubeconfig. Clones share what the API server has said.
#[derive(Clone)]
pub(super) struct KubeUser {
    client: Client,
    /// `None`: it has no answer.
    name: Arc<OnceCell<Option<ClaimedUser>>>,
}

impl KubeUser {
    pub(super) fn of(client: Client) -> Self {
        Self {
            client,
            name: Arc::default(),
        }
    }

    /// The user's name; `None` if the API server does not say it, or not in a line.
    pub(super) async fn name(&self) -> Option<ClaimedUser> {
        let name = self.name.get_or_init(|| ask(&self.client));
        name.await.clone()
    }
}

async fn ask(client: &Client) -> Option<ClaimedUser> {
    let reviews: Api<SelfSubjectReview> = Api::all(client.clone());
    let review = SelfSubjectReview::default();
    let params = PostParams::default();
    let asked = timeout(DEADLINE, reviews.create(&params, &review)).await;
    let SelfSubjectReviewStatus { user_info } = asked.ok()?.ok()?.status?;
    user_info?.username?.parse().ok()
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use http::{Request, Response};
    use kube::client::Body;
    use serde_json::json;

    use super::*;

    /// An API server with one answer, and how often it was asked.
    fn server(status: u16, user: &'static str) -> (Client, Arc<AtomicUsize>) {
        let asked = Arc::new(AtomicUsize::new(0));
        let count = asked.clone();
        let service = tower::service_fn(move |request: Request<Body>| {
            let path = request.uri().path();
            assert_eq!(path, "/apis/authentication.k8s.io/v1/selfsubjectreviews");
            count.fetch_add(1, Ordering::Relaxed);
            let review = json!({"kind": "SelfSubjectReview", "apiVersion": "authentication.k8s.io/v1",
                "metadata": {}, "status": {"userInfo": {"username": user}}});
            let answer = Response::builder().status(status);
            let answer = answer.body(Body::from(review.to_string().into_bytes()));
            async move { Ok::<_, Infallible>(answer.expect("an answer")) }
        });
        (Client::new(service, "default"), asked)
    }

    #[tokio::test]
    async fn the_api_server_is_asked_once_who_the_user_is() {
        let (client, asked) = server(201, "ada@example.org");
        let user = KubeUser::of(client);
        for _ in 0..2 {
            let name = user.clone().name().await.expect("a name");
            assert_eq!(name.as_str(), "ada@example.org");
        }
        assert_eq!(asked.load(Ordering::Relaxed), 1);
    }

    #[tokio::test]
    async fn without_an_answer_of_one_line_there_is_no_name() {
        for (status, user) in [
            (404, "ada"),
            (201, ""),
            (201, "ada\r\nX-Tunnel-Proxy-Host: edge-2"),
        ] {
            let (client, _) = server(status, user);
            assert_eq!(KubeUser::of(client).name().await, None, "{status} {user}");
        }
    }
}
