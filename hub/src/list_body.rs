//! The body of a list on its way into the memory. If it is byte for byte the list that made its
//! set, only its head is read.

use bytes::Bytes;

use crate::cache::{Digest, Digester, Filled, Identity, ListCopy};
use crate::memory::Memory;
use crate::reads::Read;
use crate::wire::split::{ListSplitter, SplitError};
use crate::wire::{ListHead, Shape};

/// What may wait until it is known whether a list is the last one. A node with 100 pods reads
/// some 0.5 MB of them; a longer list is cut while it comes.
const MAX_HELD: usize = 1 << 20;

/// Whether an answer of this kind is what the request seemed to ask for.
pub(crate) fn is_kind_of(shape: Shape, kind: &str) -> bool {
    let is_table = kind == "Table";
    let is_metadata = matches!(kind, "PartialObjectMetadata" | "PartialObjectMetadataList");
    match shape {
        Shape::Object => !is_table && !is_metadata && kind != "Status",
        Shape::Metadata => is_metadata,
        Shape::Table | Shape::TableOfObjects => is_table,
    }
}

/// A list that is arriving.
pub(crate) struct ListBody {
    copy: ListCopy,
    splitter: ListSplitter,
    /// Known when the items begin.
    head: Option<ListHead>,
    items: Digester,
    /// One page, of objects: only of these a digest is kept.
    is_whole: bool,
    /// What made the set, as long as this list may be the same.
    expected: Option<Digest>,
    /// Items that are not cut yet.
    held: Vec<Bytes>,
    held_bytes: usize,
}

impl ListBody {
    /// `token` is the `continue` token that was asked with. `None`: the earlier pages are not known.
    pub(crate) fn start(
        memory: &Memory,
        read: &Read,
        reader: &Identity,
        token: Option<&str>,
    ) -> Option<Self> {
        // The cells of rows have ages: they hardly ever are the same.
        let is_whole = token.is_none() && !read.shape().is_table();
        let now = memory.now();
        let cache = &mut memory.lock().cache;
        let copy = cache.start_list(&read.scope, token, reader, now)?;
        let expected = cache.made_by(&read.scope).filter(|_| is_whole);
        Some(Self {
            copy,
            splitter: ListSplitter::new(read.encoding(), read.shape()),
            head: None,
            items: Digester::new(),
            is_whole,
            expected,
            held: Vec::new(),
            held_bytes: 0,
        })
    }

    /// Takes the next bytes.
    pub(crate) fn push(&mut self, bytes: &Bytes) -> Result<(), SplitError> {
        let mut rest = &bytes[..];
        if !self.is_whole {
            return self.cut(rest);
        }
        if self.head.is_none() {
            self.head = self.splitter.begin_items(&mut rest)?;
        }
        if self.head.is_none() {
            return Ok(());
        }
        self.items.write(rest);
        if self.expected.is_none() {
            return self.cut(rest);
        }
        self.held.push(bytes.slice_ref(rest));
        self.held_bytes += rest.len();
        if self.held_bytes > MAX_HELD {
            self.cut_held()?;
        }
        Ok(())
    }

    /// Memory that it takes.
    pub(crate) fn bytes(&self) -> usize {
        self.held_bytes + self.copy.bytes()
    }

    /// The body has ended: the set is this list now.
    pub(crate) fn finish(
        mut self,
        memory: &Memory,
        read: &Read,
        reader: &Identity,
    ) -> Result<Filled, SplitError> {
        let scope = &read.scope;
        let items = self.items.digest();
        if let (Some(head), Some(expected)) = (&self.head, self.expected)
            && expected == items
            && head.continue_token.is_empty()
        {
            let now = memory.now();
            let cache = &mut memory.lock().cache;
            if let Some(filled) = cache.confirm_list(scope, items, head, reader, now) {
                return Ok(filled);
            }
        }
        self.cut_held()?;
        let head = self.splitter.finish()?;
        if !is_kind_of(read.shape(), &head.type_meta.kind) {
            return Ok(Filled::Spoiled);
        }
        let now = memory.now();
        let cache = &mut memory.lock().cache;
        let filled = cache.finish_list(self.copy, &head, reader, now);
        // The head of another list with these items is what comes before them.
        if filled == Filled::Whole && self.head == Some(head) {
            cache.record_digest(scope, items);
        }
        Ok(filled)
    }

