//! reset of tensors on CUDA devices, on the fake driver: the same bytes as in host memory.

mod common;
#[path = "common/devices.rs"]
mod devices;
mod fake_cuda;

use common::{BFLOAT16, FLOAT32, Tensor, UINT8, last_error, reset};
use devices::{address, assert_clean, bytes, on, painted, put};
use fake_cuda::Fake;
use proptest::prelude::*;

const FILLS: [u32; 3] = [0, 1, 2];

#[test]
fn lengths_and_fills() {
    let fake = Fake::start();
    let lengths: Vec<usize> =
        (0..70).chain([4096, (1 << 20) - 1, 1 << 20, (1 << 20) + 1, (3 << 20) + 24, 33_554_433]).collect();
    for fill in FILLS {
        let mut here: Vec<Vec<u8>> = lengths.iter().map(|length| painted(*length)).collect();
        let memory: Vec<_> = here.iter().map(|content| put(&fake, 1, content)).collect();
        let names: Vec<String> = lengths.iter().map(usize::to_string).collect();
        let there: Vec<Tensor> = memory.iter().zip(&names).map(|(memory, name)| bytes(name, 1, memory)).collect();
        let report = reset(&there, fill, 7).unwrap_or_else(|status| panic!("{status:?}: {}", last_error()));
        assert_clean(&fake);
        let tensors: Vec<Tensor> =
            here.iter_mut().zip(&names).map(|(content, name)| Tensor::bytes(name, content)).collect();
        assert_eq!(report, reset(&tensors, fill, 7).unwrap());
        for (content, memory) in here.iter().zip(&memory).filter(|(content, _)| !content.is_empty()) {
            assert!(*content == memory.read(), "fill {fill} of {} bytes", content.len());
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, cases: 60, ..ProptestConfig::default() })]

    #[test]
    fn any_strides_and_nothing_between(
        dims in prop::collection::vec((1i64..20, 0i64..50), 1..5),
        element in prop::sample::select(vec![UINT8, BFLOAT16, FLOAT32, (2, 64), (5, 128)]),
        offset in 0usize..17,
        fill in 0u32..3,
        seed in any::<u64>(),
    ) {
        let (shape, strides): (Vec<i64>, Vec<i64>) = dims.into_iter().unzip();
        let fake = Fake::start();
        let mut here = painted((2 << 20) + 17);
        let memory = fake.put(0, &here);
        let tensor = |data| Tensor::new("weight", data, element, &shape).strided(&strides);
        let there = on(0, tensor(address(memory.address + offset as u64)));
        reset(&[there], fill, seed).unwrap();
        assert_clean(&fake);
        let data = here.as_mut_ptr().wrapping_add(offset);
        reset(&[tensor(data)], fill, seed).unwrap();
        prop_assert!(here == memory.read());
    }
}

#[test]
fn overlapping_tensors_are_written_in_the_order_given() {
    let fake = Fake::start();
    let mut here = painted(10_000);
    let memory = fake.put(0, &here);
    let places = [("c", 100, 5000), ("a", 0, 4000), ("b", 3000, 6000), ("d", 9000, 1000), ("e", 100, 5000)];
    let tensors = |start: *const u8, is_on_device: bool| -> Vec<Tensor> {
        let tensor = |(name, offset, bytes)| Tensor::new(name, start.wrapping_add(offset), UINT8, &[bytes]);
        let place = |tensor| if is_on_device { on(0, tensor) } else { tensor };
        places.into_iter().map(tensor).map(place).collect()
    };
    let there = reset(&tensors(address(memory.address), true), 1, 3).unwrap();
    assert_eq!(there, reset(&tensors(here.as_mut_ptr(), false), 1, 3).unwrap());
    assert!(here == memory.read());
    assert_clean(&fake);
}

#[test]
fn several_devices_and_the_host_in_one_call() {
    let fake = Fake::start();
    let mut here = painted(5000);
    let memory = [fake.put(0, &here), fake.put(1, &here)];
    let tensors =
        [bytes("x", 0, &memory[0]), Tensor::new("y", here.as_mut_ptr(), UINT8, &[5000]), bytes("z", 1, &memory[1])];
    reset(&tensors, 2, 0).unwrap();
    assert_clean(&fake);
    assert!(here.iter().chain(&memory[0].read()).chain(&memory[1].read()).all(|byte| *byte == 0xff));
}

#[test]
fn the_producers_stream_is_waited_for() {
    let fake = Fake::start();
    let memory = fake.put(0, &[1; 5000]);
    memory.write_later(0, 0, &[2; 5000]);
    reset(&[bytes("t", 0, &memory)], 0, 0).unwrap();
    fake.run(0);
    assert!(memory.read().iter().all(|byte| *byte == 0));
}
