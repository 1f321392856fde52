//! Floats that Rust has no stable type for, and the conversions whose NaN Rust leaves open: written on bit patterns and
//! without branches, so that the compiler makes vector code of them.

/// IEEE binary16.
#[derive(Clone, Copy)]
pub(super) struct F16(pub u16);

/// The upper half of an f32.
#[derive(Clone, Copy)]
pub(super) struct Bf16(pub u16);

/// Eight bits: four of exponent, no infinity, NaN where all others are set.
#[derive(Clone, Copy)]
pub(super) struct E4m3fn(pub u8);

/// The upper half of a binary16.
#[derive(Clone, Copy)]
pub(super) struct E5m2(pub u8);

const SIGN: u32 = 1 << 31;
const INFINITY: u32 = 0xff << 23;
const QUIET: u32 = 1 << 22;

impl F16 {
    /// A NaN keeps its sign and the upper bits of its payload.
    pub fn of(value: f32) -> Self {
        let (sign, magnitude) = halves(value);
        let rounded = round::<10, 15>(magnitude).min(0x7c00);
        let nan = 0x7e00 | magnitude >> 13 & 0x3ff;
        Self((sign >> 16 | if magnitude > INFINITY { nan } else { rounded }) as u16)
    }

    /// Exact; a signalling NaN becomes quiet.
    pub fn widen(self) -> f32 {
        let (sign, magnitude) = (u32::from(self.0 & 0x8000) << 16, u32::from(self.0 & 0x7fff) << 13);
        let special = if magnitude > 0x7c00 << 13 { INFINITY | QUIET } else { INFINITY };
        let normal = if magnitude >= 0x7c00 << 13 { magnitude | special } else { magnitude + ((127 - 15) << 23) };
        f32::from_bits(sign | if magnitude < 1 << 23 { subnormal::<15>(magnitude) } else { normal })
    }
}

impl Bf16 {
    /// Rounds to even; any NaN becomes `nan`.
    pub fn of(value: f32, nan: u16) -> Self {
        let bits = value.to_bits();
        let rounded = bits.wrapping_add(0x7fff + (bits >> 16 & 1)) >> 16;
        Self(if bits & !SIGN > INFINITY { nan } else { rounded as u16 })
    }

    /// Exact, payloads of NaN included.
    pub fn widen(self) -> f32 {
        f32::from_bits(u32::from(self.0) << 16)
    }
}

impl E4m3fn {
    /// Numbers too large, and infinities, become the largest one.
    pub fn of(value: f32) -> Self {
        let (sign, magnitude) = halves(value);
        let rounded = round::<3, 7>(magnitude).min(0x7e);
        Self((sign >> 24 | if magnitude > INFINITY { 0x7f } else { rounded }) as u8)
    }

    /// Exact; NaN has the payload that torch gives it.
    pub fn widen(self) -> f32 {
        let (sign, magnitude) = (u32::from(self.0 & 0x80) << 24, u32::from(self.0 & 0x7f) << 20);
        let normal =
            if magnitude == 0x7f << 20 { INFINITY | magnitude & !INFINITY } else { magnitude + ((127 - 7) << 23) };
        f32::from_bits(sign | if magnitude < 1 << 23 { subnormal::<7>(magnitude) } else { normal })
    }
}

impl E5m2 {
    /// Numbers too large become infinity.
    pub fn of(value: f32) -> Self {
        let (sign, magnitude) = halves(value);
        let rounded = round::<2, 15>(magnitude).min(0x7c);
        Self((sign >> 24 | if magnitude > INFINITY { 0x7f } else { rounded }) as u8)
    }

    /// Exact; a signalling NaN becomes quiet.
    pub fn widen(self) -> f32 {
        F16(u16::from(self.0) << 8).widen()
    }
}

/// `value` in double precision; a NaN keeps sign and payload and becomes quiet.
pub(super) fn widen(value: f32) -> f64 {
    let (sign, magnitude) = halves(value);
    let nan = (u64::from(sign) << 32) | 0x7ff8 << 48 | u64::from(magnitude & !INFINITY) << 29;
    if value.is_nan() { f64::from_bits(nan) } else { f64::from(value) }
}

/// `value` rounded to even; a NaN keeps its sign and the upper bits of its payload, and becomes quiet.
pub(super) fn narrow(value: f64) -> f32 {
    let bits = value.to_bits();
    let nan = (bits >> 32) as u32 & SIGN | INFINITY | QUIET | (bits >> 29) as u32 & !(SIGN | INFINITY);
    if value.is_nan() { f32::from_bits(nan) } else { value as f32 }
}

/// Sign and magnitude of a float's bits.
fn halves(value: f32) -> (u32, u32) {
    let bits = value.to_bits();
    (bits & SIGN, bits & !SIGN)
}

/// `magnitude` (of an f32) rounded to even to `MANTISSA` bits, its exponent biased by `BIAS` and without an upper end.
fn round<const MANTISSA: u32, const BIAS: u32>(magnitude: u32) -> u32 {
    let shift = 23 - MANTISSA;
    let half = (1 << (shift - 1)) - 1 + (magnitude >> shift & 1);
    let normal = magnitude.wrapping_sub((127 - BIAS) << 23).wrapping_add(half) >> shift;
    // Adding a number whose last mantissa bit is worth the smallest subnormal makes the processor round to it.
    let unit = (127 - BIAS + shift + 1) << 23;
    let small = (f32::from_bits(magnitude) + f32::from_bits(unit)).to_bits().wrapping_sub(unit);
    if magnitude < (128 - BIAS) << 23 { small } else { normal }
}

/// The bits of a number whose exponent field is 0 and whose mantissa sits at the top of an f32's.
fn subnormal<const BIAS: u32>(mantissa: u32) -> u32 {
    let one = (128 - BIAS) << 23;
    (f32::from_bits(mantissa | one) - f32::from_bits(one)).to_bits()
}
