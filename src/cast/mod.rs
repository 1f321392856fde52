//! Casts between element types, bit for bit as torch's `copy_` and `fill_` on the CPU (2.13, x86).
//!
//! torch converts contiguous elements in vectors and what is left over one by one, and the two differ in a few values:
//! these casts give what the vectors give. The differences are all in NaN's payload (a NaN to bfloat16 is 0xffff in
//! vectors and 0x7fc0 elsewhere; the leftovers of float16 to float32 lose sign and payload) and in floats that do not
//! fit into uint32, which C++ leaves undefined. Finite numbers that fit are the same everywhere.
//!
//! Numbers beyond float8_e4m3fn become its largest, as torch does since 2.13, and NaN stays NaN.

#[cfg(target_arch = "x86_64")]
mod avx2;
mod element;
mod floats;
mod integers;

use crate::dtype::DType;
use element::{Bool, Element, Wide};
use floats::{Bf16, E4m3fn, E5m2, F16};

/// Converts elements of one type to another. Costs nothing to copy, and any thread may use it.
#[derive(Clone, Copy, Debug)]
pub struct Caster {
    run: Convert,
}

/// Converts all elements of the first slice to those of the second.
type Convert = fn(&[u8], &mut [u8]);

impl Caster {
    /// Converts the little-endian elements in `source` to as many in `target`; neither need be aligned.
    ///
    /// # Panics
    /// When the two do not hold equally many elements.
    pub fn run(self, source: &[u8], target: &mut [u8]) {
        (self.run)(source, target);
    }
}

/// The cast of `from` to `to`, or `None` when this library knows none. From a type to itself there always is one.
pub fn caster(from: DType, to: DType) -> Option<Caster> {
    if from == to {
        return Some(Caster { run: |source, target| target.copy_from_slice(source) });
    }
    let (from, to) = (Kind::of(from)?, Kind::of(to)?);
    Some(Caster { run: from.cast_to(to) })
}

/// A number as torch's `fill_` takes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Constant {
    /// true or false.
    Bool(bool),
    /// An integer.
    Int(i64),
    /// An integer that int64 does not hold.
    UInt(u64),
    /// The bits of a float64.
    Float(u64),
}

impl Constant {
    /// Whether it is 0 and not -0.
    fn is_zero(self) -> bool {
        matches!(self, Self::Bool(false) | Self::Int(0) | Self::UInt(0) | Self::Float(0))
    }
}

/// One element, in as many of these bytes as its type has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Value {
    bytes: [u8; MOST_BYTES],
    size: usize,
}

/// The bytes of the largest element that torch has, of complex128.
const MOST_BYTES: usize = 16;

impl AsRef<[u8]> for Value {
    fn as_ref(&self) -> &[u8] {
        &self.bytes[..self.size]
    }
}

/// What `fill_` with `value` writes into a tensor of `to`, or of the first type in `via`, from where it is cast through
/// the others to `to`. `None` when `fill_` refuses the number ([`takes`]), or this library knows no casts of a type; but 0,
/// filled into `to` itself, has no bit set in any type.
/// In a tensor of one element `fill_` rounds what it refuses in larger ones for float16, bfloat16 and float8: so does
/// this.
pub fn constant(value: Constant, via: &[DType], to: DType) -> Option<Value> {
    let size = usize::try_from(to.element_bits() / 8).ok()?;
    if via.is_empty() && value.is_zero() && size <= MOST_BYTES {
        return Some(Value { bytes: [0; MOST_BYTES], size });
    }
    let mut types = via.iter().copied().chain([to]);
    let mut from = types.next()?;
    let mut filled = Kind::of(from)?.fill(value)?;
    for next in types {
        let mut cast = Value { bytes: [0; MOST_BYTES], size: Kind::of(next)?.size() };
        caster(from, next)?.run(filled.as_ref(), &mut cast.bytes[..cast.size]);
        (from, filled) = (next, cast);
    }
    Some(filled)
}

/// Whether `fill_` takes `value` for a tensor of type `to`; for a type without casts that is not known, and true.
pub fn takes(value: Constant, to: DType) -> bool {
    Kind::of(to).is_none_or(|kind| kind.fill(value).is_some())
}

/// The fastest [`convert`] that this processor has.
fn fastest<S: Element, T: Element>() -> Convert {
    #[cfg(target_arch = "x86_64")]
    if let Some(convert) = avx2::try_convert::<S, T>() {
        return convert;
    }
    convert::<S, T>
}

