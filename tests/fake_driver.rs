//! The fake CUDA driver as the tests in Rust see it. What it does is tested in tests/python/test_fake_cuda.py.

mod fake_cuda;

use fake_cuda::{Capture, Fake};

#[test]
fn queued_writes_come_when_time_passes() {
    let fake = Fake::start();
    let memory = fake.put(1, b"old");
    let stream = fake.stream(1);
    memory.write_later(stream, 0, b"new");
    assert_eq!(memory.read(), b"old");
    assert_eq!(fake.counts().queued_elsewhere, 1);
    fake.run(1);
    assert_eq!(memory.read(), b"new");
}

#[test]
fn each_test_begins_with_the_first_state() {
    let fake = Fake::start();
    fake.push_context(1);
    assert_eq!((fake.context_depth(), fake.context_device(), fake.capture_mode()), (1, 1, 0));
    let stream = fake.stream(0);
    fake.begin_capture(stream, Capture::Global);
    assert!(!fake.end_capture(stream));
    fake.fail("cuMemAlloc", 1, fake_cuda::OUT_OF_MEMORY);
    fake.reset();
    assert_eq!((fake.context_depth(), fake.failures_left()), (0, 0));
    assert_eq!((fake.log(), fake.misuses()), (vec![], vec![]));
}
