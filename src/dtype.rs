//! The one table of element types: DLPack's codes, the widths that each comes in, and which bit patterns are values.
//!
//! Codes are those of `DLDataTypeCode` in DLPack 1.1 (dlpack.h).

use std::fmt;

use crate::status::Status;

/// The type of a tensor's elements: `lanes` values of one DLPack code and width. Shown by torch's name where it has one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct DType {
    row: usize,
    bits: u8,
    lanes: u16,
}

/// Which bit patterns of a kind are values that a model can compute with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Patterns {
    /// All of them: integers, and the small floats without NaN or infinity.
    All,
    /// Bytes 0 and 1.
    Bool,
    /// Floating point with the sign in the top bit and the exponent below it. Its largest exponents mean NaN or
    /// infinity, so a pattern whose top exponent bit is 0 is finite.
    Float,
    /// As `Float`, and a sign bit alone means NaN (the `fnuz` kinds).
    FloatNoNegativeZero,
    /// An exponent without sign or mantissa; all ones mean NaN.
    Exponent,
}

struct Row {
    code: u8,
    name: &'static str,
    bits: &'static [u8],
    patterns: Patterns,
    /// How many values one element of `bits` holds: 2 for complex.
    parts: u8,
}

const fn row(code: u8, name: &'static str, bits: &'static [u8], patterns: Patterns, parts: u8) -> Row {
    Row { code, name, bits, patterns, parts }
}

const TABLE: [Row; 17] = [
    row(0, "int", &[4, 8, 16, 32, 64], Patterns::All, 1),
    row(1, "uint", &[4, 8, 16, 32, 64], Patterns::All, 1),
    row(2, "float", &[16, 32, 64], Patterns::Float, 1),
    // Code 3 is an opaque handle: a pointer, whose bytes say nothing about weights.
    row(4, "bfloat", &[16], Patterns::Float, 1),
    row(5, "complex", &[32, 64, 128], Patterns::Float, 2),
    row(6, "bool", &[8], Patterns::Bool, 1),
    row(7, "float8_e3m4", &[8], Patterns::Float, 1),
    row(8, "float8_e4m3", &[8], Patterns::Float, 1),
    row(9, "float8_e4m3b11fnuz", &[8], Patterns::FloatNoNegativeZero, 1),
    row(10, "float8_e4m3fn", &[8], Patterns::Float, 1),
    row(11, "float8_e4m3fnuz", &[8], Patterns::FloatNoNegativeZero, 1),
    row(12, "float8_e5m2", &[8], Patterns::Float, 1),
    row(13, "float8_e5m2fnuz", &[8], Patterns::FloatNoNegativeZero, 1),
    row(14, "float8_e8m0fnu", &[8], Patterns::Exponent, 1),
    row(15, "float6_e2m3fn", &[6], Patterns::All, 1),
    row(16, "float6_e3m2fn", &[6], Patterns::All, 1),
    row(17, "float4_e2m1fn", &[4], Patterns::All, 1),
];

/// torch's names without "torch.", each with DLPack's code, bits and lanes. All are of whole bytes.
const TORCH: [(&str, (u8, u8, u16)); 22] = [
    ("bool", (6, 8, 1)),
    ("int8", (0, 8, 1)),
    ("int16", (0, 16, 1)),
    ("int32", (0, 32, 1)),
    ("int64", (0, 64, 1)),
    ("uint8", (1, 8, 1)),
    ("uint16", (1, 16, 1)),
    ("uint32", (1, 32, 1)),
    ("uint64", (1, 64, 1)),
    ("float16", (2, 16, 1)),
    ("float32", (2, 32, 1)),
    ("float64", (2, 64, 1)),
    ("bfloat16", (4, 16, 1)),
    ("complex32", (5, 32, 1)),
    ("complex64", (5, 64, 1)),
    ("complex128", (5, 128, 1)),
    ("float8_e4m3fn", (10, 8, 1)),
    ("float8_e4m3fnuz", (11, 8, 1)),
    ("float8_e5m2", (12, 8, 1)),
    ("float8_e5m2fnuz", (13, 8, 1)),
    ("float8_e8m0fnu", (14, 8, 1)),
    ("float4_e2m1fn_x2", (17, 4, 2)),
];

impl DType {
    /// The type that torch calls `torch.{name}`.
    pub fn from_torch(name: &str) -> Option<Self> {
        let (_, (code, bits, lanes)) = TORCH.iter().find(|(torch, _)| *torch == name)?;
        Self::new(*code, *bits, *lanes).ok()
    }

