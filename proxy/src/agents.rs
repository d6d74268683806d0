//! How agents come in: the agent port, enrolment, who is admitted, and which addresses agents are given.

pub(crate) mod admissions;
pub(crate) mod enroll;
pub(crate) mod port;
