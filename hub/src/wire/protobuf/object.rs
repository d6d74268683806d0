use crate::wire::split::SplitError;
use crate::wire::{Object, TypeMeta};
pub(in crate::wire) fn read_alone(body: &[u8]) -> Result<(TypeMeta, Object), SplitError> {
    todo!()
}
