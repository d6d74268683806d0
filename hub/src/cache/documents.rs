//! What the API server says of itself: its version, its groups and resources, its schema. Each such
//! answer is a *document*, kept as it came, by its address and its `Content-Type`.
//!
//! Which of several documents of one address a client gets depends on its `Accept`. The API server
//! has shown which one it chooses for an `Accept`; for one that it has not seen, the hub chooses as
//! the API server would.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, SystemTime};

use http::StatusCode;

use super::{Clock, Identity};
use crate::packed::{Packed, Sample};
use crate::request::accept;
use crate::request::discovery::DocumentRead;

/// The longest document, in bytes. The schema of a large cluster in JSON has 5 MB.
pub(crate) const DOCUMENT_MAX: usize = 8 << 20;
/// All documents together, in bytes of memory: text of JSON gets five to ten times shorter.
pub(crate) const TOTAL_MAX: usize = 4 << 20;
/// What a document costs besides its bytes; rounded up.
const OVERHEAD: usize = 2048;
/// Answers that there is no such thing. Clients may ask for as many as they like.
const MISSING_MAX: usize = 256;
/// `Accept` headers that are remembered for one document.
const ACCEPTED_MAX: usize = 8;
/// Who may read one path. A node has some 110 pods.
const READERS_MAX: usize = 256;

/// A document.
#[derive(Clone, Debug)]
pub(crate) struct Document {
    /// 200, or 404: the API server has no such group, version or schema.
    pub(crate) status: StatusCode,
    /// As the API server wrote it.
    pub(crate) content_type: String,
    pub(crate) etag: Option<String>,
    pub(crate) body: Packed,
    /// When the API server last gave it.
    pub(crate) confirmed: SystemTime,
}

/// Path, query and `Content-Type`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct DocumentKey {
    pub(super) path: String,
    pub(super) query: String,
    pub(super) content_type: String,
}

#[derive(Clone, Debug)]
pub(super) struct KeptDocument {
    pub(super) document: Document,
    /// For these `Accept` headers the API server has chosen it; the latest last.
    pub(super) accepted: Vec<String>,
    last_used: u64,
}

impl Document {
    /// The body as it is remembered. Documents have little in common: each has a sample of its own.
    pub(crate) fn packed(body: Vec<u8>) -> Packed {
        Packed::new(body.into(), &Sample::default())
    }
}

/// All documents, and who may read them.
#[derive(Debug, Default)]
pub(crate) struct Documents {
    by_key: BTreeMap<DocumentKey, KeptDocument>,
    /// The identities that the API server last answered, by path.
    readers: BTreeMap<String, BTreeSet<Identity>>,
    uses: u64,
    unsaved: BTreeSet<DocumentKey>,
    unsaved_readers: BTreeSet<(String, Identity)>,
}

impl Documents {
    pub(super) fn believe_no_later_than(&mut self, now: SystemTime) {
        for kept in self.by_key.values_mut() {
            kept.document.confirmed = kept.document.confirmed.min(now);
        }
    }
}

impl KeptDocument {
    /// Whether the API server has answered that it does not exist.
    fn is_missing(&self) -> bool {
        self.document.status == StatusCode::NOT_FOUND
    }
}

impl Documents {
    /// The API server has answered this identity.
    pub(crate) fn allow(&mut self, reader: &Identity, path: &str) {
        let readers = self.readers.entry(path.to_owned()).or_default();
        if !readers.insert(reader.clone()) {
            return;
        }
        self.unsaved_readers
            .insert((path.to_owned(), reader.clone()));
        // The node is the first, and stays.
        if readers.len() > READERS_MAX
            && let Some(last) = readers.pop_last()
        {
            self.unsaved_readers.insert((path.to_owned(), last));
        }
    }

    /// The API server has refused this identity.
    pub(crate) fn refuse(&mut self, reader: &Identity, path: &str) {
        let readers = self.readers.get_mut(path);
        if let Some(readers) = readers
            && readers.remove(reader)
        {
            self.unsaved_readers
                .insert((path.to_owned(), reader.clone()));
        }
    }