/// Converts each element of `source` to the one at its place in `target`.
#[inline(always)]
fn convert<S: Element, T: Element>(source: &[u8], target: &mut [u8]) {
    let (source, target) = (S::split(source), T::split_mut(target));
    assert_eq!(source.len(), target.len(), "a cast must get room for each element");
    for (from, to) in source.iter().zip(target) {
        *to = S::from_bytes(*from).widen().into_element::<T>().to_bytes();
    }
}

fn fill<T: Element>(value: Constant) -> Option<Value> {
    let element: T = element::filled(value)?;
    let mut bytes = [0; MOST_BYTES];
    T::split_mut(&mut bytes[..size_of::<T>()])[0] = element.to_bytes();
    Some(Value { bytes, size: size_of::<T>() })
}

/// The types that casts exist between: each with DLPack's code and width, and the Rust type of its elements.
macro_rules! kinds {
    ($($kind:ident, $code:literal, $bits:literal, $element:ty;)*) => {
        #[derive(Clone, Copy)]
        enum Kind { $($kind),* }

        impl Kind {
            fn of(dtype: DType) -> Option<Self> {
                $(if DType::new($code, $bits, 1) == Ok(dtype) {
                    return Some(Self::$kind);
                })*
                None
            }

            fn size(self) -> usize {
                match self { $(Self::$kind => size_of::<$element>()),* }
            }

            fn fill(self, value: Constant) -> Option<Value> {
                match self { $(Self::$kind => fill::<$element>(value)),* }
            }

            fn cast_to(self, to: Self) -> Convert {
                match self { $(Self::$kind => to.cast_from::<$element>()),* }
            }

            fn cast_from<S: Element>(self) -> Convert {
                match self { $(Self::$kind => fastest::<S, $element>()),* }
            }
        }
    };
}

kinds! {
    Float64, 2, 64, f64;
    Float32, 2, 32, f32;
    Float16, 2, 16, F16;
    Bfloat16, 4, 16, Bf16;
    Float8E4m3fn, 10, 8, E4m3fn;
    Float8E5m2, 12, 8, E5m2;
    Int8, 0, 8, i8;
    Int16, 0, 16, i16;
    Int32, 0, 32, i32;
    Int64, 0, 64, i64;
    Uint8, 1, 8, u8;
    Uint16, 1, 16, u16;
    Uint32, 1, 32, u32;
    Uint64, 1, 64, u64;
    Bool, 6, 8, Bool;
}

#[cfg(test)]
mod tests {
    use super::*;

    fn dtype(code: u8, bits: u8) -> DType {
        DType::new(code, bits, 1).unwrap()
    }

    #[test]
    fn a_type_without_casts_is_only_copied() {
        let complex = dtype(5, 64);
        assert!(caster(complex, dtype(2, 32)).is_none());
        assert!(caster(dtype(2, 32), complex).is_none());
        let mut copy = [0; 8];
        caster(complex, complex).unwrap().run(&[1, 2, 3, 4, 5, 6, 7, 8], &mut copy);
        assert_eq!(copy, [1, 2, 3, 4, 5, 6, 7, 8]);
        assert!(constant(Constant::Float(1.0f64.to_bits()), &[], complex).is_none());
        assert!(constant(Constant::Float((-0.0f64).to_bits()), &[], complex).is_none());
        assert!(constant(Constant::Int(0), &[dtype(2, 32)], complex).is_none());
        assert_eq!(constant(Constant::Int(0), &[], complex).unwrap().as_ref(), [0; 8]);
        assert_eq!(constant(Constant::Bool(false), &[], dtype(5, 128)).unwrap().as_ref(), [0; 16]);
    }

    #[test]
    fn elements_need_no_alignment() {
        let bytes: Vec<u8> = [0.0, 1.5f32, -2.0].iter().flat_map(|value| value.to_le_bytes()).collect();
        let mut target = [0; 25];
        caster(dtype(2, 32), dtype(2, 64)).unwrap().run(&bytes[4..], &mut target[1..17]);
        assert_eq!(target[1..9], 1.5f64.to_le_bytes());
        assert_eq!(target[9..17], (-2.0f64).to_le_bytes());
        assert_eq!(target[17..], [0; 8]);
    }

    #[test]
    #[should_panic(expected = "room for each element")]
    fn unequal_counts_are_a_bug_of_the_caller() {
        caster(dtype(2, 32), dtype(2, 16)).unwrap().run(&[0; 8], &mut [0; 2]);
    }
}
