pub(super) mod events;
pub(super) mod list;
pub(super) mod object;
