//! The agents' side: the agent port, enrolment, admission, and the addresses of proxies that agents
//! receive. What a tunnel does after its handshake is in `culvert-tunnel`, and which stream it gets
//! in `culvert-proxy-streams`.
#![forbid(unsafe_code)]

pub mod admissions;
pub mod enroll;
pub mod port;
pub mod proxy_list;