    /// Keeps an answer of the API server. One that is longer than [`DOCUMENT_MAX`] is not kept.
    pub(crate) fn record(&mut self, read: &DocumentRead, document: Document) {
        if document.body.len() > DOCUMENT_MAX {
            return;
        }
        let status = document.status;
        let key = DocumentKey {
            path: read.path.clone(),
            query: read.query.clone(),
            content_type: document.content_type.clone(),
        };
        self.chosen_by_nobody_else(read, &key);
        self.uses += 1;
        let kept = self.by_key.entry(key.clone()).or_insert_with(|| {
            self.unsaved.insert(key.clone());
            KeptDocument {
                document: document.clone(),
                accepted: Vec::new(),
                last_used: 0,
            }
        });
        kept.last_used = self.uses;
        let earlier = std::mem::replace(&mut kept.document, document);
        let is_same =
            earlier.etag == kept.document.etag && earlier.body.is_same(&kept.document.body);
        if !kept.accepted.contains(&read.accepted) {
            kept.accepted.push(read.accepted.clone());
            if kept.accepted.len() > ACCEPTED_MAX {
                kept.accepted.remove(0);
            }
            self.unsaved.insert(key);
        } else if !is_same {
            self.unsaved.insert(key);
        }
        // A part of the schema has another hash when it has changed.
        self.remove_all(|key, kept| {
            let is_other = key.query != read.query || kept.document.status != status;
            key.path == read.path && is_other
        });
        self.enforce_bounds();
    }

    /// The API server has said that its answer is still this one (304).
    pub(crate) fn confirm(&mut self, read: &DocumentRead, now: Clock) {
        if let Some(key) = self.choose(read)
            && let Some(kept) = self.by_key.get_mut(&key)
        {
            kept.document.confirmed = now.wall;
        }
    }

    /// The entity tag of the document that this read would get.
    pub(crate) fn etag(&self, read: &DocumentRead) -> Option<&str> {
        self.by_key
            .get(&self.choose(read)?)?
            .document
            .etag
            .as_deref()
    }

    /// The document that a client gets, and its age. `None`: it is not known, or not whether this
    /// identity may read it.
    pub(crate) fn answer(
        &mut self,
        reader: &Identity,
        read: &DocumentRead,
        now: Clock,
    ) -> Option<(Document, Duration)> {
        if !self.readers.get(&read.path)?.contains(reader) {
            return None;
        }
        let key = self.choose(read)?;
        self.uses += 1;
        let kept = self.by_key.get_mut(&key)?;
        kept.last_used = self.uses;
        let age = now.wall.duration_since(kept.document.confirmed);
        Some((kept.document.clone(), age.unwrap_or_default()))
    }

    /// How many there are.
    pub(crate) fn len(&self) -> usize {
        self.by_key.len()
    }

    fn choose(&self, read: &DocumentRead) -> Option<DocumentKey> {
        let first = DocumentKey {
            path: read.path.clone(),
            query: read.query.clone(),
            content_type: String::new(),
        };
        let mut of_address = Vec::new();
        for (key, kept) in self.by_key.range(first..) {
            if (&key.path, &key.query) != (&read.path, &read.query) {
                break;
            }
            if kept.is_missing() || kept.accepted.contains(&read.accepted) {
                return Some(key.clone());
            }
            of_address.push(key);
        }
        let content_types = of_address.iter().map(|key| key.content_type.as_str());
        let chosen = accept::choose(&read.accepted, content_types)?;
        of_address.get(chosen).copied().cloned()
    }

    /// The API server chooses another document for this `Accept` now.
    fn chosen_by_nobody_else(&mut self, read: &DocumentRead, chosen: &DocumentKey) {
        for (key, kept) in &mut self.by_key {
            let is_other = key != chosen && (&key.path, &key.query) == (&read.path, &read.query);
            if is_other && kept.accepted.contains(&read.accepted) {
                kept.accepted.retain(|it| *it != read.accepted);
                self.unsaved.insert(key.clone());
            }
        }
    }

    /// Drops the least recently used ones, those that the node reads last.
    fn enforce_bounds(&mut self) {
        while self.count_missing() > MISSING_MAX {
            self.drop_oldest(KeptDocument::is_missing);
        }
        while self.bytes() > TOTAL_MAX {
            self.drop_oldest(|_| true);
        }
    }

    fn count_missing(&self) -> usize {
        let mut count = 0;
        for kept in self.by_key.values() {
            count += usize::from(kept.is_missing());
        }
        count
    }

    fn drop_oldest(&mut self, may_go: impl Fn(&KeptDocument) -> bool) {
        let mut candidates: Vec<_> = self.by_key.iter().collect();
        candidates.retain(|(_, kept)| may_go(kept));
        let oldest = candidates
            .into_iter()
            .min_by_key(|(key, kept)| (self.may_read(&key.path, &Identity::Node), kept.last_used));
        if let Some((oldest, _)) = oldest {
            let oldest = oldest.clone();
            self.remove_all(|key, _| *key == oldest);
        }
    }

    fn may_read(&self, path: &str, reader: &Identity) -> bool {
        match self.readers.get(path) {
            Some(readers) => readers.contains(reader),
            None => false,
        }
    }

    fn bytes(&self) -> usize {
        let mut bytes = 0;
        for kept in self.by_key.values() {
            bytes += kept.document.body.held_len() + OVERHEAD;
        }
        bytes
    }