    fn cut_held(&mut self) -> Result<(), SplitError> {
        self.expected = None;
        self.held_bytes = 0;
        for bytes in std::mem::take(&mut self.held) {
            self.cut(&bytes)?;
        }
        Ok(())
    }

    fn cut(&mut self, mut bytes: &[u8]) -> Result<(), SplitError> {
        while let Some(item) = self.splitter.next_item(&mut bytes)? {
            self.copy.add(item);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use http::{HeaderMap, Method, Uri};

    use super::*;
    use crate::answers::local;
    use crate::cache::{Verb, Verdict};
    use crate::reads::Plan;
    use crate::state_dir::StateDir;

    const NODE: Identity = Identity::Node;

    fn read() -> Read {
        let uri = Uri::from_static("/api/v1/pods");
        let plan = Plan::new(&Method::GET, &uri, &HeaderMap::new());
        let Plan::Read(read) = plan else {
            panic!("{plan:?}");
        };
        read
    }

    /// A list at this version of pods that have these versions.
    fn body(version: u64, pods: &[u64], continue_token: &str) -> Bytes {
        let pods: Vec<String> = (pods.iter().enumerate())
            .map(|(name, version)| {
                format!(r#"{{"metadata":{{"name":"{name}","resourceVersion":"{version}"}}}}"#)
            })
            .collect();
        let pods = pods.join(",");
        let metadata =
            format!(r#"{{"resourceVersion":"{version}","continue":"{continue_token}"}}"#);
        format!(r#"{{"kind":"PodList","apiVersion":"v1","metadata":{metadata},"items":[{pods}]}}"#)
            .into()
    }

    struct Lists {
        memory: Memory,
        read: Read,
    }

    impl Lists {
        fn new(directory: &tempfile::TempDir) -> Self {
            let state = StateDir::new(directory.path().to_owned());
            let (memory, _) = Memory::open(&state);
            let read = read();
            let now = memory.now();
            let allowed = Verdict::Allowed;
            let cache = &mut memory.lock().cache;
            cache.record_verdict(&NODE, Verb::List, &read.scope, allowed, now);
            Self {
                memory: memory.clone(),
                read,
            }
        }

        /// Reads a list in pieces; whether its items waited to its end, and what became of the set.
        fn read(&self, body: &Bytes) -> (bool, Filled) {
            let mut list =
                ListBody::start(&self.memory, &self.read, &Identity::Node, None).unwrap();
            for start in (0..body.len()).step_by(7) {
                let piece = body.slice(start..body.len().min(start + 7));
                list.push(&piece).unwrap();
            }
            let waited = !list.held.is_empty();
            let filled = list.finish(&self.memory, &self.read, &NODE).unwrap();
            (waited, filled)
        }

        /// The version of the set, and those of its objects.
        fn known(&self) -> (u64, Vec<u64>) {
            let known = local::snapshot(&self.memory, &NODE, &self.read).unwrap();
            let versions = known.items().map(|it| it.metadata().resource_version);
            (known.head.resource_version, versions.collect())
        }
    }

    #[test]
    fn a_list_that_comes_again_only_advances_its_set() {
        let directory = tempfile::tempdir().unwrap();
        let lists = Lists::new(&directory);
        assert_eq!(lists.read(&body(10, &[1, 2], "")), (false, Filled::Whole));
        assert_eq!(lists.read(&body(12, &[1, 2], "")), (true, Filled::Whole));
        assert_eq!(lists.known(), (12, vec![1, 2]));
        assert_eq!(lists.read(&body(11, &[1, 2], "")), (true, Filled::Older));
        assert_eq!(lists.known(), (12, vec![1, 2]));
    }

    #[test]
    fn a_list_that_differs_is_cut_after_all() {
        let directory = tempfile::tempdir().unwrap();
        let lists = Lists::new(&directory);
        lists.read(&body(10, &[1, 2], ""));
        assert_eq!(lists.read(&body(13, &[1, 13], "")), (true, Filled::Whole));
        assert_eq!(lists.known(), (13, vec![1, 13]));
    }

    #[test]
    fn a_first_page_with_the_items_of_the_whole_list_is_not_the_list() {
        let directory = tempfile::tempdir().unwrap();
        let lists = Lists::new(&directory);
        lists.read(&body(10, &[1, 2], ""));
        assert_eq!(lists.read(&body(14, &[1, 2], "more")).1, Filled::Partly);
        assert_eq!(lists.known(), (10, vec![1, 2]));
    }
}
