use super::*;
use crate::agent_end::StreamEnd;

/// Largest future of one stream's task, in bytes. Every idle stream takes that much.
const TASK_MAX: usize = 1152;

struct NoBackends;

impl Backends for NoBackends {
    async fn dial(&self, _: &Open) -> Result<Backend, DialFailure> {
        std::future::pending().await
    }

    fn stream_ended(&self, _: &Open, _: &StreamEnd) {}
}

fn size_of_task<F>(_: impl Fn(RelayedStream<NoBackends>) -> F) -> usize {
    size_of::<F>()
}

#[test]
fn the_task_of_a_stream_is_small() {
    let size = size_of_task(RelayedStream::run);
    assert!(size <= TASK_MAX, "{size} bytes");
}