    fn remove_all(&mut self, is_gone: impl Fn(&DocumentKey, &KeptDocument) -> bool) {
        let gone = self.by_key.extract_if(.., |key, kept| is_gone(key, kept));
        self.unsaved.extend(gone.map(|(key, _)| key));
        let by_key = &self.by_key;
        let paths: BTreeSet<&str> = by_key.keys().map(|key| key.path.as_str()).collect();
        let unread = self
            .readers
            .extract_if(.., |path, _| !paths.contains(path.as_str()));
        for (path, readers) in unread {
            let rows = readers.into_iter().map(|reader| (path.clone(), reader));
            self.unsaved_readers.extend(rows);
        }
    }

    /// About how many bytes are not on the disk.
    pub(super) fn unsaved_bytes(&self) -> usize {
        let mut bytes = self.unsaved_readers.len();
        for key in &self.unsaved {
            bytes += match self.by_key.get(key) {
                Some(kept) => kept.document.body.len(),
                None => 1,
            };
        }
        bytes
    }

    pub(super) fn take_unsaved(&mut self) -> Vec<(DocumentKey, Option<&KeptDocument>)> {
        let unsaved = std::mem::take(&mut self.unsaved).into_iter();
        unsaved
            .map(|key| (key.clone(), self.by_key.get(&key)))
            .collect()
    }

    /// Path, reader, and whether it may read.
    pub(super) fn take_unsaved_readers(&mut self) -> Vec<(String, Identity, bool)> {
        let unsaved = std::mem::take(&mut self.unsaved_readers).into_iter();
        unsaved
            .map(|(path, reader)| {
                let may_read = self.may_read(&path, &reader);
                (path, reader, may_read)
            })
            .collect()
    }

    pub(super) fn all(&self) -> impl Iterator<Item = (&DocumentKey, &KeptDocument)> {
        self.by_key.iter()
    }

    pub(super) fn all_readers(&self) -> impl Iterator<Item = (&str, &Identity)> {
        self.readers
            .iter()
            .flat_map(|(path, readers)| readers.iter().map(move |reader| (path.as_str(), reader)))
    }

    /// Puts back what was on disk.
    pub(super) fn restore(
        &mut self,
        path: &str,
        query: &str,
        document: Document,
        accepted: Vec<String>,
    ) {
        let key = DocumentKey {
            path: path.to_owned(),
            query: query.to_owned(),
            content_type: document.content_type.clone(),
        };
        self.by_key.insert(
            key,
            KeptDocument {
                document,
                accepted,
                last_used: 0,
            },
        );
    }

