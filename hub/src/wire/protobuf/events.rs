use crate::wire::Event;
use crate::wire::split::SplitError;
#[derive(Debug, Default)]
pub(crate) struct EventSplitter {}
impl EventSplitter {
    pub(crate) fn next_event(&mut self, chunk: &mut &[u8]) -> Result<Option<Event>, SplitError> {
        todo!()
    }
    pub(crate) fn is_between_events(&self) -> bool {
        todo!()
    }
}
