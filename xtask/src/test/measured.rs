//! Tests that measure time or processor time, or that load the whole machine. They run last, each
//! alone.

const MEASURED: [(&str, &[&str]); 3] = [
    (
        "redirector: kernel",
        // The kernel takes 20 s for one transaction of nft.
        &["nftables::destinations_that_the_hooks_have_no_room_for_are_steered_by_nftables"],
    ),
    (
        "tests/chain",
        &[
            // Load.
            "churn::sixty_thousand_connections_half_of_them_aborted_leave_nothing_behind",
            "hostile::floods::whatever_a_proxy_floods_an_agent_with_the_agent_serves_its_other_proxy",
            "pressure::streams::ten_thousand_idle_streams_all_answer_beside_new_ones_and_leave_nothing",
            "scale::two_hundred_agents_on_three_proxies_come_up_come_back_and_leave_nothing",
            // Processor time.
            "pressure::clock::no_jump_of_a_clock_ends_a_tunnel_or_a_stream_or_keeps_a_program_busy",
            "pressure::descriptors::a_proxy_without_descriptors_resets_new_clients_at_once_and_serves_them_when_it_has_some",
            "pressure::descriptors::an_agent_without_descriptors_refuses_new_streams_and_serves_them_when_it_has_some",
        ],
    ),
    (
        "tests/kubernetes",
        &["crowd::ten_thousand_nodes_fit_into_100_mb_whether_they_come_or_are_there"],
    ),
];

/// The measured tests of a suite.
pub(super) fn of(suite: &str) -> &'static [&'static str] {
    for (name, tests) in MEASURED {
        if name == suite {
            return tests;
        }
    }
    &[]
}
