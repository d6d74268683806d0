use crate::wire::split::SplitError;
use crate::wire::{ListHead, Object};
#[derive(Debug, Default)]
pub(crate) struct ListSplitter {}
impl ListSplitter {
    pub(crate) fn next_item(&mut self, chunk: &mut &[u8]) -> Result<Option<Object>, SplitError> {
        todo!()
    }
    pub(crate) fn finish(self) -> Result<ListHead, SplitError> {
        todo!()
    }
}
