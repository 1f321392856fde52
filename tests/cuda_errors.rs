//! What can go wrong with tensors on CUDA devices, on the fake driver: each has its status, and nothing is left behind.

mod common;
#[path = "common/devices.rs"]
mod devices;
mod fake_cuda;

use common::{BFLOAT16, Tensor, UINT8, compare, digests_with, last_error, options, reset};
use devices::{ALGORITHMS, address, algorithm, assert_clean, bytes, on, painted};
use fake_cuda::{Capture, Counts, DeviceMemory, Fake};
use weight_checker::ffi::types::WcOptions;
use weight_checker::status::Status;

/// What is refused is refused by every verb, by this status, with these words, and nothing is written.
fn refused(fake: &Fake, tensors: &[Tensor], status: Status, words: &[&str]) {
    for code in ALGORITHMS {
        assert_eq!(digests_with(tensors, &algorithm(code)).unwrap_err(), status);
        words.iter().for_each(|word| assert!(last_error().contains(word), "{word}: {}", last_error()));
    }
    assert_eq!(reset(tensors, 0, 0).unwrap_err(), status);
    words.iter().for_each(|word| assert!(last_error().contains(word), "{word}: {}", last_error()));
    assert_clean(fake);
}

#[test]
fn memory_that_is_not_the_devices() {
    let fake = Fake::start();
    let memory = fake.put(0, &painted(1000));
    let kept = memory.read();
    let good = || bytes("good", 0, &memory);
    let host = painted(1000);
    let freed = fake.put(0, &painted(1000));
    let gone = freed.address;
    drop(freed);

    let at = |address_of, device| on(device, Tensor::new("bad", address(address_of), UINT8, &[1000]));
    let unallocated = Status::UnallocatedDeviceMemory;
    refused(&fake, &[good(), at(gone, 0)], unallocated, &["'bad'", "freed", "sleeps"]);
    refused(&fake, &[good(), at(memory.address, 1)], Status::WrongDevice, &["'bad'", "device 1", "device 0"]);
    refused(&fake, &[good(), at(host.as_ptr() as u64, 0)], unallocated, &["'bad'", "not allocated"]);
    let long = on(0, Tensor::new("bad", address(memory.address), UINT8, &[1001]));
    refused(&fake, &[good(), long], unallocated, &["'bad'"]);
    let wide = on(0, Tensor::new("bad", address(memory.address), BFLOAT16, &[2, 10]).strided(&[491, 1]));
    refused(&fake, &[good(), wide], unallocated, &["'bad'"]);
    refused(&fake, &[good(), at(memory.address, 2)], Status::CudaUnavailable, &["device 2", "2"]);
    refused(&fake, &[good(), at(memory.address, -1)], Status::CudaUnavailable, &["device -1"]);
    assert!(memory.read() == kept, "what is refused was written to");
    digests_with(&[good()], &options(1)).unwrap();
}

/// Virtual memory as vLLM's sleep mode and PyTorch's expandable segments use it.
#[test]
fn memory_that_is_mapped_in_pieces() {
    const PIECE: usize = 64 << 10;
    let fake = Fake::start();
    let start = fake.reserve(0, 4 * PIECE);
    let pieces: Vec<u64> = (0..4).map(|index| start + index * PIECE as u64).collect();
    let tensor = |bytes: usize| on(0, Tensor::new("t", address(start), UINT8, &[bytes as i64]));
    refused(&fake, &[tensor(1)], Status::UnallocatedDeviceMemory, &["'t'", "sleeps"]);
    pieces[..3].iter().for_each(|piece| fake.map(*piece, PIECE));
    let content = painted(3 * PIECE);
    fake.write(start, &content);
    for code in ALGORITHMS {
        let expected = digests_with(&[Tensor::bytes("t", &content)], &algorithm(code)).unwrap();
        assert_eq!(digests_with(&[tensor(3 * PIECE)], &algorithm(code)).unwrap(), expected);
    }
    refused(&fake, &[tensor(3 * PIECE + 1)], Status::UnallocatedDeviceMemory, &["'t'", "sleeps"]);
    fake.unmap(pieces[1], PIECE);
    refused(&fake, &[tensor(3 * PIECE)], Status::UnallocatedDeviceMemory, &["'t'", &format!("{:#x}", pieces[1])]);
    digests_with(&[tensor(PIECE)], &options(1)).unwrap();
    assert_clean(&fake);
}

/// vLLM's offloading: a tensor that torch calls CUDA's, in pinned host memory that the device reads.
#[test]
fn offloaded_memory_is_read_through_the_device() {
    let fake = Fake::start();
    let content = painted(3_000_000);
    let start = fake.offload(&content);
    let tensor = |bytes| on(0, Tensor::new("t", address(start), UINT8, &[bytes]));
    for code in ALGORITHMS {
        let expected = digests_with(&[Tensor::bytes("t", &content)], &algorithm(code)).unwrap();
        assert_eq!(digests_with(&[tensor(3_000_000)], &algorithm(code)).unwrap(), expected);
    }
    refused(&fake, &[tensor(3_000_001)], Status::UnallocatedDeviceMemory, &["'t'", "1 bytes beyond"]);
    assert_clean(&fake);
}

