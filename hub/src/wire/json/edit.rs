//! Single fields of an object in JSON.

use serde_json::{Map, Value as Json};

use crate::wire::limits::SplitError;
use crate::wire::value::Value;

pub(in crate::wire) fn get(object: &[u8], path: &[&str]) -> Result<Option<Value>, SplitError> {
    let object = parse(object)?;
    let found = path.iter().try_fold(&object, |object, key| object.get(key));
    Ok(found.and_then(|found| match found {
        Json::Null => None,
        Json::String(text) => Some(Value::Text(text.clone())),
        Json::Number(number) => number.as_u64().map(Value::Number),
        Json::Bool(_) | Json::Array(_) | Json::Object(_) => {
            Some(Value::Raw(found.to_string().into()))
        }
    }))
}

pub(in crate::wire) fn set(
    object: &[u8],
    path: &[&str],
    value: &Value,
) -> Result<Vec<u8>, SplitError> {
    let value = match value {
        Value::Text(text) => Json::String(text.clone()),
        Value::Number(number) => Json::from(*number),
        Value::Raw(json) => parse(json)?,
    };
    let mut object = parse(object)?;
    let mut place = &mut object;
    for key in path {
        if place.is_null() {
            *place = Json::Object(Map::new());
        }
        let Json::Object(map) = place else {
            return Err(SplitError::Json {
                expected: "an object",
            });
        };
        place = map.entry(*key).or_insert(Json::Null);
    }
    *place = value;
    Ok(object.to_string().into())
}

fn parse(json: &[u8]) -> Result<Json, SplitError> {
    serde_json::from_slice(json).map_err(|_| SplitError::Json { expected: "JSON" })
}
