//! Integers: they wrap, and floats are cut off towards zero.
//!
//! A float that does not fit is undefined in C++. These do what x86 does, which torch's vectors show: the processor
//! answers with the smallest number of 32 or 64 bits, and narrower types take the lower bits of that.

use super::element::Element;

const TWO_31: f64 = 2_147_483_648.0;
const TWO_63: f64 = 9_223_372_036_854_775_808.0;

fn int32(value: f64) -> i32 {
    if value > -TWO_31 - 1.0 && value < TWO_31 { value as i32 } else { i32::MIN }
}

fn int64(value: f64) -> i64 {
    if (-TWO_63..TWO_63).contains(&value) { value as i64 } else { i64::MIN }
}

fn uint32(value: f64) -> u32 {
    if value >= TWO_31 { int32(value - TWO_31) as u32 ^ 1 << 31 } else { int32(value) as u32 }
}

fn uint64(value: f64) -> u64 {
    if value >= TWO_63 { int64(value - TWO_63) as u64 ^ 1 << 63 } else { int64(value) as u64 }
}

macro_rules! integers {
    ($($type:ty, $wide:ty, $of_float:ident $(, $of_single:ident)?;)*) => {
        $(impl Element for $type {
            type Wide = $wide;

            fn widen(self) -> $wide {
                <$wide>::from(self)
            }

            fn of_f32(value: f32) -> Self {
                Self::of_f64(f64::from(value))
            }

            fn of_f64(value: f64) -> Self {
                $of_float(value) as $type
            }

            $(fn of_single(value: f32) -> Self {
                $of_single(f64::from(value)) as $type
            })?

            fn of_i64(value: i64) -> Self {
                value as $type
            }

            fn of_u64(value: u64) -> Self {
                value as $type
            }

            fn takes_float(value: f64) -> bool {
                (<$type>::MIN as f64..=<$type>::MAX as f64).contains(&value)
            }

            /// Types without a sign take negative numbers too, which wrap.
            fn takes_integer(value: i128) -> bool {
                let least = if <$type>::MIN == 0 { -(<$type>::MAX as i128) } else { <$type>::MIN as i128 };
                (least..=<$type>::MAX as i128).contains(&value)
            }
        })*
    };
}

integers! {
    i8, i64, int32;
    i16, i64, int32;
    i32, i64, int32;
    i64, i64, int64;
    u8, i64, int64;
    u16, i64, int32;
    u32, i64, uint32, int64;
    u64, u64, uint64;
}