    /// Puts back what was on disk.
    pub(super) fn restore_reader(&mut self, path: &str, reader: Identity) {
        self.readers
            .entry(path.to_owned())
            .or_default()
            .insert(reader);
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;

    const PLAIN: &str = "application/json";
    const AGGREGATED: &str = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";
    const NOW: Clock = Clock {
        wall: SystemTime::UNIX_EPOCH,
        uptime: Duration::ZERO,
    };

    fn read(path: &str, accepted: &str) -> DocumentRead {
        DocumentRead::new(path, "", accepted.to_owned()).unwrap()
    }

    fn document(content_type: &str, body: impl Into<Bytes>) -> Document {
        Document {
            status: StatusCode::OK,
            content_type: content_type.to_owned(),
            etag: None,
            body: Packed::from(body.into()),
            confirmed: NOW.wall,
        }
    }

    /// Reads by the node, which is a reader of `/apis`.
    fn answer(documents: &mut Documents, accepted: &str) -> Option<Bytes> {
        documents.allow(&Identity::Node, "/apis");
        let answer = documents.answer(&Identity::Node, &read("/apis", accepted), NOW);
        answer.map(|(document, _)| document.body.bytes())
    }

    #[test]
    fn each_client_gets_the_document_that_the_api_server_chose_for_it() {
        let mut documents = Documents::default();
        documents.record(&read("/apis", PLAIN), document(PLAIN, "groups"));
        let new_kubectl = format!("{AGGREGATED},{PLAIN}");
        documents.record(&read("/apis", &new_kubectl), document(AGGREGATED, "all"));
        // A type that `Accept` does not name, as the schema in protobuf has it.
        documents.record(&read("/apis", "x/y@1"), document("x/y.1", "schema"));
        assert_eq!(answer(&mut documents, PLAIN).unwrap(), "groups");
        assert_eq!(answer(&mut documents, &new_kubectl).unwrap(), "all");
        assert_eq!(answer(&mut documents, "x/y@1").unwrap(), "schema");
        assert_eq!(answer(&mut documents, "*/*").unwrap(), "groups");
        assert_eq!(answer(&mut documents, "text/plain"), None);
    }

    #[test]
    fn an_upgraded_api_server_may_choose_another_one() {
        let mut documents = Documents::default();
        let new_kubectl = read("/apis", &format!("{AGGREGATED},{PLAIN}"));
        documents.record(&new_kubectl, document(PLAIN, "groups"));
        documents.record(&new_kubectl, document(AGGREGATED, "all"));
        assert_eq!(
            answer(&mut documents, &new_kubectl.accepted).unwrap(),
            "all"
        );
    }

    #[test]
    fn what_the_api_server_has_not_is_404_for_any_accept_until_it_has_it() {
        let mut documents = Documents::default();
        let missing = Document {
            status: StatusCode::NOT_FOUND,
            ..document("text/plain", "404 page not found")
        };
        documents.record(&read("/apis", PLAIN), document(PLAIN, "groups"));
        documents.record(&read("/apis", PLAIN), missing);
        for accepted in [PLAIN, AGGREGATED] {
            assert_eq!(
                answer(&mut documents, accepted).unwrap(),
                "404 page not found"
            );
        }
        documents.record(&read("/apis", PLAIN), document(PLAIN, "groups"));
        assert_eq!(answer(&mut documents, PLAIN).unwrap(), "groups");
        assert_eq!(documents.len(), 1);
    }

    #[test]
    fn who_was_refused_reads_nothing() {
        let mut documents = Documents::default();
        let read = read("/apis", PLAIN);
        let app = Identity::User("app".to_owned());
        documents.record(&read, document(PLAIN, "groups"));
        assert!(documents.answer(&app, &read, NOW).is_none(), "not asked");
        documents.allow(&app, "/apis");
        assert!(documents.answer(&app, &read, NOW).is_some());
        documents.refuse(&app, "/apis");
        assert!(documents.answer(&app, &read, NOW).is_none());
    }

    #[test]
    fn a_part_of_the_schema_with_a_new_hash_replaces_the_earlier_one() {
        let mut documents = Documents::default();
        let read = |hash| DocumentRead::new("/openapi/v3/api/v1", hash, PLAIN.to_owned()).unwrap();
        documents.record(&read("hash=1"), document(PLAIN, "old"));
        documents.allow(&Identity::Node, "/openapi/v3/api/v1");
        documents.record(&read("hash=2"), document(PLAIN, "new"));
        let mut known = |hash| {
            documents
                .answer(&Identity::Node, &read(hash), NOW)
                .is_some()
        };
        assert_eq!((known("hash=1"), known("hash=2")), (false, true));
    }

    #[test]
    fn the_bounds_are_kept_and_the_nodes_documents_stay_longest() {
        let mut documents = Documents::default();
        let long = || document(PLAIN, vec![0; 3 << 20]);
        documents.record(&read("/version", PLAIN), document(PLAIN, "1.20"));
        documents.allow(&Identity::Node, "/version");
        for group in 0..20 {
            documents.record(&read(&format!("/apis/{group}"), PLAIN), long());
            assert!(documents.bytes() <= TOTAL_MAX);
        }
        let version = documents.answer(&Identity::Node, &read("/version", PLAIN), NOW);
        assert!(version.is_some());
        documents.record(
            &read("/api", PLAIN),
            document(PLAIN, vec![0; DOCUMENT_MAX + 1]),
        );
        documents.allow(&Identity::Node, "/api");
        assert!(
            documents
                .answer(&Identity::Node, &read("/api", PLAIN), NOW)
                .is_none()
        );
    }

    #[test]
    fn who_asks_for_much_that_does_not_exist_drops_nothing_that_does() {
        let mut documents = Documents::default();
        documents.record(&read("/apis", PLAIN), document(PLAIN, "groups"));
        for number in 0..2 * MISSING_MAX {
            let missing = Document {
                status: StatusCode::NOT_FOUND,
                ..document("text/plain", "404 page not found")
            };
            documents.record(&read(&format!("/apis/{number}"), PLAIN), missing);
        }
        assert_eq!(documents.len(), MISSING_MAX + 1);
        assert!(answer(&mut documents, PLAIN).is_some());
    }

    #[test]
    fn readers_of_a_path_are_bounded_and_the_node_stays() {
        let mut documents = Documents::default();
        documents.record(&read("/apis", PLAIN), document(PLAIN, "groups"));
        documents.allow(&Identity::Node, "/apis");
        for number in 0..2 * READERS_MAX {
            documents.allow(&Identity::User(number.to_string()), "/apis");
        }
        assert_eq!(documents.all_readers().count(), READERS_MAX);
        assert!(answer(&mut documents, PLAIN).is_some());
    }
}