/// Small allocations lie side by side on a device, so what leads out of one leads into another.
#[test]
fn memory_of_two_allocations() {
    const PIECE: usize = 4096;
    let fake = Fake::start();
    let start = fake.reserve(0, 2 * PIECE);
    fake.split(start, PIECE);
    [start, start + PIECE as u64].into_iter().for_each(|address| fake.map(address, PIECE));
    let tensor = |bytes| on(0, Tensor::new("t", address(start), UINT8, &[bytes]));
    digests_with(&[tensor(PIECE as i64)], &options(1)).unwrap();
    refused(&fake, &[tensor(PIECE as i64 + 3)], Status::UnallocatedDeviceMemory, &["'t'", "3 bytes beyond"]);
}

#[test]
fn a_stream_that_is_captured_is_refused_and_its_graph_survives() {
    let fake = Fake::start();
    let memory = fake.put(0, &painted(5000));
    let stream = fake.stream(0);
    fake.begin_capture(stream, Capture::Global);
    let on_stream = WcOptions { stream: address(stream).cast_mut().cast(), ..options(1) };
    assert_eq!(digests_with(&[bytes("t", 0, &memory)], &on_stream).unwrap_err(), Status::StreamCapturing);
    assert!(last_error().contains("captured into a CUDA graph"), "{}", last_error());
    assert_clean(&fake);
    assert!(!fake.end_capture(stream), "the capture was invalidated");
    digests_with(&[bytes("t", 0, &memory)], &on_stream).unwrap();
}

#[test]
fn a_capture_of_another_stream_goes_on() {
    let fake = Fake::start();
    let memory = fake.put(0, &painted(5000));
    let (captured, ours) = (fake.stream(0), fake.stream(0));
    fake.begin_capture(captured, Capture::Global);
    for code in ALGORITHMS {
        let options = WcOptions { stream: address(ours).cast_mut().cast(), ..algorithm(code) };
        digests_with(&[bytes("t", 0, &memory)], &options)
            .unwrap_or_else(|status| panic!("{status:?} {}", last_error()));
    }
    assert!(!fake.end_capture(captured), "the capture was invalidated");
    assert_clean(&fake);
}

/// A verb under its name, which gives the status of its failure.
type Verb<'f> = (&'static str, Box<dyn Fn() -> Option<Status> + 'f>);

/// The calls that are made to fail: tensors that need every part of the driver.
fn calls<'f>(first: &'f DeviceMemory<'_>, second: &'f DeviceMemory<'_>) -> Vec<Verb<'f>> {
    let tensors = move || {
        let strided = Tensor::new("strided", address(first.address), BFLOAT16, &[100, 50]).strided(&[1, 100]);
        [bytes("a", 0, first), on(0, strided), bytes("b", 1, second)]
    };
    // By one thread, so that each call needs as many buffers as the one before it.
    let options = |code| WcOptions { threads: 1, ..algorithm(code) };
    let digest = move |code| Box::new(move || digests_with(&tensors(), &options(code)).err());
    vec![
        ("checksum", digest(0)),
        ("checksum by trees", digest(1)),
        ("compare", Box::new(move || compare(&tensors(), r#"{"dp0:pp1:pcp2:tp3:a":"00"}"#).err())),
        ("reset", Box::new(move || reset(&tensors(), 1, 0).err())),
    ]
}

/// What the library holds now, when nothing is queued any more.
fn peakless(fake: &Fake) -> Counts {
    (0..2).for_each(|device| fake.run(device));
    Counts { most_device_bytes: 0, most_pinned_bytes: 0, ..fake.counts() }
}

/// Each driver call of each verb fails once, by several errors: a status, nothing left behind, and the next call works.
#[test]
fn every_driver_call_may_fail() {
    // Out of memory, illegal address, launch failure, unknown; and one that no version of CUDA has.
    const ERRORS: [i32; 4] = [2, 700, 719, 999];
    let fake = Fake::start();
    let (first, second) = (fake.put(0, &painted((1 << 20) + 70_000)), fake.put(1, &painted(3000)));
    let mut failed = 0;
    for (name, call) in calls(&first, &second) {
        assert_eq!(call(), None, "{name}: {}", last_error());
        fake.clear_log();
        assert_eq!(call(), None, "{name}");
        let log = fake.log();
        let settled = peakless(&fake);
        for (index, function) in log.iter().enumerate() {
            for error in ERRORS {
                fake.fail_nth(index as u64 + 1, error);
                let status = call();
                assert_eq!(fake.failures_left(), 0, "{name}: call {index} of {function} was not made again");
                assert!(status.is_some(), "{name}: {function} ({index}) failed with {error} unnoticed");
                let is_known = [Status::Cuda, Status::OutOfDeviceMemory, Status::UnallocatedDeviceMemory]
                    .contains(&status.unwrap());
                assert!(is_known, "{name}: {function} ({index}) {error}: {status:?} {}", last_error());
                assert_clean(&fake);
                fake.clear_failures();
                assert_eq!(call(), None, "{name} after {function} ({index}): {}", last_error());
                let now = peakless(&fake);
                // Memory that a call could not keep is made anew, perhaps smaller.
                assert!(now.device_bytes <= settled.device_bytes, "{name} after {function} ({index}): {now:?}");
                let now = Counts { device_bytes: settled.device_bytes, ..now };
                assert_eq!(now, settled, "{name} after {function} ({index})");
                failed += 1;
            }
        }
    }
    assert!(failed > 4 * 100, "{failed} failures");
}
