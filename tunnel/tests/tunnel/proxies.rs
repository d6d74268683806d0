//! What a proxy and an agent tell each other about proxies.

use culvert_tunnel::proto::tunnel::SetProxiesRequest;
use http::Response;

use super::*;

fn proxy(instance: &str) -> Proxy {
    Proxy {
        instance: instance.to_owned(),
        addresses: vec!["proxy.example:7400".to_owned()],
        nodes: 3,
        draining: true,
    }
}

#[tokio::test]
async fn an_agent_is_told_all_proxies_and_refuses_text_that_it_could_not_print() {
    let pair = pair(1 << 20, 8).await;
    let tell = async |proxies| {
        pair.tunnel
            .set_proxies(&SetProxiesRequest { proxies })
            .await
    };
    tell(vec![proxy("a"), proxy("b")]).await.unwrap();
    let told = || pair.backends.told.lock().clone();
    assert_eq!(told(), [proxy("a"), proxy("b")]);
    let refused = tell(vec![proxy("\u{7}")]).await.unwrap_err();
    assert!(matches!(refused, TunnelError::Call(_)), "{refused}");
    assert_eq!(told().len(), 2, "nothing of it is taken");
    tell(vec![]).await.unwrap();
    assert_eq!(told(), []);
}

#[tokio::test]
async fn a_proxy_learns_that_its_tunnel_is_not_wanted() {
    let pair = pair(1 << 20, 8).await;
    let request = |instance: &str| DescribeRequest {
        instance: instance.to_owned(),
        ..DescribeRequest::default()
    };
    let declined = pair
        .tunnel
        .describe(&request("unwanted"))
        .await
        .unwrap_err();
    assert!(matches!(declined, TunnelError::Declined), "{declined}");
    assert!(pair.tunnel.describe(&request("wanted")).await.is_ok());
}

/// As an agent of the time before `SetProxies` answers.
#[tokio::test]
async fn an_older_agent_that_does_not_know_the_call_is_no_error() {
    let (agent_socket, proxy_socket) = socket_pair().await;
    let mut tasks = JoinSet::new();
    tasks.spawn(async move {
        let mut connection = h2::server::handshake(agent_socket).await.unwrap();
        while let Some(Ok((_, mut respond))) = connection.accept().await {
            let unimplemented = Response::builder()
                .header("content-type", "application/grpc")
                .header("grpc-status", "12")
                .body(())
                .unwrap();
            respond.send_response(unimplemented, true).unwrap();
        }
    });
    let (tunnel, driver) = proxy_end(proxy_socket).await;
    tasks.spawn(async move { driver.run().await.unwrap() });
    tunnel
        .set_proxies(&SetProxiesRequest::default())
        .await
        .unwrap();
    assert!(tunnel.describe(&DescribeRequest::default()).await.is_err());
}
