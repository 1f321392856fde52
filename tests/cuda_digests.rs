//! Digests of tensors on CUDA devices, on the fake driver: the same as those of the same bytes in host memory, which the tests
//! of `digests.rs` and `tree.rs` compare with independent truth.

mod common;
#[path = "common/devices.rs"]
mod devices;
mod fake_cuda;

use common::{BFLOAT16, FLOAT32, Tensor, UINT8, digests_with, last_error, options, sha256};
use devices::{ALGORITHMS, address, algorithm, assert_clean, bytes, on, painted, put};
use fake_cuda::Fake;
use proptest::prelude::*;
use weight_checker::ffi::types::WcOptions;
use weight_checker::status::Status;

const LEAF: usize = 8192;
const CHUNK: usize = 128 * LEAF;

/// Both digests of tensors with these bytes in host memory.
fn of_host(contents: &[Vec<u8>], options: &WcOptions) -> Vec<[u8; 32]> {
    let tensors: Vec<Tensor> =
        contents.iter().enumerate().map(|(index, bytes)| Tensor::bytes(&index.to_string(), bytes)).collect();
    digests_with(&tensors, options).unwrap()
}

fn check(fake: &Fake, device: i32, contents: &[Vec<u8>]) {
    let memory: Vec<_> = contents.iter().map(|content| put(fake, device, content)).collect();
    let tensors: Vec<Tensor> =
        memory.iter().enumerate().map(|(index, memory)| bytes(&index.to_string(), device, memory)).collect();
    for code in ALGORITHMS {
        let found =
            digests_with(&tensors, &algorithm(code)).unwrap_or_else(|status| panic!("{status:?}: {}", last_error()));
        assert_eq!(found, of_host(contents, &algorithm(code)), "algorithm {code}");
        assert_clean(fake);
    }
}

#[test]
fn lengths_around_blocks_leaves_and_chunks() {
    let fake = Fake::start();
    let mut lengths: Vec<usize> = (0..200).collect();
    for base in [LEAF, 2 * LEAF, 3 * LEAF, 127 * LEAF, CHUNK, CHUNK + LEAF, 2 * CHUNK, 3 * CHUNK + 5 * LEAF] {
        lengths.extend(base - 2..=base + 2);
    }
    let contents: Vec<Vec<u8>> = lengths.iter().map(|length| painted(*length)).collect();
    check(&fake, 0, &contents);
}

#[test]
fn more_chunks_than_one_run_of_roots() {
    let fake = Fake::start();
    check(&fake, 1, &[painted(257 * CHUNK + 3), painted(1), painted(5 * CHUNK)]);
}

/// Lanes that are filled again in the middle of a turn are put down with bytes that have come and are not hashed.
#[test]
fn many_tensors_of_many_lengths() {
    let fake = Fake::start();
    let contents: Vec<Vec<u8>> = (0..50).map(|index| painted(100_001 + index * 37_003)).collect();
    let memory: Vec<_> = contents.iter().map(|content| fake.put(0, content)).collect();
    let tensors: Vec<Tensor> =
        memory.iter().enumerate().map(|(index, memory)| bytes(&index.to_string(), 0, memory)).collect();
    let expected = of_host(&contents, &options(0));
    for threads in [1, 2, 3, 7] {
        assert_eq!(digests_with(&tensors, &options(threads)).unwrap(), expected, "{threads} threads");
        assert_clean(&fake);
    }
}

/// Threads share the memory where strided tensors are put together.
#[test]
fn many_strided_tensors_on_many_threads() {
    let fake = Fake::start();
    let content = painted(400_000);
    let memory = fake.put(0, &content);
    let tensor = |index: usize, data| Tensor::new(&index.to_string(), data, UINT8, &[1500, 100]).strided(&[200, 1]);
    let here: Vec<Tensor> = (0..24).map(|index| tensor(index, content[index * 101..].as_ptr())).collect();
    let there: Vec<Tensor> =
        (0..24).map(|index| on(0, tensor(index, address(memory.address + index as u64 * 101)))).collect();
    let expected = digests_with(&here, &options(1)).unwrap();
    for threads in [2, 4, 16].repeat(8) {
        assert_eq!(digests_with(&there, &options(threads)).unwrap(), expected, "{threads} threads");
        assert_clean(&fake);
    }
}

