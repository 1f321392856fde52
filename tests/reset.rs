//! reset writes exactly the elements, valid for the dtype, the same bytes on every run.

mod common;

use common::{BFLOAT16, FLOAT32, Tensor, UINT8, reset};
use proptest::prelude::*;
use serde_json::json;

const ZERO: u32 = 0;
const RANDOM: u32 = 1;
const POISON: u32 = 2;

/// The tensors see memory through raw pointers, so it is written behind the compiler's back: a cell says so.
struct Memory(Box<[std::cell::UnsafeCell<u8>]>);

impl Memory {
    fn new(length: usize) -> Self {
        Self((0..length).map(|index| (index as u8 | 1).into()).collect())
    }

    fn at(&self, offset: usize) -> *const u8 {
        self.0[offset..].as_ptr().cast()
    }

    fn bytes(&self) -> Vec<u8> {
        // SAFETY: no call of the library is running.
        self.0.iter().map(|byte| unsafe { *byte.get() }).collect()
    }
}

fn filled(length: usize, dtype: (u8, u8), fill: u32, seed: u64, name: &str) -> Vec<u8> {
    let memory = Memory::new(length);
    let elements = length as i64 * 8 / i64::from(dtype.1);
    reset(&[Tensor::new(name, memory.at(0), dtype, &[elements])], fill, seed).unwrap();
    memory.bytes()
}

#[test]
fn zero_and_poison() {
    assert_eq!(filled(1001, UINT8, ZERO, 5, "t"), vec![0; 1001]);
    assert_eq!(filled(1001, UINT8, POISON, 5, "t"), vec![0xff; 1001]);
    let floats = filled(1024, FLOAT32, POISON, 0, "t");
    assert!(floats.chunks(4).all(|value| f32::from_le_bytes(value.try_into().unwrap()).is_nan()));
}

#[test]
fn random_depends_on_seed_and_name_only() {
    let first = filled(1001, UINT8, RANDOM, 1, "t");
    assert_eq!(first, filled(1001, UINT8, RANDOM, 1, "t"));
    assert_ne!(first, filled(1001, UINT8, RANDOM, 2, "t"));
    assert_ne!(first, filled(1001, UINT8, RANDOM, 1, "u"));
    assert_eq!(first[..500], filled(500, UINT8, RANDOM, 1, "t"));
    let distinct: std::collections::HashSet<_> = first.iter().collect();
    assert!(distinct.len() > 200, "{} of 256 byte values in 1001 random bytes", distinct.len());
}

#[test]
fn random_values_are_valid() {
    assert!(filled(4096, (6, 8), RANDOM, 1, "t").iter().all(|byte| *byte <= 1));
    let bfloats = filled(4096, BFLOAT16, RANDOM, 1, "t");
    assert!(
        bfloats.chunks(2).all(|value| {
            f32::from_bits(u32::from(u16::from_le_bytes(value.try_into().unwrap())) << 16).is_finite()
        })
    );
    let doubles = filled(4096, (2, 64), RANDOM, 1, "t");
    assert!(doubles.chunks(8).all(|value| f64::from_le_bytes(value.try_into().unwrap()).abs() < 2.0));
}

#[test]
fn shared_memory_is_written_once() {
    let memory = Memory::new(64);
    let tensors = [
        Tensor::new("embed", memory.at(0), FLOAT32, &[8]),
        Tensor::new("head", memory.at(0), FLOAT32, &[8]),
        Tensor::new("other", memory.at(32), FLOAT32, &[8]),
    ];
    let report = reset(&tensors, RANDOM, 3).unwrap();
    assert_eq!(report, json!({ "tensors": 3, "written": 2, "shared": 1, "bytes": 64 }));
    assert_eq!(memory.bytes()[..32], filled(32, FLOAT32, RANDOM, 3, "embed"));
    assert_eq!(memory.bytes()[32..], filled(32, FLOAT32, RANDOM, 3, "other"));
}

#[test]
fn overlapping_tensors_are_written_in_the_order_given() {
    let size = 4 << 20;
    let memory = Memory::new(size);
    let half = size as i64 / 2;
    let tensors = [
        Tensor::new("all", memory.at(0), UINT8, &[size as i64]),
        Tensor::new("second half", memory.at(size / 2), UINT8, &[half]),
        Tensor::new("first half", memory.at(0), UINT8, &[half]),
    ];
    reset(&tensors, RANDOM, 9).unwrap();
    assert!(memory.bytes()[..size / 2] == filled(size / 2, UINT8, RANDOM, 9, "first half"));
    assert!(memory.bytes()[size / 2..] == filled(size / 2, UINT8, RANDOM, 9, "second half"));
}

#[test]
fn nothing_is_nothing() {
    assert_eq!(reset(&[], ZERO, 0).unwrap(), json!({ "tensors": 0, "written": 0, "shared": 0, "bytes": 0 }));
    let empty = [Tensor::new("a", std::ptr::null(), UINT8, &[0]), Tensor::new("b", std::ptr::null(), UINT8, &[0])];
    assert_eq!(reset(&empty, ZERO, 0).unwrap(), json!({ "tensors": 2, "written": 2, "shared": 0, "bytes": 0 }));
}

proptest! {
    #[test]
    fn nothing_between_strides(dims in prop::collection::vec((0i64..6, 0i64..50), 0..4), fill in 0u32..3) {
        let memory = Memory::new(4 * (4 * 6 * 50 + 1));
        let before = memory.bytes();
        let (shape, strides): (Vec<i64>, Vec<i64>) = dims.into_iter().unzip();
        reset(&[Tensor::new("t", memory.at(0), FLOAT32, &shape).strided(&strides)], fill, 1).unwrap();
        let mut elements = vec![0usize];
        for (extent, stride) in shape.iter().zip(&strides) {
            elements = elements.iter().flat_map(|at| (0..*extent).map(move |index| at + (index * stride) as usize)).collect();
        }
        for (at, (before, after)) in before.iter().zip(memory.bytes()).enumerate() {
            let expected = match fill {
                _ if !elements.contains(&(at / 4)) => *before,
                ZERO => 0,
                POISON => 0xff,
                _ => after,
            };
            prop_assert_eq!(after, expected, "byte {}", at);
        }
    }
}
