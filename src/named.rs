//! JSON objects: those whose keys are names of tensors and the like, and those of known fields.

use std::fmt;
use std::marker::PhantomData;

use serde::de::value::MapAccessDeserializer;
use serde::de::{Deserialize, Deserializer, Error as _, MapAccess, Visitor};

/// The members of a JSON object in their order, no name twice (JSON leaves open which of the two would count).
#[derive(Debug)]
pub struct Named<V>(pub Vec<(String, V)>);

impl<V> Default for Named<V> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<'de, V: Deserialize<'de>> Deserialize<'de> for Named<V> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(Members(PhantomData))
    }
}

struct Members<V>(PhantomData<V>);

impl<'de, V: Deserialize<'de>> Visitor<'de> for Members<V> {
    type Value = Named<V>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut members = Vec::new();
        while let Some(name) = map.next_key::<String>()? {
            match map.next_value() {
                Ok(value) => members.push((name, value)),
                Err(error) => return Err(A::Error::custom(format!("'{name}': {error}"))),
            }
        }
        match find_twice(&members) {
            Some(name) => Err(A::Error::custom(format!("the name '{name}' comes twice"))),
            None => Ok(Named(members)),
        }
    }
}

/// A struct that is written as an object and not, as serde would take it too, as a list of its fields' values.
#[derive(Clone, Copy, Debug)]
pub struct Object<T>(pub T);

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Object<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(Fields(PhantomData))
    }
}

struct Fields<T>(PhantomData<T>);

impl<'de, T: Deserialize<'de>> Visitor<'de> for Fields<T> {
    type Value = Object<T>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Self::Value, A::Error> {
        T::deserialize(MapAccessDeserializer::new(map)).map(Object)
    }
}

/// A name that two of `members` have.
pub fn find_twice<V>(members: &[(String, V)]) -> Option<&str> {
    let mut names: Vec<&str> = members.iter().map(|(name, _)| name.as_str()).collect();
    names.sort_unstable();
    names.windows(2).find(|pair| pair[0] == pair[1]).map(|pair| pair[0])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn members_keep_their_order_and_errors_their_names() {
        let read = |json| serde_json::from_str::<Named<Named<u64>>>(json).map_err(|error| error.to_string());
        let read = |json| read(json).map(|found| found.0.into_iter().map(|(name, _)| name).collect::<Vec<_>>());
        assert_eq!(read(r#"{"z": {}, "a": {"b": 1}}"#).unwrap(), ["z", "a"]);
        assert!(read(r#"{"z": {"w": -1}}"#).unwrap_err().contains("'z': 'w': "));
        assert!(read(r#"{"z": {"w": 1, "w": 1}}"#).unwrap_err().contains("the name 'w' comes twice"));
        assert!(read("[]").unwrap_err().contains("expected an object"));
    }

    #[test]
    fn a_struct_is_no_list() {
        #[derive(Debug, serde::Deserialize)]
        struct Pair {
            a: u64,
            b: u64,
        }
        let read = |json| serde_json::from_str::<Object<Pair>>(json);
        let Object(Pair { a, b }) = read(r#"{"b": 2, "c": [], "a": 1}"#).unwrap();
        assert_eq!((a, b), (1, 2));
        for json in ["[1, 2]", "3", "null"] {
            assert!(read(json).unwrap_err().to_string().contains("expected an object"), "{json}");
        }
    }
}
