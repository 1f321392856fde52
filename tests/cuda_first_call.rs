//! The first call on a CUDA device makes what is kept: when the driver refuses something, nothing of it is left, and the next
//! call makes it anew.

mod common;
#[path = "common/devices.rs"]
mod devices;
mod fake_cuda;

use common::{Tensor, UINT8, digests_with, last_error, reset};
use devices::{address, algorithm, assert_clean, bytes, on, painted};
use fake_cuda::Fake;
use weight_checker::status::Status;

/// Lets the `nth` call of `function` fail with `error`; the verb then gives `status`.
fn fails(fake: &Fake, function: &str, nth: u64, error: i32, verb: impl Fn() -> Option<Status>, status: Status) {
    fake.fail(function, nth, error);
    assert_eq!(verb(), Some(status), "call {nth} of {function}: {}", last_error());
    assert_eq!(fake.failures_left(), 0, "call {nth} of {function} was not made");
    let stem = function.trim_end_matches("_v2");
    assert!(last_error().contains(stem), "{stem}: {}", last_error());
    assert_clean(fake);
}

#[test]
fn what_is_made_once_is_made_whole_or_not_at_all() {
    let fake = Fake::start();
    let content = painted(20_000);
    let memory = fake.put(0, &content);
    let tensor = || bytes("t", 0, &memory);
    let chain = || digests_with(&[tensor()], &algorithm(0)).err();
    let tree = || digests_with(&[tensor()], &algorithm(1)).err();
    let fill = || reset(&[tensor()], 0, 0).err();
    let strided = || {
        let strided = Tensor::new("t", address(memory.address), UINT8, &[100, 7]).strided(&[1, 100]);
        digests_with(&[on(0, strided)], &algorithm(0)).err()
    };

    for (function, nth, error, status) in [
        ("cuInit", 1, 100, Status::CudaUnavailable),
        ("cuInit", 1, 803, Status::CudaUnavailable),
        ("cuDeviceGetCount", 1, 999, Status::Cuda),
        ("cuDeviceGet", 1, 101, Status::CudaUnavailable),
        ("cuDevicePrimaryCtxRetain", 1, 2, Status::OutOfDeviceMemory),
        ("cuThreadExchangeStreamCaptureMode", 1, 999, Status::Cuda),
        ("cuCtxPushCurrent_v2", 1, 201, Status::Cuda),
        ("cuCtxGetStreamPriorityRange", 3, 999, Status::Cuda),
        ("cuStreamCreateWithPriority", 1, 2, Status::OutOfDeviceMemory),
        ("cuStreamCreateWithPriority", 4, 2, Status::OutOfDeviceMemory),
        ("cuCtxPopCurrent_v2", 1, 999, Status::Cuda),
    ] {
        fails(&fake, function, nth, error, chain, status);
        let counts = fake.counts();
        assert_eq!((counts.contexts, counts.streams), ([0; 8], 0), "after call {nth} of {function}");
    }
    fake.pinned_limit(1);
    assert_eq!(chain(), Some(Status::OutOfDeviceMemory));
    assert!(last_error().contains("cuMemHostAlloc"), "{}", last_error());
    fake.pinned_limit(u64::MAX);
    fake.device_limit(1);
    for verb in [&tree as &dyn Fn() -> Option<Status>, &fill, &strided] {
        assert_eq!(verb(), Some(Status::OutOfDeviceMemory));
        assert!(last_error().contains("cuMemAlloc"), "{}", last_error());
    }
    fake.device_limit(u64::MAX);
    assert_eq!(chain(), None, "{}", last_error());
    let kept = fake.counts();
    assert_eq!((kept.contexts[0], kept.modules), (1, 0));

    for (verb, functions) in [(&tree as &dyn Fn() -> Option<Status>, 3), (&fill, 2)] {
        let modules = fake.counts().modules;
        fails(&fake, "cuModuleLoadDataEx", 1, 222, verb, Status::CudaUnavailable);
        assert!(last_error().contains("too old"), "{}", last_error());
        fails(&fake, "cuModuleLoadDataEx", 1, 218, verb, Status::Cuda);
        for nth in 1..=functions {
            fails(&fake, "cuModuleGetFunction", nth, 500, verb, Status::Cuda);
            assert_eq!(fake.counts().modules, modules);
        }
        assert_eq!(verb(), None, "{}", last_error());
        assert_eq!(fake.counts().modules, modules + 1);
    }
    memory.write(0, &content);
    assert_eq!(strided(), None, "{}", last_error());
    assert_eq!(tree(), None);
    let after = fake.counts();
    fake.clear_log();
    for verb in [&chain as &dyn Fn() -> Option<Status>, &tree, &fill, &strided] {
        assert_eq!(verb(), None, "{}", last_error());
    }
    assert_eq!(fake.counts(), after, "calls that follow keep more");
    let makes = |call: &&String| ["Alloc", "Free", "Create", "Destroy", "Load"].iter().any(|verb| call.contains(verb));
    assert_eq!(fake.log().iter().filter(makes).collect::<Vec<_>>(), [""; 0], "calls that follow make something anew");
}
