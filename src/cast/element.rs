//! What a type's elements are in memory, and what becomes of every number in it.

use super::Constant;
use super::floats::{Bf16, E4m3fn, E5m2, F16, narrow, widen};

/// The elements of a type in memory: little-endian, at any address.
pub(super) trait Memory: Copy {
    type Bytes: Copy;
    fn split(bytes: &[u8]) -> &[Self::Bytes];
    fn split_mut(bytes: &mut [u8]) -> &mut [Self::Bytes];
    fn from_bytes(bytes: Self::Bytes) -> Self;
    fn to_bytes(self) -> Self::Bytes;
}

/// Types whose elements have the bits of an integer.
macro_rules! memory {
    ($($type:ty, $integer:ty, |$bits:ident| $from:expr, |$element:ident| $to:expr;)*) => {
        $(impl Memory for $type {
            type Bytes = [u8; size_of::<$integer>()];

            fn split(bytes: &[u8]) -> &[Self::Bytes] {
                bytes.as_chunks().0
            }

            fn split_mut(bytes: &mut [u8]) -> &mut [Self::Bytes] {
                bytes.as_chunks_mut().0
            }

            fn from_bytes(bytes: Self::Bytes) -> Self {
                let $bits = <$integer>::from_le_bytes(bytes);
                $from
            }

            fn to_bytes(self) -> Self::Bytes {
                let $element = self;
                <$integer>::to_le_bytes($to)
            }
        })*
    };
}

memory! {
    f64, u64, |bits| f64::from_bits(bits), |value| value.to_bits();
    f32, u32, |bits| f32::from_bits(bits), |value| value.to_bits();
    F16, u16, |bits| F16(bits), |value| value.0;
    Bf16, u16, |bits| Bf16(bits), |value| value.0;
    E4m3fn, u8, |bits| E4m3fn(bits), |value| value.0;
    E5m2, u8, |bits| E5m2(bits), |value| value.0;
    Bool, u8, |byte| Bool(byte != 0), |value| u8::from(value.0);
    i8, i8, |value| value, |value| value;
    i16, i16, |value| value, |value| value;
    i32, i32, |value| value, |value| value;
    i64, i64, |value| value, |value| value;
    u8, u8, |value| value, |value| value;
    u16, u16, |value| value, |value| value;
    u32, u32, |value| value, |value| value;
    u64, u64, |value| value, |value| value;
}

/// An element type of casts. Numbers come to it in one of five forms; where it says nothing else, torch takes those
/// that are no `f32` through one.
pub(super) trait Element: Memory {
    /// The form that the type's own numbers take on their way to another type.
    type Wide: Wide;

    fn widen(self) -> Self::Wide;
    fn of_f32(value: f32) -> Self;

    /// A float that torch converts by itself and not in a vector.
    fn of_single(value: f32) -> Self {
        Self::of_f32(value)
    }

    fn of_f64(value: f64) -> Self {
        Self::of_f32(narrow(value))
    }

    fn of_i64(value: i64) -> Self {
        Self::of_f32(value as f32)
    }

    fn of_u64(value: u64) -> Self {
        Self::of_f32(value as f32)
    }

    /// Whether `fill_` takes the float.
    fn takes_float(_: f64) -> bool {
        true
    }

    /// Whether `fill_` takes the integer.
    fn takes_integer(_: i128) -> bool {
        true
    }
}

/// The form of a number between two types.
pub(super) trait Wide {
    fn into_element<T: Element>(self) -> T;
}

/// A float of a type that torch has few vector conversions for.
pub(super) struct Single(f32);

macro_rules! wide {
    ($($form:ty: |$value:ident| $element:expr;)*) => {
        $(impl Wide for $form {
            fn into_element<T: Element>(self) -> T {
                let $value = self;
                $element
            }
        })*
    };
}

wide! {
    f32: |value| T::of_f32(value);
    f64: |value| T::of_f64(value);
    i64: |value| T::of_i64(value);
    u64: |value| T::of_u64(value);
    Single: |value| T::of_single(value.0);
}

/// The element that `fill_` writes for `value`, or `None` when it refuses it.
pub(super) fn filled<T: Element>(value: Constant) -> Option<T> {
    match value {
        Constant::Bool(value) => Some(T::of_i64(i64::from(value))),
        Constant::Int(value) => T::takes_integer(value.into()).then(|| T::of_i64(value)),
        Constant::UInt(value) => T::takes_integer(value.into()).then(|| T::of_u64(value)),
        Constant::Float(bits) => match f64::from_bits(bits) {
            value if !T::takes_float(value) => None,
            value if value.is_nan() => Some(T::of_single(f32::from_bits(0x7fc0_0000))),
            value => Some(T::of_f64(value)),
        },
    }
}

impl Element for f64 {
    type Wide = f64;

    fn widen(self) -> f64 {
        self
    }

    fn of_f32(value: f32) -> Self {
        widen(value)
    }

    fn of_f64(value: f64) -> Self {
        value
    }

    fn of_i64(value: i64) -> Self {
        value as f64
    }

    fn of_u64(value: u64) -> Self {
        value as f64
    }
}

impl Element for f32 {
    type Wide = f32;

    fn widen(self) -> f32 {
        self
    }

    fn of_f32(value: f32) -> Self {
        value
    }

    fn takes_float(value: f64) -> bool {
        !value.is_finite() || value.abs() <= f64::from(f32::MAX)
    }
}

impl Element for F16 {
    type Wide = Single;

    fn widen(self) -> Single {
        Single(F16::widen(self))
    }

    fn of_f32(value: f32) -> Self {
        Self::of(value)
    }
}

impl Element for Bf16 {
    type Wide = f32;

    fn widen(self) -> f32 {
        Bf16::widen(self)
    }

    fn of_f32(value: f32) -> Self {
        Self::of(value, 0xffff)
    }

    fn of_single(value: f32) -> Self {
        Self::of(value, 0x7fc0)
    }
}

impl Element for E4m3fn {
    type Wide = Single;

    fn widen(self) -> Single {
        Single(E4m3fn::widen(self))
    }

    fn of_f32(value: f32) -> Self {
        Self::of(value)
    }
}

impl Element for E5m2 {
    type Wide = Single;

    fn widen(self) -> Single {
        Single(E5m2::widen(self))
    }

    fn of_f32(value: f32) -> Self {
        Self::of(value)
    }
}

/// One byte, 0 or 1. What torch does with others is not defined; here they are true.
#[derive(Clone, Copy)]
pub(super) struct Bool(bool);

impl Element for Bool {
    type Wide = i64;

    fn widen(self) -> i64 {
        i64::from(self.0)
    }

    fn of_f32(value: f32) -> Self {
        Self(value != 0.0)
    }

    fn of_f64(value: f64) -> Self {
        Self(value != 0.0)
    }

    fn of_i64(value: i64) -> Self {
        Self(value != 0)
    }

    fn of_u64(value: u64) -> Self {
        Self(value != 0)
    }
}