/// A stream of a device that has no tensor in the call: what it holds is waited for too.
#[test]
fn the_producers_stream_may_be_of_another_device() {
    let fake = Fake::start();
    let memory = fake.put(0, &[1; 100]);
    let options = WcOptions { stream: address(fake.stream(1)).cast_mut().cast(), ..options(1) };
    assert_eq!(digests_with(&[bytes("t", 0, &memory)], &options).unwrap(), [sha256(&[1; 100])]);
    assert_clean(&fake);
}

#[test]
fn starts_at_any_byte() {
    let fake = Fake::start();
    let content = painted(CHUNK + 3 * LEAF + 77);
    let memory = fake.put(0, &content);
    let tensors: Vec<Tensor> = (0..18)
        .map(|start| {
            let length = content.len() as i64 - start;
            on(0, Tensor::new(&start.to_string(), address(memory.address + start as u64), UINT8, &[length]))
        })
        .collect();
    let contents: Vec<Vec<u8>> = (0..18).map(|start| content[start..].to_vec()).collect();
    for code in ALGORITHMS {
        assert_eq!(digests_with(&tensors, &algorithm(code)).unwrap(), of_host(&contents, &algorithm(code)));
        assert_clean(&fake);
    }
}

/// Host and device tensors of the same strides over the same bytes.
fn check_strided(fake: &Fake, content: &[u8], offset: usize, element: (u8, u8), shape: &[i64], strides: &[i64]) {
    let memory = fake.put(0, content);
    let tensor = |data| Tensor::new("t", data, element, shape).strided(strides);
    let here = tensor(content[offset..].as_ptr());
    let there = on(0, tensor(address(memory.address + offset as u64)));
    for code in ALGORITHMS {
        let found = digests_with(std::slice::from_ref(&there), &algorithm(code)).unwrap();
        let expected = digests_with(std::slice::from_ref(&here), &algorithm(code)).unwrap();
        assert_eq!(found, expected, "{shape:?} {strides:?} at {offset}");
        assert_clean(fake);
    }
}

#[test]
fn transposed_and_sliced_matrices() {
    let fake = Fake::start();
    let content = painted(3 << 20);
    for (element, shape, strides) in [
        (UINT8, [1000, 700], [1, 1000]),
        (BFLOAT16, [700, 1000], [1, 700]),
        (BFLOAT16, [700, 512], [1024, 1]),
        (FLOAT32, [300, 301], [1024, 3]),
        (FLOAT32, [3000, 500], [0, 1]),
        // Rows that are multiples of 16 bytes at distances that are not.
        (UINT8, [3000, 48], [49, 1]),
        (BFLOAT16, [700, 64], [66, 1]),
        (FLOAT32, [1000, 8], [10, 1]),
        (UINT8, [3, 70_001], [100_003, 1]),
    ] {
        for offset in [0, 4, 64] {
            check_strided(&fake, &content, offset, element, &shape, &strides);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, cases: 60, ..ProptestConfig::default() })]

    #[test]
    fn any_strides(
        dims in prop::collection::vec((1i64..40, 0i64..60), 1..5),
        element in prop::sample::select(vec![UINT8, BFLOAT16, FLOAT32, (5, 128)]),
        offset in 0usize..17,
    ) {
        let (shape, strides): (Vec<i64>, Vec<i64>) = dims.into_iter().unzip();
        let fake = Fake::start();
        check_strided(&fake, &painted(256 << 10), offset, element, &shape, &strides);
    }
}