    /// The type of DLPack's (`code`, `bits`, `lanes`), or why there is none.
    pub fn new(code: u8, bits: u8, lanes: u16) -> Result<Self, (Status, String)> {
        let row = TABLE.iter().position(|row| row.code == code).ok_or_else(|| {
            (Status::UnsupportedDtype, format!("dtype code {code} is none of DLPack's numeric codes"))
        })?;
        let Row { name, bits: widths, .. } = TABLE[row];
        if !widths.contains(&bits) {
            return Err((
                Status::UnsupportedDtype,
                format!("dtype {name} of {bits} bits does not exist; it has {widths:?}"),
            ));
        }
        if lanes == 0 {
            return Err((Status::UnsupportedDtype, format!("dtype {name} with 0 lanes has no values")));
        }
        Ok(Self { row, bits, lanes })
    }

    /// The width of one element (all lanes), in bits. At most 128 * 65,535.
    pub fn element_bits(self) -> u64 {
        u64::from(self.bits) * u64::from(self.lanes)
    }

    /// Masks that turn eight random bytes of a tensor into valid values: `(bytes & keep) | set`.
    ///
    /// Floats become finite (below 2 in magnitude, or the kind's like), bools 0 or 1; integers stay as they are.
    /// Every value's width divides eight bytes or has no invalid pattern, so one mask serves the whole tensor.
    pub fn valid_masks(self) -> (u64, u64) {
        let Row { patterns, parts, .. } = TABLE[self.row];
        let width = u32::from(self.bits / parts);
        let repeat = |value: u64| (0..64 / width).fold(0, |all, index| all | value << (index * width));
        match patterns {
            Patterns::All => (u64::MAX, 0),
            Patterns::Bool => (repeat(1), 0),
            Patterns::Float => (!repeat(1 << (width - 2)), 0),
            Patterns::FloatNoNegativeZero => (!repeat(1 << (width - 2)), repeat(1)),
            Patterns::Exponent => (!repeat(1 << (width - 1)), 0),
        }
    }
}

impl fmt::Display for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Row { code, name, .. } = TABLE[self.row];
        match TORCH.iter().find(|(_, dlpack)| *dlpack == (code, self.bits, self.lanes)) {
            Some((torch, _)) => f.write_str(torch),
            None => write!(f, "{name} of {} bits in {} lanes", self.bits, self.lanes),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn torch_names_stand_for_types_of_whole_bytes() {
        for (name, _) in TORCH {
            let dtype = DType::from_torch(name).unwrap();
            assert_eq!(dtype.to_string(), name);
            assert!(dtype.element_bits().is_multiple_of(8), "{name}");
        }
        assert_eq!(DType::from_torch("torch.int8"), None);
    }

    #[test]
    fn unknown_types_are_refused() {
        for (code, bits, lanes) in [(3, 64, 1), (18, 8, 1), (255, 8, 1), (2, 8, 1), (6, 1, 1), (0, 128, 1), (2, 32, 0)]
        {
            assert!(DType::new(code, bits, lanes).is_err(), "{code} {bits} {lanes}");
        }
    }

    #[test]
    fn sizes_count_in_bits() {
        assert_eq!(DType::new(17, 4, 2).unwrap().element_bits(), 8);
        assert_eq!(DType::new(15, 6, 1).unwrap().element_bits(), 6);
        assert_eq!(DType::new(5, 128, u16::MAX).unwrap().element_bits(), 128 * 65_535);
    }

    #[test]
    fn masks_leave_only_valid_values() {
        let masked = |code, bits, word: u64| {
            let (keep, set) = DType::new(code, bits, 1).unwrap().valid_masks();
            word & keep | set
        };
        for word in [0, u64::MAX, 0x8080_8080_8080_8080, 0x7f80_7f80_7f80_7f80, 0x0123_4567_89ab_cdef] {
            assert!(f64::from_bits(masked(2, 64, word)).is_finite());
            let halves = masked(2, 32, word);
            assert!(f32::from_bits(halves as u32).is_finite() && f32::from_bits((halves >> 32) as u32).is_finite());
            for pair in masked(4, 16, word).to_le_bytes().chunks(2) {
                assert!(f32::from_bits(u32::from(u16::from_le_bytes([pair[0], pair[1]])) << 16).is_finite());
            }
            assert!(masked(6, 8, word).to_le_bytes().iter().all(|byte| *byte <= 1));
            assert!(masked(11, 8, word).to_le_bytes().iter().all(|byte| *byte != 0x80));
            assert!(masked(14, 8, word).to_le_bytes().iter().all(|byte| *byte != 0xff));
            assert_eq!(masked(0, 64, word), word);
        }
    }
}
