//! Which rows are shown, and in which order.

use culvert_site::node_choice::Sort;

/// What is shown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Tab {
    #[default]
    Nodes,
    Streams,
    Proxies,
}

/// Which rows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Only {
    #[default]
    All,
    /// Nodes and proxies with something wrong, connections without a byte for a while.
    Idle,
}

/// What decides about the rows.
#[derive(Clone, Debug, Default)]
pub(crate) struct RowChoice {
    pub(crate) tab: Tab,
    pub(crate) sort: Sort,
    pub(crate) only: Only,
    /// A text that a row has.
    pub(crate) filter: String,
}

impl Tab {
    /// With the key, and for people.
    pub(crate) const ALL: [(Self, char, &'static str); 3] = [
        (Self::Nodes, '1', "Nodes"),
        (Self::Streams, '2', "Streams"),
        (Self::Proxies, '3', "Proxies"),
    ];
}
