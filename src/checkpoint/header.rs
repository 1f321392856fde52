//! The header of a safetensors file: which tensors it holds, and where. It is untrusted input.

use std::fmt;
use std::ops::Range;

use serde::de::{Deserialize, Deserializer, Error as _, IgnoredAny, MapAccess, Visitor};

use crate::dtype::DType;
use crate::layout::Layout;
use crate::named::{Object, find_twice};

/// The longest header that the format allows, in bytes.
const MOST_HEADER_BYTES: u64 = 100_000_000;

/// The one member that is no tensor.
const METADATA: &str = "__metadata__";

/// The format's names of element types, each with DLPack's code and bits.
const DTYPES: [(&str, (u8, u8)); 21] = [
    ("BOOL", (6, 8)),
    ("I8", (0, 8)),
    ("I16", (0, 16)),
    ("I32", (0, 32)),
    ("I64", (0, 64)),
    ("U8", (1, 8)),
    ("U16", (1, 16)),
    ("U32", (1, 32)),
    ("U64", (1, 64)),
    ("F16", (2, 16)),
    ("F32", (2, 32)),
    ("F64", (2, 64)),
    ("BF16", (4, 16)),
    ("C64", (5, 64)),
    ("F8_E4M3", (10, 8)),
    ("F8_E4M3FNUZ", (11, 8)),
    ("F8_E5M2", (12, 8)),
    ("F8_E5M2FNUZ", (13, 8)),
    ("F8_E8M0", (14, 8)),
    ("F6_E2M3", (15, 6)),
    ("F6_E3M2", (16, 6)),
];

/// Not in the table: torch keeps two of these in an element, and shapes count those.
const FLOAT4: &str = "F4";

/// A tensor of a file.
#[derive(Debug)]
pub struct Entry {
    /// Its name.
    pub name: String,
    /// As torch has it: two F4 are one `float4_e2m1fn_x2`.
    pub dtype: DType,
    /// As torch has it.
    pub shape: Vec<u64>,
    /// Where it lies in the file.
    pub bytes: Range<usize>,
}

/// The tensors of the safetensors file `file`. An error says what is wrong with it.
pub fn read(file: &[u8]) -> Result<Vec<Entry>, String> {
    let Some((length, rest)) = file.split_first_chunk::<8>() else {
        return Err(format!("is no safetensors file: it has {} bytes", file.len()));
    };
    let length = u64::from_le_bytes(*length);
    if length > MOST_HEADER_BYTES.min(rest.len() as u64) {
        return Err(format!("is no safetensors file, or cut: its header says {length} bytes, {} follow", rest.len()));
    }
    let (header, data) = rest.split_at(length as usize);
    let text = std::str::from_utf8(header).map_err(|error| format!("has a header that is not UTF-8: {error}"))?;
    let Header(members) =
        serde_json::from_str(text).map_err(|error| format!("has a header that cannot be read: {error}"))?;
    let entry = |(name, member): (String, Member)| {
        entry(&name, member, data.len()).map_err(|what| format!("has a tensor '{name}' that {what}"))
    };
    let mut entries = members.into_iter().map(entry).collect::<Result<Vec<_>, _>>()?;
    check_cover(&entries, data.len())?;
    for entry in &mut entries {
        entry.bytes = entry.bytes.start + 8 + header.len()..entry.bytes.end + 8 + header.len();
    }
    Ok(entries)
}

/// Checks what the header says of one tensor among `available` bytes of data.
fn entry(name: &str, member: Member, available: usize) -> Result<Entry, String> {
    let Member { dtype: dtype_name, mut shape, data_offsets: (start, end) } = member;
    let (code, bits) = match DTYPES.iter().find(|(known, _)| *known == dtype_name) {
        Some((_, dtype)) => *dtype,
        None if dtype_name == FLOAT4 => (17, 4),
        None => return Err(format!("has the dtype '{dtype_name}', which this library does not know")),
    };
    let mut dtype = DType::new(code, bits, 1).map_err(|(_, what)| what)?;
    let signed: Vec<i64> = shape.iter().map(|extent| i64::try_from(*extent).unwrap_or(i64::MAX)).collect();
    let layout = Layout::new(&signed, None, dtype.element_bits());
    let size = layout.map_err(|(_, what)| format!("cannot exist: {what}"))?.bytes();
    if start > end || end > available as u64 {
        return Err(format!("lies at bytes {start} to {end} of {available}"));
    }
    if end - start != size {
        return Err(format!("has {} bytes, but {dtype_name} of shape {shape:?} takes {size}", end - start));
    }
    if dtype_name == FLOAT4
        && let Some(last) = shape.last_mut().filter(|last| last.is_multiple_of(2))
    {
        *last /= 2;
        dtype = DType::new(code, bits, 2).map_err(|(_, what)| what)?;
    }
    Ok(Entry { name: name.to_owned(), dtype, shape, bytes: start as usize..end as usize })
}

/// Checks that the tensors lie side by side and fill the data, as the format says: nothing overlaps, nothing is hidden.
fn check_cover(entries: &[Entry], available: usize) -> Result<(), String> {
    let mut sorted: Vec<&Entry> = entries.iter().collect();
    sorted.sort_by_key(|entry| (entry.bytes.start, entry.bytes.end));
    let mut end = 0;
    for entry in sorted {
        if entry.bytes.start != end {
            let how = if entry.bytes.start < end { "overlaps" } else { "leaves a hole behind" };
            return Err(format!("has a tensor '{}' that {how} the one before it", entry.name));
        }
        end = entry.bytes.end;
    }
    if end != available {
        return Err(format!("has {available} bytes of data, and its tensors take {end}"));
    }
    Ok(())
}

struct Header(Vec<(String, Member)>);

#[derive(serde::Deserialize)]
struct Member {
    dtype: String,
    shape: Vec<u64>,
    data_offsets: (u64, u64),
}

impl<'de> Deserialize<'de> for Header {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(Members)
    }
}

struct Members;

impl<'de> Visitor<'de> for Members {
    type Value = Header;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object of tensors")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut members = Vec::new();
        while let Some(name) = map.next_key::<String>()? {
            if name == METADATA {
                map.next_value::<IgnoredAny>()?;
                continue;
            }
            match map.next_value() {
                Ok(Object(member)) => members.push((name, member)),
                Err(error) => return Err(A::Error::custom(format!("'{name}': {error}"))),
            }
        }
        match find_twice(&members) {
            Some(name) => Err(A::Error::custom(format!("the name '{name}' comes twice"))),
            None => Ok(Header(members)),
        }
    }
}
