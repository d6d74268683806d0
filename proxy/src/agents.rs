//! The agents' side: the agent port, enrolment, admission, and the addresses that agents receive.

pub(crate) mod admissions;
pub(crate) mod enroll;
pub(crate) mod port;
pub(crate) mod proxy_list;
