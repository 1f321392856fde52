//! Digests of all shapes, strides, lengths and alignments against the `sha2` crate over bytes gathered by definition.

mod common;

use common::pages::{PAGE, Pages};
use common::{BFLOAT16, FLOAT32, PREFIX, Tensor, UINT8, checksum, digests, hex, sha256};
use proptest::prelude::*;

/// Bytes with a prime period, so that no two blocks of the hash are alike.
fn painted(length: usize) -> Vec<u8> {
    (0..length).map(|index| (index % 251) as u8).collect()
}

/// The logical bytes of a strided tensor, by the definition of strides.
fn logical(memory: &[u8], shape: &[i64], strides: &[i64], element: usize) -> Vec<u8> {
    let mut offsets = vec![0usize];
    for (extent, stride) in shape.iter().zip(strides) {
        offsets = offsets.iter().flat_map(|at| (0..*extent).map(move |index| at + (index * stride) as usize)).collect();
    }
    offsets.iter().flat_map(|at| memory[at * element..(at + 1) * element].iter().copied()).collect()
}

#[test]
fn lengths_and_starts() {
    let memory = painted(300 + 64);
    for start in 0..64 {
        let bytes = |length: usize| &memory[start..start + length];
        let tensors: Vec<Tensor> = (0..=300).map(|length| Tensor::bytes(&length.to_string(), bytes(length))).collect();
        for (length, digest) in digests(&tensors, 0).unwrap().iter().enumerate() {
            assert_eq!(*digest, sha256(bytes(length)), "{length} bytes from {start}");
        }
    }
}

#[test]
fn large_tensors_on_any_number_of_threads() {
    let memory: Vec<Vec<u8>> = (0..9).map(|index| painted((4 << 20) * index + index)).collect();
    let tensors: Vec<Tensor> =
        memory.iter().enumerate().map(|(index, bytes)| Tensor::bytes(&index.to_string(), bytes)).collect();
    let expected: Vec<_> = memory.iter().map(|bytes| sha256(bytes)).collect();
    for threads in [0, 1, 2, 3, 64, u32::MAX] {
        assert_eq!(digests(&tensors, threads).unwrap(), expected, "{threads} threads");
    }
}

#[test]
fn the_last_byte_of_a_page() {
    let pages = Pages::new(2);
    pages.protect(1, libc::PROT_NONE);
    let bytes = painted(PAGE);
    pages.fill(0, &bytes);
    for length in [1, 55, 56, 63, 64, 65, 4096] {
        let tensor = Tensor::new("t", pages.at(PAGE - length), UINT8, &[length as i64]);
        assert_eq!(digests(&[tensor], 0).unwrap()[0], sha256(&bytes[PAGE - length..]));
    }
    // 2 columns of 3, the last element ends the page: strides of 6 elements must not read the gap behind it.
    let tensor = Tensor::new("t", pages.at(PAGE - 16), FLOAT32, &[2, 2]).strided(&[2, 1]);
    assert_eq!(digests(&[tensor], 0).unwrap()[0], sha256(&bytes[PAGE - 16..]));
    let tensor = Tensor::new("t", pages.at(PAGE - 4 * 11), FLOAT32, &[2, 2]).strided(&[9, 1]);
    assert_eq!(digests(&[tensor], 0).unwrap()[0], sha256(&logical(&bytes[PAGE - 44..], &[2, 2], &[9, 1], 4)));
}

#[test]
fn gathering_more_than_one_buffer() {
    let memory = painted(6 << 20);
    for (dtype, element) in [(UINT8, 1), (BFLOAT16, 2), (FLOAT32, 4)] {
        for (shape, strides) in [
            (vec![1000, 1023], vec![1, 1001]),           // transposed
            (vec![1023, 500], vec![1001, 2]),            // every second column
            (vec![300, 700], vec![1001, 1]),             // narrowed
            (vec![900_000], vec![1]),                    // compact
            (vec![3, 300_000], vec![0, 1]),              // expanded
            (vec![2, 2500, 100], vec![500_000, 100, 1]), // long blocks
            (vec![300_000, 3], vec![1, 0]),              // each element three times
        ] {
            let tensor = Tensor::new("t", memory.as_ptr(), dtype, &shape).strided(&strides);
            let expected = sha256(&logical(&memory, &shape, &strides, element));
            assert_eq!(digests(&[tensor], 0).unwrap()[0], expected, "{shape:?} {strides:?}");
        }
    }
}

#[test]
fn shapes_of_any_rank() {
    let memory = painted(8);
    for ndim in [0usize, 1, 31, 32] {
        let mut shape = vec![1i64; ndim];
        if let Some(last) = shape.last_mut() {
            *last = 2;
        }
        let length = if ndim == 0 { 4 } else { 8 };
        let tensor = Tensor::new("t", memory.as_ptr(), FLOAT32, &shape);
        assert_eq!(digests(&[tensor], 0).unwrap()[0], sha256(&memory[..length]), "rank {ndim}");
    }
    let empty = Tensor::new("t", std::ptr::null(), FLOAT32, &[3, 0, 5]);
    assert_eq!(digests(&[empty], 0).unwrap()[0], sha256(&[]));
}

#[test]
fn keys_come_in_the_order_given_and_shared_memory_under_every_name() {
    let memory = painted(1000);
    let tensors = [
        Tensor::bytes("z.weight", &memory),
        Tensor::bytes("a \"quoted\" näme", &memory[..10]),
        Tensor::bytes("tied", &memory),
    ];
    let json = checksum(&tensors).unwrap();
    let pairs: Vec<_> =
        json.as_object().unwrap().iter().map(|(key, digest)| (key.as_str(), digest.as_str().unwrap())).collect();
    let (all, ten) = (hex(&sha256(&memory)), hex(&sha256(&memory[..10])));
    let key = |name: &str| format!("{PREFIX}{name}");
    let keys = [key("z.weight"), key("a \"quoted\" näme"), key("tied")];
    assert_eq!(pairs, [(keys[0].as_str(), &*all), (&keys[1], &*ten), (&keys[2], &*all)]);
    assert_eq!(checksum(&[]).unwrap(), serde_json::json!({}));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]
    #[test]
    fn any_layout(
        dims in prop::collection::vec((0i64..9, 0i64..120), 0..5),
        offset in 0u64..40,
        element in prop::sample::select(vec![(UINT8, 1usize), (BFLOAT16, 2), (FLOAT32, 4), ((5, 64), 8), ((5, 128), 16)]),
    ) {
        let memory = painted(16 * (4 * 9 * 120 + 1) + 40);
        let (shape, strides): (Vec<i64>, Vec<i64>) = dims.into_iter().unzip();
        let (dtype, size) = element;
        let mut tensor = Tensor::new("t", memory.as_ptr(), dtype, &shape).strided(&strides);
        tensor.raw.byte_offset = offset;
        let expected = sha256(&logical(&memory[offset as usize..], &shape, &strides, size));
        prop_assert_eq!(digests(&[tensor], 0).unwrap()[0], expected);
    }
}

/// Bit counts beyond 32 bits have broken other implementations. Needs 5 GB of memory: `cargo test --release -- --ignored`.
#[test]
#[ignore = "takes 5 GB of memory; run before a release"]
fn more_than_four_gigabytes() {
    let memory = painted((4 << 30) + 3);
    for length in [(512 << 20) - 1, 512 << 20, (512 << 20) + 1, memory.len()] {
        let tensor = Tensor::bytes("t", &memory[..length]);
        assert_eq!(digests(&[tensor], 0).unwrap()[0], sha256(&memory[..length]), "{length} bytes");
    }
}
