//! How the work on a CUDA device is cut, which no caller sees but by time and memory: small limits give the same roots.

mod common;
#[path = "common/devices.rs"]
mod devices;
mod fake_cuda;

use std::ops::ControlFlow;
use std::sync::Mutex;

use common::digests_with;
use devices::{algorithm, assert_clean, bytes, painted, put};
use fake_cuda::Fake;
use weight_checker::cuda::tree::{self, Limits};
use weight_checker::cuda::{CHUNK_BYTES, Call, Producer};
use weight_checker::hash;
use weight_checker::mapped::Access;
use weight_checker::progress::Progress;
use weight_checker::status::Status;
use weight_checker::view::{RawTensor, TensorView, views};

const CHUNK: usize = CHUNK_BYTES as usize;

/// The roots of tensors with these bytes, joined, by `limits`; and what the callback heard of progress.
fn joined(fake: &Fake, contents: &[Vec<u8>], limits: Limits) -> (Vec<[u8; 32]>, Vec<u64>) {
    let memory: Vec<_> = contents.iter().map(|content| put(fake, 0, content)).collect();
    let names: Vec<String> = (0..contents.len()).map(|index| index.to_string()).collect();
    let shapes: Vec<[i64; 1]> = contents.iter().map(|content| [content.len() as i64]).collect();
    let raw = |index: usize| RawTensor {
        name: &names[index],
        data: std::ptr::without_provenance_mut(memory[index].address as usize),
        device: (2, 0),
        dtype: (1, 8, 1),
        shape: &shapes[index],
        strides: None,
        byte_offset: 0,
    };
    let raw: Vec<_> = (0..contents.len()).map(raw).collect();
    // SAFETY: the memory is alive until the end of this function, and only the device's.
    let views = unsafe { views(&raw, Access::Read) }.unwrap();
    let views: Vec<&TensorView<'_>> = views.iter().collect();
    let call = Call::open(&views, Producer::default()).unwrap();
    let total = contents.iter().map(Vec::len).sum::<usize>() as u64;
    let heard = Mutex::new(Vec::new());
    let callback = |done, _| {
        heard.lock().unwrap().push(done);
        ControlFlow::Continue(())
    };
    let progress = Progress::start(total, Some(&callback)).unwrap();
    let roots = tree::roots(&call.sessions()[0], limits, &progress).unwrap();
    progress.finish().unwrap();
    assert_clean(fake);
    (roots.iter().map(|roots| *hash::join(roots).unwrap().bytes()).collect(), heard.into_inner().unwrap())
}

#[test]
fn parts_batches_and_launches_give_the_same_roots() {
    let fake = Fake::start();
    let lengths = [0, 1, CHUNK, 3 * CHUNK + 9, 5 * CHUNK, 9 * CHUNK + 8192, 1];
    let contents: Vec<Vec<u8>> = lengths.iter().map(|length| painted(*length)).collect();
    let tensors: Vec<_> = contents.iter().map(|content| common::Tensor::bytes("t", content)).collect();
    let expected: Vec<_> =
        tensors.iter().map(|tensor| digests_with(std::slice::from_ref(tensor), &algorithm(1)).unwrap()[0]).collect();
    for part_chunks in [1, 4, 1 << 17] {
        for scratch_bytes in [1, 1000] {
            for launch_chunks in [1, 5, 1 << 14] {
                let limits = Limits { part_chunks, launch_chunks, scratch_bytes };
                assert_eq!(
                    joined(&fake, &contents, limits).0,
                    expected,
                    "{part_chunks} {scratch_bytes} {launch_chunks}"
                );
            }
        }
    }
}

#[test]
fn scratch_is_small_beside_the_tensors() {
    let fake = Fake::start();
    joined(&fake, &vec![painted(40 * CHUNK); 3], Limits::default());
    // 1 MiB on each of two devices, which other tests have used.
    let most = fake.counts().most_device_bytes;
    assert!(most > 0 && most <= 2 << 20, "{most} bytes of device memory");
}

#[test]
fn progress_is_told_between_launches() {
    let fake = Fake::start();
    let contents = [painted(64 * CHUNK + 5)];
    let (_, heard) = joined(&fake, &contents, Limits { launch_chunks: 16, ..Limits::default() });
    assert!(heard.len() >= 4 && heard.is_sorted(), "{heard:?}");
    assert_eq!((heard[0], *heard.last().unwrap()), (0, contents[0].len() as u64));
}

#[test]
fn a_call_on_a_device_can_be_cancelled() {
    let fake = Fake::start();
    let memory = fake.put(0, &painted(48 * CHUNK));
    unsafe extern "C" fn stop(done: u64, _: u64, _: *mut std::ffi::c_void) -> i32 {
        i32::from(done > 0)
    }
    for code in devices::ALGORITHMS {
        let options = weight_checker::ffi::types::WcOptions { progress: Some(stop), ..algorithm(code) };
        assert_eq!(digests_with(&[bytes("t", 0, &memory)], &options).unwrap_err(), Status::Cancelled);
        assert_clean(&fake);
    }
}

#[test]
fn calls_of_several_threads_at_once() {
    let fake = Fake::start();
    let contents: Vec<Vec<u8>> = (0..6).map(|index| painted((1 << 20) + index * 100_003)).collect();
    let memory: Vec<_> =
        contents.iter().enumerate().map(|(index, content)| fake.put(index as i32 % 2, content)).collect();
    let tensors: Vec<(i32, u64, i64)> = memory
        .iter()
        .enumerate()
        .map(|(index, memory)| (index as i32 % 2, memory.address, memory.bytes as i64))
        .collect();
    std::thread::scope(|scope| {
        for (index, (device, start, length)) in tensors.iter().enumerate() {
            let content = &contents[index];
            scope.spawn(move || {
                for round in 0..10 {
                    let options = algorithm(round % 2);
                    let there = common::Tensor::new("t", devices::address(*start), common::UINT8, &[*length]);
                    let expected = digests_with(&[common::Tensor::bytes("t", content)], &options).unwrap();
                    assert_eq!(digests_with(&[devices::on(*device, there)], &options).unwrap(), expected);
                }
            });
        }
    });
    assert_clean(&fake);
}