#[test]
fn several_devices_and_the_host_in_one_call() {
    let fake = Fake::start();
    let contents: Vec<Vec<u8>> = (0..12).map(|index| painted(index * 300_001)).collect();
    let memory: Vec<_> = contents
        .iter()
        .enumerate()
        .map(|(index, content)| (index % 3, put(&fake, index as i32 % 2, content)))
        .collect();
    let tensors: Vec<Tensor> = memory
        .iter()
        .enumerate()
        .map(|(index, (kind, memory))| match kind {
            2 => Tensor::bytes(&index.to_string(), &contents[index]),
            _ => bytes(&index.to_string(), index as i32 % 2, memory),
        })
        .collect();
    for code in ALGORITHMS {
        assert_eq!(digests_with(&tensors, &algorithm(code)).unwrap(), of_host(&contents, &algorithm(code)));
        assert_clean(&fake);
    }
}

#[test]
fn shared_memory_is_hashed_once() {
    let fake = Fake::start();
    let memory = fake.put(0, &painted(LEAF));
    let other = fake.put(1, &painted(LEAF));
    let tensors = [bytes("a", 0, &memory), bytes("b", 0, &memory), bytes("c", 1, &other)];
    for code in ALGORITHMS {
        assert_eq!(
            digests_with(&tensors, &algorithm(code)).unwrap(),
            vec![of_host(&[painted(LEAF)], &algorithm(code))[0]; 3]
        );
    }
    assert_eq!(fake.log().iter().filter(|call| call.starts_with("cuMemcpyDtoH")).count(), 2 + 2);
    assert_clean(&fake);
}

#[test]
fn the_producers_stream_is_waited_for() {
    let fake = Fake::start();
    let content = painted(2 * CHUNK + 100);
    let memory = fake.put(0, &vec![0; content.len()]);
    for handle in [0, 1, 2, fake.stream(0), fake.stream(0)] {
        for code in ALGORITHMS {
            memory.write(0, &vec![0; content.len()]);
            memory.write_later(handle, 0, &content);
            let options = WcOptions { stream: address(handle).cast_mut().cast(), ..algorithm(code) };
            let found = digests_with(&[bytes("t", 0, &memory)], &options).unwrap();
            assert_eq!(found, of_host(std::slice::from_ref(&content), &options), "stream {handle:#x}");
            assert_clean(&fake);
        }
    }
}

/// Another stream than the one that was named is not waited for: the fake tells the difference.
#[test]
fn another_stream_is_not() {
    let fake = Fake::start();
    let memory = fake.put(0, &[0; 1000]);
    let (named, other) = (fake.stream(0), fake.stream(0));
    memory.write_later(other, 0, &[1; 1000]);
    let options = WcOptions { stream: address(named).cast_mut().cast(), ..options(1) };
    assert_eq!(digests_with(&[bytes("t", 0, &memory)], &options).unwrap(), [sha256(&[0; 1000])]);
}

#[test]
fn pinned_memory_is_bounded() {
    let fake = Fake::start();
    // What earlier calls have left is freed by one that may pin little.
    let options_of = |most| WcOptions { max_host_bytes: most, ..options(2) };
    let small = [fake.put(0, &[1; 10]), fake.put(1, &[1; 10])];
    digests_with(&[bytes("a", 0, &small[0]), bytes("b", 1, &small[1])], &options_of(1 << 20)).unwrap();
    assert_eq!(fake.counts().pinned_bytes, 0);
    drop(small);
    fake.reset();
    let contents: Vec<Vec<u8>> = (0..40).map(|index| painted((1 << 20) + index)).collect();
    let memory: Vec<_> = contents.iter().map(|bytes| fake.put(0, bytes)).collect();
    let tensors: Vec<Tensor> =
        memory.iter().enumerate().map(|(index, memory)| bytes(&index.to_string(), 0, memory)).collect();
    for most in [1 << 20, 3 << 20, 16 << 20, 64 << 20] {
        let options = options_of(most);
        assert_eq!(digests_with(&tensors, &options).unwrap(), of_host(&contents, &options));
        let peak = fake.counts().most_pinned_bytes;
        assert!(peak > 0 && peak <= most, "{peak} of {most}");
    }
    let options = options_of((1 << 20) - 1);
    assert_eq!(digests_with(&tensors, &options).unwrap_err(), Status::BadOption);
    assert!(last_error().contains("max_host_bytes"), "{}", last_error());
}
